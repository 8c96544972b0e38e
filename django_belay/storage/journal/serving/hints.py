"""Hints from the owner, on a connection of their own."""

from __future__ import annotations

import logging
import os
import threading
import time
from typing import Final

from django_belay.contract.notification import Hint
from django_belay.exceptions import StorageError

from .codec import Unreadable, form_of
from .line import Connection, Lines, Lost

logger = logging.getLogger("django_belay.notify")

FIRST_DELAY_S: Final = 0.1
MAX_DELAY_S: Final = 5.0
_CONNECT_S: Final = 2.0
# How long close() may wait for another thread's wait() to notice.
_SLICE_S: Final = 0.5
_HINTS: Final = form_of(list[Hint], where="hints")


class RemoteListener:
    """Waits for hints; reconnects for ever with capped backoff. One thread waits; any thread may close."""

    def __init__(self, lines: Lines) -> None:
        self._lines = lines
        self._connection: Connection | None = None
        self._closed = threading.Event()
        self._waiting = threading.Lock()
        self._failures = 0
        self._retry_at = 0.0

    def wait(self, timeout_s: float) -> list[Hint] | None:
        """Hints that came within ``timeout_s``; ``None`` once after every (re)connection.

        Never raises for a lost connection: without one it waits the time out.
        """
        with self._waiting:
            return self._wait(time.monotonic() + timeout_s)

    def _wait(self, give_up_at: float) -> list[Hint] | None:
        if self._connection is None:
            return None if self._connect(give_up_at) else []
        while not self._closed.is_set():
            left_s = give_up_at - time.monotonic()
            try:
                return self._receive(self._connection, min(max(left_s, 0.0), _SLICE_S))
            except TimeoutError:
                if left_s <= _SLICE_S:
                    return []
            except (Lost, Unreadable) as error:
                self._note_failure(error)
                self._disconnect()
                return []
        return []

    def close(self) -> None:
        """Stop listening; a ``wait`` in another thread returns within half a second."""
        self._closed.set()
        with self._waiting:
            self._disconnect()

    def _receive(self, connection: Connection, timeout_s: float) -> list[Hint]:
        hints: list[Hint] = _HINTS.of_json(connection.receive(timeout_s=timeout_s))
        return hints

    def _connect(self, give_up_at: float) -> bool:
        pause_s = min(self._retry_at, give_up_at) - time.monotonic()
        if pause_s > 0 and self._closed.wait(pause_s):
            return False
        if self._closed.is_set() or time.monotonic() < self._retry_at:
            return False
        try:
            deadline = time.monotonic() + _CONNECT_S
            self._connection = self._lines.connect(os.urandom(16).hex(), "hints", deadline)
        except (StorageError, Lost) as error:
            self._note_failure(error)
            return False
        self._failures = 0
        return True

    def _note_failure(self, error: Exception) -> None:
        self._failures += 1
        self._retry_at = time.monotonic() + min(FIRST_DELAY_S * 2 ** min(self._failures - 1, 16), MAX_DELAY_S)
        if self._failures == 1:
            logger.warning("The owner's hints are lost or refused, polling goes on: %s", error)

    def _disconnect(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()
