"""Core jobs: those that the contract's own records can say everything about (mapping page).

One place decides whether a row, or a change of one, is core, and which records say it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from django_belay.contract import envelope
from django_belay.contract.json_value import JsonError, loads
from django_belay.contract.state import State
from django_belay.exceptions import JournalError
from django_belay.storage.journal.format.definition import JobDefinition, define_job
from django_belay.storage.journal.format.event_v1 import Available, Cancelled, Finished, Inserted, Started
from django_belay.storage.journal.format.event_v2 import ResultRecorded
from django_belay.storage.journal.format.limits import MAX_TIMEOUT_MS, ValueLimits
from django_belay.storage.journal.format.pair import Payload
from django_belay.storage.journal.format.snapshot import Job as CoreJob
from django_belay.storage.journal.format.value import Value, encode_value

from .row import COLUMNS, Row, pack, unpack

#: A result beyond these promotes its job: a record past the reading budgets keeps a store from opening.
RESULT_LIMITS: Final = ValueLimits(depth=32, nodes=50_000, encoded_bytes=8_388_608)
#: What a core cancellation says; any other reason needs the ``errors`` of an extended job.
CANCELLED: Final = [{"reason": "cancelled"}]

_STATES: Final[dict[str, State]] = {
    "scheduled": "ready",
    "available": "ready",
    "retryable": "ready",
    "executing": "running",
    "completed": "succeeded",
    "discarded": "failed",
    "cancelled": "cancelled",
}
_CODES: Final = {
    1: "failure", 2: "failure", 3: "failure", 4: "lease_expired", 5: "timeout", 6: "failure", 7: "interrupted",
}  # fmt: skip
# What must stand in these columns for the contract's records to say all of a row.
_PLAIN: Final[dict[str, Any]] = {
    "priority": 0, "meta": {}, "partition_key": None, "await_scope": None, "await_name": None,
    "workflow_id": None, "wf_name": None, "wf_deps": [], "wf_ignore": [], "cron_name": None,
    "cron_slot": None, "unique_key": None, "unique_mode": None, "parent_id": None,
    "budget_usd_micros": None, "budget_tokens": None, "spent_usd_micros": 0, "spent_tokens": 0,
    "cancel_requested": False,
}  # fmt: skip
_WAITING: Final = frozenset({"scheduled", "available", "retryable"})
_STARTING: Final = frozenset({"state", "attempt", "lease_until", "leased_by", "started_at", "order"})
_ENDING: Final = frozenset({"state", "result", "finished_at", "lease_until", "leased_by"})
_CANCELLING: Final = frozenset({"state", "errors", "finished_at", "order"})


def row_of(number: int, job: CoreJob, result: Value | ResultRecorded | None = None) -> Row:
    """The wire columns of a core job."""
    definition = job.definition
    asked_at = definition.scheduled_at if definition.scheduled_at is not None else job.inserted_at
    recorded = result if isinstance(result, ResultRecorded) else None
    return {
        "id": number,
        "kind": definition.worker_key,
        "queue": definition.queue_key,
        "state": _STATES[job.state],
        "input": definition.args,
        "meta": {},
        "priority": 0,
        # The contract keeps the number of an attempt that was interrupted and is to run again.
        "attempt": job.attempt if job.state not in _WAITING else (job.next_attempt or 1) - 1,
        "max_attempts": definition.max_attempts,
        "partition_key": None,
        "ready_at": asked_at if job.eligible_at is None else job.eligible_at,
        "lease_until": None,
        "leased_by": None,
        "await_scope": None,
        "await_name": None,
        "workflow_id": None,
        "wf_name": None,
        "wf_deps": [],
        "wf_ignore": [],
        "cron_name": None,
        "cron_slot": None,
        "unique_key": None,
        "unique_mode": None,
        "parent_id": None,
        "budget_usd_micros": None,
        "budget_tokens": None,
        "spent_usd_micros": 0,
        "spent_tokens": 0,
        "result": None if recorded is None else pack(envelope.encode(recorded.result)),
        "errors": _errors_of(job),
        "cancel_requested": False,
        "inserted_at": job.inserted_at,
        "started_at": job.attempted_at,
        "finished_at": job.terminal_at,
        "order": job.availability_order,
    }


def _errors_of(job: CoreJob) -> list[dict[str, Any]]:
    if job.state == "cancelled":
        return list(CANCELLED)
    if job.diagnostic is None:
        return []
    return [{"error": _CODES.get(job.diagnostic, "failure"), "attempt": job.attempt}]


# -- inserting ------------------------------------------------------------------


def definition_of(row: Row) -> JobDefinition | None:
    """The definition that says all of a new row; ``None`` when it needs an extended one."""
    if row["state"] != "ready" or any(row[name] != plain for name, plain in _PLAIN.items()):  # type: ignore[literal-required]
        return None
    ready_at, inserted_at = row["ready_at"], row["inserted_at"]
    if ready_at is None or not isinstance(row["input"], dict):
        return None
    try:
        return define_job(
            worker_key=row["kind"],
            args=row["input"],
            queue_key=row["queue"],
            max_attempts=row["max_attempts"],
            timeout_ms=MAX_TIMEOUT_MS,
            scheduled_at=None if ready_at == inserted_at else ready_at,
        )
    except (JournalError, UnicodeEncodeError):
        return None


def beyond(row: Row, names: Mapping[str, str]) -> str | None:
    """The name of the first thing in a row that the contract's records have no place for."""
    odd = (name for name, plain in _PLAIN.items() if row[name] != plain and name in names)  # type: ignore[literal-required]
    return next((names[name] for name in odd), None)


def inserted(key: bytes, row: Row, definition: JobDefinition, order: int | None) -> Inserted:
    """The record of a new core row; it has an order when it is due at once."""
    due_at = row["ready_at"]
    assert due_at is not None
    return Inserted(
        job_id=key,
        at=row["inserted_at"],
        definition=definition,
        eligible_at=due_at,
        availability_order=order,
    )


# -- changing -------------------------------------------------------------------


@dataclass(slots=True)
class Orders:
    """The availability orders that one batch hands out."""

    following: int

    def take(self) -> int:
        """The next one."""
        self.following += 1
        return self.following - 1


def changed_columns(before: Row, after: Row) -> set[str]:
    """Which columns differ."""
    return {name for name in COLUMNS if before[name] != after[name]}  # type: ignore[literal-required]


def events_of(job: CoreJob, before: Row, after: Row, *, at: int, orders: Orders) -> list[Payload] | None:
    """The contract's records that say this change of a core job; ``None`` when none can."""
    changed = changed_columns(before, after)
    move = (before["state"], after["state"])
    if move == ("ready", "running") and changed <= _STARTING:
        return _started(job, after, at, orders)
    if move == ("running", "succeeded") and changed <= _ENDING:
        return _finished(job, after, at)
    if move == ("ready", "cancelled") and changed <= _CANCELLING and after["errors"] == CANCELLED:
        cancelled = Cancelled(job_id=job.job_id, expected_revision=job.revision, at=at, execution_token=None)
        return [cancelled]
    return None


def _started(job: CoreJob, after: Row, at: int, orders: Orders) -> list[Payload] | None:
    due_at = job.eligible_at
    if due_at is None or due_at > at or after["attempt"] != job.next_attempt or after["started_at"] != at:
        return None
    if job.next_attempt is None or job.next_attempt > job.definition.max_attempts:
        return None
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
    events.append(
        Started(
            job_id=job.job_id,
            expected_revision=revision,
            at=at,
            attempt=job.next_attempt,
            cycle_token=job.cycle,
        )
    )
    return events


def _finished(job: CoreJob, after: Row, at: int) -> list[Payload] | None:
    assert job.execution is not None
    events: list[Payload] = [
        Finished(
            job_id=job.job_id,
            expected_revision=job.revision,
            at=at,
            diagnostic=None,
            disposition=0,
            execution_token=job.execution,
            next_attempt=None,
            next_due_at=None,
            outcome=0,
        )
    ]
    if after["result"] is not None:
        value = result_value(unpack(after["result"]))
        if value is _NONE:
            return None
        events.append(
            ResultRecorded(at=at, expected_revision=job.revision + 1, job_id=job.job_id, result=value)  # type: ignore[arg-type]
        )
    return events


_NONE: Final = object()


def result_value(data: bytes | None) -> Value | object:
    """The Value that says a result; a private mark where none can."""
    assert data is not None
    if envelope.is_etf(data):
        return _NONE
    try:
        value: Value = loads(data)
        encode_value(value, RESULT_LIMITS)
    except (JsonError, JournalError, UnicodeEncodeError):
        return _NONE
    return value
