"""A job's events as they come: iterators that end when the job has ended and all was read.

They poll, faster while events come; a result hint ends the last wait early. Nothing is
lost at the end: the state is read before the events, and a job ends after its last event.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator, Generator, Iterator
from contextlib import aclosing, closing
from dataclasses import dataclass

from asgiref.sync import sync_to_async

from django_belay import _control as control
from django_belay._hints import ResultHint
from django_belay._polling import check_seconds
from django_belay.contract.job import Event
from django_belay.contract.state import State, is_terminal
from django_belay.db import storage_for_client
from django_belay.exceptions import InvalidInput, ResultTimeout
from django_belay.handles import JobHandle

__all__ = ["Page", "apages", "astream_events", "pages", "stream_events"]

FIRST_POLL_S = 0.02
LAST_POLL_S = 0.5
#: Shorter streams are not worth a connection to listen on.
HINTS_AFTER_S = 1.0

#: Events of one read.
PAGE = 500


@dataclass(frozen=True, slots=True)
class Page:
    """What one read gave: new events, the job's state before it, whether nothing can follow."""

    events: list[Event]
    state: State
    is_last: bool


def stream_events(
    job: JobHandle | int, *, after: int = 0, timeout: float | None = None, poll: float = LAST_POLL_S
) -> Iterator[Event]:
    """A job's events from the one after ``after`` on, as they come.

    Ends when the job has ended and every event was given. A job that is retried later
    goes on with its numbers: stream again from the last one. Inside ``atomic()`` it needs
    READ COMMITTED, PostgreSQL's default, to see what comes.

    Args:
        after: The ``seq`` of the last event that you have.
        timeout: Seconds in all; ``None`` goes on for as long as the job does.
        poll: The longest wait between two reads, in seconds.

    Raises:
        ResultTimeout: The job has not ended in time; it goes on.
        JobNotFound: The job is gone.
        InvalidInput: An argument does not fit.

    Contract: §3 ``belay_events``, §9.1; rule 37.
    """
    return _events(pages(job, after=after, timeout=timeout, poll=poll))


async def astream_events(
    job: JobHandle | int, *, after: int = 0, timeout: float | None = None, poll: float = LAST_POLL_S
) -> AsyncIterator[Event]:
    """As :func:`stream_events`, holding no thread between two reads."""
    async with aclosing(apages(job, after=after, timeout=timeout, poll=poll)) as found:
        async for page in found:
            for event in page.events:
                yield event


def pages(
    job: JobHandle | int, *, after: int = 0, timeout: float | None = None, poll: float = LAST_POLL_S
) -> Generator[Page, None, None]:
    """As :func:`stream_events`, one read at a time, empty ones too: for who has to show a sign of life."""
    return _pages(_Reader(job, after), _Pace(timeout, poll))


def apages(
    job: JobHandle | int, *, after: int = 0, timeout: float | None = None, poll: float = LAST_POLL_S
) -> AsyncGenerator[Page, None]:
    """As :func:`pages`."""
    return _apages(_Reader(job, after), _Pace(timeout, poll))


def _events(found: Generator[Page, None, None]) -> Iterator[Event]:
    with closing(found):
        for page in found:
            yield from page.events


def _pages(reader: _Reader, pace: _Pace) -> Generator[Page, None, None]:
    with ResultHint(reader.job_id, after_s=HINTS_AFTER_S) as hint:
        while True:
            page = reader.read()
            yield page
            if page.is_last:
                return
            if len(page.events) < PAGE:
                hint.wait(pace.next_s(page, reader.job_id))


async def _apages(reader: _Reader, pace: _Pace) -> AsyncGenerator[Page, None]:
    read = sync_to_async(reader.read)
    while True:
        page = await read()
        yield page
        if page.is_last:
            return
        if len(page.events) < PAGE:
            await asyncio.sleep(pace.next_s(page, reader.job_id))


class _Reader:
    """Reads on from the last event it gave."""

    def __init__(self, job: JobHandle | int, after: int) -> None:
        self.job_id = control.check_id(job.id if isinstance(job, JobHandle) else job)
        if type(after) is not int or not 0 <= after < 2**63:
            raise InvalidInput(f"is {after!r:.60}; give the seq of an event, or 0", path="after")
        self._after = after

    def read(self) -> Page:
        """The state first: what ends between the two reads is seen to have ended by the next one."""
        storage = storage_for_client().storage
        state = storage.get_standing(self.job_id).state
        events = storage.list_events(self.job_id, after=self._after, limit=PAGE)
        if events:
            self._after = events[-1].seq
        return Page(events, state, is_terminal(state) and len(events) < PAGE)


class _Pace:
    """The waits between reads: short after an event, doubling to ``poll``, within the timeout."""

    def __init__(self, timeout: float | None, poll: float) -> None:
        limit = check_seconds("timeout", timeout)
        self._timeout = limit
        self._deadline = None if limit is None else time.monotonic() + limit
        self._most = check_seconds("poll", poll, least=0.001) or LAST_POLL_S
        self._pause = self._first = min(FIRST_POLL_S, self._most)

    def next_s(self, page: Page, job_id: int) -> float:
        """Raises ``ResultTimeout`` where the time is over."""
        self._pause = self._first if page.events else min(self._pause * 2, self._most)
        if self._deadline is None:
            return self._pause
        left = self._deadline - time.monotonic()
        if left <= 0:
            raise ResultTimeout(
                f"job {job_id} had not ended after {self._timeout:g} s of its stream; it goes on. "
                "Stream again from the last event",
                job_id=job_id,
            )
        return min(self._pause, left)
