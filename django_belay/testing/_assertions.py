"""What was enqueued, as assertions that say what there was instead."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from django_belay import conf
from django_belay.contract.encryption import is_encrypted, plain
from django_belay.contract.job import Job
from django_belay.db import storage_for_client
from django_belay.exceptions import BelayError
from django_belay.handles import JobHandle
from django_belay.registry import registry
from django_belay.storage.base import JobFilter

_MAX_LISTED = 10_000
_MAX_SHOWN = 20


def assert_enqueued(
    job: object,
    arguments: Mapping[str, Any] | None = None,
    /,
    *,
    count: int | None = None,
    queue: str | None = None,
    **match: Any,
) -> list[JobHandle]:
    """Assert that a job was enqueued, whatever became of it since.

    Args:
        job: A function under ``@job``, a task of ``django.tasks``, or a kind.
        arguments: Arguments to match whose names are ``count`` or ``queue``.
        count: How many there are, exactly; at least one by default.
        queue: Only those in this queue.
        match: Arguments and their values; defaults count. ``mock.ANY`` and the like work.

    Returns:
        Handles of the jobs that match, oldest first.
    """
    wanted = _Wanted.of(job, {**(arguments or {}), **match}, queue)
    found = wanted.find()
    if count is None and not found:
        raise AssertionError(f"no job was enqueued as {wanted}; {_instead()}")
    if count is not None and len(found) != count:
        raise AssertionError(f"{len(found)} jobs, not {count}, were enqueued as {wanted}; {_instead()}")
    return [JobHandle.of_job(row) for row in found]


def assert_not_enqueued(
    job: object = None,
    arguments: Mapping[str, Any] | None = None,
    /,
    *,
    queue: str | None = None,
    **match: Any,
) -> None:
    """Assert that no such job was enqueued; without arguments, that none was at all."""
    wanted = _Wanted.of(job, {**(arguments or {}), **match}, queue)
    found = wanted.find()
    if found:
        raise AssertionError(
            f"{len(found)} jobs were enqueued as {wanted}: {_listing(found)}" if wanted.kinds
            else f"jobs were enqueued: {_listing(found)}"
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Wanted:
    kinds: tuple[str, ...]
    arguments: Mapping[str, Any]
    queue: str | None

    @classmethod
    def of(cls, job: object, arguments: Mapping[str, Any], queue: str | None) -> _Wanted:
        return cls(_kinds(job), arguments, queue)

    def find(self) -> list[Job]:
        """Rows that match, oldest first."""
        storage = storage_for_client().storage
        rows: list[Job] = []
        for kind in self.kinds or (None,):
            rows += storage.list_jobs(JobFilter(kind=kind, queue=self.queue), limit=_MAX_LISTED)
        return sorted((row for row in rows if self._fits(row)), key=lambda row: row.id)

    def _fits(self, row: Job) -> bool:
        if not self.arguments:
            return True
        given = _arguments(row)
        return all(name in given and value == given[name] for name, value in self.arguments.items())

    def __str__(self) -> str:
        shown = ", ".join(f"{name}={value!r:.80}" for name, value in self.arguments.items())
        place = f" in queue {self.queue!r}" if self.queue is not None else ""
        return f"{' or '.join(self.kinds) or 'any kind'}({shown}){place}"


def _kinds(job: object) -> tuple[str, ...]:
    if job is None:
        return ()
    kind = job if isinstance(job, str) else getattr(job, "kind", None) or getattr(job, "module_path", None)
    if not isinstance(kind, str):
        raise TypeError(f"{job!r:.80} is no job: give a function under @job, a task, or a kind")
    definition = registry.find(kind)
    return (kind,) if definition is None else (definition.kind, *definition.aliases)


def _arguments(row: Job) -> dict[str, Any]:
    """A row's arguments by name, typed as the job gets them, with the defaults of its code."""
    value = plain(row.input, conf.get().encryption_keys)
    definition = registry.find(row.kind)
    if definition is None:
        return value if isinstance(value, dict) else {}
    try:
        given = definition.codec.decode(value)
    except BelayError:
        return {}  # the row does not fit the code; the job would fail too
    task = getattr(definition.function, "task", None)
    if task is not None:
        return _arguments_of_a_task(task.func, task.takes_context, given)
    return {**_defaults(definition.function, definition.codec.parameters), **given}


def _arguments_of_a_task(
    function: Callable[..., Any], takes_context: bool, given: Mapping[str, Any]
) -> dict[str, Any]:
    args = given.get("args", ())
    try:
        bound = inspect.signature(function).bind(
            *((None, *args) if takes_context else args), **given.get("kwargs", {})
        )
    except TypeError:
        return dict(given.get("kwargs", {}))
    bound.apply_defaults()
    return dict(bound.arguments)


def _defaults(function: Callable[..., Any], names: tuple[str, ...]) -> dict[str, Any]:
    parameters = inspect.signature(function).parameters
    return {
        name: parameters[name].default
        for name in names
        if name in parameters and parameters[name].default is not inspect.Parameter.empty
    }


def _instead() -> str:
    rows = storage_for_client().storage.list_jobs(JobFilter(), limit=_MAX_SHOWN + 1)
    return (
        f"enqueued were: {_listing(sorted(rows, key=lambda row: row.id))}" if rows else "nothing was enqueued"
    )


def _listing(rows: list[Job]) -> str:
    shown = [f"\n  {row.id}: {row.kind}({_shown(row)}) in queue {row.queue!r}, {row.state}" for row in rows]
    more = "\n  …" if len(shown) > _MAX_SHOWN else ""
    return "".join(shown[:_MAX_SHOWN]) + more


def _shown(row: Job) -> str:
    if is_encrypted(row.input):
        return "encrypted"  # in the clear it belongs in no log
    if not isinstance(row.input, dict):
        return repr(row.input)[:80]
    return ", ".join(f"{name}={value!r:.80}" for name, value in row.input.items())
