"""Async twins: the same call for async code, in the thread that Django keeps for it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from functools import wraps
from itertools import islice
from typing import Any, ParamSpec, TypeVar

from asgiref.sync import sync_to_async

P = ParamSpec("P")
T = TypeVar("T")


def twin(function: Callable[P, T]) -> Callable[P, Coroutine[Any, Any, T]]:
    """The async twin of a function."""

    @wraps(function)
    async def call(*args: P.args, **kwargs: P.kwargs) -> T:
        return await sync_to_async(function)(*args, **kwargs)

    _describe(call, function)
    return call


def twin_of_iterator(function: Callable[P, Iterator[T]], *, batch: int) -> Callable[P, AsyncIterator[T]]:
    """The async twin of a generator, which goes on by ``batch`` answers each time it is in the thread."""

    @wraps(function)
    async def call(*args: P.args, **kwargs: P.kwargs) -> AsyncIterator[T]:
        answers = function(*args, **kwargs)
        while found := await sync_to_async(_take)(answers, batch):
            for answer in found:
                yield answer

    _describe(call, function)
    return call


def _take(answers: Iterator[T], count: int) -> list[T]:
    return list(islice(answers, count))


def _describe(call: Callable[..., Any], function: Callable[..., Any]) -> None:
    call.__name__ = call.__qualname__ = f"a{function.__name__}"
    call.__doc__ = f"As :func:`{function.__name__}`."
