"""What one job of a chunk kind takes: read from the annotation of the function's items."""

from __future__ import annotations

import dataclasses
import inspect
import typing
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from django_belay.contract.inputs import InputCodec
from django_belay.exceptions import ConfigurationError


@dataclass(frozen=True, slots=True)
class ChunkItems:
    """How the jobs of a chunk are enqueued, and what its function gets them as."""

    codec: InputCodec
    item_type: Callable[..., Any] | None
    takes_context: bool


def chunk_items(function: Callable[..., Any], *, where: str, context: str) -> ChunkItems:
    """Read ``(ctx, items)`` or ``(items)``.

    ``items: list[Page]``, ``Page`` being a dataclass, makes each job take its fields by name.
    Without an annotation, or with ``list[dict[str, …]]``, a job takes any arguments by name.

    Raises:
        ConfigurationError: The function takes something else, or is async.
    """
    if inspect.iscoroutinefunction(function):
        raise ConfigurationError(f"{where}: chunk= is for ordinary functions; leave async out")
    names = list(inspect.signature(function).parameters)
    takes_context = bool(names) and names[0] == context
    if len(names) != 1 + takes_context:
        raise ConfigurationError(
            f"{where}: with chunk= it is called as (ctx, items) or (items), and it takes "
            f"({', '.join(names)}); what one job takes is the dataclass of the items: items: list[Page]"
        )
    item_type = _item_type(function, names[-1], where)
    codec = (
        InputCodec.for_function(_anything)
        if item_type is None
        else InputCodec.for_function(item_type.__init__, skip_first="self")  # type: ignore[misc]
    )
    return ChunkItems(codec, item_type, takes_context)


def _item_type(function: Callable[..., Any], name: str, where: str) -> type | None:
    if name not in function.__annotations__:
        return None
    try:
        annotation = typing.get_type_hints(function)[name]
    except (NameError, TypeError) as error:
        raise ConfigurationError(
            f"{where}: the annotation of {name} cannot be resolved: {error}. "
            "Define the items' class above the function, and import types at the module's level"
        ) from error
    found = typing.get_args(annotation)
    if typing.get_origin(annotation) in (list, Sequence) and len(found) == 1:
        if dataclasses.is_dataclass(found[0]) and isinstance(found[0], type):
            return found[0]
        if (typing.get_origin(found[0]) or found[0]) in (dict, Any):
            return None
    elif annotation is list:
        return None
    raise ConfigurationError(
        f"{where}: {name} is {annotation!r}; give list[Page] of a dataclass, or list[dict[str, Any]]"
    )


def _anything(**fields: Any) -> None:
    """Takes what a job without a dataclass takes."""
