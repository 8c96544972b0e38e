"""Compiles an annotation into the codec of its values.

Contract: §3 ``input``.
"""

from __future__ import annotations

import collections.abc
import dataclasses
import types
import typing
from collections.abc import Callable
from enum import Enum
from typing import Any

from django_belay.contract.inputs_collection import (
    dataclass_codec,
    dict_codec,
    integer_key_codec,
    list_codec,
    optional_codec,
    set_codec,
    tuple_codec,
    typed_dict_codec,
    union_codec,
)
from django_belay.contract.inputs_type import ANY, NONE, SCALARS, TypeCodec, enum_codec, literal_codec
from django_belay.exceptions import ConfigurationError

_LISTS = (
    list,
    collections.abc.Sequence,
    collections.abc.MutableSequence,
    collections.abc.Collection,
    collections.abc.Iterable,
)
_SETS = (set, collections.abc.Set, collections.abc.MutableSet)
_DICTS = (dict, collections.abc.Mapping, collections.abc.MutableMapping)
_WRAPPERS = (typing.Annotated, typing.Required, typing.NotRequired, typing.Final)


class Compiler:
    """Compiles annotations; types that contain themselves are compiled once."""

    def __init__(self) -> None:
        self._known: dict[Any, TypeCodec] = {}

    def compile(self, annotation: Any) -> TypeCodec:
        """The codec of a resolved annotation.

        Raises:
            ConfigurationError: A type that inputs cannot hold; the message names it.
        """
        codec = _scalar(annotation)
        if codec is not None:
            return codec
        origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
        if origin in _WRAPPERS:
            return self.compile(arguments[0])
        if origin in (typing.Union, types.UnionType):
            return self._union(arguments)
        if origin is typing.Literal:
            return literal_codec(arguments)
        if isinstance(annotation, typing.NewType):
            return self.compile(annotation.__supertype__)
        if hasattr(annotation, "__value__"):  # `type X = ...` of Python 3.12
            return self._once(annotation, lambda: self.compile(annotation.__value__))
        return self._container(annotation, origin or annotation, arguments)

    def _container(self, annotation: Any, origin: Any, arguments: tuple[Any, ...]) -> TypeCodec:
        if origin in _LISTS:
            return list_codec(self._item(arguments), list)
        if origin in _SETS:
            return set_codec(self._item(arguments), set)
        if origin is frozenset:
            return set_codec(self._item(arguments), frozenset)
        if origin is tuple:
            return self._tuple(annotation, arguments)
        if origin in _DICTS:
            key, value = arguments or (str, Any)
            return dict_codec(self._key(key), self.compile(value))
        if typing.is_typeddict(annotation):
            return self._once(annotation, lambda: self._typed_dict(annotation))
        if isinstance(annotation, type) and dataclasses.is_dataclass(annotation):
            return self._once(annotation, lambda: self._dataclass(annotation))
        raise ConfigurationError(
            f"{_type_name(annotation)} is no type a job's input can hold; use JSON types, datetime, date, time, "
            "timedelta, UUID, Decimal, Enum, dataclasses, TypedDict, or collections of these"
        )

    def _item(self, arguments: tuple[Any, ...]) -> TypeCodec:
        return self.compile(arguments[0]) if arguments else ANY

    def _once(self, key: Any, build: Callable[[], TypeCodec]) -> TypeCodec:
        """Build a codec that may meet its own type while it is being built."""
        if key in self._known:
            return self._known[key]
        built: list[TypeCodec] = []
        self._known[key] = TypeCodec(
            _type_name(key),
            lambda value: built[0].encode(value),
            lambda value: built[0].decode(value),
            frozenset({"object", "array"}),
        )
        built.append(build())
        self._known[key] = built[0]
        return built[0]

    def _tuple(self, annotation: Any, arguments: tuple[Any, ...]) -> TypeCodec:
        if annotation is tuple or annotation is typing.Tuple:  # noqa: UP006
            return list_codec(ANY, tuple)
        if len(arguments) == 2 and arguments[1] is Ellipsis:
            return list_codec(self.compile(arguments[0]), tuple)
        return tuple_codec([self.compile(argument) for argument in arguments])

    def _union(self, arguments: tuple[Any, ...]) -> TypeCodec:
        arms = [self.compile(argument) for argument in arguments]
        others = [arm for arm in arms if arm is not NONE]
        if len(others) == 1:
            return optional_codec(others[0])
        return union_codec(arms)

    def _key(self, annotation: Any) -> TypeCodec:
        codec = SCALARS[str] if annotation is Any else self.compile(annotation)
        if codec.kinds == {"str"}:
            return codec
        if codec.kinds == {"int"}:
            return integer_key_codec(codec)
        raise ConfigurationError(
            f"a dict with keys of type {codec.name} is no type a job's input can hold; "
            "JSON keys are text: use str, int, or a type stored as text"
        )

    def _dataclass(self, cls: type) -> TypeCodec:
        hints = resolve_class(cls)
        fields = [field for field in dataclasses.fields(cls) if field.init]
        for name, hint in hints.items():
            if isinstance(hint, dataclasses.InitVar):
                raise ConfigurationError(
                    f"{cls.__qualname__}.{name} is an InitVar, which cannot be read back from an instance"
                )
        members = {field.name: self._member(cls, field.name, hints[field.name]) for field in fields}
        required = frozenset(field.name for field in fields if not _has_default(field))
        return dataclass_codec(cls, members, required)

    def _typed_dict(self, cls: Any) -> TypeCodec:
        hints = resolve_class(cls)
        members = {name: self._member(cls, name, hint) for name, hint in hints.items()}
        required = frozenset(name for name, hint in hints.items() if _is_required(cls, name, hint))
        return typed_dict_codec(cls.__name__, members, required)

    def _member(self, cls: Any, name: str, hint: Any) -> TypeCodec:
        try:
            return self.compile(hint)
        except ConfigurationError as error:
            raise ConfigurationError(f"{cls.__qualname__}.{name}: {error}") from None


def _scalar(annotation: Any) -> TypeCodec | None:
    try:
        codec = SCALARS.get(annotation)
    except TypeError:  # unhashable, such as Annotated[int, []]
        return None
    if codec is None and isinstance(annotation, type) and issubclass(annotation, Enum):
        return enum_codec(annotation)
    return codec


def resolve_class(cls: Any) -> dict[str, Any]:
    """The annotations of a dataclass or TypedDict, with names in text looked up.

    Raises:
        ConfigurationError: A name cannot be resolved.
    """
    try:
        return typing.get_type_hints(cls, include_extras=True)
    except (NameError, AttributeError, SyntaxError, TypeError) as error:
        raise ConfigurationError(
            f"an annotation of {cls.__qualname__} cannot be resolved: {error}"
        ) from error


def _has_default(field: dataclasses.Field[Any]) -> bool:
    return field.default is not dataclasses.MISSING or field.default_factory is not dataclasses.MISSING


def _is_required(cls: Any, name: str, hint: Any) -> bool:
    # With postponed annotations __required_keys__ does not see the wrappers.
    origin = typing.get_origin(hint)
    if origin is typing.Annotated:
        return _is_required(cls, name, typing.get_args(hint)[0])
    if origin in (typing.Required, typing.NotRequired):
        return origin is typing.Required
    return name in cls.__required_keys__


def _type_name(annotation: Any) -> str:
    if isinstance(annotation, type) and not typing.get_args(annotation):
        return annotation.__qualname__
    return getattr(annotation, "__name__", None) or repr(annotation)
