"""Waiting for results: woken by hints, and by polling without them."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest
from asgiref.sync import async_to_sync, sync_to_async
from django.db import connections, transaction

from django_belay import _hints, _waiting
from django_belay.contract.outcome import Succeeded
from django_belay.exceptions import ConfigurationError
from django_belay.storage.postgres.listen import PostgresListener
from django_belay.testing import override_belay
from tests.app import jobs
from tests.integration.worker import claim, end

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def registered(monkeypatch: pytest.MonkeyPatch) -> threading.Semaphore:
    """Released for each wait that has registered."""
    told = threading.Semaphore(0)
    register = _hints.ResultHint._register

    def tell(hint: Any) -> None:
        register(hint)
        told.release()

    monkeypatch.setattr(_hints.ResultHint, "_register", tell)
    return told


def waiting(wait: Callable[[], Any], results: list[Any]) -> threading.Thread:
    """A thread that waits and keeps what came."""

    def work() -> None:
        try:
            results.append(wait())
        except Exception as error:
            results.append(error)
        finally:
            connections.close_all()

    thread = threading.Thread(target=work)
    thread.start()
    return thread


@pytest.fixture
def listening(monkeypatch: pytest.MonkeyPatch) -> threading.Semaphore:
    """Released for each turn of reading on a connection that was there before."""
    told = threading.Semaphore(0)
    wait = PostgresListener.wait

    def tell(listener: PostgresListener, timeout_s: float) -> Any:
        if listener._connection is not None:
            told.release()
        return wait(listener, timeout_s)

    monkeypatch.setattr(PostgresListener, "wait", tell)
    return told


@pytest.fixture
def rare_polls(monkeypatch: pytest.MonkeyPatch) -> None:
    """Polls so far apart that only a hint can end a wait in time."""
    monkeypatch.setattr(_waiting, "LAST_POLL_S", 60.0)
    monkeypatch.setattr(_waiting, "FIRST_POLL_S", 30.0)
    monkeypatch.setattr(_waiting, "HINTS_AFTER_S", 0.0)


@pytest.mark.postgres
@pytest.mark.usefixtures("rare_polls")
def test_a_hint_ends_a_wait_long_before_its_next_poll(listening: threading.Semaphore) -> None:
    job = jobs.echo.enqueue(1)
    results: list[Any] = []
    thread = waiting(job.result, results)
    assert listening.acquire(timeout=20)
    (claimed,) = claim()
    end(claimed, Succeeded(b"1"))
    thread.join(20)
    assert results == [1]


@pytest.mark.usefixtures("rare_polls")
def test_every_wait_of_a_process_is_told(registered: threading.Semaphore) -> None:
    first, second = jobs.echo.enqueue(1), jobs.echo.enqueue(2)
    results: list[Any] = []
    threads = [waiting(job.result, results) for job in (first, second, second)]
    for _ in threads:
        assert registered.acquire(timeout=20)
    for job in claim():
        end(job, Succeeded(str(job.id).encode()))
    for thread in threads:
        thread.join(20)
    assert sorted(results) == sorted([first.id, second.id, second.id])
    assert _hints._hub._listener is None
    assert not _hints._hub._waits


def in_a_loop(*handles: Any) -> Any:
    """The results of jobs, awaited together."""

    async def gather() -> list[Any]:
        try:
            return list(await asyncio.gather(*(handle.aresult() for handle in handles)))
        finally:
            await sync_to_async(connections.close_all)()

    return asyncio.run(gather())


@pytest.mark.postgres
@pytest.mark.usefixtures("rare_polls")
def test_a_hint_ends_the_waits_of_a_loop_too(
    listening: threading.Semaphore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_hints, "READ_S", 0.2)
    first, second = jobs.echo.enqueue(1), jobs.echo.enqueue(2)
    results: list[Any] = []
    thread = waiting(lambda: in_a_loop(first, second, second), results)
    assert listening.acquire(timeout=20)
    assert [one.name for one in threading.enumerate()].count("belay-hints") == 1
    for job in claim():
        end(job, Succeeded(str(job.id).encode()))
    thread.join(20)
    assert results == [[first.id, second.id, second.id]]
    for reader in [one for one in threading.enumerate() if one.name == "belay-hints"]:
        reader.join(20)
    assert _hints._hub._listener is None


@pytest.mark.usefixtures("rare_polls")
def test_waits_of_threads_and_of_a_loop_share_one_connection(
    registered: threading.Semaphore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_hints, "READ_S", 0.2)
    job = jobs.echo.enqueue(1)
    results: list[Any] = []
    threads = [waiting(job.result, results)]
    assert registered.acquire(timeout=20)
    threads.append(waiting(lambda: in_a_loop(job)[0], results))
    (claimed,) = claim()
    end(claimed, Succeeded(b"1"))
    for thread in threads:
        thread.join(20)
    assert results == [1, 1]


def test_without_hints_polling_is_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_waiting, "HINTS_AFTER_S", 0.0)
    with override_belay(NOTIFY="off"):
        job = jobs.echo.enqueue(1)
        results: list[Any] = []
        thread = waiting(lambda: job.result(timeout=30), results)
        for claimed in claim():
            end(claimed, Succeeded(b"1"))
        thread.join(20)
    assert results == [1]


@pytest.mark.postgres
def test_the_listening_connection_is_closed_with_the_last_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[Any] = []
    listen = PostgresListener._listen

    def tell(listener: PostgresListener) -> Any:
        opened.append(listen(listener))
        return opened[-1]

    monkeypatch.setattr(PostgresListener, "_listen", tell)
    monkeypatch.setattr(_waiting, "HINTS_AFTER_S", 0.0)
    job = jobs.echo.enqueue(1)
    with pytest.raises(TimeoutError):
        job.result(timeout=1.5)
    assert [found.closed for found in opened] == [True]


def test_an_endless_wait_in_a_transaction_is_refused() -> None:
    job = jobs.echo.enqueue(1)
    with transaction.atomic():
        with pytest.raises(ConfigurationError, match="after the atomic"):
            job.result()
        with pytest.raises(ConfigurationError, match="after the atomic"):
            async_to_sync(job.aresult)()


def test_a_wait_in_a_transaction_registers_nothing(
    registered: threading.Semaphore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_waiting, "HINTS_AFTER_S", 0.0)
    job = jobs.echo.enqueue(1)
    with transaction.atomic(), pytest.raises(TimeoutError):
        job.result(timeout=0.02)
    assert not registered.acquire(blocking=False)
