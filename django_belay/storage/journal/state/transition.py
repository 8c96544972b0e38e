"""How each event changes a core job (spec E.5). Pure: a job and an event in, a job out."""

from __future__ import annotations

from typing import NoReturn

from django_belay.storage.journal.format.event_v1 import (
    COMPLETED,
    DISCARDED,
    INTERRUPTED,
    RETRYABLE,
    SUCCESS,
    Available,
    Cancelled,
    Finished,
    Inserted,
    JobEvent,
    Retried,
    Started,
)
from django_belay.storage.journal.format.limits import MAX_U64
from django_belay.storage.journal.format.refusal import refuse
from django_belay.storage.journal.format.snapshot import Job

from .retry import due_window


def insert(event: Inserted) -> Job:
    """The job an insertion begins."""
    due = event.eligible_at <= event.at
    return Job(
        job_id=event.job_id,
        revision=1,
        cycle=1,
        execution=None,
        state="available" if due else "scheduled",
        attempt=0,
        next_attempt=1,
        definition=event.definition,
        diagnostic=None,
        eligible_at=event.eligible_at,
        inserted_at=event.at,
        attempted_at=None,
        completed_at=None,
        terminal_at=None,
        availability_order=event.availability_order,
    )


def check_revision(job: Job, event: JobEvent) -> None:
    """The gate every event but an insertion passes first."""
    if job.revision >= MAX_U64:
        raise refuse("consumer_rejected", "logical_revision_exhausted", job.job_id.hex())
    if event.expected_revision != job.revision:
        raise refuse(
            "consumer_rejected", "revision_conflict", job.job_id.hex(), event.expected_revision, job.revision
        )


def transition(job: Job, event: JobEvent) -> Job:
    """The job after ``event``, whose revision and order were found right."""
    kind = type(event)
    if kind is Started:
        return _start(job, event)  # type: ignore[arg-type]
    if kind is Finished:
        return _finish(job, event)  # type: ignore[arg-type]
    if kind is Available:
        return _become_due(job, event)  # type: ignore[arg-type]
    if kind is Cancelled:
        return _cancel(job, event)  # type: ignore[arg-type]
    if kind is Retried:
        return _retry(job, event)  # type: ignore[arg-type]
    raise refuse("consumer_rejected", "duplicate_insert", job.job_id.hex())


def _become_due(job: Job, event: Available) -> Job:
    if job.state not in ("scheduled", "retryable") or event.due_at != job.eligible_at:
        _illegal(job, event)
    return Job(
        job_id=job.job_id,
        revision=job.revision + 1,
        cycle=job.cycle,
        execution=None,
        state="available",
        attempt=job.attempt,
        next_attempt=job.next_attempt,
        definition=job.definition,
        diagnostic=job.diagnostic,
        eligible_at=job.eligible_at,
        inserted_at=job.inserted_at,
        attempted_at=job.attempted_at,
        completed_at=None,
        terminal_at=None,
        availability_order=event.availability_order,
    )


def _start(job: Job, event: Started) -> Job:
    if job.state != "available" or event.attempt != job.next_attempt or event.cycle_token != job.cycle:
        _illegal(job, event)
    if event.attempt > job.definition.max_attempts or job.eligible_at is None or event.at < job.eligible_at:
        _illegal(job, event)
    revision = job.revision + 1
    return Job(
        job_id=job.job_id,
        revision=revision,
        cycle=job.cycle,
        execution=revision,
        state="executing",
        attempt=event.attempt,
        next_attempt=event.attempt,
        definition=job.definition,
        diagnostic=job.diagnostic,
        eligible_at=None,
        inserted_at=job.inserted_at,
        attempted_at=event.at,
        completed_at=None,
        terminal_at=None,
        availability_order=None,
    )


def _finish(job: Job, event: Finished) -> Job:
    if job.state != "executing" or event.execution_token != job.execution:
        _illegal(job, event)
    if (event.disposition, event.next_attempt) != _expected_end(job, event.outcome):
        _illegal(job, event)
    if event.next_due_at is not None:
        first, last = due_window(job.attempt, event.at)
        if not first <= event.next_due_at <= last:
            _illegal(job, event)
    done = event.disposition == COMPLETED
    waits = event.disposition == RETRYABLE
    return Job(
        job_id=job.job_id,
        revision=job.revision + 1,
        cycle=job.cycle,
        execution=None,
        state="completed" if done else "retryable" if waits else "discarded",
        attempt=job.attempt,
        next_attempt=event.next_attempt,
        definition=job.definition,
        diagnostic=job.diagnostic if event.diagnostic is None else event.diagnostic,
        eligible_at=event.next_due_at,
        inserted_at=job.inserted_at,
        attempted_at=job.attempted_at,
        completed_at=event.at if done else None,
        terminal_at=None if waits else event.at,
        availability_order=None,
    )


def _expected_end(job: Job, outcome: int) -> tuple[int, int | None]:
    if outcome == SUCCESS:
        return COMPLETED, None
    if outcome == INTERRUPTED:
        return RETRYABLE, job.attempt
    if job.attempt < job.definition.max_attempts:
        return RETRYABLE, job.attempt + 1
    return DISCARDED, None


def _cancel(job: Job, event: Cancelled) -> Job:
    if job.state not in ("available", "scheduled", "retryable", "executing"):
        _illegal(job, event)
    if event.execution_token != job.execution:
        _illegal(job, event)
    return Job(
        job_id=job.job_id,
        revision=job.revision + 1,
        cycle=job.cycle,
        execution=None,
        state="cancelled",
        attempt=job.attempt,
        next_attempt=None,
        definition=job.definition,
        diagnostic=job.diagnostic,
        eligible_at=None,
        inserted_at=job.inserted_at,
        attempted_at=job.attempted_at,
        completed_at=None,
        terminal_at=event.at,
        availability_order=None,
    )


def _retry(job: Job, event: Retried) -> Job:
    if job.state != ("retryable" if event.mode == 0 else "discarded"):
        _illegal(job, event)
    revision = job.revision + 1
    reopened = event.mode == 1
    return Job(
        job_id=job.job_id,
        revision=revision,
        cycle=revision if reopened else job.cycle,
        execution=None,
        state="available",
        attempt=0 if reopened else job.attempt,
        next_attempt=1 if reopened else job.next_attempt,
        definition=job.definition,
        diagnostic=job.diagnostic,
        eligible_at=event.at,
        inserted_at=job.inserted_at,
        attempted_at=None if reopened else job.attempted_at,
        completed_at=None,
        terminal_at=None,
        availability_order=event.availability_order,
    )


def _illegal(job: Job, event: JobEvent) -> NoReturn:
    name = type(event).__name__.lower()
    raise refuse("consumer_rejected", "invalid_transition", job.job_id.hex(), job.state, name)
