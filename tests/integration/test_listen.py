"""Hints over LISTEN: contract §9.2, rule 11."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from django_belay.contract.names import channel
from django_belay.contract.notification import Ended, Poke
from django_belay.storage.postgres import listen
from django_belay.storage.postgres.listen import PostgresListener
from django_belay.testing.postgres import PostgresServer

pytestmark = pytest.mark.postgres

Connection = psycopg.Connection[Any]


@pytest.fixture
def sender(postgres_server: PostgresServer) -> Iterator[Connection]:
    with psycopg.connect(postgres_server.dsn, autocommit=True) as connection:
        yield connection


@pytest.fixture
def listener(postgres_server: PostgresServer) -> Iterator[PostgresListener]:
    listener = PostgresListener(postgres_server.parameters)
    yield listener
    listener.close()
    listener.wait(0)


def notify(sender: Connection, *payloads: str) -> None:
    with sender.transaction():
        for payload in payloads:
            sender.execute("SELECT pg_notify(%s, %s)", (channel(sender.info.dbname), payload))


def kill_listeners(sender: Connection) -> None:
    sender.execute(
        "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE application_name = 'belay listen'"
    )


def test_9_2_a_connection_is_announced_once_and_then_hints_come(
    listener: PostgresListener, sender: Connection
) -> None:
    assert listener.wait(5) is None
    assert listener.wait(0) == []
    notify(sender, '{"t":"p","q":"a"}', '{"t":"r","id":7}')
    assert hints(listener, 2) == [Poke("a"), Ended(7)]


def hints(listener: PostgresListener, count: int) -> list[Any]:
    """Hints may come in one answer or in several."""
    found: list[Any] = []
    give_up_at = time.monotonic() + 10
    while len(found) < count and time.monotonic() < give_up_at:
        found += listener.wait(0.2) or []
    return found


def test_9_2_odd_payloads_are_ignored(listener: PostgresListener, sender: Connection) -> None:
    listener.wait(5)
    notify(sender, "", "{", '{"t":"x"}', '{"t":"p"}', "[1]", '{"t":"p","q":"a"}')
    assert hints(listener, 1) == [Poke("a")]


def test_a_hint_ends_a_wait_at_once(listener: PostgresListener, sender: Connection) -> None:
    listener.wait(5)
    started = time.monotonic()
    thread = threading.Timer(0.1, notify, (sender, '{"t":"p","q":"a"}'))
    thread.start()
    assert listener.wait(20) == [Poke("a")]
    assert time.monotonic() - started < 5
    thread.join()


def test_lesson_6_after_a_lost_connection_it_listens_again_and_says_so(
    listener: PostgresListener, sender: Connection
) -> None:
    listener.wait(5)
    kill_listeners(sender)
    assert listener.wait(0.01) == []
    assert reconnect(listener)
    notify(sender, '{"t":"p","q":"a"}')
    assert hints(listener, 1) == [Poke("a")]


def reconnect(listener: PostgresListener) -> bool:
    give_up_at = time.monotonic() + 20
    while time.monotonic() < give_up_at:
        if listener.wait(0.2) is None:
            return True
    return False


def test_a_server_that_is_away_costs_the_timeout_and_raises_nothing(
    postgres_server: PostgresServer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    listener = PostgresListener({**postgres_server.parameters, "port": "1"})
    tried = []
    connect = psycopg.connect
    monkeypatch.setattr(listen.psycopg, "connect", lambda **params: tried.append(1) or connect(**params))
    started = time.monotonic()
    while time.monotonic() - started < 1.0:
        assert listener.wait(0.1) == []
    assert 2 <= len(tried) <= 6  # 0.1 s, 0.2 s, 0.4 s …, each up to a quarter longer or shorter
    assert len(caplog.records) == 1


def test_a_close_ends_another_threads_wait(listener: PostgresListener) -> None:
    listener.wait(5)
    answers: list[Any] = []
    thread = threading.Thread(target=lambda: answers.append(listener.wait(60)))
    thread.start()
    listener.close()
    thread.join(10)
    assert answers == [[]]
    assert listener.wait(5) == []
