"""Event streams: iterators that lose no event and end with the job."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
from asgiref.sync import async_to_sync
from django.db import connections

from django_belay import streams
from django_belay.contract.outcome import Failed, Succeeded
from django_belay.exceptions import InvalidInput, JobNotFound, ResultTimeout
from django_belay.handles import JobHandle
from django_belay.models import Job
from django_belay.streams import astream_events, pages, stream_events
from tests.app import jobs
from tests.integration.worker import run, storage

pytestmark = pytest.mark.django_db
committed = pytest.mark.django_db(transaction=True)


def emit(job: JobHandle, *payloads: Any) -> None:
    from django.utils import timezone

    for payload in payloads:
        storage().append_event(job.id, payload, now=timezone.now())


def payloads(found: Any) -> list[Any]:
    return [event.payload for event in found]


async def collect(job: JobHandle | int, **options: Any) -> list[Any]:
    return [event.payload async for event in astream_events(job, **options)]


def test_a_stream_of_an_ended_job_gives_everything_and_ends() -> None:
    job = jobs.echo.enqueue(1)
    emit(job, 1, 2, 3)
    run(Failed(error={"error": "boom"}))
    assert payloads(stream_events(job)) == [1, 2, 3]
    assert payloads(stream_events(job.id, after=2)) == [3]
    assert payloads(stream_events(job, after=3)) == []
    assert async_to_sync(collect)(job) == [1, 2, 3]
    assert async_to_sync(collect)(job, after=2) == [3]


def test_more_than_a_page_is_read_without_a_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streams, "PAGE", 2)
    job = jobs.echo.enqueue(1)
    emit(job, *range(6))
    run(Succeeded())
    # Full pages never wait: a wait would be over the timeout.
    assert payloads(stream_events(job, timeout=0)) == list(range(6))
    assert async_to_sync(collect)(job, timeout=0) == list(range(6))


@pytest.mark.parametrize(
    "collected", [lambda job: payloads(stream_events(job)), lambda job: async_to_sync(collect)(job)]
)
def test_an_event_and_the_end_between_two_reads_are_not_lost(
    monkeypatch: pytest.MonkeyPatch, collected: Callable[[JobHandle], list[Any]]
) -> None:
    job = jobs.echo.enqueue(1)
    emit(job, "first")
    kind = type(storage())
    read = kind.list_events

    def read_then_end(self: Any, *args: Any, **kwargs: Any) -> Any:
        found = read(self, *args, **kwargs)
        if job.refresh().state == "ready":
            emit(job, "last")
            run(Succeeded())
        return found

    monkeypatch.setattr(kind, "list_events", read_then_end)
    assert collected(job) == ["first", "last"]


def test_a_stream_that_goes_on_times_out_after_what_there_is() -> None:
    job = jobs.echo.enqueue(1)
    emit(job, 1)
    stream = stream_events(job, timeout=0)
    assert next(stream).payload == 1
    with pytest.raises(ResultTimeout, match="goes on") as caught:
        next(stream)
    assert caught.value.job_id == job.id
    with pytest.raises(ResultTimeout):
        async_to_sync(collect)(job, timeout=0.001)


@pytest.mark.parametrize(
    ("options", "path"),
    [
        ({"after": -1}, "after"),
        ({"after": "2"}, "after"),
        ({"timeout": -1}, "timeout"),
        ({"timeout": "soon"}, "timeout"),
        ({"poll": 0}, "poll"),
    ],
)
def test_what_does_not_fit_is_refused_at_the_call(options: dict[str, Any], path: str) -> None:
    job = jobs.echo.enqueue(1)
    with pytest.raises(InvalidInput, match=path):
        stream_events(job, **options)
    with pytest.raises(InvalidInput, match="job id"):
        stream_events("7")  # type: ignore[arg-type]


@pytest.mark.postgres
def test_a_job_that_is_gone_is_said_to_be() -> None:
    with pytest.raises(JobNotFound):
        next(stream_events(2**40))
    job = jobs.echo.enqueue(1)
    stream = pages(job, poll=0.001)
    next(stream)
    Job._base_manager.filter(pk=job.id)._raw_delete(using="default")
    with pytest.raises(JobNotFound):
        next(stream)


def test_empty_reads_are_pages_too() -> None:
    job = jobs.echo.enqueue(1)
    found = pages(job, poll=0.001)
    assert [(page.events, page.state, page.is_last) for page in (next(found), next(found))] == [
        ([], "ready", False)
    ] * 2
    found.close()


@committed
@pytest.mark.parametrize("is_async", [False, True])
def test_a_live_stream_gives_events_as_they_come(is_async: bool) -> None:
    job = jobs.echo.enqueue(1)
    count = 30
    seen = [threading.Event() for _ in range(count)]

    def work() -> None:
        try:
            for number in range(count):
                emit(job, number)
                assert seen[number].wait(20)  # only sent when the one before was seen
            run(Succeeded())
        finally:
            connections.close_all()

    async def follow() -> list[Any]:
        found = []
        async for event in astream_events(job, timeout=60, poll=0.02):
            found.append(event.payload)
            seen[event.payload].set()
        return found

    worker = threading.Thread(target=work)
    worker.start()
    try:
        if is_async:
            assert async_to_sync(follow)() == list(range(count))
        else:
            found = []
            for event in stream_events(job, timeout=60, poll=0.02):
                found.append(event.payload)
                seen[event.payload].set()
            assert found == list(range(count))
    finally:
        worker.join(30)
    assert not worker.is_alive()
