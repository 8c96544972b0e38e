"""Rows of the jobs that a job enqueues: their inputs and options checked as at any enqueue (§5.1)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, Protocol, runtime_checkable

from django_belay.contract.encryption import encrypt
from django_belay.contract.job import JSON, NewJob
from django_belay.contract.json_value import check_json, dump_jsonb
from django_belay.engine.options import WorkerOptions
from django_belay.exceptions import ConfigurationError, InvalidInput, PayloadTooLarge
from django_belay.registry import JobDefinition, JobOptions, Registry


@runtime_checkable
class Spawnable(Protocol):
    """A function under ``@job``, with the options that ``using()`` gave it."""

    @property
    def definition(self) -> JobDefinition: ...

    @property
    def options(self) -> JobOptions: ...


class RowMaker:
    """Makes rows of one job at one instant.

    Args:
        job: A function under ``@job``, or a kind; a kind that no app here registers is
            another SDK's, and its input is taken as it is.
    """

    def __init__(
        self, job: Spawnable | str, registry: Registry, options: WorkerOptions, *, now: datetime
    ) -> None:
        self._limits = options
        self._now = now
        self.kind, self._definition, self._options = _resolve(job, registry)
        self._shared: dict[str, Any] = {
            "kind": self.kind,
            "queue": self._options.queue,
            "meta": dict(self._options.meta),
            "priority": self._options.priority,
            "max_attempts": self._options.max_attempts or options.max_attempts,
            "ready_at": _ready_at(self._options.run_after, now),
            "budget_usd_micros": self._options.budget.usd_micros if self._options.budget else None,
            "budget_tokens": self._options.budget.tokens if self._options.budget else None,
        }

    def make(self, arguments: Mapping[str, Any], *, path: str, **fields: Any) -> NewJob:
        """The row of one call.

        Raises:
            InvalidInput: The arguments do not fit the job, or cannot be stored.
            PayloadTooLarge: They are over ``MAX_INPUT_BYTES``.
        """
        value, data = self._encode(arguments, path)
        limit = self._limits.max_input_bytes
        if len(data) > limit:
            raise PayloadTooLarge(path, size=len(data), limit=limit, setting='BELAY["MAX_INPUT_BYTES"]')
        stored = encrypt(data, self._limits.encryption_keys) if self._options.encrypted else value
        return NewJob(input=stored, partition_key=self._partition_key(value), **self._shared, **fields)

    def _encode(self, arguments: Mapping[str, Any], path: str) -> tuple[dict[str, JSON], bytes]:
        if not isinstance(arguments, Mapping):
            raise InvalidInput(
                f"is a {type(arguments).__name__}; give a dictionary of the job's arguments", path=path
            )
        max_depth = self._limits.max_depth
        if self._definition is not None:
            return self._definition.codec.encode_json((), arguments, path=path, max_depth=max_depth)
        value = dict(arguments)
        return value, dump_jsonb(value, path=path, max_depth=max_depth)

    def _partition_key(self, value: dict[str, JSON]) -> str | None:
        key: str | Callable[..., str | None] | None = self._options.partition_key
        if callable(key):
            key = key(**(value if self._definition is None else self._definition.codec.decode(value)))
        if key is not None:
            check_json(key, path="partition_key")
        return key


def _resolve(job: Spawnable | str, registry: Registry) -> tuple[str, JobDefinition | None, JobOptions]:
    if isinstance(job, str):
        definition = registry.find(job)
        found = (job, None, JobOptions()) if definition is None else (job, definition, definition.options)
    elif isinstance(job, Spawnable):
        found = (job.definition.kind, job.definition, job.options)
    else:
        raise TypeError(f"give a function under @job, or a kind; not {type(job).__name__}")
    if found[2].unique is not None:
        raise ConfigurationError(
            f"{found[0]} has a unique key of its own and cannot be spawned: the key of a child is its spawn's "
            "(contract §8.4). Spawn job.using(unique=None)"
        )
    return found


def _ready_at(run_after: datetime | timedelta | None, now: datetime) -> datetime | None:
    if run_after is None:
        return None
    try:
        return now + run_after if isinstance(run_after, timedelta) else run_after.astimezone(UTC)
    except OverflowError:
        raise InvalidInput(f"{run_after!r} is beyond the year 9999", path="run_after") from None
