"""Typed values as JSON: the form of a type is derived from its hint, once.

An instant is microseconds since 1970 (UTC), bytes are base64, a dataclass is the list of its
fields in their order, JSON stays as it is, a union of dataclasses names the one. What is read is
checked; a class is never found by a name that came with the data but in the union's own table.
"""

from __future__ import annotations

import base64
import types
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from datetime import UTC, datetime, timedelta
from functools import cache
from operator import attrgetter
from typing import Any, Final, Literal, TypeAlias, Union, get_args, get_origin, get_type_hints

Convert: TypeAlias = Callable[[Any], Any]

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)
_PLAIN: Final[dict[Any, tuple[type, ...]]] = {
    str: (str,),
    int: (int,),
    bool: (bool,),
    float: (float, int),
    type(None): (type(None),),
}
_LISTS: Final = frozenset({list, Sequence, Collection})
_MAPS: Final = frozenset({dict, Mapping})


class Unreadable(ValueError):
    """A value that does not have the form of its type."""


@dataclass(frozen=True, slots=True)
class Form:
    """How the values of one type are written and read.

    Attributes:
        encode: The JSON value; ``None`` where that is the value itself.
        decode: The value; raises :class:`Unreadable`. ``None`` where anything goes.
    """

    encode: Convert | None
    decode: Convert | None

    def to_json(self, value: Any) -> Any:
        """The JSON value of a value."""
        return value if self.encode is None else self.encode(value)

    def of_json(self, found: Any) -> Any:
        """The value. Raises :class:`Unreadable`."""
        return found if self.decode is None else self.decode(found)


def form_of(hint: Any, *, where: str) -> Form:
    """The form of a type.

    Args:
        hint: Resolved, without forward references.
        where: Who needs it, for the message.

    Raises:
        TypeError: The type has no form.
    """
    if hint is Any:
        return Form(None, None)
    if hint in _PLAIN:
        return Form(None, _checking(_PLAIN[hint]))
    if hint in _SPECIAL:
        return _SPECIAL[hint]
    if isinstance(hint, type) and is_dataclass(hint):
        return _record(hint)
    return _composed(get_origin(hint), get_args(hint), hint, where)


def _composed(origin: Any, arguments: tuple[Any, ...], hint: Any, where: str) -> Form:
    if origin is Literal:
        return Form(None, _choosing(arguments))
    if origin in (Union, types.UnionType):
        return _union(arguments, where)
    if origin in _LISTS:
        return _list(form_of(arguments[0], where=where), list)
    if origin is frozenset:
        return _list(form_of(arguments[0], where=where), frozenset)
    if origin is tuple and arguments[1:] == (Ellipsis,):
        return _list(form_of(arguments[0], where=where), tuple)
    if origin is tuple:
        return _row(tuple(form_of(one, where=where) for one in arguments))
    if origin in _MAPS:
        return _map(arguments[0], form_of(arguments[1], where=where), where)
    raise TypeError(f"{where}: {hint!r} has no form on the wire")


# -- single values ----------------------------------------------------------------


def _checking(allowed: tuple[type, ...]) -> Convert:
    def decode(found: Any) -> Any:
        if type(found) not in allowed:
            raise Unreadable(f"{allowed[0].__name__} expected, {_told(found)} found")
        return found

    return decode


def _choosing(choices: tuple[Any, ...]) -> Convert:
    known = frozenset(choices)

    def decode(found: Any) -> Any:
        if type(found) is not str or found not in known:
            raise Unreadable(f"one of {', '.join(sorted(known))} expected, {_told(found)} found")
        return found

    return decode


def _told(found: Any) -> str:
    """What was found, in words that give no text of a user away."""
    return f"int {found}" if type(found) is int else type(found).__name__


def _encode_instant(value: datetime) -> int:
    return (value - _EPOCH) // _MICROSECOND


def _decode_instant(found: Any) -> datetime:
    try:
        return _EPOCH + _decode_duration(found)
    except OverflowError:
        raise Unreadable(f"microseconds since 1970 expected, {found} found") from None


def _encode_duration(value: timedelta) -> int:
    return value // _MICROSECOND


def _decode_duration(found: Any) -> timedelta:
    if type(found) is not int:
        raise Unreadable(f"microseconds expected, {_told(found)} found")
    try:
        return timedelta(microseconds=found)
    except OverflowError:
        raise Unreadable(f"microseconds expected, {found} found") from None


def _encode_bytes(value: bytes) -> str:
    return base64.b64encode(value).decode()


def _decode_bytes(found: Any) -> bytes:
    if type(found) is not str:
        raise Unreadable(f"base64 expected, {_told(found)} found")
    try:
        return base64.b64decode(found, validate=True)
    except ValueError:
        raise Unreadable("base64 expected, another text found") from None


_SPECIAL: Final[dict[Any, Form]] = {
    datetime: Form(_encode_instant, _decode_instant),
    timedelta: Form(_encode_duration, _decode_duration),
    bytes: Form(_encode_bytes, _decode_bytes),
}


# -- containers -------------------------------------------------------------------


def _list(item: Form, make: Callable[[list[Any]], Any]) -> Form:
    encode, decode = item.encode, item.decode

    def encode_all(values: Any) -> list[Any]:
        return list(values) if encode is None else [encode(value) for value in values]

    def decode_all(found: Any) -> Any:
        if type(found) is not list:
            raise Unreadable(f"array expected, {_told(found)} found")
        return make(found if decode is None else [decode(one) for one in found])

    return Form(encode_all, decode_all)


def _row(cells: tuple[Form, ...]) -> Form:
    """A tuple with a type for each place."""

    def encode(values: Any) -> list[Any]:
        return [form.to_json(value) for form, value in zip(cells, values, strict=True)]

    def decode(found: Any) -> tuple[Any, ...]:
        if type(found) is not list or len(found) != len(cells):
            raise Unreadable(f"array of {len(cells)} expected, {_told(found)} found")
        return tuple(form.of_json(one) for form, one in zip(cells, found, strict=True))

    return Form(encode, decode)


def _map(key_hint: Any, value: Form, where: str) -> Form:
    """An object where the keys are texts and the values JSON; else an array of pairs."""
    if key_hint is str and value.decode is None:
        return Form(dict, _checking((dict,)))
    pairs = _list(_row((form_of(key_hint, where=where), value)), dict)
    return Form(lambda found: pairs.to_json(found.items()), pairs.decode)


# -- dataclasses and unions ---------------------------------------------------------


@cache
def _record(cls: type[Any]) -> Form:
    """A dataclass as the list of its fields."""
    name = cls.__name__
    hints = get_type_hints(cls)
    names = tuple(field.name for field in fields(cls))
    forms = [form_of(hints[field], where=f"{name}.{field}") for field in names]
    writing = [(at, form.encode) for at, form in enumerate(forms) if form.encode is not None]
    reading = [(at, form.decode) for at, form in enumerate(forms) if form.decode is not None]
    cells_of = attrgetter(*names)
    is_single = len(names) == 1

    def encode(value: Any) -> list[Any]:
        cells = [cells_of(value)] if is_single else list(cells_of(value))
        for at, convert in writing:
            cells[at] = convert(cells[at])
        return cells

    def decode(found: Any) -> Any:
        if type(found) is not list or len(found) != len(names):
            raise Unreadable(f"{name}: array of {len(names)} expected, {_told(found)} found")
        cells = found.copy()
        at = 0
        try:
            for at, convert in reading:
                cells[at] = convert(cells[at])
        except Unreadable as error:
            raise Unreadable(f"{name}.{names[at]}: {error}") from None
        return cls(**dict(zip(names, cells, strict=True)))

    return Form(encode, decode)


def _union(members: tuple[Any, ...], where: str) -> Form:
    some = tuple(member for member in members if member is not type(None))
    form = form_of(some[0], where=where) if len(some) == 1 else _tagged(some, where)
    return _optional(form) if len(some) < len(members) else form


def _optional(form: Form) -> Form:
    return Form(_unless_none(form.encode), _unless_none(form.decode))


def _unless_none(convert: Convert | None) -> Convert | None:
    return None if convert is None else lambda value: None if value is None else convert(value)


def _tagged(members: tuple[Any, ...], where: str) -> Form:
    """One of several dataclasses: its name, then itself."""
    if not all(isinstance(member, type) and is_dataclass(member) for member in members):
        raise TypeError(f"{where}: {members!r} has no form on the wire: only dataclasses can be told apart")
    forms = {member.__name__: _record(member) for member in members}

    def encode(value: Any) -> list[Any]:
        name = type(value).__name__
        return [name, forms[name].to_json(value)]

    def decode(found: Any) -> Any:
        if type(found) is not list or len(found) != 2 or type(found[0]) is not str or found[0] not in forms:
            raise Unreadable(f"one of {', '.join(forms)} expected, {_told(found)} found")
        return forms[found[0]].of_json(found[1])

    return Form(encode, decode)
