"""Bulk inserts beside a raw ``INSERT … SELECT unnest`` of the same rows, and single ones beside a bare INSERT.

Run: ``python -m soak.bench.insert [--rows 100000] [--chunk 500]``. Prints rows a second and ratios; only
ratios of one run say anything. The ways take turns, chunk by chunk, so that a slow moment hits all alike.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Any

import psycopg
from psycopg import sql

from django_belay.contract.job import NewJob
from django_belay.contract.notification import PokePolicy
from django_belay.storage.postgres import schema
from django_belay.storage.postgres.pool import PoolOptions, PoolSession
from django_belay.storage.postgres.rows import json_text
from django_belay.storage.postgres.store import PostgresStore
from django_belay.testing.postgres import find_postgres

NOW = datetime(2030, 1, 1, tzinfo=UTC)
DATABASE = "belay_bench_insert"

RAW = """
INSERT INTO belay_jobs (kind, queue, state, input, priority, max_attempts, ready_at, inserted_at)
SELECT kind, queue, 'ready', input, priority, max_attempts, %(now)s::timestamptz, %(now)s::timestamptz
  FROM unnest(%(kinds)s::text[], %(queues)s::text[], %(inputs)s::jsonb[], %(priorities)s::int[],
              %(attempts)s::int[]) AS u (kind, queue, input, priority, max_attempts)
RETURNING id
"""

Way = Callable[[Sequence[NewJob]], Any]


def raw(connection: psycopg.Connection[Any]) -> Way:
    def insert(jobs: Sequence[NewJob]) -> Any:
        return connection.execute(
            RAW.encode(),
            {
                "kinds": [job.kind for job in jobs],
                "queues": [job.queue for job in jobs],
                "inputs": [json_text(job.input) for job in jobs],
                "priorities": [job.priority for job in jobs],
                "attempts": [job.max_attempts for job in jobs],
                "now": NOW,
            },
        ).fetchall()

    return insert


def rows(start: int, count: int, *, keyed: bool) -> list[NewJob]:
    mode: Any = "incomplete" if keyed else None
    return [
        NewJob(
            kind="shop.send_receipt",
            queue="mail",
            input={"order_id": n, "address": f"someone-{n}@example.org"},
            unique_key=f"receipt:{n * 7919 % 1_000_003}" if keyed else None,
            unique_mode=mode,
        )
        for n in range(start, start + count)
    ]


def race(ways: dict[str, tuple[Way, bool]], *, total: int, chunk: int) -> dict[str, float]:
    """Rows a second of each way."""
    taken = dict.fromkeys(ways, 0.0)
    for start in range(0, total, chunk):
        for name, (insert, keyed) in ways.items():
            jobs = rows(start, chunk, keyed=keyed)
            before = time.perf_counter()
            insert(jobs)
            taken[name] += time.perf_counter() - before
    return {name: total / seconds for name, seconds in taken.items()}


def report(title: str, found: dict[str, float], base: str) -> None:
    print(f"\n{title}")
    for name, rate in found.items():
        print(f"  {name:<44} {rate:10,.0f} rows/s   {rate / found[base]:5.2f} x")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--chunk", type=int, default=500)
    parser.add_argument("--postgres", choices=("url", "container", "embedded"))
    options = parser.parse_args()
    with find_postgres(options.postgres) as server:
        name = sql.Identifier(DATABASE)
        with psycopg.connect(server.dsn, autocommit=True) as connection:
            connection.execute(sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(name))
            connection.execute(sql.SQL("CREATE DATABASE {}").format(name))
        print(server)
        run({**server.parameters, "dbname": DATABASE}, total=options.rows, chunk=options.chunk)
        with psycopg.connect(server.dsn, autocommit=True) as connection:
            connection.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(name))


def run(params: dict[str, str], *, total: int, chunk: int) -> None:
    session = PoolSession(params, PoolOptions(size=1))
    django = psycopg.connect(**params, autocommit=True, cursor_factory=psycopg.ClientCursor)
    plain = psycopg.connect(**params, autocommit=True)
    try:
        schema.migrate(plain)
        store = PostgresStore(session)
        quiet = PostgresStore(session, poke=PokePolicy(mode="off"))
        every = PostgresStore(session, poke=PokePolicy(mode="always"))
        bulk: dict[str, tuple[Way, bool]] = {
            "raw INSERT … SELECT unnest": (raw(plain), False),
            "insert_jobs": (lambda jobs: store.insert_jobs(jobs, now=NOW), False),
            "insert_jobs, each with a unique key": (lambda jobs: store.insert_jobs(jobs, now=NOW), True),
        }
        race(bulk, total=chunk, chunk=chunk)
        plain.execute("TRUNCATE belay_jobs")
        report(f"bulk, {chunk} a call", race(bulk, total=total, chunk=chunk), "raw INSERT … SELECT unnest")
        single: dict[str, tuple[Way, bool]] = {
            "raw INSERT, prepared": (raw(plain), False),
            "raw INSERT, client-side binding (Django's)": (raw(django), False),
            "insert_jobs, NOTIFY off": (lambda jobs: quiet.insert_jobs(jobs, now=NOW), False),
            "insert_jobs, NOTIFY always": (lambda jobs: every.insert_jobs(jobs, now=NOW), False),
        }
        plain.execute("TRUNCATE belay_jobs")
        report(
            "one a call, own transaction",
            race(single, total=max(total // 50, 200), chunk=1),
            "raw INSERT, prepared",
        )
    finally:
        django.close()
        plain.close()
        session.close()


if __name__ == "__main__":
    main()
