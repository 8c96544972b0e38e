"""The worker's own connections: no wait without a bound (field lessons 2 and 3)."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from django_belay.exceptions import StorageError, Unavailable
from django_belay.storage.postgres import bounded, pool
from django_belay.storage.postgres.pool import PoolOptions, PoolSession
from django_belay.testing.postgres import PostgresServer

pytestmark = pytest.mark.postgres


@pytest.fixture
def session(postgres_server: PostgresServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[PoolSession]:
    texts = {"slow": "SELECT pg_sleep(20)", "quick": "SELECT pg_backend_pid()"}
    monkeypatch.setattr(pool, "statement", texts.__getitem__)
    monkeypatch.setattr(pool, "is_unprepared", lambda name: False)
    session = PoolSession(postgres_server.parameters, PoolOptions(size=1, statement_timeout_s=0.3))
    yield session
    session.close()


def test_lesson_2_a_statement_that_outlasts_its_time_is_cancelled_and_the_connection_lives(
    session: PoolSession,
) -> None:
    before = session.run("quick")
    started = time.monotonic()
    with pytest.raises(Unavailable, match="cancel"):
        session.run("slow")
    assert time.monotonic() - started < 10
    assert session.run("quick") == before


def test_lesson_2_inside_a_transaction_too(session: PoolSession) -> None:
    with pytest.raises(Unavailable, match="cancel"), session.transaction() as transaction:
        transaction.run("slow")
    assert session.run("quick")


def test_lesson_3_a_server_that_does_not_even_cancel_costs_the_connection(
    session: PoolSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bounded, "GRACE_S", 0.3)
    before = session.run("quick")

    def ignored(*_: Any, **__: Any) -> None:
        raise psycopg.OperationalError("nobody listens")

    monkeypatch.setattr(bounded.BoundedConnection, "cancel_safe", ignored)
    started = time.monotonic()
    with pytest.raises(Unavailable, match=r"no answer within 0\.3 s"):
        session.run("slow")
    assert time.monotonic() - started < 10
    assert session.run("quick") != before


def test_lesson_60_what_the_server_can_never_hold_is_no_outage(
    session: PoolSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An acknowledger keeps trying through an outage; this would never get through."""
    text = "SELECT " + ", ".join(["1"] * 1665)  # class 54: target lists have 1664 entries at most
    monkeypatch.setattr(pool, "statement", lambda name: text)
    with pytest.raises(StorageError) as caught:
        session.run("wide")
    assert not isinstance(caught.value, Unavailable)
