"""What a type's codec is, and the codecs of single values.

Contract: §3 ``input``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta
from decimal import Decimal, InvalidOperation
from enum import Enum, Flag, FlagBoundary
from functools import reduce
from operator import or_
from typing import Any, Literal
from uuid import UUID

from django_belay.contract.json_form import enum_form, format_duration, is_enum_by_value, parse_duration
from django_belay.contract.json_value import JsonError, plain_float

JsonKind = Literal["null", "bool", "int", "float", "str", "array", "object"]

#: Kinds of JSON value, by the Python type that a JSON reader gives.
KINDS: dict[type, JsonKind] = {
    type(None): "null",
    bool: "bool",
    int: "int",
    float: "float",
    str: "str",
    list: "array",
    dict: "object",
}
ALL_KINDS = frozenset(KINDS.values())


@dataclass(frozen=True, slots=True)
class TypeCodec:
    """How values of one annotation become JSON and come back.

    Attributes:
        name: The type as messages show it.
        encode: Value to JSON; raises ``JsonError`` for a value of another type.
        decode: JSON to value; raises ``JsonError`` likewise.
        kinds: Kinds of JSON value that ``encode`` gives.
        rank: Order in which the arms of a union try a JSON value: the narrower first.
    """

    name: str
    encode: Callable[[Any], Any]
    decode: Callable[[Any], Any]
    kinds: frozenset[JsonKind]
    rank: int = 0


def misfit(value: Any, expected: str) -> JsonError:
    """The error for a value of the wrong type; it shows the type, never the value."""
    return JsonError(f"found {type(value).__name__}, expected {expected}")


def unreadable(expected: str) -> JsonError:
    """The error for text that is not of the form its type is stored in."""
    return JsonError(f"found text that is no {expected}")


# -- JSON's own types --------------------------------------------------------


def _any(value: Any) -> Any:
    return value


def _none(value: Any) -> None:
    if value is not None:
        raise misfit(value, "None")


def _bool(value: Any) -> bool:
    if value is True or value is False:
        return bool(value)
    raise misfit(value, "bool")


def _int(value: Any) -> int:
    if type(value) is int:
        return value
    if isinstance(value, int) and not isinstance(value, bool):
        return int(value)
    raise misfit(value, "int")


def _str(value: Any) -> str:
    if type(value) is str:
        return value
    if isinstance(value, str):
        return str.__str__(value)
    raise misfit(value, "str")


def _encode_float(value: Any) -> float | int:
    if isinstance(value, float):
        return plain_float(value)
    whole = _whole(value)
    if _to_float(whole) != whole:
        raise JsonError("found int that a float cannot hold exactly, expected float")
    return whole


def _decode_float(value: Any) -> float:
    # A jsonb column gives 1e300 back as an integer of 301 digits.
    return value if type(value) is float else _to_float(_whole(value))


def _whole(value: Any) -> int:
    if isinstance(value, int) and not isinstance(value, bool):
        return int(value)
    raise misfit(value, "float")


def _to_float(value: int) -> float:
    try:
        return float(value)
    except OverflowError:
        raise JsonError("found int beyond the range of a float, expected float") from None


ANY = TypeCodec("any JSON value", _any, _any, ALL_KINDS, rank=9)
NONE = TypeCodec("None", _none, _none, frozenset({"null"}))
BOOL = TypeCodec("bool", _bool, _bool, frozenset({"bool"}))
INT = TypeCodec("int", _int, _int, frozenset({"int"}), rank=1)
FLOAT = TypeCodec("float", _encode_float, _decode_float, frozenset({"float", "int"}), rank=2)
STR = TypeCodec("str", _str, _str, frozenset({"str"}), rank=2)


# -- types stored as text ------------------------------------------------------


def text_codec(
    kind: type, format: Callable[[Any], str], parse: Callable[[str], Any], *, but: type | None = None
) -> TypeCodec:
    """The codec of a type that is stored as text.

    Args:
        but: A subclass whose values the form would cut, such as ``datetime`` for ``date``.
    """
    name = kind.__name__

    def encode(value: Any) -> str:
        if not isinstance(value, kind) or (but is not None and isinstance(value, but)):
            raise misfit(value, name)
        return format(value)

    def decode(value: Any) -> Any:
        if not isinstance(value, str):
            raise misfit(value, f"text of a {name}")
        try:
            return parse(value)
        except (ValueError, InvalidOperation):
            raise unreadable(name) from None

    return TypeCodec(name, encode, decode, frozenset({"str"}))


def _parse_datetime(text: str) -> datetime:
    if "T" not in text and " " not in text:  # fromisoformat also takes a mere date
        raise ValueError
    return datetime.fromisoformat(text)


def _parse_decimal(text: str) -> Decimal:
    if "_" in text or text != text.strip():  # Decimal takes what no JSON writer means
        raise ValueError
    return Decimal(text)


SCALARS: dict[Any, TypeCodec] = {
    None: NONE,
    type(None): NONE,
    bool: BOOL,
    int: INT,
    float: FLOAT,
    str: STR,
    object: ANY,
    Any: ANY,
    datetime: text_codec(datetime, datetime.isoformat, _parse_datetime),
    date: text_codec(date, date.isoformat, date.fromisoformat, but=datetime),
    time: text_codec(time, time.isoformat, time.fromisoformat),
    timedelta: text_codec(timedelta, format_duration, parse_duration),
    UUID: text_codec(UUID, str, UUID),
    Decimal: text_codec(Decimal, str, _parse_decimal),
}


# -- enums and literals ----------------------------------------------------------


def enum_codec(enum: type[Enum]) -> TypeCodec:
    """The codec of an enum: by value if every value is a JSON scalar, else by name."""
    if issubclass(enum, Flag):
        return _flag_codec(enum)
    by_value = is_enum_by_value(enum)
    # All names, aliases too: a row may hold a name that has become an alias since.
    forms = {
        _typed(_plain_scalar(member.value) if by_value else name): member
        for name, member in enum.__members__.items()
    }
    kinds = frozenset(KINDS[kind] for kind, _ in forms)

    def encode(value: Any) -> Any:
        if not isinstance(value, enum):
            raise misfit(value, enum.__name__)
        return _plain_scalar(enum_form(value))

    def decode(value: Any) -> Any:
        return _look_up(forms, value, enum.__name__)

    return TypeCodec(enum.__name__, encode, decode, kinds)


def _flag_codec(enum: type[Flag]) -> TypeCodec:
    def encode(value: Any) -> Any:
        if not isinstance(value, enum):
            raise misfit(value, enum.__name__)
        return int(value.value)

    # Whatever the class would make of bits that no member has, dropping them in silence (the
    # default before Python 3.11.4) is not for an input; only KEEP keeps what was stored.
    keeps = getattr(enum, "_boundary_", None) is FlagBoundary.KEEP
    known = reduce(or_, (member.value for member in enum.__members__.values()), 0)

    def decode(value: Any) -> Any:
        number = _int(value)
        try:
            if not keeps and number > 0 and number & ~known:
                raise ValueError
            return enum(number)
        except ValueError:
            raise JsonError(f"found int that is no value of {enum.__name__}") from None

    return TypeCodec(enum.__name__, encode, decode, frozenset({"int"}))


def literal_codec(values: Iterable[Any]) -> TypeCodec:
    """The codec of ``Literal[...]``: text, integers, booleans, None and enum members."""
    choices = list(values)
    name = "one of " + ", ".join(repr(choice) for choice in choices)
    forms = {
        _typed(_plain_scalar(enum_form(value) if isinstance(value, Enum) else value)): value
        for value in choices
    }

    def encode(value: Any) -> Any:
        for (_, form), choice in forms.items():
            if choice == value and isinstance(value, type(choice)) and _is_bool(value) == _is_bool(choice):
                return form
        raise misfit(value, name)

    def decode(value: Any) -> Any:
        return _look_up(forms, value, name)

    return TypeCodec(name, encode, decode, frozenset(KINDS[kind] for kind, _ in forms))


def _plain_scalar(value: Any) -> Any:
    # Text and integer enums and their values may be subclasses, which orjson takes too,
    # but which are no keys of a dict of forms.
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, int) and not isinstance(value, bool):
        return int(value)
    return value


def _is_bool(value: Any) -> bool:
    return isinstance(value, bool)


def _typed(value: Any) -> tuple[type, Any]:
    # Without the type, True and 1 are one key.
    return type(value), value


def _look_up(forms: dict[tuple[type, Any], Any], value: Any, expected: str) -> Any:
    if type(value) not in (list, dict):
        found = forms.get((type(value), value), forms)
        if found is forms and type(value) is int:
            # jsonb gives the float 1e16 back as an integer.
            found = forms.get((float, value), forms)
        if found is not forms:
            return found
    raise JsonError(f"found {type(value).__name__}, expected {_allowed(forms, expected)}")


def _allowed(forms: dict[tuple[type, Any], Any], expected: str) -> str:
    shown = [repr(form) for _, form in forms]
    listed = ", ".join(shown[:8]) + (", …" if len(shown) > 8 else "")
    return f"{expected} ({listed})" if not expected.startswith("one of") else expected
