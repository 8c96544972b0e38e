"""Instants as whole milliseconds since 1970, the only unit a journal knows."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Final, overload

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MS: Final = timedelta(milliseconds=1)
_FIRST: Final = datetime.min.replace(tzinfo=UTC)
_LAST: Final = datetime.max.replace(tzinfo=UTC)


def floor_ms(instant: datetime) -> int:
    """The millisecond that holds the instant: for what has happened."""
    return (instant - _EPOCH) // _MS


@overload
def ceil_ms(instant: datetime) -> int: ...
@overload
def ceil_ms(instant: None) -> None: ...
def ceil_ms(instant: datetime | None) -> int | None:
    """The first millisecond not before the instant: for what is due, never early."""
    return None if instant is None else -((_EPOCH - instant) // _MS)


@overload
def to_instant(ms: int) -> datetime: ...
@overload
def to_instant(ms: None) -> None: ...
def to_instant(ms: int | None) -> datetime | None:
    """The instant; beyond Python's calendar its first or last one (rule 4)."""
    if ms is None:
        return None
    try:
        return _EPOCH + timedelta(milliseconds=ms)
    except OverflowError:
        return _FIRST if ms < 0 else _LAST
