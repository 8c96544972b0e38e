"""A call of a job that is not enqueued by itself: what members of workflows and batches are made of."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, TypeAlias

from django_belay import _enqueue, conf
from django_belay._options import OF_THE_ROW, check_name, merge
from django_belay.contract.job import JSON, NewJob
from django_belay.contract.json_value import dump_jsonb
from django_belay.exceptions import ConfigurationError, InvalidInput
from django_belay.jobs import JobFunction
from django_belay.registry import JobOptions


@dataclass(frozen=True, slots=True)
class Call:
    """A job with its arguments; made by :func:`call`."""

    job: JobFunction[..., Any]
    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)

    def with_argument(self, name: str, value: Any) -> Call:
        """The same call with an argument more, where the job takes one of this name and has none yet."""
        signature = inspect.signature(self.job.definition.function)
        taken = list(signature.parameters)[: len(self.args) + self.job.definition.takes_context]
        if name not in signature.parameters or name in taken or name in self.kwargs:
            return self
        return replace(self, kwargs={**self.kwargs, name: value})

    def row(self, now: datetime, *, path: str) -> NewJob:
        """The row to insert, its input checked."""
        maker = _enqueue.CallMaker(self.job.definition, self.job.options, now)
        return maker.make(self.args, self.kwargs, path)


@dataclass(frozen=True, slots=True)
class ForeignCall:
    """A job of another SDK with its input; made by :func:`call_kind`."""

    kind: str
    input: Mapping[str, JSON]
    options: JobOptions

    def with_argument(self, name: str, value: Any) -> ForeignCall:
        """The same call: what a foreign job takes is not known here."""
        return self

    def row(self, now: datetime, *, path: str) -> NewJob:
        """The row to insert, its input checked."""
        value = dict(self.input)
        data = dump_jsonb(value, path=path, max_depth=conf.get().max_depth)
        return _enqueue.row_maker(self.kind, self.options, now=now).make(value, data, path=path)


AnyCall: TypeAlias = Call | ForeignCall


def call(job: JobFunction[..., Any], /, *args: Any, **kwargs: Any) -> Call:
    """A job with its arguments, for a member of a workflow or batch.

    Only needed where an argument is called as one of ``add()``'s own (``deps``, ``ignore``).
    """
    if not isinstance(job, JobFunction):
        raise ConfigurationError(f"call() takes a function under @job, and got {job!r:.80}")
    return Call(job, args, kwargs)


def call_kind(kind: str, input: Mapping[str, JSON] | None = None, **options: Any) -> ForeignCall:
    """A job by its kind and JSON input, for a member that another SDK runs.

    Args:
        options: As ``.using()`` takes: ``queue``, ``priority``, …
    """
    check_name("kind", kind)
    if input is not None and not isinstance(input, Mapping):
        raise InvalidInput(f"is a {type(input).__name__}; an input is a JSON object", path="input")
    merged = merge(JobOptions(), options, where=f"call_kind({kind!r})", allowed=OF_THE_ROW)
    return ForeignCall(kind, input or {}, merged)


def as_call(job: object, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> AnyCall:
    """What ``add(job, …)`` means by its job.

    Raises:
        ConfigurationError: It is no job, or a call got arguments twice.
    """
    if isinstance(job, JobFunction):
        return Call(job, args, kwargs)
    if not isinstance(job, Call | ForeignCall):
        raise ConfigurationError(
            f"{job!r:.80} is no job: give a function under @job, or call_kind() for another SDK's"
        )
    if args or kwargs:
        raise ConfigurationError("a call has its arguments already: give them in call() or call_kind()")
    return job
