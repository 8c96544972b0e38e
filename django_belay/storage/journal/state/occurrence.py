"""When a contract schedule is due next (spec E.8): fixed offsets and whole minutes only.

The wire contract's cron entries have their own, richer rules in ``contract``; these are
the ones a (13,2) record is read with.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final

from django_belay.storage.journal.format.refusal import refuse

_BOUNDS: Final = ((0, 59), (0, 23), (1, 31), (1, 12), (0, 7))
_DAYS_SEARCHED: Final = 5 * 366
_MINUTE_MS: Final = 60_000
_ITEM: Final = re.compile(r"(?:(\*)|([0-9]{1,2})(?:-([0-9]{1,2}))?)(?:/([0-9]{1,2}))?", re.ASCII)
_OFFSET: Final = re.compile(r"([+-])([0-9]{2})(?::([0-9]{2}))?", re.ASCII)
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cron:
    """A parsed five-field expression. Weekday 0 is Sunday."""

    minutes: frozenset[int]
    hours: frozenset[int]
    days: frozenset[int]
    months: frozenset[int]
    weekdays: frozenset[int]
    any_day: bool
    any_weekday: bool


def parse_cron(expression: str) -> Cron:
    """Parse minute, hour, day, month and weekday; refuses with ``invalid_cron``."""
    parts = expression.split()
    if len(parts) != 5:
        raise refuse("argument", "invalid_cron", "five fields")
    minutes, hours, days, months, weekdays = (
        _field(part, low, high) for part, (low, high) in zip(parts, _BOUNDS, strict=True)
    )
    return Cron(
        minutes=minutes,
        hours=hours,
        days=days,
        months=months,
        weekdays=frozenset(day % 7 for day in weekdays),
        any_day=parts[2] == "*",
        any_weekday=parts[4] == "*",
    )


def offset_of(timezone: str | None) -> timedelta:
    """The fixed offset a schedule's time zone states."""
    if timezone in (None, "UTC", "Z"):
        return timedelta()
    match = _OFFSET.fullmatch(timezone or "")
    if match is None or int(match[2]) > 23 or int(match[3] or 0) > 59:
        raise refuse("argument", "invalid_timezone", timezone)
    size = timedelta(hours=int(match[2]), minutes=int(match[3] or 0))
    return size if match[1] == "+" else -size


def next_cron_ms(expression: str, timezone: str | None, after_ms: int) -> int | None:
    """The first whole minute strictly after ``after_ms`` that matches; None within five years."""
    cron = parse_cron(expression)
    offset = offset_of(timezone)
    start = _EPOCH + timedelta(milliseconds=(after_ms // _MINUTE_MS + 1) * _MINUTE_MS) + offset
    midnight = start.replace(hour=0, minute=0)
    for number in range(_DAYS_SEARCHED + 1):
        day = midnight + timedelta(days=number)
        if not _day_matches(cron, day):
            continue
        found = _first_minute(cron, start if number == 0 else day)
        if found is not None:
            return (found - offset - _EPOCH) // timedelta(milliseconds=1)
    return None


def next_every_ms(interval_ms: int, due_ms: int, now_ms: int, *, catch_up: str) -> int:
    """The occurrence after the one due at ``due_ms`` was delivered at ``now_ms``."""
    if catch_up == "all":
        return due_ms + interval_ms
    return due_ms + (max(now_ms - due_ms, 0) // interval_ms + 1) * interval_ms


def next_due_ms(
    *, kind: str, expression: str | int, timezone: str | None, due_ms: int, now_ms: int, catch_up: str
) -> int | None:
    """The next occurrence of a schedule after delivering the one due at ``due_ms``."""
    if kind == "every":
        return next_every_ms(int(expression), due_ms, now_ms, catch_up=catch_up)
    after = due_ms if catch_up == "all" else max(due_ms, now_ms)
    return next_cron_ms(str(expression), timezone, after)


def _field(text: str, low: int, high: int) -> frozenset[int]:
    values: set[int] = set()
    for item in text.split(","):
        match = _ITEM.fullmatch(item)
        if match is None:
            raise refuse("argument", "invalid_cron", item)
        step = int(match[4] or 1)
        first = low if match[1] else int(match[2])
        last = high if match[1] else int(match[3] or (high if match[4] else match[2]))
        if step < 1 or not low <= first <= last <= high:
            raise refuse("argument", "invalid_cron", item)
        values.update(range(first, last + 1, step))
    return frozenset(values)


def _day_matches(cron: Cron, day: datetime) -> bool:
    if day.month not in cron.months:
        return False
    by_day = day.day in cron.days
    by_weekday = day.isoweekday() % 7 in cron.weekdays
    if cron.any_day or cron.any_weekday:
        return by_day and by_weekday
    return by_day or by_weekday


def _first_minute(cron: Cron, start: datetime) -> datetime | None:
    for hour in sorted(cron.hours):
        if hour < start.hour:
            continue
        for minute in sorted(cron.minutes):
            if hour > start.hour or minute >= start.minute:
                return start.replace(hour=hour, minute=minute)
    return None
