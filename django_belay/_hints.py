"""Result hints for the waits of this process: one LISTEN connection however many wait (rule 11).

There is no thread: whichever waiting thread finds the connection free reads it, for all.
The connection is made for the first wait that lasts, and closed with the last one.
Hints only wake a wait early; every wait polls all the same (§9).
"""

from __future__ import annotations

import threading
import time
from datetime import timedelta

from django_belay import conf
from django_belay.contract.notification import Ended
from django_belay.db import storage_for_client
from django_belay.storage.base import Listener

#: A registration outlives the polls of a wait that goes on; it is renewed at half of this.
REGISTERED_S = 60.0


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
        now = conf.clock().now()
        until = now + timedelta(seconds=REGISTERED_S)
        storage_for_client().storage.register_waiter(self.job_id, until=until, now=now)
        self._register_at = time.monotonic() + REGISTERED_S / 2


def _may_register() -> bool:
    """Not inside a transaction, whose rows nobody else sees, nor where nobody sends hints."""
    found = storage_for_client()
    return found.storage.capabilities.hints and not found.session.is_joined()


class _Hub:
    """The listener that the waits of a process share."""

    def __init__(self) -> None:
        self._lock = threading.Lock()  # of the two below
        self._waits: list[ResultHint] = []
        self._listener: Listener | None = None
        self._reading = threading.Lock()

    def join(self, wait: ResultHint) -> None:
        with self._lock:
            if self._listener is None:
                self._listener = storage_for_client().storage.listener()
            self._waits.append(wait)

    def leave(self, wait: ResultHint) -> None:
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

    def _hand_over(self, reader: ResultHint) -> None:
        """Let another wait poll and read on: this one may be over."""
        with self._lock:
            successor = next((wait for wait in self._waits if wait is not reader), None)
        if successor is not None:
            successor.look.set()


_hub = _Hub()
