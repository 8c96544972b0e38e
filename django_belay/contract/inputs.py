"""A job's signature as the codec of its input.

The input of a job is a JSON object of its arguments by name. The codec binds and checks
the arguments at the call, writes them in JSON forms, and gives them back typed by the
job's annotations. Arguments that are left out are not stored: the default of the code
that runs the job applies.

Contract: §3 ``input``.
"""

from __future__ import annotations

import functools
import inspect
import sys
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, NoReturn

from django_belay.contract.encryption import is_encrypted
from django_belay.contract.inputs_collection import name_problems
from django_belay.contract.inputs_compile import Compiler
from django_belay.contract.inputs_type import ANY, TypeCodec, misfit
from django_belay.contract.json_value import MAX_INPUT_DEPTH, JsonError, dump_jsonb
from django_belay.exceptions import ConfigurationError, InvalidInput

_Parameter = inspect.Parameter
_NO_ARGUMENTS: Mapping[str, Any] = {}


_Converter = Callable[[Any], Any]


@dataclass(frozen=True, slots=True)
class _Converters:
    """One direction: by name, and for the names that ``**kwargs`` takes."""

    by_name: dict[str, _Converter]
    extra: _Converter | None


@dataclass(frozen=True, slots=True)
class _Compiled:
    types: dict[str, str]  # name -> type as messages show it
    encoders: _Converters
    decoders: _Converters


class InputCodec:
    """Checks, writes and reads the arguments of one function.

    Attributes:
        parameters: Names of the arguments that the input holds.
        required: Those without a default.
        takes_context: Whether the first parameter is the context and so no input.

    Contract: §3 ``input``.
    """

    __slots__ = (
        "_compiled",
        "_function",
        "_positional",
        "_signature",
        "parameters",
        "required",
        "takes_context",
    )

    def __init__(
        self, function: Callable[..., Any], signature: inspect.Signature, *, takes_context: bool
    ) -> None:
        self._function = function
        self._signature = signature
        self._compiled: _Compiled | None = None
        self.takes_context = takes_context
        named = [p for p in signature.parameters.values() if p.kind is not _Parameter.VAR_KEYWORD]
        self._positional = tuple(p.name for p in named if p.kind is _Parameter.POSITIONAL_OR_KEYWORD)
        self.parameters = tuple(p.name for p in named)
        self.required = frozenset(p.name for p in named if p.default is _Parameter.empty)

    @classmethod
    def for_function(cls, function: Callable[..., Any], skip_first: str | None = "ctx") -> InputCodec:
        """The codec of a function's arguments.

        Annotations are resolved at first use, so that a job may name types that are
        imported later; :meth:`compile` resolves them now.

        Args:
            skip_first: Name of a first parameter that is no input: the job's context.

        Raises:
            ConfigurationError: The function takes ``*args`` or positional-only arguments,
                which an object of names cannot hold.
        """
        signature = _signature(function)
        parameters = list(signature.parameters.values())
        takes_context = bool(parameters) and parameters[0].name == skip_first
        inputs = parameters[1:] if takes_context else parameters
        for parameter in inputs:
            if parameter.kind in (_Parameter.VAR_POSITIONAL, _Parameter.POSITIONAL_ONLY):
                raise ConfigurationError(
                    f"{_name(function)}: {parameter} cannot be given by name, and a job's input is an object "
                    "of names; make it an ordinary parameter"
                )
        return cls(function, signature.replace(parameters=inputs), takes_context=takes_context)

    def compile(self) -> None:
        """Resolve the annotations now.

        Raises:
            ConfigurationError: An annotation cannot be resolved, or is of a type that
                inputs cannot hold; the message names function, parameter and type.
        """
        self._compile()

    def encode(
        self,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] = _NO_ARGUMENTS,
        *,
        path: str = "input",
        max_depth: int = MAX_INPUT_DEPTH,
    ) -> dict[str, Any]:
        """Arguments as a JSON object, checked in full.

        Args:
            args: Positional arguments, without the context.
            path: What the input is called in messages, such as ``inputs[17]``.
            max_depth: Depth allowed; the object itself has 1.

        Returns:
            An object that ``jsonb`` holds exactly. Arguments left out are not in it.

        Raises:
            InvalidInput: Names the arguments missing, unexpected or of the wrong type,
                or the path of a value that PostgreSQL or JSON cannot hold.
            ConfigurationError: As :meth:`compile`.
        """
        return self.encode_json(args, kwargs, path=path, max_depth=max_depth)[0]

    def encode_json(
        self,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] = _NO_ARGUMENTS,
        *,
        path: str = "input",
        max_depth: int = MAX_INPUT_DEPTH,
    ) -> tuple[dict[str, Any], bytes]:
        """Like :meth:`encode`; also gives the object's compact UTF-8 JSON, which the check makes anyway."""
        found = self._bind(args, kwargs, path) if args else kwargs
        members = self._convert(found, (self._compiled or self._compile()).encoders, path)
        if is_encrypted(members):
            raise InvalidInput("an object of $enc alone is how encrypted inputs are stored", path=path)
        return members, dump_jsonb(members, path=path, max_depth=max_depth)

    def decode(self, input: Mapping[str, Any], *, path: str = "input") -> dict[str, Any]:
        """Keyword arguments from a stored input, typed by the annotations.

        Args:
            input: The JSON object, decrypted; another SDK or an older version of the code
                may have written it.

        Raises:
            InvalidInput: The object misses an argument that has no default, has one that
                the function does not take, or one of the wrong type.
            ConfigurationError: As :meth:`compile`.
        """
        if not isinstance(input, Mapping):
            raise InvalidInput(misfit(input, "object of the job's arguments").message, path=path)
        return self._convert(input, (self._compiled or self._compile()).decoders, path)

    # -- in parts ----------------------------------------------------------------

    def _convert(self, found: Mapping[str, Any], converters: _Converters, path: str) -> dict[str, Any]:
        by_name, extra = converters.by_name, converters.extra
        name = ""
        converted: dict[str, Any] = {}
        try:
            for name, value in found.items():
                convert = by_name.get(name, extra)
                if convert is None:
                    self._refuse_names(found, path)
                converted[name] = convert(value)
        except JsonError as error:
            raise error.inside(name).as_invalid_input(path) from error.__cause__
        except RecursionError:
            raise InvalidInput("contains itself, or is nested too deep", path=f"{path}.{name}") from None
        if not self.required <= converted.keys():
            self._refuse_names(found, path)
        return converted

    def _bind(self, args: Sequence[Any], kwargs: Mapping[str, Any], path: str) -> dict[str, Any]:
        if len(args) > len(self._positional):
            raise InvalidInput(
                f"{len(args)} positional arguments, at most {len(self._positional)} are taken; {self._describe()}",
                path=path,
            )
        bound = dict(zip(self._positional, args, strict=False))
        if not kwargs:
            return bound
        twice = bound.keys() & kwargs.keys()
        if twice:
            raise InvalidInput(f"given twice: {', '.join(sorted(twice))}; {self._describe()}", path=path)
        return bound | dict(kwargs)

    def _refuse_names(self, found: Mapping[str, Any], path: str) -> NoReturn:
        takes_any = (self._compiled or self._compile()).encoders.extra is not None
        allowed = found.keys() if takes_any else self.parameters
        raise InvalidInput(f"{name_problems(found, allowed, self.required)}; {self._describe()}", path=path)

    def _describe(self) -> str:
        types = (self._compiled or self._compile()).types
        shown = [
            f"{name}: {kind}{'' if name in self.required else ' (optional)'}" for name, kind in types.items()
        ]
        return f"{_name(self._function)} takes {', '.join(shown) or 'no arguments'}"

    # -- compiling ---------------------------------------------------------------

    def _compile(self) -> _Compiled:
        # Two threads may compile at once; either result is right.
        compiler = Compiler()
        codecs = {
            parameter.name: self._compile_parameter(parameter, compiler)
            for parameter in self._signature.parameters.values()
        }
        extra = next((codecs.pop(p.name) for p in self._signature.parameters.values() if _is_extra(p)), None)
        self._compiled = _Compiled(
            {name: codec.name for name, codec in codecs.items()},
            _Converters(
                {name: codec.encode for name, codec in codecs.items()},
                None if extra is None else extra.encode,
            ),
            _Converters(
                {name: codec.decode for name, codec in codecs.items()},
                None if extra is None else extra.decode,
            ),
        )
        return self._compiled

    def _compile_parameter(self, parameter: inspect.Parameter, compiler: Compiler) -> TypeCodec:
        if parameter.annotation is _Parameter.empty:
            return ANY
        try:
            return compiler.compile(_resolve(self._function, parameter))
        except ConfigurationError as error:
            raise ConfigurationError(
                f"{_name(self._function)}, parameter {parameter.name}: {error}"
            ) from error


def _is_extra(parameter: inspect.Parameter) -> bool:
    return parameter.kind is _Parameter.VAR_KEYWORD


def _name(function: Callable[..., Any]) -> str:
    return getattr(function, "__qualname__", None) or repr(function)


def _signature(function: Callable[..., Any]) -> inspect.Signature:
    if sys.version_info >= (3, 14):
        import annotationlib

        # Names under TYPE_CHECKING, such as the context's type, must not stop the import.
        return inspect.signature(function, annotation_format=annotationlib.Format.FORWARDREF)
    return inspect.signature(function)


def _resolve(function: Callable[..., Any], parameter: inspect.Parameter) -> Any:
    """One parameter's annotation, with names in text looked up in the function's module.

    One at a time, because the context's and the result's annotations are often imported
    for type checkers only.
    """
    holder: Any = SimpleNamespace(__annotations__={parameter.name: parameter.annotation})
    try:
        hints = typing.get_type_hints(holder, _globals(function), include_extras=True)
    except (NameError, AttributeError, SyntaxError, TypeError) as error:
        raise ConfigurationError(
            f"the annotation {_shown(parameter.annotation)} cannot be resolved: {error}. "
            "Import the type at the module's level, not for type checkers only"
        ) from error
    return hints[parameter.name]


def _shown(annotation: Any) -> str:
    return repr(annotation) if isinstance(annotation, str) else inspect.formatannotation(annotation)


def _globals(function: Any) -> dict[str, Any]:
    inner = inspect.unwrap(function)
    while isinstance(inner, functools.partial):
        inner = inspect.unwrap(inner.func)
    found = getattr(inner, "__globals__", None) or getattr(type(inner).__call__, "__globals__", {})
    return dict(found)
