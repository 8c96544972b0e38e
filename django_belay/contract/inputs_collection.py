"""Codecs of lists, tuples, sets, dicts, dataclasses, typed dicts and unions.

Contract: §3 ``input``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from django_belay.contract.inputs_type import KINDS, TypeCodec, misfit
from django_belay.contract.json_form import set_form
from django_belay.contract.json_value import JsonError


def _each(values: Any, convert: Callable[[Any], Any]) -> list[Any]:
    converted: list[Any] = []
    try:
        # Not a comprehension: the items done so far are the index of a misfit.
        for value in values:
            converted.append(convert(value))
    except JsonError as error:
        error.inside(len(converted))
        raise
    return converted


def _array(value: Any, name: str) -> list[Any]:
    if type(value) is list:
        return value
    raise misfit(value, name)


def list_codec(item: TypeCodec, kind: type[list[Any]] | type[tuple[Any, ...]]) -> TypeCodec:
    """The codec of a list, or of a tuple of any length."""
    name = f"{kind.__name__}[{item.name}{', ...' if kind is tuple else ''}]"

    def encode(value: Any) -> list[Any]:
        if not isinstance(value, kind):
            raise misfit(value, name)
        return _each(value, item.encode)

    def decode(value: Any) -> Any:
        return kind(_each(_array(value, name), item.decode))

    return TypeCodec(name, encode, decode, frozenset({"array"}))


def tuple_codec(items: list[TypeCodec]) -> TypeCodec:
    """The codec of a tuple with one type for each place."""
    name = f"tuple[{', '.join(item.name for item in items) or '()'}]"

    def convert(value: Any, converters: list[Callable[[Any], Any]]) -> list[Any]:
        if len(value) != len(converters):
            raise JsonError(f"found {len(value)} items, expected {name}")
        convert_next = iter(converters)
        return _each(value, lambda item: next(convert_next)(item))

    def encode(value: Any) -> list[Any]:
        if not isinstance(value, tuple):
            raise misfit(value, name)
        return convert(value, [item.encode for item in items])

    def decode(value: Any) -> tuple[Any, ...]:
        return tuple(convert(_array(value, name), [item.decode for item in items]))

    return TypeCodec(name, encode, decode, frozenset({"array"}))


def set_codec(item: TypeCodec, kind: type[set[Any]] | type[frozenset[Any]]) -> TypeCodec:
    """The codec of a set, stored as an array in a stable order."""
    name = f"{kind.__name__}[{item.name}]"

    def encode(value: Any) -> list[Any]:
        if not isinstance(value, kind):
            raise misfit(value, name)
        return set_form(_each(value, item.encode))

    def decode(value: Any) -> Any:
        try:
            return kind(_each(_array(value, name), item.decode))
        except TypeError:
            raise JsonError(f"has items that are not hashable, expected {name}") from None

    return TypeCodec(name, encode, decode, frozenset({"array"}))


def dict_codec(key: TypeCodec, value: TypeCodec) -> TypeCodec:
    """The codec of a dict, stored as an object."""
    name = f"dict[{key.name}, {value.name}]"

    def convert(members: dict[Any, Any], of_key: Callable[[Any], Any], of_value: Callable[[Any], Any]) -> Any:
        converted = {}
        for found, member in members.items():
            try:
                converted[_convert_key(found, of_key)] = of_value(member)
            except JsonError as error:
                error.inside(found if isinstance(found, str) else str(found))
                raise
        return converted

    def encode(found: Any) -> Any:
        if not isinstance(found, dict):
            raise misfit(found, name)
        return convert(found, key.encode, value.encode)

    def decode(found: Any) -> Any:
        if type(found) is not dict:
            raise misfit(found, name)
        return convert(found, key.decode, value.decode)

    return TypeCodec(name, encode, decode, frozenset({"object"}), rank=1)


def _convert_key(key: Any, convert: Callable[[Any], Any]) -> Any:
    try:
        return convert(key)
    except JsonError as error:
        raise JsonError(f"has a key that does not fit: {error.message}") from None


def integer_key_codec(codec: TypeCodec) -> TypeCodec:
    """The codec of keys that are integers: JSON has their digits."""

    def decode(text: str) -> Any:
        digits = text.removeprefix("-")
        if not (digits.isascii() and digits.isdigit() and len(digits) <= 20):
            raise JsonError(f"found text that is no int, expected {codec.name}")
        return codec.decode(int(text))

    return TypeCodec(codec.name, lambda value: str(codec.encode(value)), decode, frozenset({"str"}))


# -- objects with known members ------------------------------------------------


def name_problems(found: Iterable[str], known: Iterable[str], required: Iterable[str]) -> str:
    """Names that are missing or unexpected, as a message; empty if all is well."""
    given = {name if isinstance(name, str) else repr(name) for name in found}
    missing = sorted(set(required) - given)
    unexpected = sorted(given.difference(known))
    problems = []
    if missing:
        problems.append("missing " + ", ".join(missing))
    if unexpected:
        problems.append("unexpected " + ", ".join(map(ascii_name, unexpected)))
    return "; ".join(problems)


def ascii_name(name: str) -> str:
    """A name someone else chose, safe and short enough to print."""
    return name if name.isidentifier() and len(name) <= 80 else ascii(name[:80])


def _convert_members(found: dict[str, Any], converters: Mapping[str, Callable[[Any], Any]]) -> dict[str, Any]:
    converted = {}
    for name, value in found.items():
        try:
            converted[name] = converters[name](value)
        except JsonError as error:
            error.inside(name)
            raise
    return converted


def _check_names(
    found: dict[Any, Any], members: Mapping[str, TypeCodec], required: frozenset[str], name: str
) -> None:
    if found.keys() <= members.keys() and required <= found.keys():
        return
    if not all(isinstance(key, str) for key in found):
        raise JsonError(f"has keys that are not str, expected {name}")
    raise JsonError(
        f"{name_problems(found, members, required)}; expected {name} of {', '.join(members) or 'no members'}"
    )


def dataclass_codec(cls: type, members: dict[str, TypeCodec], required: frozenset[str]) -> TypeCodec:
    """The codec of a dataclass, stored as an object of the fields its ``__init__`` takes."""
    name = cls.__name__
    encoders = {field: codec.encode for field, codec in members.items()}
    decoders = {field: codec.decode for field, codec in members.items()}

    def encode(value: Any) -> dict[str, Any]:
        if type(value) is not cls:  # a subclass has fields that would be lost
            raise misfit(value, name)
        return _convert_members({field: getattr(value, field) for field in members}, encoders)

    def decode(value: Any) -> Any:
        if type(value) is not dict:
            raise misfit(value, f"object of a {name}")
        _check_names(value, members, required, name)
        fields = _convert_members(value, decoders)
        try:
            return cls(**fields)
        except Exception as error:  # whatever its __post_init__ raises
            raise JsonError(f"{name} refused its fields with {type(error).__name__}") from error

    return TypeCodec(name, encode, decode, frozenset({"object"}))


def typed_dict_codec(name: str, members: dict[str, TypeCodec], required: frozenset[str]) -> TypeCodec:
    """The codec of a ``TypedDict``."""
    encoders = {key: codec.encode for key, codec in members.items()}
    decoders = {key: codec.decode for key, codec in members.items()}

    def convert(value: Any, converters: Mapping[str, Callable[[Any], Any]]) -> dict[str, Any]:
        if not isinstance(value, dict):
            raise misfit(value, name)
        _check_names(value, members, required, name)
        return _convert_members(value, converters)

    return TypeCodec(
        name,
        lambda value: convert(value, encoders),
        lambda value: convert(value, decoders),
        frozenset({"object"}),
    )


# -- unions --------------------------------------------------------------------


def optional_codec(arm: TypeCodec) -> TypeCodec:
    """The codec of a type or ``None``."""
    encode_arm, decode_arm = arm.encode, arm.decode
    name = f"{arm.name} | None"
    return TypeCodec(
        name,
        lambda value: None if value is None else encode_arm(value),
        lambda value: None if value is None else decode_arm(value),
        arm.kinds | {"null"},
        arm.rank,
    )


def union_codec(arms: list[TypeCodec]) -> TypeCodec:
    """The codec of a union.

    JSON tells arms apart by its own kinds only, so ``date | str`` is ambiguous. Reading
    tries the narrower arm first; writing reads its own form back, and refuses a value that
    would come back as another one: a text that looks like a date, for instance.
    """
    name = " | ".join(arm.name for arm in arms)
    readers = sorted(arms, key=lambda arm: arm.rank)
    kinds = frozenset().union(*(arm.kinds for arm in arms))
    is_ambiguous = sum(len(arm.kinds) for arm in arms) > len(kinds)

    def encode(value: Any) -> Any:
        lost = False
        for arm in arms:
            try:
                form = arm.encode(value)
            except JsonError:
                continue
            if not is_ambiguous or _is_same(value, _read_back(decode, form)):
                return form
            lost = True
        if lost:
            raise JsonError(f"found {type(value).__name__} that would be read back as another type of {name}")
        raise misfit(value, name)

    def decode(value: Any) -> Any:
        kind = KINDS.get(type(value))
        for arm in readers:
            if kind in arm.kinds:
                try:
                    return arm.decode(value)
                except JsonError:
                    continue
        raise misfit(value, name)

    return TypeCodec(name, encode, decode, kinds, max(arm.rank for arm in arms))


def _read_back(decode: Callable[[Any], Any], form: Any) -> Any:
    try:
        return decode(form)
    except JsonError:
        return _UNREADABLE


_UNREADABLE = object()


def _is_same(value: Any, back: Any) -> bool:
    return bool(isinstance(value, type(back)) and value == back)
