"""How long an idle worker takes from an enqueueing to the start of its job.

Run: ``python -m soak.bench.latency [--jobs 200] --notify auto|off``.
"""

from __future__ import annotations

import argparse
import random
import statistics
import time

import psycopg

from soak.bench.site import add_postgres_option, bench_site, start_worker


def measure(dsn: str, jobs: int) -> list[float]:
    """Milliseconds of each job, by the job's own clock on this machine."""
    from soak.bench.jobs import started

    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("TRUNCATE belay_jobs")
    worker = start_worker("--queue", "bench=10")
    try:
        _await_ready(dsn)
        for _ in range(jobs):
            started.enqueue(sent_at=time.time())
            time.sleep(random.uniform(0.1, 0.7))  # past the hot cadence: the worker is idle again
        return _results(dsn, jobs)
    finally:
        worker.terminate()
        worker.wait(timeout=30)


def _await_ready(dsn: str) -> None:
    from soak.bench.jobs import noop

    noop.enqueue()
    _results(dsn, 1, kind="noop")


def _results(dsn: str, count: int, kind: str = "started") -> list[float]:
    with psycopg.connect(dsn, autocommit=True) as connection:
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            rows = connection.execute(
                "SELECT result FROM belay_jobs WHERE kind LIKE %s AND state = 'succeeded'", [f"%.{kind}"]
            ).fetchall()
            if len(rows) >= count:
                return [float(result) * 1000 for (result,) in rows if result is not None]
            time.sleep(0.1)
    raise AssertionError(f"{len(rows)} of {count} jobs ended")


def raw_commits(dsn: str, count: int = 50) -> list[float]:
    """Milliseconds of a bare insert, each committed: the machine's own speed in this run."""
    taken = []
    with psycopg.connect(dsn, autocommit=True) as connection:
        for number in range(count):
            before = time.perf_counter()
            connection.execute("INSERT INTO belay_signals (scope, name) VALUES ('raw', %s)", [str(number)])
            taken.append((time.perf_counter() - before) * 1000)
            time.sleep(0.05)  # like the measured calls: one at a time, not a stream
    return taken


def report(label: str, taken: list[float]) -> None:
    taken.sort()
    p99 = taken[min(len(taken) - 1, int(len(taken) * 0.99))]
    print(f"{label}: p50 {statistics.median(taken):.1f} ms, p99 {p99:.1f} ms, max {taken[-1]:.1f} ms")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=200)
    parser.add_argument("--notify", choices=("auto", "off"), required=True)
    add_postgres_option(parser)
    given = parser.parse_args()
    options = {"QUEUES": {"bench": 10}, "NOTIFY": given.notify}
    with bench_site(f"belay_bench_latency_{given.notify}", options, force=given.postgres) as dsn:
        raw = raw_commits(dsn)
        report("raw insert of one row, committed", raw)
        taken = measure(dsn, given.jobs)
        report(f"enqueue to start, NOTIFY {given.notify}", taken)
        # The way from call to start has two commits: the enqueueing's and the claim's.
        print(f"p50 to two raw commits: {statistics.median(taken) / statistics.median(raw) / 2:.2f}")


if __name__ == "__main__":
    main()
