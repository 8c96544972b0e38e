"""What a claim costs beside a backlog, rows due later, dead rows, and under limits.

Run: ``python -m soak.bench.claim [--rows 1000000]``. Prints medians in milliseconds and their ratios;
only ratios of one run say anything. Each measured claim is rolled back, so every one meets the same rows.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
from psycopg import sql

from django_belay.contract.admission import Limits, Partition, Rate
from django_belay.storage.base import ClaimRound, Demand
from django_belay.storage.postgres import claims, schema
from django_belay.storage.postgres.pool import PoolOptions, PoolSession
from django_belay.storage.postgres.session import Transaction
from django_belay.testing.postgres import find_postgres

NOW = datetime(2030, 1, 1, tzinfo=UTC)
ROUND = ClaimRound(leased_by="bench:1:1", lease_until=NOW + timedelta(seconds=30))
DATABASE = "belay_bench_claim"

Connection = psycopg.Connection[Any]


class _RollBack(Exception):
    pass


class _OneTransaction:
    """A session whose every operation runs in one transaction that the bench rolls back."""

    def __init__(self, transaction: Transaction) -> None:
        self.run = transaction.run
        self._transaction = transaction

    @contextmanager
    def transaction(self) -> Iterator[Transaction]:
        yield self._transaction

    def is_joined(self) -> bool:
        return True

    def pause(self, seconds: float) -> None:
        raise AssertionError("a bench has nobody to wait for")

    def close(self) -> None:
        pass


def measure(session: PoolSession, operation: Callable[[Any], int], *, expect: int, times: int = 40) -> float:
    """Median milliseconds of an operation; BEGIN and ROLLBACK stay outside."""
    taken = []
    for _ in range(times):
        try:
            with session.transaction() as transaction:
                before = time.perf_counter()
                got = operation(_OneTransaction(transaction))
                taken.append(time.perf_counter() - before)
                assert got == expect, (got, expect)
                raise _RollBack
        except _RollBack:
            pass
    return statistics.median(taken[5:]) * 1000


def plain(queue: str, take: int = 100) -> Callable[[Any], int]:
    def operation(session: Any) -> int:
        found = claims.claim(session, ROUND, demands=[Demand(queue=queue, take=take)], limited=[], now=NOW)
        return len(found.jobs)

    return operation


def round_trip(session: Any) -> int:
    session.run("find_schema")
    return 0


def limited(queue: str, limits: Limits, take: int = 100) -> Callable[[Any], int]:
    def operation(session: Any) -> int:
        demand = Demand(queue=queue, take=take)
        return len(
            claims.claim_limited(session, ROUND, demand=demand, limits=limits, local_limit=10, now=NOW)
        )

    return operation


def load(connection: Connection, queue: str, rows: int, *, priority: int = 0, ready_s: str = "-n") -> None:
    """Ready rows; ``ready_s`` is a SQL expression of n for ready_at in seconds from now."""
    connection.execute(
        f"""INSERT INTO belay_jobs (kind, queue, priority, input, ready_at, inserted_at)
            SELECT 'bench.noop', %s, %s,
                   jsonb_build_object('n', n, 'tenant', CASE WHEN n %% 31 = 0 THEN 'small' ELSE 'big' END),
                   %s::timestamptz + make_interval(secs => {ready_s}), %s
              FROM generate_series(1, %s) AS n""".encode(),
        (queue, priority, NOW, NOW, rows),
    )


def compare(name: str, value: float, base: float | None = None) -> None:
    ratio = "" if base is None else f"   {value / base:5.2f} x"
    print(f"{name:<58} {value:8.2f} ms{ratio}", flush=True)


def backlog(connection: Connection, session: PoolSession, rows: int) -> float:
    load(connection, "small", 1_000)
    load(connection, "large", rows)
    load(connection, "future", 200_000, priority=-10, ready_s="3600 + n")
    load(connection, "future", 10_000)
    connection.execute("VACUUM ANALYZE belay_jobs")
    base = measure(session, plain("small"), expect=100)
    compare("claim 100, 1,000 ready", base, base)
    compare(f"claim 100, {rows:,} ready", measure(session, plain("large"), expect=100), base)
    compare("claim 100, 200,000 due later ahead", measure(session, plain("future"), expect=100), base)
    one = measure(session, plain("small", 1), expect=1)
    compare("claim 1, 1,000 ready", one, one)
    compare(f"claim 1, {rows:,} ready", measure(session, plain("large", 1), expect=1), one)
    compare("claim, nothing there", measure(session, plain("none"), expect=0), one)
    return base


def dead(connection: Connection, session: PoolSession, base: float) -> None:
    connection.execute("ALTER TABLE belay_jobs SET (autovacuum_enabled = false)")
    load(connection, "dead", 201_000)
    connection.execute("ANALYZE belay_jobs")
    connection.execute(
        "UPDATE belay_jobs SET state = 'succeeded', finished_at = %s WHERE queue = 'dead' AND id IN "
        "(SELECT id FROM belay_jobs WHERE queue = 'dead' ORDER BY ready_at LIMIT 200000)",
        (NOW,),
    )
    first = time.perf_counter()
    measure(session, plain("dead"), expect=100, times=6)
    print(
        f"{'first six claims after 200,000 rows left ready':<58} {(time.perf_counter() - first) / 6e-3:8.2f} ms"
    )
    compare("claim 100, 200,000 dead rows ahead", measure(session, plain("dead"), expect=100), base)
    connection.execute("ALTER TABLE belay_jobs RESET (autovacuum_enabled)")
    before = time.monotonic()
    while not autovacuumed(connection):
        if time.monotonic() - before > 240:
            print("autovacuum did not come by in 240 s")
            connection.execute("VACUUM belay_jobs")
            break
        time.sleep(1)  # the launcher looks once a minute
    print(f"autovacuum had been there after {time.monotonic() - before:.0f} s")
    compare("claim 100, after vacuum", measure(session, plain("dead"), expect=100), base)


def autovacuumed(connection: Connection) -> bool:
    row = connection.execute(
        "SELECT autovacuum_count > 0 AND n_dead_tup < 50000 FROM pg_stat_user_tables WHERE relname = 'belay_jobs'"
    ).fetchone()
    return bool(row and row[0])


def under_limits(connection: Connection, session: PoolSession) -> None:
    partition = Partition(column="input", key="tenant")
    load(connection, "mixed", 100_000)
    load(connection, "unindexed", 100_000)
    schema.migrate(connection, partitions={"mixed": partition})
    connection.execute("VACUUM ANALYZE belay_jobs")
    rate = Limits(rate=Rate(allowed=1000, period_s=60, resource="llm"))
    wide = Limits(partition=partition, global_limit=50)
    tight = Limits(partition=partition, global_limit=5)
    for name, queue, limits, take, expect in (
        ("global_limit, 100,000 ready, claim 10", "mixed", Limits(global_limit=100), 10, 10),
        ("rate, 100,000 ready, claim 10", "mixed", rate, 10, 10),
        ("partition 30:1, claim 10", "mixed", wide, 10, 10),
        ("partition 30:1, claim 100", "mixed", wide, 100, 100),
        ("partition 30:1, more wanted than keys admit", "mixed", tight, 100, 10),
        ("the same without the index by key", "unindexed", tight, 100, 10),
    ):
        compare(name, measure(session, limited(queue, limits, take), expect=expect, times=20))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--postgres", choices=("url", "container", "embedded"))
    options = parser.parse_args()
    with find_postgres(options.postgres) as server:
        name = sql.Identifier(DATABASE)
        with psycopg.connect(server.dsn, autocommit=True) as connection:
            connection.execute(sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(name))
            connection.execute(sql.SQL("CREATE DATABASE {}").format(name))
        params = {**server.parameters, "dbname": DATABASE}
        print(server)
        for prepare in (True, False):
            print(f"\nprepared statements {'on' if prepare else 'off'}")
            run(params, prepare=prepare, rows=options.rows)
        with psycopg.connect(server.dsn, autocommit=True) as connection:
            connection.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(name))


def run(params: dict[str, str], *, prepare: bool, rows: int) -> None:
    session = PoolSession(params, PoolOptions(size=1, prepare=prepare, statement_timeout_s=120))
    try:
        with psycopg.connect(**params, autocommit=True) as connection:
            schema.migrate(connection)
            connection.execute("TRUNCATE belay_jobs")
            compare("round trip", measure(session, round_trip, expect=0))
            base = backlog(connection, session, rows)
            under_limits(connection, session)
            if prepare:
                dead(connection, session, base)
    finally:
        session.close()


if __name__ == "__main__":
    main()
