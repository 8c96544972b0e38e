"""The end of a run: fenced acks, one by one or in groups (§7, rules 15, 21, 22)."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime

from django_belay.contract.job import Lease
from django_belay.contract.notification import PokePolicy
from django_belay.contract.outcome import (
    Awaiting,
    Cancelled,
    Changes,
    Failed,
    Snoozed,
    Succeeded,
    apply_outcome,
)
from django_belay.contract.state import State
from django_belay.exceptions import Contended
from django_belay.storage.base import Ack, AckGroupError, AckResult, Applied, Stale
from django_belay.storage.postgres.changes import JobRow, error_text
from django_belay.storage.postgres.grouping import send_grouped
from django_belay.storage.postgres.insert import due_pokes, insert_in
from django_belay.storage.postgres.session import Session, Transaction, atomically, retried
from django_belay.storage.postgres.transitions import Done, Intent, carry_out

# Parks hold a lock for each scope they read to their transaction's end, and the server's
# lock table is shared: 64 locks a connection with its stock settings.
MAX_GROUP = 250


def ack(session: Session, one: Ack, *, poke: PokePolicy, now: datetime) -> AckResult:
    """Contract: §7."""

    def send() -> AckResult:
        [answer] = _send(session, [one], poke=poke, now=now)
        if isinstance(answer, Contended):
            raise answer
        return answer

    return retried(session, send)


def ack_group(session: Session, acks: Sequence[Ack], *, poke: PokePolicy, now: datetime) -> list[AckResult]:
    """Raises ``AckGroupError`` when some could not be written; the others were (rule 21)."""

    def send(indices: Sequence[int]) -> Mapping[int, AckResult | Exception]:
        sent = _send(session, [acks[index] for index in indices], poke=poke, now=now)
        return dict(zip(indices, sent, strict=True))

    results: dict[int, AckResult]
    results, failures = send_grouped(_groups(acks), send)
    if failures:
        raise AckGroupError([results.get(index) for index in range(len(acks))], failures)
    return [results[index] for index in range(len(acks))]


def hand_back(
    session: Session, leases: Sequence[Lease], *, poke: PokePolicy, now: datetime
) -> list[AckResult]:
    """Return jobs that a stopping process will not run: ready now, attempt returned."""
    return ack_group(
        session, [Ack(lease=lease, outcome=Snoozed(until=now)) for lease in leases], poke=poke, now=now
    )


# -- groups ----------------------------------------------------------------------------


def _groups(acks: Sequence[Ack]) -> list[list[int]]:
    """Indices that may share a transaction: plain ones, or one workflow's and parent's (rule 21).

    A job stands in a group once.
    """
    open_groups: dict[object, tuple[list[int], set[int]]] = {}
    groups: list[list[int]] = []
    for index, one in enumerate(acks):
        key = "ended" if _is_plain_end(one) else (one.lease.workflow_id, one.lease.parent_id)
        found = open_groups.get(key)
        if found is None or len(found[0]) >= MAX_GROUP or one.lease.job_id in found[1]:
            found = open_groups[key] = ([], set())
            groups.append(found[0])
        found[0].append(index)
        found[1].add(one.lease.job_id)
    return groups


def _is_plain_end(one: Ack) -> bool:
    lease = one.lease
    return (
        lease.workflow_id is None
        and lease.parent_id is None
        and not one.enqueue
        and isinstance(one.outcome, Succeeded | Failed | Cancelled)
    )


def _send(
    session: Session, acks: Sequence[Ack], *, poke: PokePolicy, now: datetime
) -> Sequence[AckResult | Contended]:
    if all(_is_plain_end(one) for one in acks):
        return _send_plain_ends(session, acks, now=now)
    return atomically(session, lambda transaction: _apply(transaction, acks, poke=poke, now=now))


# -- the hot path ------------------------------------------------------------------------


def _send_plain_ends(session: Session, acks: Sequence[Ack], *, now: datetime) -> list[AckResult | Contended]:
    """One statement, no transaction around it: what apply_outcome says of these three outcomes.

    Rows that it could not write are stale, or held by somebody: for a moment, as a renewal
    does, or for as long as an operator looks at them. The caller sends those again.
    """
    states: list[State] = []
    results: list[bytes | None] = []
    errors: list[str | None] = []
    for one in acks:
        outcome = one.outcome
        if isinstance(outcome, Succeeded):
            states.append("succeeded")
            results.append(outcome.result)
            errors.append(None)
        else:
            change = apply_outcome(outcome, now=now, cancel_requested=False)
            states.append(change.state)
            results.append(None)
            errors.append(error_text(change.error))
    fences = {
        "ids": [one.lease.job_id for one in acks],
        "attempts": [one.lease.attempt for one in acks],
        "leases": [one.lease.leased_by for one in acks],
    }
    outcomes = {"states": states, "results": results, "errors": errors, "now": now}
    written = {row[0] for row in session.run("ack_ended", {**fences, **outcomes})}
    held = {job_id for (job_id,) in session.run("find_held", fences)} if len(written) < len(acks) else set()
    return [
        _plain_answer(one.lease.job_id, state, written=written, held=held)
        for one, state in zip(acks, states, strict=True)
    ]


def _plain_answer(
    job_id: int, state: State, *, written: Collection[int], held: Collection[int]
) -> AckResult | Contended:
    if job_id in written:
        return Applied(job_id, state)
    if job_id in held:
        return Contended(f"job {job_id} is locked by another transaction; its end is sent again")
    return Stale(job_id)


# -- everything else ---------------------------------------------------------------------


def _apply(
    transaction: Transaction, acks: Sequence[Ack], *, poke: PokePolicy, now: datetime
) -> list[AckResult]:
    done = carry_out(transaction, [_intent(one, now) for one in acks], poke=poke, now=now)
    follow_ups = [job for one in acks if one.lease.job_id in done.changes for job in one.enqueue]
    if follow_ups:
        insert_in(transaction, follow_ups, pokes=due_pokes(follow_ups, poke=poke, now=now), now=now)
    return [_result(done, one.lease.job_id) for one in acks]


def _intent(one: Ack, now: datetime) -> Intent:
    lease, outcome = one.lease, one.outcome

    def decide(row: JobRow, signal_present: bool) -> Changes | None:
        if not is_fenced(row, lease):
            return None
        return apply_outcome(
            outcome, now=now, cancel_requested=row.cancel_requested, signal_present=signal_present
        )

    return Intent(
        job_id=lease.job_id,
        workflow_id=lease.workflow_id,
        parent_id=lease.parent_id,
        decide=decide,
        park=outcome if isinstance(outcome, Awaiting) else None,
    )


def is_fenced(row: JobRow, lease: Lease) -> bool:
    """Whether the row is still held under the lease (§7, rule 15)."""
    return row.state == "running" and row.attempt == lease.attempt and row.leased_by == lease.leased_by


def _result(done: Done, job_id: int) -> AckResult:
    change = done.change_of(job_id)
    return Stale(job_id) if change is None else Applied(job_id, change.state)
