"""From wall-clock times to slots, across the changes of a zone's clocks.

cronsim walks naive wall-clock times; here they become minutes in UTC. The walks know two
kinds of entries, see :mod:`django_belay.contract.cron`.

Contract: §8.5; rule 35.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta, tzinfo

from cronsim import CronSim

MINUTE = timedelta(minutes=1)
# No zone changes its clocks twice in so short a time.
_STRIDE = timedelta(hours=12)


def fixed_after(spelled: str, zone: tzinfo, instant: datetime) -> Iterator[datetime]:
    """Slots of fixed times later than ``instant``, in order."""
    last = instant
    for wall in CronSim(spelled, _wall(instant, zone)):
        slot = _first_real(wall, zone)
        # Times that a change leaps over meet in one slot; one that comes again is over.
        if slot > last:
            yield slot
            last = slot


def fixed_until(spelled: str, zone: tzinfo, instant: datetime) -> Iterator[datetime]:
    """Slots of fixed times not later than ``instant``, newest first."""
    last = _floor(instant) + MINUTE
    # In a repeated hour, later wall-clock times had their first turn already.
    start = _wall(instant, zone) + _repeated(instant, zone)
    for wall in _backwards(spelled, start):
        slot = _first_real(wall, zone)
        if slot < last:
            yield slot
            last = slot


def real_after(spelled: str, zone: tzinfo, instant: datetime) -> Iterator[datetime]:
    """Every real minute later than ``instant`` whose wall clock matches, in order."""
    # Each turn walks one stretch of time without a change of the clocks.
    reached, start = instant, _wall(instant, zone)
    while True:
        offset = _offset(reached, zone)
        for wall in CronSim(spelled, start):
            slot = _floor((wall - offset).replace(tzinfo=UTC))
            change = _change(zone, reached, slot)
            if change is not None:
                break
            yield slot
            reached = slot
        else:
            return
        # The walk leaves out where it starts, and the first minute counts.
        reached, start = change, _wall(change, zone) - timedelta(seconds=1)


def real_until(spelled: str, zone: tzinfo, instant: datetime) -> Iterator[datetime]:
    """Every real minute not later than ``instant`` whose wall clock matches, newest first."""
    reached = instant
    while True:
        offset = _offset(reached, zone)
        for wall in _backwards(spelled, _wall(reached, zone)):
            slot = _floor((wall - offset).replace(tzinfo=UTC))
            change = _change(zone, reached, slot)
            if change is not None:
                break
            yield slot
            reached = slot
        else:
            return
        reached = change


def _backwards(spelled: str, wall: datetime) -> Iterator[datetime]:
    """Matches at or before a wall-clock time, newest first."""
    return CronSim(spelled, wall.replace(second=0, microsecond=0) + MINUTE, reverse=True)


def _wall(instant: datetime, zone: tzinfo) -> datetime:
    return instant.astimezone(zone).replace(tzinfo=None, fold=0)


def _offset(instant: datetime, zone: tzinfo) -> timedelta:
    return instant.astimezone(zone).utcoffset() or timedelta(0)


def _floor(instant: datetime) -> datetime:
    """The minute in UTC that holds an instant."""
    return instant.astimezone(UTC).replace(second=0, microsecond=0)


def _first_real(wall: datetime, zone: tzinfo) -> datetime:
    """The first minute that shows a wall-clock time, or the first after the change that leaps over it."""
    first = wall.replace(tzinfo=zone, fold=0).astimezone(UTC)
    second = wall.replace(tzinfo=zone, fold=1).astimezone(UTC)
    if second >= first:  # it exists, once or twice
        return _floor(first)
    change = _change(zone, second - MINUTE, first)
    return _floor(first) if change is None else change


def _repeated(instant: datetime, zone: tzinfo) -> timedelta:
    """How much wall-clock time is repeated when ``instant`` is in its second turn."""
    local = instant.astimezone(zone)
    if not local.fold:
        return timedelta(0)
    first, second = local.replace(fold=0).utcoffset(), local.utcoffset()
    return (first or timedelta(0)) - (second or timedelta(0))


def _change(zone: tzinfo, start: datetime, end: datetime) -> datetime | None:
    """The minute nearest to ``start`` on the way to ``end`` with another offset; ``None``: all have one."""
    start, end = _floor(start), _floor(end)
    offset = _offset(start, zone)
    stride = _STRIDE if end > start else -_STRIDE
    same, other = start, start
    while other != end:
        other = end if abs(end - other) <= _STRIDE else other + stride
        if _offset(other, zone) != offset:
            return _bisect(zone, same, other, offset)
        same = other
    return None


def _bisect(zone: tzinfo, same: datetime, other: datetime, offset: timedelta) -> datetime:
    """The minute nearest to ``same`` that has another offset, as ``other`` does."""
    while abs(other - same) > MINUTE:
        middle = _floor(same + (other - same) / 2)
        if _offset(middle, zone) == offset:
            same = middle
        else:
            other = middle
    return other
