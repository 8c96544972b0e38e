"""Waits between polls, and the deadline of a wait (§9)."""

from __future__ import annotations

import time
from collections.abc import Iterator

from django_belay.exceptions import InvalidInput


def check_seconds(name: str, value: float | None, *, least: float = 0.0) -> float | None:
    """Seconds of at least ``least``, or ``None``.

    Raises:
        InvalidInput: It is neither.
    """
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not value >= least:
        raise InvalidInput(f"is {value!r:.60}; give seconds from {least:g} on, or None", path=name)
    return float(value)


def pauses(timeout: float | None, *, first_s: float, last_s: float) -> Iterator[float]:
    """How long to wait after each poll: ``first_s`` doubling to ``last_s``; ends after ``timeout``.

    The last pause is 0, so that the caller polls once more at the deadline.
    """
    limit = check_seconds("timeout", timeout)
    deadline = None if limit is None else time.monotonic() + limit
    pause = first_s
    while True:
        left = None if deadline is None else deadline - time.monotonic()
        if left is not None and left <= 0:
            yield 0.0
            return
        yield pause if left is None else min(pause, left)
        pause = min(pause * 2, last_s)
