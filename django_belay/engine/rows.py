"""From an input and options to a row: the one place where enqueueing, spawning and schedules make rows (§5.1)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, Protocol, TypeAlias, runtime_checkable

from django_belay.contract.encryption import Key, encrypt
from django_belay.contract.job import JSON, NewJob
from django_belay.contract.json_value import check_json, dump_jsonb
from django_belay.contract.uniqueness import window_key
from django_belay.exceptions import ConfigurationError, InvalidInput, PayloadTooLarge
from django_belay.registry import JobDefinition, JobOptions, Registry

#: Of a unique key: an index entry holds 2,704 bytes, and a window adds its number.
MAX_KEY_BYTES = 2_000

Decode: TypeAlias = Callable[[dict[str, Any]], Mapping[str, Any]]


class RowLimits(Protocol):
    """What rows are held to; the settings have it, and so have a worker's options."""

    @property
    def max_input_bytes(self) -> int: ...
    @property
    def max_depth(self) -> int: ...
    @property
    def max_attempts(self) -> int: ...
    @property
    def encryption_keys(self) -> tuple[Key, ...]: ...


class RowMaker:
    """Makes rows of one kind, with one set of options, at one instant.

    What all rows share is worked out once: ``enqueue_many`` makes 100,000 of them.
    """

    def __init__(
        self, kind: str, options: JobOptions, *, limits: RowLimits, now: datetime, decode: Decode = dict
    ) -> None:
        """``decode`` gives back the arguments that callables among the options want."""
        self._limits = limits
        self._options = options
        self._now = now
        self._decode = decode
        budget = options.budget
        self._shared: dict[str, Any] = {
            "kind": kind,
            "queue": options.queue,
            "meta": dict(options.meta),
            "priority": options.priority,
            "max_attempts": options.max_attempts or self._limits.max_attempts,
            "ready_at": _ready_at(options.run_after, now),
            "budget_usd_micros": budget.usd_micros if budget else None,
            "budget_tokens": budget.tokens if budget else None,
        }
        self._is_plain = options.unique is None and options.partition_key is None and not options.encrypted

    def make(self, value: dict[str, Any], data: bytes, *, path: str = "input", **fields: Any) -> NewJob:
        """The row of an input and its JSON, both checked; ``fields`` are columns of this row alone.

        Raises:
            PayloadTooLarge: The input is over ``MAX_INPUT_BYTES``.
            InvalidInput: A callable's unique or partition key cannot be stored.
        """
        if len(data) > self._limits.max_input_bytes:
            limit = self._limits.max_input_bytes
            raise PayloadTooLarge(path, size=len(data), limit=limit, setting='BELAY["MAX_INPUT_BYTES"]')
        if self._is_plain:
            return NewJob(input=value, **self._shared, **fields)
        options = self._options
        unique = self._unique(value)
        return NewJob(
            input=encrypt(data, self._limits.encryption_keys) if options.encrypted else value,
            partition_key=self._text("partition_key", options.partition_key, value),
            **unique,
            **self._shared,
            **fields,
        )

    def _unique(self, value: dict[str, Any]) -> dict[str, Any]:
        unique = self._options.unique
        key = None if unique is None else self._text("unique", unique.key, value)
        if unique is None or key is None:
            return {}
        if unique.within is not None:
            key = window_key(key, window=unique.within, now=self._now)
            return {"unique_key": key, "unique_mode": "window"}
        return {"unique_key": key, "unique_mode": unique.scope}

    def _text(self, name: str, key: str | Callable[..., str] | None, value: dict[str, Any]) -> str | None:
        """A key given as text or by a callable; a callable may return ``None`` for "no key"."""
        if callable(key):
            key = key(**self._decode(value))
            if key is not None and not (isinstance(key, str) and key):
                raise InvalidInput(
                    f"the callable returned {type(key).__name__}; give a text or None", path=name
                )
        if key is not None:
            check_json(key, path=name)
            if name == "unique" and (size := len(key.encode())) > MAX_KEY_BYTES:
                raise InvalidInput(
                    f"has {size:,} bytes as UTF-8; {MAX_KEY_BYTES:,} are allowed: give a hash of it",
                    path=name,
                )
        return key


@runtime_checkable
class Spawnable(Protocol):
    """A function under ``@job``, with the options that ``using()`` gave it."""

    @property
    def definition(self) -> JobDefinition: ...

    @property
    def options(self) -> JobOptions: ...


class ChildRows:
    """Makes rows of the children that a spawn asks for, at one instant.

    Args:
        job: A function under ``@job``, or a kind; a kind that no app here registers is
            another SDK's, and its input is taken as it is.
    """

    def __init__(self, job: Spawnable | str, registry: Registry, limits: RowLimits, *, now: datetime) -> None:
        self._max_depth = limits.max_depth
        self.kind, self._definition, options = _resolve(job, registry)
        decode: Decode = dict if self._definition is None else self._definition.codec.decode
        self._rows = RowMaker(self.kind, options, limits=limits, now=now, decode=decode)

    def make(self, arguments: Mapping[str, Any], *, path: str, **fields: Any) -> NewJob:
        """The row of one call; ``fields`` are the child's key and parent.

        Raises:
            InvalidInput: The arguments do not fit the job, or cannot be stored.
            PayloadTooLarge: They are over ``MAX_INPUT_BYTES``.
        """
        value, data = self._encode(arguments, path)
        return self._rows.make(value, data, path=path, **fields)

    def _encode(self, arguments: Mapping[str, Any], path: str) -> tuple[dict[str, JSON], bytes]:
        if not isinstance(arguments, Mapping):
            raise InvalidInput(
                f"is a {type(arguments).__name__}; give a dictionary of the job's arguments", path=path
            )
        if self._definition is not None:
            return self._definition.codec.encode_json((), arguments, path=path, max_depth=self._max_depth)
        value = dict(arguments)
        return value, dump_jsonb(value, path=path, max_depth=self._max_depth)


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
