"""A clock that stands still until a test moves it."""

from __future__ import annotations

import threading
from datetime import UTC, datetime, timedelta

START = datetime(2030, 1, 1, 12, 0, tzinfo=UTC)


class SimClock:
    """A simulated clock, safe to share between threads.

    Moves backoff, sleeps, leases, cron slots and rate windows alike, since nothing
    below the engine reads another clock.
    """

    def __init__(self, start: datetime = START) -> None:
        if start.tzinfo is None:
            raise ValueError(f"start={start!r} has no time zone; pass an aware datetime")
        self._lock = threading.Lock()
        self._now = start.astimezone(UTC)

    def now(self) -> datetime:
        with self._lock:
            return self._now

    def advance(self, by: float | timedelta) -> datetime:
        """Move forward by seconds or a ``timedelta``; returns the new time.

        A negative amount sets the clock back, as an operator might.
        """
        delta = by if isinstance(by, timedelta) else timedelta(seconds=by)
        with self._lock:
            self._now += delta
            return self._now

    def set(self, instant: datetime) -> None:
        """Jump to an aware instant."""
        if instant.tzinfo is None:
            raise ValueError(f"instant={instant!r} has no time zone; pass an aware datetime")
        with self._lock:
            self._now = instant.astimezone(UTC)

    def __repr__(self) -> str:
        return f"SimClock({self.now().isoformat()})"
