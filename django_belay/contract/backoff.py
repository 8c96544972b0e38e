"""Retry policy v1: the default backoff of both storages, and reclaim's only one (rule 16)."""

from __future__ import annotations

from datetime import timedelta

CAP_S = 60.0
JITTER = 0.25


def retry_delay(attempt: int, *, jitter: float = 0.0) -> timedelta:
    """How long to wait before the attempt after ``attempt`` (1, 2, …): 1 s · 2^(n-1), at most 60 s.

    Args:
        jitter: From 0 to 1; adds up to a quarter of the delay.
    """
    base = min(2.0 ** min(max(attempt, 1) - 1, 10), CAP_S)
    return timedelta(seconds=base * (1 + JITTER * min(max(jitter, 0.0), 1.0)))


def unknown_kind_delay(age: timedelta) -> timedelta:
    """How long a row of an unknown kind is put back for: a tenth of its age, 1 s to 5 min (rule 4)."""
    return max(timedelta(seconds=1), min(age / 10, timedelta(minutes=5)))
