"""The text of Elixir structs that have one: dates, times and decimals.

A struct whose fields are not as Elixir makes them has no text, and is shown as the
object it is.

Contract: §2.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

_ISO_CALENDAR = "Elixir.Calendar.ISO"
_UTC = "Etc/UTC"
_MAX_FRACTION_DIGITS = 6


class _Odd(Exception):
    """The struct is not as Elixir makes it."""


def struct_text(members: dict[str, Any]) -> str | None:
    """ISO 8601 text of a DateTime, NaiveDateTime, Date or Time, digits of a Decimal.

    Args:
        members: The struct as an object, with the module's name under ``__struct__``.

    Returns:
        ``None`` for other structs, and for fields out of their range.
    """
    text = _TEXTS.get(members["__struct__"])
    if text is None:
        return None
    try:
        return text(members)
    except _Odd:
        return None


def _integer(members: dict[str, Any], name: str, low: int, high: int) -> int:
    value = members.get(name)
    if type(value) is not int or not low <= value <= high:
        raise _Odd
    return value


def _require_fields(members: dict[str, Any], count: int) -> None:
    # A field too many would be lost in the text.
    if len(members) != count or members.get("calendar") != _ISO_CALENDAR:
        raise _Odd


def _date_part(members: dict[str, Any]) -> str:
    year = _integer(members, "year", -9_999, 9_999)
    month = _integer(members, "month", 1, 12)
    day = _integer(members, "day", 1, 31)
    sign = "-" if year < 0 else ""
    return f"{sign}{abs(year):04d}-{month:02d}-{day:02d}"


def _time_part(members: dict[str, Any]) -> str:
    hour = _integer(members, "hour", 0, 23)
    minute = _integer(members, "minute", 0, 59)
    second = _integer(members, "second", 0, 59)
    return f"{hour:02d}:{minute:02d}:{second:02d}{_fraction(members.get('microsecond'))}"


def _fraction(microsecond: Any) -> str:
    if not isinstance(microsecond, list) or [type(item) for item in microsecond] != [int, int]:
        raise _Odd
    value, precision = microsecond
    if not 0 <= value <= 999_999 or not 0 <= precision <= _MAX_FRACTION_DIGITS:
        raise _Odd
    return f".{value:06d}"[: 1 + precision] if precision else ""


def _offset_part(members: dict[str, Any]) -> str:
    offset = _integer(members, "utc_offset", -86_400, 86_400) + _integer(
        members, "std_offset", -86_400, 86_400
    )
    if offset == 0 and members.get("time_zone") == _UTC:
        return "Z"
    hours, seconds = divmod(abs(offset), 3_600)
    return f"{'-' if offset < 0 else '+'}{hours:02d}:{seconds // 60:02d}"


def _date(members: dict[str, Any]) -> str:
    _require_fields(members, 5)
    return _date_part(members)


def _time(members: dict[str, Any]) -> str:
    _require_fields(members, 6)
    return _time_part(members)


def _naive_datetime(members: dict[str, Any]) -> str:
    _require_fields(members, 9)
    return f"{_date_part(members)}T{_time_part(members)}"


def _datetime(members: dict[str, Any]) -> str:
    _require_fields(members, 13)
    return f"{_date_part(members)}T{_time_part(members)}{_offset_part(members)}"


def _decimal(members: dict[str, Any]) -> str:
    if len(members) != 4 or members.get("sign") not in (1, -1):
        raise _Odd
    sign = "-" if members["sign"] == -1 else ""
    coefficient = members.get("coef")
    if coefficient == "NaN":
        return "NaN"
    if coefficient == "inf":
        return f"{sign}Infinity"
    # Digits within what every interpreter setting lets be written as text.
    digits = str(_integer(members, "coef", 0, 10**600))
    return sign + _scientific(digits, _integer(members, "exp", -(10**9), 10**9))


def _scientific(digits: str, exponent: int) -> str:
    """Text of ``digits × 10^exponent`` as the General Decimal Arithmetic writes it."""
    adjusted = exponent + len(digits) - 1
    if exponent <= 0 and adjusted >= -6:
        if exponent == 0:
            return digits
        padded = digits.rjust(1 - exponent, "0")
        return f"{padded[:exponent]}.{padded[exponent:]}"
    tail = f".{digits[1:]}" if len(digits) > 1 else ""
    return f"{digits[0]}{tail}E{adjusted:+d}"


_TEXTS: Final[dict[str, Callable[[dict[str, Any]], str]]] = {
    "Elixir.DateTime": _datetime,
    "Elixir.NaiveDateTime": _naive_datetime,
    "Elixir.Date": _date,
    "Elixir.Time": _time,
    "Elixir.Decimal": _decimal,
}
