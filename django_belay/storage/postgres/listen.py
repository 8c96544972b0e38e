"""Hints over LISTEN, on a connection of their own (§9.2, rule 11)."""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Mapping
from typing import Any, Final

import psycopg

from django_belay.contract.names import channel
from django_belay.contract.notification import Hint, decode_hint
from django_belay.storage.postgres.pool import TCP_KEEPALIVE

logger = logging.getLogger("django_belay.notify")

FIRST_DELAY_S: Final = 0.1
MAX_DELAY_S: Final = 15.0
# How long close() may wait for another thread's wait() to notice.
SLICE_S: Final = 0.5


class PostgresListener:
    """Waits for hints; reconnects for ever with capped backoff.

    One thread waits; any thread may close.
    """

    def __init__(self, connect_params: Mapping[str, Any], *, connect_timeout_s: float = 10.0) -> None:
        """``connect_params`` are psycopg's and must name the server directly, not a transaction pooler."""
        self._params = {
            key: value
            for key, value in connect_params.items()
            if key not in ("cursor_factory", "context", "prepare_threshold", "autocommit")
        }
        self._params.setdefault("connect_timeout", max(1, round(connect_timeout_s)))
        self._connection: psycopg.Connection[Any] | None = None
        self._closed = threading.Event()
        self._failures = 0
        self._retry_at = 0.0

    def wait(self, timeout_s: float) -> list[Hint] | None:
        """Hints that came within ``timeout_s``; ``None`` once after every (re)connection.

        Never raises for a lost connection: without one it waits the time out.
        """
        give_up_at = time.monotonic() + timeout_s
        if self._connection is None:
            return None if self._connect(give_up_at) else []
        while not self._closed.is_set():
            left = give_up_at - time.monotonic()
            hints = self._receive(self._connection, max(0.0, min(left, SLICE_S)))
            if hints is None:
                return []
            if hints or left <= SLICE_S:
                return hints
        self._disconnect()
        return []

    def close(self) -> None:
        """Stop listening; a ``wait`` in another thread returns within half a second."""
        self._closed.set()

    def _connect(self, give_up_at: float) -> bool:
        pause = min(self._retry_at, give_up_at) - time.monotonic()
        if pause > 0 and self._closed.wait(pause):
            return False
        if self._closed.is_set() or time.monotonic() < self._retry_at:
            return False
        try:
            self._connection = self._listen()
        except psycopg.Error as error:
            self._note_failure(error)
            return False
        self._failures = 0
        return True

    def _listen(self) -> psycopg.Connection[Any]:
        params = {**TCP_KEEPALIVE, "application_name": "belay listen", **self._params, "autocommit": True}
        connection: psycopg.Connection[Any] = psycopg.connect(**params)
        try:
            row = connection.execute(b"SELECT current_database()::text").fetchone()
            assert row is not None
            # The channel's name holds A-Z a-z 0-9 _ only; quoted, since it keeps its case.
            connection.execute(f'LISTEN "{channel(row[0])}"'.encode())
        except BaseException:
            connection.close()
            raise
        return connection

    def _receive(self, connection: psycopg.Connection[Any], timeout_s: float) -> list[Hint] | None:
        """Hints of one look, ``None`` when the connection is gone."""
        try:
            arrived = list(connection.notifies(timeout=timeout_s, stop_after=1))
            if arrived:
                # What came in the same moment comes along.
                arrived += connection.notifies(timeout=0)
        except psycopg.Error as error:
            self._note_failure(error)
            self._disconnect()
            return None
        hints = (decode_hint(notification.payload) for notification in arrived)
        return [hint for hint in dict.fromkeys(hints) if hint is not None]

    def _note_failure(self, error: psycopg.Error) -> None:
        self._failures += 1
        delay = min(FIRST_DELAY_S * 2 ** min(self._failures - 1, 16), MAX_DELAY_S)
        delay *= random.uniform(0.75, 1.25)  # noqa: S311 - spreads reconnections, no secret
        self._retry_at = time.monotonic() + delay
        if self._failures == 1:
            logger.warning("LISTEN connection lost or refused, polling goes on: %s", error)

    def _disconnect(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()
