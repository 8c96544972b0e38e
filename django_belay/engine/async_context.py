"""What an ``async def`` job sees of its run: the names of :class:`JobContext`, to be awaited."""

from __future__ import annotations

import functools
import inspect
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping
from datetime import timedelta
from typing import Any, NoReturn, Protocol, TypeVar

from asgiref.sync import sync_to_async

from django_belay.contract.job import JSON, Job
from django_belay.engine.context import JobContext
from django_belay.engine.rows import Spawnable
from django_belay.engine.steps import CostOption

T = TypeVar("T")


class Caller(Protocol):
    """Runs a blocking function outside of the event loop."""

    async def __call__(self, function: Callable[[], T], /) -> T: ...


async def call_sync(function: Callable[[], T]) -> T:
    """Run in the thread that the job's ORM calls run in."""
    return await sync_to_async(function)()


class AsyncJobContext:
    """The run of an async job, from inside it. See :class:`JobContext` for what each name does.

    Attributes:
        job: The row as it was claimed.
        id: The job's id.
        kind: The name it is registered under.
        attempt: 1 for the first attempt; snoozes and waits do not count.
    """

    __slots__ = ("_call", "_context", "attempt", "id", "job", "kind")

    def __init__(self, context: JobContext, call: Caller) -> None:
        self.job: Job = context.job
        self.id = context.id
        self.kind = context.kind
        self.attempt = context.attempt
        self._context = context
        self._call = call

    @property
    def meta(self) -> JSON:
        """The free-form data the job was enqueued with."""
        return self.job.meta

    @property
    def log(self) -> logging.LoggerAdapter[logging.Logger]:
        """The logger of the job's module; every line carries the job's id."""
        return self._context.log

    async def step(
        self,
        name: str,
        function: Callable[..., Awaitable[T]] | Callable[..., T],
        /,
        *args: Any,
        cost: CostOption = None,
        atomic: bool = False,
        **kwargs: Any,
    ) -> T:
        """As :meth:`JobContext.step`; the function may be async or not.

        An ordinary function is called in the thread of the job's ORM calls, so that it
        does not block the event loop. With ``atomic`` it must be an ordinary one.
        """
        if atomic:
            if inspect.iscoroutinefunction(function):
                raise TypeError(
                    f"step {name!r}: atomic=True needs an ordinary function: Django has no async transactions"
                )
            step: functools.partial[Any] = functools.partial(
                self._context.step, name, function, *args, cost=cost, atomic=True, **kwargs
            )
            return await call_sync(step)
        steps = self._context._steps
        found = await self._call(lambda: steps.look_up(name)) if steps.blocks else steps.look_up(name)
        if found is not None:
            journaled: T = found.value
            return journaled
        try:
            value = await _perform(function, args, kwargs)
            return await self._call(lambda: steps.conclude(name, value, cost=cost))
        except Exception:
            steps.forget_use(name)
            raise

    async def wait_signal(
        self,
        name: str,
        timeout: float | timedelta | None = None,
        scope: str | None = None,
        newer: bool = False,
    ) -> JSON:
        """As :meth:`JobContext.wait_signal`."""
        return await self._call(
            lambda: self._context.wait_signal(name, timeout=timeout, scope=scope, newer=newer)
        )

    async def clear_signal(self, name: str, scope: str | None = None) -> bool:
        """As :meth:`JobContext.clear_signal`."""
        return await self._call(lambda: self._context.clear_signal(name, scope=scope))

    async def steering(self) -> JSON:
        """As :meth:`JobContext.steering`."""
        return await self._call(self._context.steering)

    async def sleep(self, name: str, seconds: float | timedelta) -> None:
        """As :meth:`JobContext.sleep`; ``asyncio.sleep`` is the one that holds a slot."""
        await self._call(lambda: self._context.sleep(name, seconds))

    async def spawn(self, name: str, job: Spawnable | str, input: Mapping[str, Any] | None = None) -> int:
        """As :meth:`JobContext.spawn`."""
        return await self._call(lambda: self._context.spawn(name, job, input))

    async def spawn_many(
        self, name: str, job: Spawnable | str, inputs: Iterable[Mapping[str, Any]]
    ) -> list[int]:
        """As :meth:`JobContext.spawn_many`."""
        return await self._call(lambda: self._context.spawn_many(name, job, inputs))

    async def wait_children(self, name: str | None = None, *, return_exceptions: bool = False) -> list[JSON]:
        """As :meth:`JobContext.wait_children`."""
        return await self._call(
            lambda: self._context.wait_children(name, return_exceptions=return_exceptions)
        )

    async def map_children(
        self,
        name: str,
        job: Spawnable | str,
        inputs: Iterable[Mapping[str, Any]],
        *,
        return_exceptions: bool = False,
    ) -> list[JSON]:
        """As :meth:`JobContext.map_children`."""
        return await self._call(
            lambda: self._context.map_children(name, job, inputs, return_exceptions=return_exceptions)
        )

    async def emit(self, payload: JSON) -> int:
        """As :meth:`JobContext.emit`."""
        return await self._call(lambda: self._context.emit(payload))

    async def debit(self, amount: int, *, resource: str | None = None) -> bool:
        """As :meth:`JobContext.debit`."""
        return await self._call(lambda: self._context.debit(amount, resource=resource))

    async def cancel(self, reason: str) -> NoReturn:
        """As :meth:`JobContext.cancel`."""
        self._context.cancel(reason)

    async def fail(self, reason: str) -> NoReturn:
        """As :meth:`JobContext.fail`."""
        self._context.fail(reason)

    async def snooze(self, delay: float | timedelta) -> NoReturn:
        """As :meth:`JobContext.snooze`."""
        self._context.snooze(delay)

    def __repr__(self) -> str:
        return f"<AsyncJobContext of {self.kind} {self.id}, attempt {self.attempt}>"


async def _perform(function: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    is_async = inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(
        getattr(function, "__call__", None)  # noqa: B004 - an object whose call is async
    )
    value = function(*args, **kwargs) if is_async else await sync_to_async(function)(*args, **kwargs)
    while inspect.isawaitable(value):  # also what an ordinary function hands back unawaited
        value = await value
    return value
