"""How fast awaiting jobs are signalled one by one and end, beside the raw rate of commits in one run.

Run: ``python -m soak.bench.signals [--jobs 10000] [--processes 2]``. The aim: at least 1,500 a second with
two processes, from the first signal to the last end.
"""

from __future__ import annotations

import argparse
import os
import time

import psycopg

from soak.bench.site import add_postgres_option, bench_site, start_worker

CONCURRENCY = 100


def raw_rate(dsn: str, count: int = 3_000) -> float:
    """Single-row upserts a second, each in a transaction of its own over one connection."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        before = time.perf_counter()
        for number in range(count):
            connection.execute(
                "INSERT INTO belay_signals (scope, name, payload, inserted_at) VALUES (%s, 'raw', '1', now())",
                [f"raw:{number}"],
            )
        rate = count / (time.perf_counter() - before)
        connection.execute("TRUNCATE belay_signals")
    return rate


def await_states(dsn: str, state: str, count: int, timeout_s: float = 300) -> None:
    deadline = time.monotonic() + timeout_s
    with psycopg.connect(dsn, autocommit=True) as connection:
        while time.monotonic() < deadline:
            row = connection.execute("SELECT count(*) FROM belay_jobs WHERE state = %s", [state]).fetchone()
            if row == (count,):
                return
            time.sleep(0.05)
    raise AssertionError(f"not {count} jobs are {state}: {row}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=10_000)
    parser.add_argument("--processes", type=int, default=2)
    add_postgres_option(parser)
    given = parser.parse_args()
    options = {"QUEUES": {"bench": CONCURRENCY}, "LEASE_TTL": 30}
    with bench_site("belay_bench_signals", options, force=given.postgres) as dsn:
        from django_belay import client
        from soak.bench.jobs import awaits

        raw = raw_rate(dsn)
        ids = awaits.enqueue_many([{}] * given.jobs).ids
        worker = start_worker(
            "--queue",
            f"bench={CONCURRENCY}",
            "--concurrency",
            str(CONCURRENCY),
            "--processes",
            str(given.processes),
        )
        try:
            await_states(dsn, "awaiting", given.jobs)
            before = time.perf_counter()
            for number, job_id in enumerate(ids):
                client.signal(job_id, "go", number)
            sent = time.perf_counter() - before
            await_states(dsn, "succeeded", given.jobs)
            done = time.perf_counter() - before
        finally:
            worker.terminate()
            worker.wait(timeout=60)
        load = ", ".join(f"{part:.1f}" for part in os.getloadavg())
        print(f"raw upserts, one a commit: {raw:,.0f}/s (load {load})")
        print(
            f"{given.jobs:,} jobs, {given.processes} processes: sent {given.jobs / sent:,.0f}/s, "
            f"signalled until ended {given.jobs / done:,.0f}/s, {given.jobs / done / raw:.2f} of the raw rate"
        )


if __name__ == "__main__":
    main()
