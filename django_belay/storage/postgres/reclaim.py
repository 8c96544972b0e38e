"""Taking back leases that ran out (§6, rules 4, 16, 19)."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from django_belay.contract.notification import PokePolicy
from django_belay.contract.outcome import Changes, apply_outcome, reclaim_outcome
from django_belay.exceptions import Unavailable
from django_belay.storage.base import Backoff, Reclaimed
from django_belay.storage.postgres.changes import JobRow
from django_belay.storage.postgres.grouping import send_grouped
from django_belay.storage.postgres.session import Session, Transaction, atomically
from django_belay.storage.postgres.transitions import Intent, carry_out

logger = logging.getLogger("django_belay.sweeper")


@dataclass(slots=True, frozen=True)
class _Expired:
    id: int
    kind: str
    attempt: int
    max_attempts: int
    leased_by: str | None
    workflow_id: str | None
    parent_id: int | None
    lease_until: datetime | None


def reclaim_expired(
    session: Session, *, now: datetime, backoff: Backoff, limit: int, poke: PokePolicy
) -> list[Reclaimed]:
    """Take back at most ``limit`` leases that ran out; rows that fail are logged and passed over.

    A row that runs under no lease counts as one whose lease ran out.
    """
    reclaimed: list[Reclaimed] = []
    for statement in ("find_expired", "find_leaseless"):
        after, after_id = "-infinity", 0
        while len(reclaimed) < limit:
            rows = session.run(
                statement, {"now": now, "after": after, "after_id": after_id, "limit": limit - len(reclaimed)}
            )
            if not rows:
                break
            found = [_Expired(*row) for row in rows]
            taken, failures = _reclaim(session, found, now=now, backoff=backoff, poke=poke)
            reclaimed += taken
            if not failures:
                break
            last = found[-1]
            after_id = last.id
            if last.lease_until is not None:
                after = last.lease_until.isoformat()
    return reclaimed


def _reclaim(
    session: Session, found: Sequence[_Expired], *, now: datetime, backoff: Backoff, poke: PokePolicy
) -> tuple[list[Reclaimed], dict[int, Exception]]:
    def send(indices: Sequence[int]) -> dict[int, Reclaimed | None]:
        expired = [found[index] for index in indices]
        intents = [_intent(one, now=now, backoff=backoff) for one in expired]

        def operation(transaction: Transaction) -> dict[int, Reclaimed | None]:
            done = carry_out(transaction, intents, poke=poke, now=now)
            return {
                index: _reclaimed(one, done.change_of(one.id))
                for index, one in zip(indices, expired, strict=True)
            }

        return atomically(session, operation)

    results, failures = send_grouped(_groups(found), send)
    for index, error in failures.items():
        _report(found[index], error)
    down = next((error for error in failures.values() if isinstance(error, Unavailable)), None)
    if down is not None and not results:
        raise down
    return [one for one in results.values() if one is not None], failures


def _groups(found: Sequence[_Expired]) -> list[list[int]]:
    groups: dict[object, list[int]] = {}
    for index, one in enumerate(found):
        groups.setdefault((one.workflow_id, one.parent_id), []).append(index)
    return list(groups.values())


def _intent(one: _Expired, *, now: datetime, backoff: Backoff) -> Intent:
    outcome = reclaim_outcome(
        attempt=one.attempt,
        max_attempts=one.max_attempts,
        now=now,
        ready_at=now + backoff(one.attempt),
    )

    def decide(row: JobRow, _signal_present: bool) -> Changes | None:
        if not _is_still_expired(row, one, now):
            return None
        return apply_outcome(outcome, now=now, cancel_requested=row.cancel_requested)

    return Intent(job_id=one.id, workflow_id=one.workflow_id, parent_id=one.parent_id, decide=decide)


def _is_still_expired(row: JobRow, one: _Expired, now: datetime) -> bool:
    return (
        row.state == "running"
        and row.attempt == one.attempt
        and row.leased_by == one.leased_by
        and (row.lease_until is None or row.lease_until <= now)
    )


def _reclaimed(one: _Expired, change: Changes | None) -> Reclaimed | None:
    if change is None:
        return None
    return Reclaimed(job_id=one.id, kind=one.kind, leased_by=one.leased_by, state=change.state)


def _report(one: _Expired, error: Exception) -> None:
    logger.warning(
        "The expired lease of job %s (%s) could not be taken back: %s",
        one.id,
        one.kind,
        error,
        extra={"belay_job_id": one.id, "belay_kind": one.kind, "belay_attempt": one.attempt},
    )
