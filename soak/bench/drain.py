"""How fast one process drains a backlog of jobs that do nothing, beside a raw claim and ack loop.

Run: ``python -m soak.bench.drain [--jobs 20000] [--concurrency 100] [--processes 1]``. Only the ratio of
one run says anything: absolute figures belong to one machine at one time.
"""

from __future__ import annotations

import argparse
import time

import psycopg

from soak.bench.site import add_postgres_option, bench_site, start_worker

RAW_CLAIM = """
    UPDATE belay_jobs SET state = 'running', attempt = attempt + 1,
           lease_until = now() + interval '30 s', leased_by = 'raw', started_at = now()
     WHERE id = ANY(ARRAY(
           SELECT id FROM belay_jobs WHERE queue = 'bench' AND state = 'ready' AND ready_at <= now()
            ORDER BY priority, ready_at, id LIMIT 100 FOR UPDATE SKIP LOCKED))
 RETURNING id, kind, input
"""
RAW_ACK = """
    UPDATE belay_jobs SET state = 'succeeded', finished_at = now(), lease_until = NULL, leased_by = NULL
     WHERE id = ANY(%s) AND state = 'running'
"""


def fill(dsn: str, jobs: int) -> None:
    from soak.bench.jobs import noop

    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("TRUNCATE belay_jobs")
    noop.enqueue_many([{}] * jobs)
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("VACUUM ANALYZE belay_jobs")
        connection.execute("CHECKPOINT")


def raw_rate(dsn: str, jobs: int) -> float:
    """Jobs a second of a loop that claims a hundred and acks a hundred, and nothing else."""
    fill(dsn, jobs)
    done = 0
    with psycopg.connect(dsn, autocommit=True) as connection:
        before = time.perf_counter()
        while ids := [row[0] for row in connection.execute(RAW_CLAIM).fetchall()]:
            connection.execute(RAW_ACK, [ids])
            done += len(ids)
        return done / (time.perf_counter() - before)


def worker_rate(dsn: str, jobs: int, *, concurrency: int, processes: int) -> float:
    """Jobs a second of a worker, from the first claim to the last ack."""
    fill(dsn, jobs)
    worker = start_worker(
        "--until-empty",
        "--queue",
        f"bench={concurrency}",
        "--concurrency",
        str(concurrency),
        "--processes",
        str(processes),
    )
    code = worker.wait(timeout=600)
    with psycopg.connect(dsn) as connection:
        row = connection.execute(
            "SELECT count(*) FILTER (WHERE state = 'succeeded'),"
            " extract(epoch FROM max(finished_at) - min(started_at)) FROM belay_jobs"
        ).fetchone()
    assert row is not None
    done, seconds = row
    assert (code, done) == (0, jobs), (code, done)
    return done / float(seconds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=20_000)
    parser.add_argument("--concurrency", type=int, default=100)
    parser.add_argument("--processes", type=int, default=1)
    add_postgres_option(parser)
    given = parser.parse_args()
    options = {"QUEUES": {"bench": given.concurrency}, "LEASE_TTL": 30}
    with bench_site("belay_bench_drain", options, force=given.postgres) as dsn:
        raw = raw_rate(dsn, given.jobs)
        print(f"raw loop, claim 100 / ack 100: {raw:,.0f} jobs/s")
        for _ in range(2):
            rate = worker_rate(dsn, given.jobs, concurrency=given.concurrency, processes=given.processes)
            print(
                f"worker, {given.processes} process(es), concurrency {given.concurrency}: "
                f"{rate:,.0f} jobs/s, {rate / raw:.2f} of the raw loop"
            )


if __name__ == "__main__":
    main()
