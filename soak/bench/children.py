"""What a fan-out with its fan-in costs beside as many independent jobs, in one run.

Run: ``python -m soak.bench.children [--counts 1000 10000] [--processes 1]``. The aim is under 3 times the
time of independent jobs at both counts: no term grows with the square of the children.
"""

from __future__ import annotations

import argparse
import os

import psycopg

from soak.bench.site import add_postgres_option, bench_site, start_worker

CONCURRENCY = 100


def drained_s(dsn: str, expected: int, processes: int) -> float:
    """Seconds from the first start to the last end of what is enqueued."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("VACUUM ANALYZE belay_jobs")
    worker = start_worker(
        "--until-empty",
        "--queue",
        f"bench={CONCURRENCY}",
        "--concurrency",
        str(CONCURRENCY),
        "--processes",
        str(processes),
    )
    code = worker.wait(timeout=900)
    with psycopg.connect(dsn) as connection:
        row = connection.execute(
            "SELECT count(*) FILTER (WHERE state = 'succeeded'),"
            " extract(epoch FROM max(finished_at) - min(started_at)) FROM belay_jobs"
        ).fetchone()
    assert row is not None
    assert (code, row[0]) == (0, expected), (code, row[0])
    return float(row[1])


def empty(dsn: str) -> None:
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("TRUNCATE belay_jobs, belay_steps, belay_signals")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--counts", type=int, nargs="*", default=[1_000, 10_000])
    parser.add_argument("--processes", type=int, default=1)
    add_postgres_option(parser)
    given = parser.parse_args()
    options = {"QUEUES": {"bench": CONCURRENCY}, "LEASE_TTL": 30}
    with bench_site("belay_bench_children", options, force=given.postgres) as dsn:
        from soak.bench.jobs import child, parent

        for count in given.counts:
            empty(dsn)
            child.enqueue_many({"n": n} for n in range(count))
            alone = drained_s(dsn, count, given.processes)
            empty(dsn)
            parent.enqueue(count=count)
            fan = drained_s(dsn, count + 1, given.processes)
            load = ", ".join(f"{part:.1f}" for part in os.getloadavg())
            print(
                f"{count:,} independent jobs {alone:.2f} s; as children with their fan-in {fan:.2f} s: "
                f"{fan / alone:.2f} times (load {load})"
            )


if __name__ == "__main__":
    main()
