"""Unique keys (§5.2)."""

from __future__ import annotations

import math
from datetime import UTC, datetime, timedelta

from django_belay.contract.job import UniqueMode
from django_belay.contract.state import INCOMPLETE, State


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
    ``None`` when the key has no bucket.

    Contract: §8.7; rule 36.
    """
    _, at, bucket = unique_key.rpartition("@")
    if not at or not bucket.isascii() or not bucket.isdigit() or int(bucket) == 0:
        return None
    number = int(bucket)
    return datetime.fromtimestamp(inserted_at.timestamp() * (number + 1) / number, tz=UTC)


def _bucket(now: datetime, window_s: int) -> int:
    return math.floor(now.timestamp()) // window_s
