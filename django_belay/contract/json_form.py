"""JSON forms of Python values that JSON itself does not know.

One form each, shared by job inputs (which are read back by their annotations) and by
step values and results (which are read back as the form).

============  ======================================================
Python        JSON
============  ======================================================
datetime      ``"2026-07-21T09:30:15.120000+02:00"``, naive without offset
date, time    ``"2026-07-21"``, ``"09:30:15"``
timedelta     ISO 8601, ``"P1DT2H3M4.000005S"``, ``"-PT5S"``
UUID          ``"0f8fad5b-d9cb-469f-a165-70867728950e"``
Decimal       its digits as text, ``"12.30"``
Enum          the member's value if all values are scalars, else its name
dataclass     object of its fields
set           array, in a stable order
============  ======================================================
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Callable, Iterable
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum, Flag
from typing import Any
from uuid import UUID

import orjson

from django_belay.contract.json_value import MAX_UINT64, MIN_INT64, JsonError, unknown_type

_DURATION = re.compile(
    r"(?P<sign>-?)P(?:(?P<days>\d{1,9})D)?"
    r"(?:T(?:(?P<hours>\d{1,9})H)?(?:(?P<minutes>\d{1,9})M)?(?:(?P<seconds>\d{1,9})(?:\.(?P<fraction>\d{1,6}))?S)?)?",
    re.ASCII,
)


def format_duration(value: timedelta) -> str:
    """A duration as ISO 8601, exact to the microsecond."""
    sign = "-" if value < timedelta(0) else ""
    # abs() of the most negative timedelta overflows; whole microseconds do not.
    micros = abs((value.days * 86_400 + value.seconds) * 1_000_000 + value.microseconds)
    seconds, fraction = divmod(micros, 1_000_000)
    days, seconds = divmod(seconds, 86_400)
    hours, seconds = divmod(seconds, 3_600)
    minutes, seconds = divmod(seconds, 60)
    tail = f".{fraction:06d}" if fraction else ""
    return f"{sign}P{days}DT{hours}H{minutes}M{seconds}{tail}S"


def parse_duration(text: str) -> timedelta:
    """Read ISO 8601 days, hours, minutes and seconds.

    Raises:
        ValueError: Another shape, or beyond what ``timedelta`` holds.
    """
    match = _DURATION.fullmatch(text)
    if match is None or text[-1] in "PT":
        raise ValueError("not an ISO 8601 duration of days, hours, minutes and seconds")
    days, hours, minutes, seconds = (
        int(match[name] or 0) for name in ("days", "hours", "minutes", "seconds")
    )
    micros = int((match["fraction"] or "").ljust(6, "0"))
    negative = -1 if match["sign"] else 1
    try:
        return timedelta(
            days=negative * days,
            seconds=negative * (hours * 3_600 + minutes * 60 + seconds),
            microseconds=negative * micros,
        )
    except OverflowError:
        raise ValueError("a duration of more than 999,999,999 days") from None


def enum_form(member: Enum) -> Any:
    """A member's JSON form: its value, or its name when the class has values JSON lacks."""
    return member.value if is_enum_by_value(type(member)) else member.name


def is_enum_by_value(enum: type[Enum]) -> bool:
    """Whether members are stored by value: text, integer and flag enums, and those of scalars only."""
    if issubclass(enum, (str, int, Flag)):
        return True
    return all(_is_scalar(member.value) for member in enum)


def _is_scalar(value: Any) -> bool:
    kind = type(value)
    if kind is int:
        return bool(MIN_INT64 <= value <= MAX_UINT64)
    if kind is float:
        return math.isfinite(value)
    return value is None or kind is bool or kind is str


def set_form(items: Iterable[Any]) -> list[Any]:
    """JSON items of a set in an order that does not depend on the process's hash seed."""
    return sorted(items, key=orjson.dumps)


def _dataclass_form(value: Any) -> dict[str, Any]:
    return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}


_FORMS: dict[type, Callable[[Any], Any]] = {
    datetime: datetime.isoformat,
    date: date.isoformat,
    time: time.isoformat,
    timedelta: format_duration,
    UUID: str,
    Decimal: str,
    # repr orders any mixture of items, and equal items of a set have one repr.
    set: lambda value: sorted(value, key=repr),
    frozenset: lambda value: sorted(value, key=repr),
}


def json_form(value: Any) -> Any:
    """One step towards JSON for a value of a type JSON does not know.

    Returns:
        Plain JSON, or a list or dict whose items may need a form themselves.

    Raises:
        JsonError: There is no form for this type.
    """
    if isinstance(value, Enum):
        return enum_form(value)
    form = _FORMS.get(type(value)) or _inherited_form(value)
    if form is not None:
        return form(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return _dataclass_form(value)
    if isinstance(value, (bytes, bytearray, memoryview)):
        raise JsonError("found bytes; JSON holds text only: encode them, for example as base64")
    raise unknown_type(value)


def _inherited_form(value: Any) -> Callable[[Any], Any] | None:
    # Subclasses: pandas timestamps, fake dates of test tools, uuid-utils.
    return next((form for kind, form in _FORMS.items() if isinstance(value, kind)), None)
