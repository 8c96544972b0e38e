"""The profile ``strict``: nothing but the contract's own records (mapping page, two profiles).

What they cannot say is refused before anything is written. Of an attempt that failed they keep a
diagnostic code, not its text, and the retry policy of the store decides when it runs again.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NoReturn

from django_belay.contract.state import is_terminal
from django_belay.exceptions import NotSupportedByProfile
from django_belay.storage.journal.format.event_v1 import (
    DISCARDED,
    FAILURE,
    INTERRUPTED,
    RETRYABLE,
    TIMEOUT,
    Available,
    Cancelled,
    Finished,
    Retried,
    Started,
)
from django_belay.storage.journal.format.pair import Payload
from django_belay.storage.journal.format.snapshot import Job as CoreJob
from django_belay.storage.journal.state.retry import due_window
from django_belay.storage.journal.state.store_state import StoreState

from . import core
from .row import Row

#: What the columns are called that only an extended job has.
_FEATURES: Final[Mapping[str, str]] = {
    "priority": "a priority",
    "meta": "meta",
    "partition_key": "a partition key",
    "workflow_id": "a workflow",
    "wf_name": "a workflow",
    "wf_deps": "dependencies",
    "wf_ignore": "dependencies",
    "cron_name": "a cron entry's job",
    "cron_slot": "a cron entry's job",
    "unique_key": "a unique key",
    "unique_mode": "a unique key",
    "parent_id": "a parent",
    "budget_usd_micros": "a budget",
    "budget_tokens": "a budget",
    "spent_usd_micros": "a budget",
    "spent_tokens": "a budget",
    "queue": "moving a job",
    "ready_at": "rescheduling a job",
    "input": "erasing a payload",
    "errors": "erasing a payload",
    "result": "erasing a payload",
}
_TABLES: Final[Mapping[str, str]] = {
    "steps": "steps",
    "events": "events",
    "signals": "signals",
    "rate": "rate limits",
    "queues": "options and pauses of queues",
    "crons": "cron entries",
    "slots": "cron entries",
}
_TIMEOUTS: Final = frozenset({"django_belay.exceptions.Timeout", "timeout"})
_RAISED, _DIED, _TIMED_OUT, _INTERRUPTED = 2, 4, 5, 7


def refuse(feature: str) -> NoReturn:
    """Raises ``NotSupportedByProfile``."""
    raise NotSupportedByProfile(
        f"the journal's profile 'strict' cannot say {feature}; nothing was written. Do without it, or keep "
        "the store in the profile 'belay'"
    )


def refuse_tables(tables: Mapping[str, Mapping[str, Any]]) -> None:
    """Refuse effects on extension tables, which the contract does not have."""
    for table, rows in tables.items():
        if rows:
            refuse(_TABLES.get(table, table))


def refuse_insertion(row: Row) -> NoReturn:
    """Say what keeps a new job from being a core one."""
    refuse(core.beyond(row, _FEATURES) or _beyond_values(row))


def _beyond_values(row: Row) -> str:
    if row["state"] != "ready":
        return "a job that is held"
    return (
        f"this job of kind {row['kind']!r:.80}: its kind and queue must be Keys, its input a map of Args within "
        "262,144 bytes, and its attempts, timeout and schedule within the contract's bounds"
    )


# -- changing -------------------------------------------------------------------


def events_of(job: CoreJob, before: Row, after: Row, *, at: int, orders: core.Orders) -> list[Payload]:
    """The contract's records that say this change.

    Raises:
        NotSupportedByProfile: None can.
    """
    match before["state"], after["state"]:
        case "ready", "running":
            return _start(job, at, orders)
        case "running", "succeeded":
            refuse("a result past its bounds for depth, nodes and bytes, or one that is no JSON")
        case "running", "ready" if after["errors"] != before["errors"]:
            return [_failed(job, after, at, final=False)]
        case "running", "failed":
            return [_failed(job, after, at, final=True)]
        case "running", "ready" if _is_handed_back(after, at):
            return [_interrupted(job, at)]
        case "running", "ready":
            refuse("a job that runs again later by its own wish")
        case "running", "awaiting":
            refuse("a job that waits for a signal")
        case (("ready" | "running"), "cancelled"):
            return [_cancelled(job, at)]
        case "failed", "ready":
            return [_retried(job, at, orders, mode=1)]
        case "cancelled", "ready":
            refuse("the retry of a cancelled job")
        case "ready", "ready" if job.state == "retryable" and _is_due(after, at):
            return [_retried(job, at, orders, mode=0)]
        case _, "paused":
            refuse("a frozen job")
    changed = core.changed_columns(before, after)
    refuse(next((_FEATURES[name] for name in sorted(changed) if name in _FEATURES), "this change of a job"))


def row_after(state: StoreState, key: bytes, row: Row) -> Row:
    """An open job as its records tell it: what a new owner would read."""
    if is_terminal(row["state"]):
        return row
    job = state.find_job(key)
    assert job is not None
    told = core.row_of(row["id"], job)
    told["lease_until"], told["leased_by"] = row["lease_until"], row["leased_by"]
    return told


def _start(job: CoreJob, at: int, orders: core.Orders) -> list[Payload]:
    due_at, attempt = job.eligible_at, job.next_attempt
    if due_at is None or attempt is None or attempt > job.definition.max_attempts:
        refuse("an attempt past the job's maximum")
    events: list[Payload] = []
    revision = job.revision
    if job.state != "available":
        events.append(
            Available(
                job_id=job.job_id,
                expected_revision=revision,
                at=at,
                due_at=due_at,
                availability_order=orders.take(),
            )
        )
        revision += 1
    started = Started(
        job_id=job.job_id, expected_revision=revision, at=at, attempt=attempt, cycle_token=job.cycle
    )
    return [*events, started]


def _failed(job: CoreJob, after: Row, at: int, *, final: bool) -> Finished:
    """A failure: the contract goes on while attempts are left, and ends with the last."""
    is_last = job.attempt >= job.definition.max_attempts
    if final and not is_last:
        refuse("a failure for good while attempts are left")
    if is_last and not final:
        refuse("another attempt after the last")
    errors = after["errors"]
    outcome, code = _told(errors[-1] if isinstance(errors, list) and errors else None)
    if final:
        return _finished(job, at, outcome, code, DISCARDED, None, None)
    return _finished(job, at, outcome, code, RETRYABLE, job.attempt + 1, _due(job, after["ready_at"], at))


def _interrupted(job: CoreJob, at: int) -> Finished:
    """Handed back by a process that stops: costs no attempt."""
    return _finished(job, at, INTERRUPTED, _INTERRUPTED, RETRYABLE, job.attempt, _due(job, at, at))


def _finished(
    job: CoreJob, at: int, outcome: int, code: int, disposition: int, attempt: int | None, due_at: int | None
) -> Finished:
    assert job.execution is not None
    return Finished(
        job_id=job.job_id,
        expected_revision=job.revision,
        at=at,
        diagnostic=code,
        disposition=disposition,
        execution_token=job.execution,
        next_attempt=attempt,
        next_due_at=due_at,
        outcome=outcome,
    )


def _cancelled(job: CoreJob, at: int) -> Cancelled:
    return Cancelled(job_id=job.job_id, expected_revision=job.revision, at=at, execution_token=job.execution)


def _retried(job: CoreJob, at: int, orders: core.Orders, *, mode: int) -> Retried:
    return Retried(
        job_id=job.job_id,
        expected_revision=job.revision,
        at=at,
        mode=mode,
        new_due_at=at,
        availability_order=orders.take(),
    )


def _told(error: Any) -> tuple[int, int]:
    """Outcome and diagnostic code of an entry of ``errors``."""
    entry = error if isinstance(error, dict) else {}
    if entry.get("error") == "lease_expired":
        return FAILURE, _DIED
    if entry.get("type") in _TIMEOUTS or entry.get("error") in _TIMEOUTS:
        return TIMEOUT, _TIMED_OUT
    return FAILURE, _RAISED


def _due(job: CoreJob, wanted: int | None, at: int) -> int:
    """When the next attempt is due: what was asked for, within what the stored policy allows."""
    first, last = due_window(job.attempt, at)
    return min(max(first if wanted is None else wanted, first), last)


def _is_due(row: Row, at: int) -> bool:
    return row["ready_at"] is None or row["ready_at"] <= at


def _is_handed_back(after: Row, at: int) -> bool:
    return after["ready_at"] is not None and after["ready_at"] <= at
