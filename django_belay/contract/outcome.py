"""How a run can end, and what each end writes (§7)."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Final, TypeAlias, assert_never

from django_belay.contract.job import JSON
from django_belay.contract.state import State

CANCEL_REQUESTED: Final = "cancel_requested"


@dataclass(slots=True, frozen=True)
class Succeeded:
    """The job returned; ``result`` is an envelope or ``None``."""

    result: bytes | None = None


@dataclass(slots=True, kw_only=True, frozen=True)
class Retried:
    """The attempt failed and another is left; ``error`` is an entry of ``errors``."""

    ready_at: datetime
    error: dict[str, JSON]


@dataclass(slots=True, kw_only=True, frozen=True)
class Failed:
    """The job failed for good."""

    error: dict[str, JSON]


@dataclass(slots=True, kw_only=True, frozen=True)
class Cancelled:
    """The job ended as cancelled; ``reason`` goes into ``errors``."""

    reason: str


@dataclass(slots=True, kw_only=True, frozen=True)
class Snoozed:
    """The job asked to run later, or is handed back; the attempt is returned."""

    until: datetime


@dataclass(slots=True, kw_only=True, frozen=True)
class Awaiting:
    """The job parks on a signal; the attempt is returned.

    ``scope`` is what the row records, ``read_scopes`` all that the job would read
    (rule 23), ``newer_than`` excludes an already observed payload (rule 27).
    """

    scope: str
    name: str
    read_scopes: tuple[str, ...]
    deadline: datetime | None = None
    newer_than: datetime | None = None


Outcome: TypeAlias = Succeeded | Retried | Failed | Cancelled | Snoozed | Awaiting


@dataclass(slots=True, kw_only=True, frozen=True)
class Changes:
    """What an outcome writes to the row, besides clearing the lease columns.

    ``ready_at`` and ``finished_at`` are written as they stand unless ``keep_ready_at``;
    ``error`` is appended to ``errors`` when present; ``result`` only by a success.
    """

    state: State
    ready_at: datetime | None = None
    keep_ready_at: bool = False
    attempt_delta: int = 0
    error: dict[str, JSON] | None = None
    result: bytes | None = None
    finished_at: datetime | None = None
    await_scope: str | None = None
    await_name: str | None = None
    keep_await: bool = True


def apply_outcome(
    outcome: Outcome, *, now: datetime, cancel_requested: bool, signal_present: bool = False
) -> Changes:
    """The column effects of ``outcome`` on a running row whose lease is the acker's.

    Args:
        cancel_requested: The row's flag, read under its lock. An outcome that would
            leave the job alive becomes ``cancelled`` when it is set (rule 22).
        signal_present: For a park, whether the signal was found under the scope
            locks; the job then returns to ``ready`` instead (§7, park-and-wake).

    Contract: §7, outcome effects.
    """
    if cancel_requested and isinstance(outcome, Retried | Snoozed | Awaiting):
        error = outcome.error if isinstance(outcome, Retried) else None
        return _cancelled(CANCEL_REQUESTED, now=now, error=error)
    match outcome:
        case Succeeded(result):
            return Changes(
                state="succeeded", keep_ready_at=True, result=result, finished_at=now, keep_await=False
            )
        case Retried(ready_at=ready_at, error=error):
            return Changes(state="ready", ready_at=ready_at, error=error)
        case Failed(error=error):
            return Changes(state="failed", keep_ready_at=True, error=error, finished_at=now)
        case Cancelled(reason=reason):
            return _cancelled(reason, now=now)
        case Snoozed(until=until):
            return Changes(state="ready", ready_at=until, attempt_delta=-1)
        case Awaiting() if signal_present:
            return Changes(state="ready", ready_at=now, attempt_delta=-1, keep_await=False)
        case Awaiting(scope=scope, name=name, deadline=deadline):
            return Changes(
                state="awaiting",
                ready_at=deadline,
                attempt_delta=-1,
                await_scope=scope,
                await_name=name,
                keep_await=False,
            )
        case _:
            assert_never(outcome)


def _cancelled(reason: str, *, now: datetime, error: dict[str, JSON] | None = None) -> Changes:
    entry: dict[str, JSON] = {**(error or {}), "reason": reason}
    return Changes(state="cancelled", keep_ready_at=True, error=entry, finished_at=now)


def reclaim_outcome(
    *, attempt: int, max_attempts: int, now: datetime, ready_at: datetime
) -> Retried | Failed:
    """What becomes of a job whose lease ran out: another attempt, or failed.

    Args:
        ready_at: ``now`` plus retry policy v1's delay (rule 16: never user backoff).

    Contract: §6, leases.
    """
    error: dict[str, JSON] = {"error": "lease_expired", "at": iso(now), "attempt": attempt}
    if attempt < max_attempts:
        return Retried(ready_at=ready_at, error=error)
    return Failed(error=error)


def iso(instant: datetime) -> str:
    """An instant as ISO 8601 text in UTC ending in ``Z``."""
    return instant.isoformat().replace("+00:00", "Z")
