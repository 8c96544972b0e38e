"""Cron expressions: their grammar, their days, their slots.

An expression has five fields (minute, hour, day of the month, month, day of the week) or
is a nickname. A field is ``*`` or a list of numbers and ranges, with steps over ``*`` and
ranges; months and days of the week may go by their English names of three letters.
Nothing else: no seconds, years, ``L``, ``W``, ``#``, ``?``, ``@reboot``.

A slot is a minute in UTC. Where the clocks of the zone change:

* An entry with a fixed time (minute and hour hold neither ``*`` nor a step) runs once a
  local day: a time that the change leaps over gives the first minute after it, one that
  comes twice counts the first time.
* Any other runs at every real minute whose wall clock matches.

Contract: §8.5; rule 35.
"""

from __future__ import annotations

import reprlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, tzinfo
from functools import lru_cache
from zoneinfo import ZoneInfo

from cronsim import CronSim, CronSimError

from django_belay.contract import cron_walk
from django_belay.exceptions import InvalidCron

NICKNAMES = {
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *",
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
}

#: Longer ones are surely a mistake: all sixty minutes one by one take 169 characters.
MAX_EXPRESSION = 500

_GRAMMAR = (
    "allowed are five fields (minute, hour, day of the month, month, day of the week) of *, numbers, "
    f"ranges, lists and steps such as */5 or 8-18/2, and {', '.join(NICKNAMES)}"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Field:
    """What one field may hold; ``names`` start at ``first_named``."""

    name: str
    least: int
    most: int
    names: tuple[str, ...] = ()
    first_named: int = 0

    @property
    def full(self) -> range:
        """What ``*`` stands for; 7 is only another name of Sunday."""
        return range(self.least, min(self.most, 6) + 1 if self.most == 7 else self.most + 1)

    @property
    def described(self) -> str:
        names = f", or {self.names[0]} to {self.names[-1]}" if self.names else ""
        return f"{self.least} to {self.most}{names}"


_MONTHS = ("JAN", "FEB", "MAR", "APR", "MAY", "JUN", "JUL", "AUG", "SEP", "OCT", "NOV", "DEC")
_DAYS = ("SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT")
_FIELDS = (
    _Field(name="minute", least=0, most=59),
    _Field(name="hour", least=0, most=23),
    _Field(name="day of the month", least=1, most=31),
    _Field(name="month", least=1, most=12, names=_MONTHS, first_named=1),
    _Field(name="day of the week", least=0, most=7, names=_DAYS),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """A checked expression in its zone: an endless row of slots in both directions.

    Attributes:
        expression: As it was given.
        zone: Where its wall clock hangs.
        is_fixed: Whether it names times of the day, which run once a local day.
    """

    expression: str
    zone: tzinfo
    is_fixed: bool
    # The fields in cronsim's spelling.
    spelled: str = field(repr=False)

    def after(self, instant: datetime) -> Iterator[datetime]:
        """Slots later than an instant, in order."""
        walk = cron_walk.fixed_after if self.is_fixed else cron_walk.real_after
        return walk(self.spelled, self.zone, instant)

    def until(self, instant: datetime) -> Iterator[datetime]:
        """Slots not later than an instant, newest first."""
        walk = cron_walk.fixed_until if self.is_fixed else cron_walk.real_until
        return walk(self.spelled, self.zone, instant)


@lru_cache(maxsize=1024)
def parse_schedule(expression: str, timezone: str | None = None) -> Schedule:
    """Check an expression and its zone.

    Args:
        timezone: A name of the IANA database such as ``Europe/Berlin``; ``None`` is UTC.

    Raises:
        InvalidCron: Says what was found and what is allowed.

    Contract: §8.5; rule 35.
    """
    texts = _split(expression)
    values = [_parse_field(field, text, expression) for field, text in zip(_FIELDS, texts, strict=True)]
    spelled = " ".join(_spell(text, numbers) for text, numbers in zip(texts, values, strict=True))
    try:
        CronSim(spelled, datetime(2000, 1, 1))
    except CronSimError:
        raise InvalidCron(
            f"cron expression {_shown(expression)}: no month it names has the day {texts[2]}; it would never run"
        ) from None
    return Schedule(
        expression=expression, zone=find_zone(timezone), is_fixed=_is_fixed(texts, values), spelled=spelled
    )


def find_zone(timezone: str | None) -> tzinfo:
    """The zone of a name; ``None`` is UTC.

    Raises:
        InvalidCron: There is no such zone.
    """
    if timezone is None:
        return UTC
    try:
        # "localtime" is a file on some machines, and another zone on each.
        if isinstance(timezone, str) and timezone != "localtime":
            return ZoneInfo(timezone)
    except (LookupError, ValueError, OSError):
        pass
    raise InvalidCron(
        f"time zone {_shown(timezone)} is not known here; give a name of the IANA database such as "
        "'Europe/Berlin' (where the system has none, install the tzdata package)"
    )


def _split(expression: object) -> list[str]:
    if not isinstance(expression, str):
        raise InvalidCron(f"cron expression {_shown(expression)} is no text; {_GRAMMAR}")
    if len(expression) > MAX_EXPRESSION:
        raise InvalidCron(
            f"cron expression {_shown(expression)} has {len(expression):,} characters, "
            f"{MAX_EXPRESSION} are allowed; {_GRAMMAR}"
        )
    text = expression.strip(" \t")
    if text.startswith("@"):
        text = NICKNAMES.get(text.lower(), text)
    if text.startswith("@"):
        raise InvalidCron(f"cron expression {_shown(expression)} is no known nickname; {_GRAMMAR}")
    texts = text.upper().replace("\t", " ").split(" ")
    texts = [part for part in texts if part]
    if len(texts) != len(_FIELDS):
        raise InvalidCron(f"cron expression {_shown(expression)} has {len(texts)} fields; {_GRAMMAR}")
    return texts


def _parse_field(field: _Field, text: str, expression: str) -> frozenset[int]:
    numbers: set[int] = set()
    for item in text.split(","):
        try:
            numbers.update(_parse_item(field, item))
        except ValueError as error:
            raise InvalidCron(
                f"cron expression {_shown(expression)}: {field.name} {_shown(text)}: {error}; {_GRAMMAR}"
            ) from None
    return frozenset(numbers)


def _parse_item(field: _Field, item: str) -> range:
    """The numbers of one item of a list; a ``ValueError`` says what does not fit."""
    span, has_step, step = item.partition("/")
    low, is_range, high = span.partition("-")
    if span == "*":
        found = field.full
    elif is_range:
        found = range(_number(field, low), _number(field, high) + 1)
        if not found:
            raise ValueError(f"the range {span} runs backwards")
    elif has_step:
        raise ValueError(
            f"{item} has a step without a range; {span}-{field.full[-1]}/{step} says from where to where"
        )
    else:
        found = range(_number(field, low), _number(field, low) + 1)
    return found[:: _step(field, step)] if has_step else found


def _number(field: _Field, text: str) -> int:
    if text in field.names:
        return field.names.index(text) + field.first_named
    if not (text.isascii() and text.isdigit() and len(text) <= 2):
        raise ValueError(f"{_shown(text)} is not from {field.described}")
    if not field.least <= int(text) <= field.most:
        raise ValueError(f"{text} is not from {field.described}")
    return int(text)


def _step(field: _Field, text: str) -> int:
    size = len(field.full)
    if not (text.isascii() and text.isdigit() and len(text) <= 2 and 1 <= int(text) <= size):
        raise ValueError(f"the step {_shown(text)} is not from 1 to {size}")
    return int(text)


def _spell(text: str, numbers: frozenset[int]) -> str:
    """A field in cronsim's spelling.

    cronsim takes a day that starts with ``*`` for one that is not restricted; here only the
    bare ``*`` is, so that ``*/2`` counts for the OR of the two days (rule 35).
    """
    return "*" if text == "*" else ",".join(map(str, sorted(numbers)))


def _is_fixed(texts: list[str], values: list[frozenset[int]]) -> bool:
    """Whether minute and hour name times: no ``*``, no step, and not all there are."""
    return all(
        "*" not in text and "/" not in text and len(numbers) < len(field.full)
        for field, text, numbers in zip(_FIELDS[:2], texts, values, strict=False)
    )


_REPR = reprlib.Repr()
_REPR.maxstring = _REPR.maxother = 80


def _shown(value: object) -> str:
    return _REPR.repr(value)
