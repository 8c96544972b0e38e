"""The end of a run: fenced acks (§7, rules 15, 21, 22)."""

from __future__ import annotations

from django_belay.contract.job import Lease
from django_belay.contract.outcome import Awaiting, apply_outcome
from django_belay.storage.base import Ack, AckResult, Applied, Stale

from . import moving
from .inserting import Inserter
from .row import Row
from .unit import Unit


def ack(unit: Unit, one: Ack) -> AckResult:
    """Fenced terminal or park write, settlement, parent told, follow-ups inserted: one unit.

    Contract: §7; rules 15, 22.
    """
    job_id = one.lease.job_id
    row = unit.view.open.get(job_id)
    if row is None or not is_fenced(row, one.lease):
        return Stale(job_id)
    outcome = one.outcome
    is_there = isinstance(outcome, Awaiting) and moving.is_signal_there(unit, outcome)
    cancel = row["cancel_requested"]
    changes = apply_outcome(outcome, now=unit.now, cancel_requested=cancel, signal_present=is_there)
    moving.change(unit, row, changes)
    moving.conclude(unit)
    if one.enqueue:
        Inserter(unit).insert(one.enqueue)
    return Applied(job_id, unit.get(job_id)["state"])


def find_written(unit: Unit, one: Ack) -> Applied | None:
    """The answer to an end that this very lease has written before; ``None`` where it has not.

    The attempt is the token: only its holder could bring the job from there to where it is.
    """
    row = unit.find(one.lease.job_id)
    if row is None or isinstance(one.outcome, Awaiting):
        return None
    changes = apply_outcome(one.outcome, now=unit.now, cancel_requested=row["cancel_requested"])
    is_so = row["state"] == changes.state and row["attempt"] == one.lease.attempt + changes.attempt_delta
    return Applied(row["id"], row["state"]) if is_so else None


def is_fenced(row: Row, lease: Lease) -> bool:
    """Whether the row is still held under the lease (§7, rule 15)."""
    return (
        row["state"] == "running" and row["attempt"] == lease.attempt and row["leased_by"] == lease.leased_by
    )
