"""What an idle worker costs: statements a second, and memory.

Run: ``python -m soak.bench.idle [--seconds 30] [--queues 20]``. Statements are counted by the server, from
its own statistics of transactions (every statement of an idle worker that is no part of a longer
transaction is one) and from ``pg_stat_statements`` where that is installed.
"""

from __future__ import annotations

import argparse
import os
import time
from pathlib import Path

import psycopg

from soak.bench.site import add_postgres_option, bench_site, start_worker


def transactions(connection: psycopg.Connection[tuple[int]]) -> int:
    row = connection.execute(
        "SELECT xact_commit + xact_rollback FROM pg_stat_database WHERE datname = current_database()"
    ).fetchone()
    assert row is not None
    return row[0]


def measure(dsn: str, seconds: float) -> float:
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute("SELECT pg_stat_clear_snapshot()")
        before, started = transactions(connection), time.monotonic()
        time.sleep(seconds)  # the measured interval
        connection.execute("SELECT pg_stat_clear_snapshot()")
        after = transactions(connection)
        # Two of our own fall into the interval.
        return (after - before - 2) / (time.monotonic() - started)


def pss_mib(pid: int) -> float:
    """Proportional set size, or resident where the kernel does not say."""
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) / 1024
    raise AssertionError("no Pss")


def children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=30)
    parser.add_argument("--queues", type=int, default=20)
    add_postgres_option(parser)
    given = parser.parse_args()
    queues = {f"q{number}": 10 for number in range(given.queues)}
    options = {"QUEUES": {"bench": 10, **queues}}
    with bench_site("belay_bench_idle", options, force=given.postgres) as dsn:
        worker = start_worker()
        try:
            time.sleep(10)  # start-up, and the decay of the poll
            rate = measure(dsn, given.seconds)
            print(f"idle worker, {given.queues + 1} queues: {rate:.1f} transactions/s")
            for pid in children(worker.pid):
                print(f"idle child {pid}: {pss_mib(pid):.0f} MiB PSS")
            print(
                f"idle supervisor: {pss_mib(worker.pid):.0f} MiB PSS (this bench: {pss_mib(os.getpid()):.0f})"
            )
        finally:
            worker.terminate()
            worker.wait(timeout=30)


if __name__ == "__main__":
    main()
