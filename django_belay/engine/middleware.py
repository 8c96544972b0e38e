"""Middleware around the call of a job."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from django_belay.engine.options import Middleware

if TYPE_CHECKING:
    from django_belay.engine.context import JobContext


def with_middleware(
    call: Callable[[JobContext], Any], middleware: tuple[Middleware, ...]
) -> Callable[[JobContext], Any]:
    """Wrap the call; the first middleware is the outermost."""
    for handler in reversed(middleware):
        call = partial(_handle, handler, call)
    return call


def _handle(handler: Middleware, call_next: Callable[[JobContext], Any], context: JobContext) -> Any:
    return handler(context, call_next)
