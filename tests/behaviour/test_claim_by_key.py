"""Partitioned claims with the index by key: exact, and blind to what full keys hold (rule 14)."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import psycopg
import pytest

from django_belay.contract.admission import Limits, Partition
from django_belay.contract.job import NewJob
from django_belay.storage.base import ClaimRound, Demand
from django_belay.storage.postgres import claims, schema
from django_belay.storage.postgres.partition import index_name
from django_belay.storage.postgres.statements import statement
from django_belay.storage.postgres.store import PostgresStore
from django_belay.testing.clock import SimClock
from tests.behaviour.test_claim_plan import explain

QUEUE = 'it\'s "q"'
PARTITION = Partition(column="input", key="ten'ant")


class RolledBack(Exception):
    pass


@pytest.fixture
def key_index(connection: psycopg.Connection[Any], empty_tables: None) -> Iterator[None]:
    assert schema.migrate(connection, partitions={QUEUE: PARTITION}) == [
        f"own index {index_name(QUEUE, PARTITION)} (keys of queue {QUEUE!r})"
    ]
    assert schema.migrate(connection, partitions={QUEUE: PARTITION}) == []
    yield
    connection.execute(f"DROP INDEX IF EXISTS {index_name(QUEUE, PARTITION)}".encode())


def put(store: PostgresStore, clock: SimClock, keys: str, **columns: Any) -> list[int]:
    jobs = [NewJob(kind="k", queue=QUEUE, input={"ten'ant": key}, **columns) for key in keys]
    return [inserted.job_id for inserted in store.insert_jobs(jobs, now=clock.now())]


def claim(store: PostgresStore, clock: SimClock, *, limit: int, take: int) -> list[int]:
    found = store.claim_limited(
        ClaimRound(leased_by="n:1:1", lease_until=clock.now() + timedelta(seconds=30)),
        demand=Demand(queue=QUEUE, take=take),
        limits=Limits(global_limit=limit, partition=PARTITION),
        local_limit=1,
        now=clock.now(),
    )
    return [job.id for job in found]


def test_rule_14_rows_behind_a_full_key_are_found_in_order(
    make_postgres_store: Callable[..., PostgresStore], clock: SimClock, key_index: None
) -> None:
    store = make_postgres_store()
    rows = put(store, clock, "a" * 600 + "bcb")
    assert claim(store, clock, limit=1, take=9) == [rows[0], rows[600], rows[601]]
    assert claim(store, clock, limit=1, take=9) == []
    assert claim(store, clock, limit=2, take=2) == [rows[1], rows[602]]


@pytest.mark.parametrize("seed", range(12))
def test_rule_14_with_and_without_the_index_the_same_rows_are_claimed(
    make_postgres_store: Callable[..., PostgresStore],
    clock: SimClock,
    key_index: None,
    connection: psycopg.Connection[Any],
    monkeypatch: pytest.MonkeyPatch,
    seed: int,
) -> None:
    rng = random.Random(seed)
    store = make_postgres_store()
    for _ in range(40):
        put(
            store,
            clock,
            rng.choice(["a", "a", "b", "", "cd"]),
            priority=rng.choice([0, 0, 1]),
            ready_at=clock.now() + timedelta(seconds=rng.randint(-9, 3)),
        )
    connection.execute("UPDATE belay_jobs SET input = '{}' WHERE id % 7 = 0")
    connection.execute("UPDATE belay_jobs SET ready_at = NULL WHERE id % 5 = 0")
    connection.execute("UPDATE belay_jobs SET state = 'awaiting' WHERE id % 6 = 0")
    limit, take = rng.randint(1, 5), rng.randint(1, 12)
    claim(store, clock, limit=2, take=3)
    monkeypatch.setattr(claims, "MIN_PREFIX", 1)
    monkeypatch.setattr(claims, "PREFIX_FACTOR", 1)

    def claimed_and_undone() -> list[int]:
        before = connection.execute("SELECT id, state, ready_at FROM belay_jobs").fetchall()
        got = claim(store, clock, limit=limit, take=take)
        for job_id, state, ready_at in before:
            if job_id in got:
                connection.execute(
                    "UPDATE belay_jobs SET state = %s, ready_at = %s, attempt = 0, started_at = NULL WHERE id = %s",
                    (state, ready_at, job_id),
                )
        return got

    by_key = claimed_and_undone()
    monkeypatch.setattr(claims, "_has_key_index", lambda *_: False)
    assert claimed_and_undone() == by_key


def test_rule_14_the_rows_of_full_keys_are_not_read(
    make_postgres_store: Callable[..., PostgresStore],
    clock: SimClock,
    key_index: None,
    connection: psycopg.Connection[Any],
) -> None:
    connection.execute(
        "INSERT INTO belay_jobs (kind, queue, input, ready_at, inserted_at) "
        "SELECT 'k', %(queue)s, jsonb_build_object('ten''ant', CASE WHEN n %% 31 = 0 THEN 'small' ELSE 'big' END), "
        "%(now)s, %(now)s FROM generate_series(1, 20000) AS n",
        {"queue": QUEUE, "now": clock.now()},
    )
    connection.execute("ANALYZE belay_jobs")
    params = {
        "queue": QUEUE,
        "field": PARTITION.column,
        "key": PARTITION.key,
        "now": clock.now(),
        "live_keys": ["big"],
        "live_counts": [5],
        "per_key_limit": 5,
        "take": 100,
    }
    for node in explain(connection, "rank_by_key", params):
        rows = node["Actual Rows"] * max(node["Actual Loops"], 1) + node.get("Rows Removed by Filter", 0)
        assert rows <= 20, (node["Node Type"], node.get("Index Name"), rows)
    assert len(connection.execute(statement("rank_by_key").encode(), params).fetchall()) == 5


def test_2_a_key_longer_than_an_index_entry_is_inserted_and_claimed(
    make_postgres_store: Callable[..., PostgresStore], clock: SimClock, key_index: None
) -> None:
    """An index of ours must refuse no row, whichever SDK inserts it (rule 2)."""
    store = make_postgres_store()
    rng = random.Random(1)
    key = "".join(chr(rng.randrange(0x4E00, 0x9FFF)) for _ in range(2_000))
    [long] = store.insert_jobs([NewJob(kind="k", queue=QUEUE, input={"ten'ant": key})], now=clock.now())
    assert claim(store, clock, limit=1, take=9) == [long.job_id]
