"""Which code runs for which kind: the only way from a row to a function.

Filled by ``@job`` when a ``jobs`` module is imported. Nothing is ever imported by a
name that a row holds.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from django_belay.contract.job import JSON
from django_belay.contract.money import Budget
from django_belay.exceptions import ConfigurationError, UnknownKind

if TYPE_CHECKING:
    from django_belay.contract.inputs import InputCodec

#: A function of the attempt (1, 2, …) giving seconds or a ``timedelta``, or the delays one by one.
BackoffOption: TypeAlias = Callable[[int], float | timedelta] | Sequence[float]


@dataclass(slots=True, kw_only=True, frozen=True)
class Unique:
    """At most one job with a key.

    ``key`` is text, or a callable that gets the input's keyword arguments. With
    ``within`` the key is taken for that window whatever became of the job;
    ``scope="always"`` takes it for as long as the row lasts; by default it is free
    again when the job has ended (§5.2).
    """

    key: str | Callable[..., str] = field(kw_only=False)
    within: timedelta | None = None
    scope: Literal["incomplete", "always"] = "incomplete"


@dataclass(slots=True, kw_only=True, frozen=True)
class Chunk:
    """One call over up to ``size`` jobs, gathered for at most ``gather`` seconds."""

    size: int = 100
    gather: float = 0.5


@dataclass(slots=True, kw_only=True, frozen=True)
class Isolation:
    """A process of its own for each run, as ``isolation="process"``, with a limit of memory.

    ``memory`` is how many bytes the job may allocate; one more fails with ``MemoryError``.
    """

    memory: int | None = None


@dataclass(slots=True, kw_only=True, frozen=True)
class JobOptions:
    """Everything ``@job`` and ``.using()`` take; durations in seconds.

    ``None`` means "as the settings or the contract say".
    """

    queue: str = "default"
    priority: int = 0
    max_attempts: int | None = None
    backoff: BackoffOption | None = None
    retry_on: tuple[type[BaseException], ...] | None = None
    give_up_on: tuple[type[BaseException], ...] = ()
    timeout: float | None = None
    expires: float | None = None
    unique: Unique | None = None
    budget: Budget | None = None
    meta: Mapping[str, JSON] = field(default_factory=dict)
    partition_key: str | Callable[..., str] | None = None
    run_after: datetime | timedelta | None = None
    chunk: Chunk | None = None
    isolation: Literal["thread", "process"] | Isolation = "thread"
    encrypted: bool = False
    on_failure: str | None = None

    @property
    def is_isolated(self) -> bool:
        """Whether each run gets a process of its own."""
        return self.isolation != "thread"

    @property
    def memory_bytes(self) -> int | None:
        """What a run in a process of its own may allocate; ``None`` is no limit."""
        return self.isolation.memory if isinstance(self.isolation, Isolation) else None


@dataclass(slots=True, kw_only=True, frozen=True, eq=False)
class JobDefinition:
    """A registered job: its function and how its input travels.

    ``item_type`` is what a chunk job takes its items as; ``None`` is a dictionary.
    """

    kind: str
    function: Callable[..., Any]
    codec: InputCodec
    options: JobOptions = field(default_factory=JobOptions)
    aliases: tuple[str, ...] = ()
    takes_context: bool = True
    is_async: bool = False
    item_type: Callable[..., Any] | None = None


class Registry:
    """Kinds and aliases to definitions. Filled at import, read by every thread afterwards."""

    def __init__(self) -> None:
        self._by_kind: dict[str, JobDefinition] = {}

    def register(self, definition: JobDefinition) -> None:
        """Add a definition under its kind and aliases.

        Raises:
            ConfigurationError: One of the names belongs to another function already.
        """
        for name in (definition.kind, *definition.aliases):
            known = self._by_kind.get(name)
            if known is not None and _place(known) != _place(definition):
                raise ConfigurationError(
                    f"kind {name!r} is registered twice: by {_place(known)} and by {_place(definition)}; "
                    "give one of them a kind of its own"
                )
        for name in (definition.kind, *definition.aliases):
            self._by_kind[name] = definition

    def find(self, kind: str) -> JobDefinition | None:
        """The definition of a kind or alias, ``None`` when there is none."""
        return self._by_kind.get(kind)

    def get(self, kind: str) -> JobDefinition:
        """The definition of a kind or alias.

        Raises:
            UnknownKind: Names the nearest registered kinds.
        """
        definition = self._by_kind.get(kind)
        if definition is None:
            raise UnknownKind(self._unknown(kind))
        return definition

    def __iter__(self) -> Iterator[JobDefinition]:
        return iter(dict.fromkeys(self._by_kind.values()))

    def __contains__(self, kind: object) -> bool:
        return kind in self._by_kind

    def _unknown(self, kind: str) -> str:
        near = difflib.get_close_matches(kind, self._by_kind, n=3)
        hint = (
            f"did you mean {', '.join(map(repr, near))}?"
            if near
            else ("jobs are registered by @job in an installed app's jobs module")
        )
        return f"no job is registered under the kind {kind!r}; {hint}"


def _place(definition: JobDefinition) -> str:
    return f"{definition.function.__module__}.{definition.function.__qualname__}"


registry = Registry()
