"""What a run's end means for its job: from an exception to an outcome (§7)."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta

from django_belay.contract.backoff import retry_delay
from django_belay.contract.envelope import EnvelopeError
from django_belay.contract.error_entry import error_entry, named_entry
from django_belay.contract.job import JSON, Job
from django_belay.contract.outcome import Awaiting, Cancelled, Failed, Outcome, Retried, Snoozed
from django_belay.engine.options import Backoff
from django_belay.engine.telemetry import job_facts, worker_log
from django_belay.exceptions import (
    BudgetStop,
    Cancel,
    ChildrenFailed,
    ChildrenGone,
    ConfigurationError,
    Fail,
    ForeignReservedStep,
    LeaseLost,
    Park,
    PayloadErased,
    Shutdown,
    Snooze,
    SpawnChanged,
    StepReused,
    StepTooLarge,
)
from django_belay.registry import JobOptions

# Another attempt would meet the same again, at the price of whatever the job does before.
# (An operator who has retried failed children retries their parent, too.)
PERMANENT = (
    StepTooLarge,
    EnvelopeError,
    ForeignReservedStep,
    ConfigurationError,
    ChildrenFailed,
    ChildrenGone,
    SpawnChanged,
    StepReused,
    PayloadErased,
)

MAX_DELAY = timedelta(days=366)


def judge(
    error: BaseException,
    job: Job,
    options: JobOptions,
    *,
    now: datetime,
    default_backoff: Backoff | None = None,
) -> Outcome | None:
    """The outcome of a run that ended with ``error``; ``None`` where nothing may be written.

    Contract: §7; rule 25: describing a failure never fails.
    """
    match error:
        case LeaseLost():
            return None
        case Shutdown():
            return Snoozed(until=now)
        case Park():
            return awaiting(error)
        case Snooze(until=until):
            return Snoozed(until=until)
        case Cancel(reason=reason):
            return Cancelled(reason=reason)
        case Fail(reason=reason):
            return Failed(error=named_entry(str(reason), attempt=job.attempt, at=now))
        case BudgetStop(detail=detail):
            return Failed(error=named_entry("budget_exceeded", attempt=job.attempt, at=now, detail=detail))
    entry = describe(error, job, now=now)
    if is_final(error, job, options):
        return Failed(error=entry)
    delay = backoff_delay(options.backoff or default_backoff, job)
    return Retried(ready_at=now + delay, error=entry)


def awaiting(park: Park) -> Awaiting:
    """The outcome of a run that parks (§7)."""
    return Awaiting(
        scope=park.scope,
        name=park.name,
        read_scopes=park.read_scopes,
        deadline=park.deadline,
        newer_than=park.newer_than,
    )


def describe(error: BaseException, job: Job, *, now: datetime) -> dict[str, JSON]:
    """The entry of ``errors``; of the type alone where the exception cannot be described."""
    try:
        return error_entry(error, attempt=job.attempt, at=now)
    except Exception:
        return named_entry(type(error).__name__, attempt=job.attempt, at=now)


def is_final(error: BaseException, job: Job, options: JobOptions) -> bool:
    """Whether the job fails for good with this error."""
    if job.attempt >= job.max_attempts or isinstance(error, PERMANENT):
        return True
    if isinstance(error, options.give_up_on):
        return True
    return options.retry_on is not None and not isinstance(error, options.retry_on)


def backoff_delay(backoff: Backoff | None, job: Job) -> timedelta:
    """The wait before the next attempt; retry policy v1 where none is given or it does not work."""
    if backoff is not None:
        try:
            return _as_delay(_ask(backoff, job.attempt))
        except BaseException as error:  # user code
            worker_log.warning(
                "job %s: its backoff failed (%s: %s); using the default",
                job.id,
                type(error).__name__,
                describe(error, job, now=job.inserted_at)["error"],
                extra=job_facts(job),
            )
    return default_delay(job.attempt)


def default_delay(attempt: int) -> timedelta:
    """Retry policy v1 with its jitter."""
    return retry_delay(attempt, jitter=random.random())  # noqa: S311 - spreads load, no secret


def _ask(backoff: Backoff, attempt: int) -> float | timedelta:
    if isinstance(backoff, Sequence):
        return backoff[min(max(attempt, 1), len(backoff)) - 1]
    function: Callable[[int], float | timedelta] = backoff
    return function(attempt)


def _as_delay(value: float | timedelta) -> timedelta:
    if isinstance(value, timedelta):
        return min(max(value, timedelta(0)), MAX_DELAY)
    seconds = float(value)
    if math.isnan(seconds):
        raise ValueError("backoff gave NaN")
    return timedelta(seconds=min(max(seconds, 0.0), MAX_DELAY.total_seconds()))
