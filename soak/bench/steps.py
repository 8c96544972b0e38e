"""How many steps a second one process journals, beside the raw rate of one commit a step in the same run.

Run: ``python -m soak.bench.steps [--jobs 1000] [--steps 10] [--concurrency 100]``. The aim: 3,000 a second.
"""

from __future__ import annotations

import argparse
import os
import threading
import time

import psycopg

from soak.bench.site import add_postgres_option, bench_site, start_worker

# What a step must do at least: one row written through its job's row, in a commit of its own.
RAW_STEP = """
    INSERT INTO belay_steps (job_id, seq, name, value, usd_micros, tokens, inserted_at)
    SELECT j.id, %s, %s, '0', 0, 0, now() FROM belay_jobs AS j WHERE j.id = %s FOR KEY SHARE
"""
RAW_CONNECTIONS = 20


def raw_rate(dsn: str, jobs: int, steps: int) -> float:
    """Steps a second of prepared single commits over as many connections as a worker's pool has at most."""
    from soak.bench.jobs import noop

    ids = noop.enqueue_many([{}] * jobs).ids
    shares = [ids[number::RAW_CONNECTIONS] for number in range(RAW_CONNECTIONS)]

    def write(share: list[int]) -> None:
        with psycopg.connect(dsn, autocommit=True, prepare_threshold=0) as connection:
            for job_id in share:
                for number in range(steps):
                    connection.execute(RAW_STEP, [number, f"s{number}", job_id])

    threads = [threading.Thread(target=write, args=(share,)) for share in shares]
    before = time.perf_counter()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    rate = jobs * steps / (time.perf_counter() - before)
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("TRUNCATE belay_jobs, belay_steps")
    return rate


def worker_rate(dsn: str, jobs: int, count: int, concurrency: int) -> float:
    """Steps a second of one child, from the first claim to the last ack."""
    from soak.bench.jobs import steps

    steps.enqueue_many([{"count": count}] * jobs)
    worker = start_worker(
        "--until-empty", "--queue", f"bench={concurrency}", "--concurrency", str(concurrency)
    )
    code = worker.wait(timeout=600)
    with psycopg.connect(dsn, autocommit=True) as connection:
        row = connection.execute(
            "SELECT count(*) FILTER (WHERE state = 'succeeded'),"
            " extract(epoch FROM max(finished_at) - min(started_at)) FROM belay_jobs"
        ).fetchone()
        connection.execute("TRUNCATE belay_jobs, belay_steps")
    assert row is not None
    done, seconds = row
    assert (code, done) == (0, jobs), (code, done)
    return jobs * count / float(seconds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=1_000)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--concurrency", type=int, default=100)
    add_postgres_option(parser)
    given = parser.parse_args()
    options = {"QUEUES": {"bench": given.concurrency}, "LEASE_TTL": 30}
    with bench_site("belay_bench_steps", options, force=given.postgres) as dsn:
        raw = raw_rate(dsn, given.jobs, given.steps)
        load = os.getloadavg()[0]
        print(
            f"raw, a commit a step over {RAW_CONNECTIONS} connections: {raw:,.0f} steps/s (load {load:.1f})"
        )
        for _ in range(2):
            rate = worker_rate(dsn, given.jobs, given.steps, given.concurrency)
            print(
                f"{given.jobs:,} jobs of {given.steps} steps, one process, concurrency {given.concurrency}: "
                f"{rate:,.0f} steps/s, {rate / raw:.2f} of the raw rate"
            )


if __name__ == "__main__":
    main()
