"""A database whose default level is REPEATABLE READ: operations of one statement go through (rule 10)."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest

from django_belay.storage.base import NewStep, Storage
from django_belay.storage.postgres.pool import PoolOptions, PoolSession
from django_belay.storage.postgres.store import PostgresStore
from django_belay.testing.clock import SimClock
from tests.behaviour.driving import add, running

Connection = psycopg.Connection[Any]


@pytest.fixture
def strict_store(behaviour_params: dict[str, str], empty_tables: None) -> Iterator[PostgresStore]:
    """A storage on a database whose administrator chose another level."""
    level = r"-c default_transaction_isolation=repeatable\ read"
    session = PoolSession({**behaviour_params, "options": level}, PoolOptions(size=2))
    yield PostgresStore(session)
    session.close()


@pytest.mark.parametrize("operation", ["move", "freeze", "step", "insert"])
def test_10_a_row_that_changes_while_a_statement_waits_for_it_fails_nothing(
    strict_store: PostgresStore,
    clock: SimClock,
    connection: Connection,
    behaviour_params: dict[str, str],
    operation: str,
) -> None:
    change, act = _operation(strict_store, clock, operation)
    answers: list[object] = []

    def body() -> None:
        try:
            answers.append(act())
        except Exception as error:
            answers.append(error)

    thread = threading.Thread(target=body)
    with psycopg.connect(**behaviour_params, autocommit=True) as other:
        with connection.transaction():
            connection.execute(change)
            thread.start()
            while other.execute("SELECT count(*) FROM pg_locks WHERE NOT granted").fetchone() == (0,):
                assert thread.is_alive(), f"it did not wait: {answers}"
        thread.join()
    assert not isinstance(answers[0], Exception), answers


def _operation(store: Storage, clock: SimClock, name: str) -> tuple[str, Callable[[], object]]:
    """What somebody else does to the row first, and the operation that waits for that."""
    now = clock.now()
    if name == "step":
        [job] = running(store, clock)
        change = f"UPDATE belay_jobs SET meta = '[1]' WHERE id = {job.id}"
        step = NewStep(name="s", value=b"1", usd_micros=1)
        return change, lambda: store.put_step(job.id, step, now=now)
    [job_id] = add(store, clock, unique_key="k", unique_mode="incomplete")
    if name == "insert":
        change = "INSERT INTO belay_jobs (kind, queue, unique_key, unique_mode, inserted_at) "
        change += "VALUES ('k', 'q', 'other', 'always', 'epoch')"
        return change, lambda: add(store, clock, unique_key="other", unique_mode="always")
    change = f"UPDATE belay_jobs SET priority = 5 WHERE id = {job_id}"
    if name == "freeze":
        return change, lambda: store.freeze(job_id, now=now)
    return change, lambda: store.move(job_id, queue="mail", now=now)
