"""Retry policy v1: when a failed or interrupted attempt may run again (spec E.6)."""

from __future__ import annotations

from collections.abc import Callable

from django_belay.storage.journal.format.limits import MAX_TIME


def delay_ms(attempt: int) -> int:
    """The delay after attempt N, without jitter: 1 s doubled each time, at most one minute."""
    return 60_000 if attempt >= 7 else 1000 << (attempt - 1)


def jitter_ms(attempt: int) -> int:
    """The largest jitter after attempt N: a quarter of the delay, never past one minute in all."""
    delay = delay_ms(attempt)
    return min(delay // 4, 60_000 - delay)


def due_window(attempt: int, at: int) -> tuple[int, int]:
    """The first and the last due time a reader accepts."""
    earliest = at + delay_ms(attempt)
    return min(MAX_TIME, earliest), min(MAX_TIME, earliest + jitter_ms(attempt))


def draw_due(attempt: int, at: int, randbelow: Callable[[int], int]) -> int:
    """A due time to store; ``randbelow(n)`` draws uniformly from 0..n-1."""
    return min(MAX_TIME, at + delay_ms(attempt) + randbelow(jitter_ms(attempt) + 1))
