"""``@job``: a function that can be enqueued."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any, Concatenate, Generic, ParamSpec, TypeVar, overload

from asgiref.sync import sync_to_async
from django.apps import apps
from django.db import DEFAULT_DB_ALIAS, connections
from django.db.backends.base.base import BaseDatabaseWrapper

from django_belay import _enqueue, conf
from django_belay._chunk_items import chunk_items
from django_belay._options import OF_THE_CODE, OF_THE_ROW, check_name, merge
from django_belay.contract.inputs import InputCodec
from django_belay.db import CallersTransaction
from django_belay.deferred import Deferred
from django_belay.exceptions import ConfigurationError, InvalidInput
from django_belay.handles import EnqueueReport, JobHandle
from django_belay.registry import Chunk, JobDefinition, JobOptions, registry

if TYPE_CHECKING:
    from django_belay.engine.async_context import AsyncJobContext
    from django_belay.engine.context import JobContext

P = ParamSpec("P")
R = TypeVar("R")

#: What the first parameter is called when the job wants its context.
CONTEXT = "ctx"


class JobFunction(Generic[P, R]):
    """A function under ``@job``.

    Calling it runs it here and now, as a plain function: pass a context of your own
    where it takes one. ``enqueue`` and its kin make a job of it.

    Attributes:
        definition: What the registry holds of it.
        options: The options that ``enqueue`` uses; ``using()`` changes them in a copy.
    """

    def __init__(self, definition: JobDefinition, options: JobOptions | None = None) -> None:
        self.definition = definition
        self.options = options if options is not None else definition.options
        functools.update_wrapper(self, definition.function)

    @property
    def kind(self) -> str:
        """What the row says instead of the function's name; stable over releases."""
        return self.definition.kind

    def __call__(self, *args: Any, **kwargs: Any) -> R:
        return self.definition.function(*args, **kwargs)  # type: ignore[no-any-return]

    def __repr__(self) -> str:
        return f"<job {self.kind}>"

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[str, JobOptions | None]]:
        changed = self.options is not self.definition.options
        return _restore, (self.kind, self.options if changed else None)

    def using(self, **options: Any) -> JobFunction[P, R]:
        """The same job with other options for what is enqueued through it.

        Args:
            options: ``queue``, ``priority``, ``max_attempts``, ``unique``, ``budget``,
                ``meta``, ``partition_key``, ``run_after``, ``encrypted``.

        Raises:
            ConfigurationError: An option is unknown, does not fit, or belongs to ``@job``.
        """
        merged = merge(self.options, options, where=f"{self.kind}.using()", allowed=OF_THE_ROW)
        return JobFunction(self.definition, merged)

    # -- enqueueing ------------------------------------------------------------------

    def enqueue(self, *args: P.args, **kwargs: P.kwargs) -> JobHandle:
        """Enqueue a job in the caller's transaction: a rollback removes it, workers see it after commit.

        Raises:
            InvalidInput: Arguments are missing, unexpected, of the wrong type, or cannot
                be stored; nothing was written.
            PayloadTooLarge: The input is over ``MAX_INPUT_BYTES``.

        Contract: §5; rules 7-11.
        """
        now = conf.clock().now()
        return JobHandle.of_insertion(_enqueue.insert_one(self._calls(now).make(args, kwargs), now))

    def enqueue_many(self, inputs: Iterable[Mapping[str, Any]]) -> EnqueueReport:
        """Enqueue a job for each input: all of them, or none when one does not fit.

        Inputs are dictionaries of the job's arguments, any number of them; they are
        inserted in chunks, in the caller's transaction or in one of their own.

        Returns:
            Ids by index of the inputs, and the duplicates with their holders.

        Raises:
            InvalidInput, PayloadTooLarge: The path starts with the input's index.
        """
        now = conf.clock().now()
        calls = self._calls(now)
        rows = [
            calls.make((), _mapping(values, index), f"inputs[{index}]") for index, values in enumerate(inputs)
        ]
        return EnqueueReport(_enqueue.insert_many(rows, now))

    def enqueue_on_commit(self, *args: P.args, **kwargs: P.kwargs) -> Deferred[JobHandle]:
        """Enqueue once the caller's transaction on another database has committed.

        Arguments are checked now. Outside a transaction it happens at once. A process
        that dies between the commit and the insert enqueues nothing: prefer
        :meth:`enqueue` where both are one database.
        """
        now = conf.clock().now()
        job = self._calls(now).make(args, kwargs)

        def insert() -> JobHandle:
            return JobHandle.of_insertion(_enqueue.insert_one(job, now))

        return Deferred.until_commit(insert, using=_open_alias(), what=f"enqueueing {self.kind}")

    async def aenqueue(self, *args: P.args, **kwargs: P.kwargs) -> JobHandle:
        """As :meth:`enqueue`."""
        return await sync_to_async(self.enqueue)(*args, **kwargs)

    async def aenqueue_many(self, inputs: Iterable[Mapping[str, Any]]) -> EnqueueReport:
        """As :meth:`enqueue_many`."""
        return await sync_to_async(self.enqueue_many)(inputs)

    async def aenqueue_on_commit(self, *args: P.args, **kwargs: P.kwargs) -> Deferred[JobHandle]:
        """As :meth:`enqueue_on_commit`."""
        return await sync_to_async(self.enqueue_on_commit)(*args, **kwargs)

    def _calls(self, now: datetime) -> _enqueue.CallMaker:
        return _enqueue.CallMaker(self.definition, self.options, now)


# The context is stripped from what enqueue() takes; a job without one is matched second.
@overload
def job(function: Callable[Concatenate[JobContext, P], R], /) -> JobFunction[P, R]: ...
@overload
def job(function: Callable[Concatenate[AsyncJobContext, P], R], /) -> JobFunction[P, R]: ...
@overload
def job(function: Callable[P, R], /) -> JobFunction[P, R]: ...
# What one job of a chunk takes is no part of the function's signature.
@overload
def job(*, chunk: Chunk, **options: Any) -> Callable[[Callable[..., R]], JobFunction[..., R]]: ...
@overload
def job(**options: Any) -> _Decorator: ...
def job(function: Callable[..., Any] | None = None, /, **options: Any) -> Any:
    """Make a function a job: ``@job`` or ``@job(queue="mail", max_attempts=5)``.

    The function is called in a worker with its context first, where its first parameter
    is called ``ctx``, and the input's arguments by name, typed by its annotations.

    Args:
        function: An ordinary or ``async`` function of a module.
        options: ``kind``, ``aliases``, ``queue``, ``priority``, ``max_attempts``,
            ``backoff``, ``retry_on``, ``give_up_on``, ``timeout``, ``expires``, ``unique``,
            ``budget``, ``meta``, ``partition_key``, ``run_after``, ``chunk``, ``isolation``,
            ``encrypted``, ``on_failure``.

    Raises:
        ConfigurationError: An option is unknown or does not fit, or the kind belongs to
            another function.
    """
    if function is not None:
        return _define(function, options)
    return functools.partial(_define, options=options)


class _Decorator:
    """The type of ``job(…)``; it only exists for type checkers."""

    @overload
    def __call__(self, function: Callable[Concatenate[JobContext, P], R], /) -> JobFunction[P, R]: ...
    @overload
    def __call__(self, function: Callable[Concatenate[AsyncJobContext, P], R], /) -> JobFunction[P, R]: ...
    @overload
    def __call__(self, function: Callable[P, R], /) -> JobFunction[P, R]: ...
    def __call__(self, function: Callable[..., Any], /) -> Any:
        raise NotImplementedError


def _define(function: Callable[..., Any], options: Mapping[str, Any]) -> JobFunction[..., Any]:
    if not inspect.isroutine(function):
        raise ConfigurationError(f"@job is for functions, and got {type(function).__name__} {function!r:.60}")
    given = dict(options)
    kind = given.pop("kind", None)
    aliases = _aliases(given.pop("aliases", ()))
    where = f"@job on {function.__module__}.{function.__qualname__}"
    merged = merge(JobOptions(), given, where=where, allowed=(*OF_THE_ROW, *OF_THE_CODE))
    if merged.chunk is not None and merged.is_isolated:
        raise ConfigurationError(f"{where}: chunk= and isolation= do not go together; leave one out")
    items = chunk_items(function, where=where, context=CONTEXT) if merged.chunk is not None else None
    codec = items.codec if items else InputCodec.for_function(function, skip_first=CONTEXT)
    definition = JobDefinition(
        kind=_default_kind(function) if kind is None else check_name(f"{where}: kind={kind!r:.60}", kind),
        function=function,
        codec=codec,
        options=merged,
        aliases=aliases,
        takes_context=items.takes_context if items else codec.takes_context,
        is_async=inspect.iscoroutinefunction(function),
        item_type=items.item_type if items else None,
    )
    registry.register(definition)
    return JobFunction(definition)


def _aliases(value: object) -> tuple[str, ...]:
    names = (value,) if isinstance(value, str) else value
    if not isinstance(names, tuple | list):
        raise ConfigurationError(f"@job: aliases={value!r:.60}: give the kinds that it had before")
    return tuple(check_name("@job: aliases", name) for name in names)


def _default_kind(function: Callable[..., Any]) -> str:
    """``<app label>.<function>``; by the package's name where the apps are not loaded."""
    module, name = function.__module__, function.__qualname__
    if "<locals>" in name or module == "__main__":
        raise ConfigurationError(
            f"@job on {module}.{name}: a function inside another one, or of a script, has no stable name; "
            'give it a kind: @job(kind="shop.send_receipt")'
        )
    config = apps.get_containing_app_config(module) if apps.apps_ready else None
    return f"{config.label if config is not None else _package(module)}.{name}"


def _package(module: str) -> str:
    parts = module.split(".")
    if "jobs" in parts[1:]:
        parts = parts[: parts.index("jobs", 1)]
    return parts[-1]


def _mapping(values: object, index: int) -> Mapping[str, Any]:
    if isinstance(values, Mapping):
        return values
    raise InvalidInput(
        f"is a {type(values).__name__}; give a dictionary of the job's arguments", path=f"inputs[{index}]"
    )


def _open_alias() -> str:
    """The database whose transaction to wait for: the default one unless only another is open."""
    opened = [one.alias for one in connections.all(initialized_only=True) if _is_open(one)]
    return opened[0] if len(opened) == 1 else DEFAULT_DB_ALIAS


def _is_open(connection: BaseDatabaseWrapper) -> bool:
    """Asks no database: one that this thread has not used may be away, or closed to a test."""
    is_used = connection.in_atomic_block or connection.connection is not None
    return is_used and CallersTransaction(connection.alias).is_in_callers_transaction()


def _restore(kind: str, options: JobOptions | None) -> JobFunction[..., Any]:
    return JobFunction(registry.get(kind), options)
