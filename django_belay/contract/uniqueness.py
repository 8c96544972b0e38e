"""Unique keys (§5.2)."""

from __future__ import annotations

import math
from datetime import UTC, datetime, timedelta

from django_belay.contract.job import UniqueMode
from django_belay.contract.state import INCOMPLETE, State

#: The last second of Python's calendar: a window that ends later never does.
LAST = datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC)
#: Of a bucket: the year 9999 has 12 with windows of a second.
MAX_DIGITS = 12


def window_key(key: str, *, window: timedelta, now: datetime) -> str:
    """A key with its window's bucket embedded: ``<key>@<floor(epoch / window)>``.

    Contract: §5.2, window.
    """
    return f"{key}@{_bucket(now, math.floor(window.total_seconds()))}"


def holds_key(mode: UniqueMode | None, state: State) -> bool:
    """Whether a row of this mode and state blocks others with its key."""
    if mode is None:
        return False
    return mode != "incomplete" or state in INCOMPLETE


def window_ends_at(unique_key: str, inserted_at: datetime) -> datetime | None:
    """The earliest instant by which the window of a stored key is surely over.

    The window's length is not stored; with N the key's bucket it is at most
    ``epoch(inserted_at) / N``, so the window is over by ``epoch · (N + 1) / N``.
    ``None`` when the key has no bucket, or none that an instant since 1970 can have.

    Contract: §8.7; rules 4, 36.
    """
    _, at, bucket = unique_key.rpartition("@")
    if not at or not bucket.isascii() or not bucket.isdigit() or len(bucket) > MAX_DIGITS:
        return None
    number, epoch = int(bucket), inserted_at.timestamp()
    if number == 0 or epoch < 0:
        return None
    ends_at = epoch * (number + 1) / number
    return LAST if ends_at >= LAST.timestamp() else datetime.fromtimestamp(ends_at, tz=UTC)


def _bucket(now: datetime, window_s: int) -> int:
    return math.floor(now.timestamp()) // window_s
