"""Result hints for the waits of this process: one LISTEN connection however many wait (rule 11).

Whichever waiting thread finds the connection free reads it, for all. Waits of async code have no
thread to do so: one reads for all of them while there is any. The connection is made for the
first wait that lasts, and closed with the last one.
Hints only wake a wait early; every wait polls all the same (§9).
"""

from __future__ import annotations

import asyncio
import threading
import time
from contextlib import suppress
from datetime import timedelta
from typing import Protocol

from asgiref.sync import sync_to_async

from django_belay import conf
from django_belay.contract.notification import Ended
from django_belay.db import storage_for_client
from django_belay.storage.base import Listener

#: A registration outlives the polls of a wait that goes on; it is renewed at half of this.
REGISTERED_S = 60.0
#: How long the reader of async waits reads before it looks whether there are any left.
READ_S = 5.0


class Flag(Protocol):
    """Tells a wait to poll now."""

    def set(self) -> None:
        """From any thread."""


class Wait(Protocol):
    """Who waits for a job's end."""

    job_id: int

    @property
    def look(self) -> Flag: ...


class ResultHint:
    """One wait's sleeping between its polls: plain at first, ended by hints once the wait lasts."""

    def __init__(self, job_id: int, *, after_s: float) -> None:
        self.job_id = job_id
        self.look = threading.Event()  # poll now: the job has ended, or it may have
        self._hints_at = time.monotonic() + after_s
        self._register_at: float | None = None

    def __enter__(self) -> ResultHint:
        return self

    def __exit__(self, *_: object) -> None:
        if self._register_at is not None:
            _hub.leave(self)

    def wait(self, timeout_s: float) -> None:
        """Sleep at most so long before the next poll."""
        now = time.monotonic()
        if self._register_at is None and now >= self._hints_at and _may_register():
            _hub.join(self)
            self._register_at = now
        if self._register_at is None:
            time.sleep(timeout_s)
        elif now >= self._register_at:
            # The job may have ended before anybody knew of the wait: poll at once.
            self._register()
        else:
            _hub.wait(self, timeout_s)
            self.look.clear()

    def _register(self) -> None:
        _register(self.job_id)
        self._register_at = time.monotonic() + REGISTERED_S / 2


class AsyncResultHint:
    """As :class:`ResultHint`, in a coroutine; it holds no thread."""

    def __init__(self, job_id: int, *, after_s: float) -> None:
        self.job_id = job_id
        self.look = _LoopFlag()
        self._hints_at = time.monotonic() + after_s
        self._register_at: float | None = None

    async def __aenter__(self) -> AsyncResultHint:
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._register_at is not None:
            _reader.leave(self)

    async def wait(self, timeout_s: float) -> None:
        """Sleep at most so long before the next poll."""
        now = time.monotonic()
        if self._register_at is None and now >= self._hints_at and await sync_to_async(_may_register)():
            _reader.join(self)
            self._register_at = now
        if self._register_at is not None and now >= self._register_at:
            # The job may have ended before anybody knew of the wait: poll at once.
            await sync_to_async(_register)(self.job_id)
            self._register_at = time.monotonic() + REGISTERED_S / 2
            return
        await self.look.wait(timeout_s)


class _LoopFlag:
    """An event of the running loop that any thread may set."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._event = asyncio.Event()

    def set(self) -> None:
        with suppress(RuntimeError):  # the loop is closed: nobody waits any more
            self._loop.call_soon_threadsafe(self._event.set)

    async def wait(self, timeout_s: float) -> None:
        with suppress(TimeoutError):
            await asyncio.wait_for(self._event.wait(), timeout_s)
        self._event.clear()


def _register(job_id: int) -> None:
    now = conf.clock().now()
    until = now + timedelta(seconds=REGISTERED_S)
    storage_for_client().storage.register_waiter(job_id, until=until, now=now)


def _may_register() -> bool:
    """Not inside a transaction, whose rows nobody else sees, nor where nobody sends hints."""
    found = storage_for_client()
    return found.storage.capabilities.hints and not found.session.is_joined()


class _Hub:
    """The listener that the waits of a process share."""

    def __init__(self) -> None:
        self._lock = threading.Lock()  # of the two below
        self._waits: list[Wait] = []
        self._listener: Listener | None = None
        self._reading = threading.Lock()

    def join(self, wait: Wait) -> None:
        with self._lock:
            if self._listener is None:
                self._listener = storage_for_client().storage.listener()
            self._waits.append(wait)

    def leave(self, wait: Wait) -> None:
        with self._lock:
            self._waits.remove(wait)
            is_last = not self._waits
            listener = self._listener
            if is_last:
                self._listener = None
        if not is_last:
            self._hand_over(wait)  # this one may have been told to read on
        elif listener is not None:
            self._close(listener)

    def _close(self, listener: Listener) -> None:
        listener.close()
        with self._reading:
            listener.wait(0.0)  # the reader's side closes the connection

    def wait(self, wait: ResultHint, timeout_s: float) -> None:
        """Return when the wait should poll: told to, the connection is new, or the time is over."""
        if not self._reading.acquire(blocking=False):
            wait.look.wait(timeout_s)
            return
        try:
            self._read(wait, time.monotonic() + timeout_s)
        finally:
            self._reading.release()
            self._hand_over(wait)

    def _read(self, wait: ResultHint, until: float) -> None:
        while not wait.look.is_set() and (left := until - time.monotonic()) > 0:
            listener = self._listener
            if listener is None:
                return
            hints = listener.wait(left)
            if hints is None:
                return  # connected just now: hints before that are lost
            self._spread({hint.job_id for hint in hints if isinstance(hint, Ended)})

    def _spread(self, ended: set[int]) -> None:
        with self._lock:
            for wait in self._waits:
                if wait.job_id in ended:
                    wait.look.set()

    def _hand_over(self, reader: Wait) -> None:
        """Let another wait poll and read on: this one may be over."""
        with self._lock:
            successor = next(
                (wait for wait in self._waits if wait is not reader and isinstance(wait, ResultHint)), None
            )
        if successor is not None:
            successor.look.set()


_hub = _Hub()


class _Reader:
    """Reads for the waits of async code, in a thread of its own while there are any."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._count = 0
        self._own: ResultHint | None = None

    def join(self, wait: AsyncResultHint) -> None:
        """Read for one wait more."""
        _hub.join(wait)
        with self._lock:
            self._count += 1
            if self._own is None:
                self._own = ResultHint(0, after_s=0.0)
                _hub.join(self._own)
                threading.Thread(
                    target=self._read, args=(self._own,), name="belay-hints", daemon=True
                ).start()

    def leave(self, wait: AsyncResultHint) -> None:
        """One wait is over; with the last one the reading ends."""
        with self._lock:
            self._count -= 1
            own = self._own
            if not self._count and own is not None:
                self._own = None
                own.look.set()
        _hub.leave(wait)

    def _read(self, own: ResultHint) -> None:
        try:
            while self._own is own:
                _hub.wait(own, READ_S)
                own.look.clear()
        finally:
            _hub.leave(own)


_reader = _Reader()
