"""What an operator does to a job (§8.6, rules 5, 9, 19, 34, 38)."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from django_belay.contract import names
from django_belay.contract.notification import PokePolicy
from django_belay.contract.outcome import Awaiting, Cancelled, Changes, apply_outcome
from django_belay.contract.state import State, sources
from django_belay.exceptions import Conflict
from django_belay.storage.base import Controlled
from django_belay.storage.postgres import hints
from django_belay.storage.postgres.changes import JobRow, look
from django_belay.storage.postgres.session import Session, Transaction, atomically
from django_belay.storage.postgres.transitions import Done, Intent, carry_out
from django_belay.storage.postgres.waits import newer_thans

NOT_FOUND = "not found"

# Jobs of a tree that are cancelled in one transaction: each may lock a workflow and a scope.
TREE_CHUNK = 250
# A running job goes on spawning until it sees its flag; looking again has to end some time.
TREE_LOOKS = 20


# -- retry --------------------------------------------------------------------------


def retry(session: Session, job_id: int, *, poke: PokePolicy, now: datetime) -> Controlled:
    """Run an ended job again; one with deps is held again and its workflow settled.

    Contract: §8.6; rules 9, 34.
    """
    for last_try in (False, True):
        try:
            return atomically(session, lambda transaction: _retry(transaction, job_id, poke=poke, now=now))
        except Conflict:
            # The key was taken between the look and the write: now its holder is to be seen.
            if last_try or session.is_joined():
                raise
    raise AssertionError("unreachable")


def _retry(transaction: Transaction, job_id: int, *, poke: PokePolicy, now: datetime) -> Controlled:
    row = look(transaction, [job_id]).get(job_id)
    if row is None:
        return _missing(job_id)
    holder = _key_holder(transaction, row)
    if holder is not None:
        return Controlled(job_id=job_id, state=row.state, reason=f"key held by {holder}")
    done = carry_out(transaction, [_retry_intent(row, now)], poke=poke, now=now)
    if done.change_of(job_id) is not None:
        transaction.run("reset_retried", {"ids": [job_id]})
    return _controlled(done, job_id)


def retry_many(
    session: Session, job_ids: Sequence[int], *, poke: PokePolicy, now: datetime
) -> list[Controlled]:
    """Run ended jobs again, dependencies before dependents; answers in the order of the ids.

    Members without deps go first and in transactions of their own: settlement reads what
    is written, and would doom their dependents by the states they had.

    Contract: §8.6; rules 9, 34.
    """
    found = atomically(session, lambda transaction: look(transaction, job_ids))
    roots = [job_id for job_id in job_ids if job_id not in found or not found[job_id].has_deps]
    left = [job_id for job_id in job_ids if job_id in found and found[job_id].has_deps]
    answers: dict[int, Controlled] = {}

    def retry_all(ids: Sequence[int]) -> None:
        for chunk in _chunks(ids):
            for answer in _retry_chunk(session, chunk, poke=poke, now=now):
                answers[answer.job_id] = answer

    retry_all(roots)
    while left:
        retry_all(left)
        # Doomed again by a dependency that only a later chunk retried: once more, while that helps.
        doomed = [job_id for job_id in left if answers[job_id].done and answers[job_id].state == "cancelled"]
        left = doomed if TREE_CHUNK < len(left) > len(doomed) else []
    return [answers[job_id] for job_id in job_ids]


def _retry_chunk(
    session: Session, ids: Sequence[int], *, poke: PokePolicy, now: datetime
) -> list[Controlled]:
    def operation(transaction: Transaction) -> list[Controlled]:
        found = look(transaction, ids)
        holders = {
            job_id: holder
            for job_id, row in found.items()
            if (holder := _key_holder(transaction, row)) is not None
        }
        intents = [_retry_intent(row, now) for job_id, row in found.items() if job_id not in holders]
        done = carry_out(transaction, intents, poke=poke, now=now)
        retried = [job_id for job_id in ids if done.change_of(job_id) is not None]
        transaction.run("reset_retried", {"ids": retried})
        return [
            Controlled(job_id=job_id, state=found[job_id].state, reason=f"key held by {holders[job_id]}")
            if job_id in holders
            else _controlled(done, job_id)
            for job_id in ids
        ]

    try:
        return atomically(session, operation)
    except Conflict:
        # Two of them want one key, or it was taken meanwhile: each alone says which.
        if session.is_joined():
            raise
        return [retry(session, job_id, poke=poke, now=now) for job_id in ids]


def _chunks(ids: Sequence[int]) -> list[Sequence[int]]:
    return [ids[start : start + TREE_CHUNK] for start in range(0, len(ids), TREE_CHUNK)]


def _key_holder(transaction: Transaction, row: JobRow) -> int | None:
    if row.unique_mode != "incomplete" or row.unique_key is None or row.state not in sources("retry"):
        return None
    rows = transaction.run("find_key_holder", {"unique_key": row.unique_key, "job_id": row.id})
    return rows[0][0] if rows else None


def _retry_intent(found: JobRow, now: datetime) -> Intent:
    def decide(row: JobRow, _signal_present: bool) -> Changes | None:
        if row.state not in sources("retry"):
            return None
        is_held = row.has_deps and row.workflow_id is not None
        # The await columns go: the new run has not seen a time-out.
        return Changes(state="held" if is_held else "ready", ready_at=now, keep_await=False)

    return Intent(job_id=found.id, workflow_id=found.workflow_id, parent_id=found.parent_id, decide=decide)


# -- cancel -------------------------------------------------------------------------


def request_cancel(
    session: Session, job_id: int, *, reason: str, tree: bool, poke: PokePolicy, now: datetime
) -> list[Controlled]:
    """Cancel a job, or ask a running one to stop; with ``tree`` its unfinished descendants too.

    A tree is cancelled from the root on in transactions of at most ``TREE_CHUNK`` jobs, and
    looked at again until nothing is left that a running member spawned meanwhile.

    Contract: §8.6; rule 19.
    """
    results = _cancel(session, [job_id], reason=reason, poke=poke, now=now)
    seen = {job_id}
    for _ in range(TREE_LOOKS if tree and results[0].state is not None else 0):
        found = [row[0] for row in session.run("find_descendants", {"job_id": job_id})]
        left = [descendant for descendant in found if descendant not in seen]
        if not left:
            break
        for chunk in _chunks(left):
            results += _cancel(session, chunk, reason=reason, poke=poke, now=now)
        seen.update(left)
    return results


def cancel_many(
    session: Session, job_ids: Sequence[int], *, reason: str, poke: PokePolicy, now: datetime
) -> list[Controlled]:
    """Cancel jobs in the order given, some hundred a transaction."""
    results: list[Controlled] = []
    for chunk in _chunks(job_ids):
        results += _cancel(session, chunk, reason=reason, poke=poke, now=now)
    return results


def _cancel(
    session: Session, ids: Sequence[int], *, reason: str, poke: PokePolicy, now: datetime
) -> list[Controlled]:
    def operation(transaction: Transaction) -> list[Controlled]:
        found = look(transaction, ids)
        intents = [_cancel_intent(row, reason, now) for row in found.values()]
        if not intents:
            return [_missing(job_id) for job_id in ids]
        done = carry_out(transaction, intents, poke=poke, now=now)
        running = [job_id for job_id in ids if job_id in found and _is_running(done, job_id)]
        if running:
            transaction.run("flag_cancel", {"ids": running})
        return [_cancelled(done, job_id, requested=job_id in running) for job_id in ids]

    return atomically(session, operation)


def _cancel_intent(found: JobRow, reason: str, now: datetime) -> Intent:
    def decide(row: JobRow, _signal_present: bool) -> Changes | None:
        if row.state not in sources("cancel"):
            return None
        return apply_outcome(Cancelled(reason=reason), now=now, cancel_requested=False)

    return Intent(job_id=found.id, workflow_id=found.workflow_id, parent_id=found.parent_id, decide=decide)


def _is_running(done: Done, job_id: int) -> bool:
    return job_id in done.rows and done.rows[job_id].state == "running"


def _cancelled(done: Done, job_id: int, *, requested: bool) -> Controlled:
    if requested:
        return Controlled(job_id=job_id, state="running", requested=True)
    return _controlled(done, job_id)


# -- one row ------------------------------------------------------------------------


def reschedule(
    session: Session, job_id: int, *, ready_at: datetime, poke: PokePolicy, now: datetime
) -> Controlled:
    """Ready: due then; awaiting: its deadline."""
    params = {"job_id": job_id, "ready_at": ready_at}
    return _change(session, "reschedule", params, is_due=ready_at <= now, poke=poke, now=now)


def move(
    session: Session,
    job_id: int,
    *,
    queue: str | None,
    priority: int | None,
    poke: PokePolicy,
    now: datetime,
) -> Controlled:
    """Give a waiting job another queue or priority."""
    params = {"job_id": job_id, "queue": queue, "priority": priority}
    return _change(session, "move", params, is_due=True, poke=poke, now=now)


def freeze(session: Session, job_id: int, *, poke: PokePolicy, now: datetime) -> Controlled:
    """Contract: rule 5."""
    return _change(session, "freeze", {"job_id": job_id}, is_due=False, poke=poke, now=now)


def erase_payload(session: Session, job_id: int, *, poke: PokePolicy, now: datetime) -> Controlled:
    """Everything of an ended job that its author or its user wrote; shape and numbers stay."""
    return _change(session, "erase_payload", {"job_id": job_id}, is_due=False, poke=poke, now=now)


def _change(
    session: Session, name: str, params: dict[str, Any], *, is_due: bool, poke: PokePolicy, now: datetime
) -> Controlled:
    """Run a statement that locks one row, changes it where its state allows, and answers both."""
    job_id = params["job_id"]
    rows = session.run(name, params)
    if not rows:
        return _missing(job_id)
    before, after, queue = rows[0]
    if after is None:
        return _refused(job_id, before)
    if is_due and after in ("ready", "awaiting"):
        hints.send(session.run, poke=poke, queues=[queue], now=now)
    return Controlled(job_id=job_id, state=after)


# -- unfreeze -----------------------------------------------------------------------


def unfreeze(session: Session, job_id: int, *, poke: PokePolicy, now: datetime) -> Controlled:
    """Back to ready, or to its wait unless its signal came meanwhile (rules 5, 23)."""

    def operation(transaction: Transaction) -> Controlled:
        row = look(transaction, [job_id]).get(job_id)
        if row is None:
            return _missing(job_id)
        return _controlled(
            carry_out(transaction, [_unfreeze_intent(transaction, row, now)], poke=poke, now=now), job_id
        )

    return atomically(session, operation)


def _unfreeze_intent(transaction: Transaction, found: JobRow, now: datetime) -> Intent:
    def decide(row: JobRow, signal_present: bool) -> Changes | None:
        if row.state not in sources("unfreeze"):
            return None
        if row.await_name is None:
            return Changes(state="ready", keep_ready_at=True)
        if signal_present:
            return Changes(state="ready", ready_at=now, keep_await=False)
        return Changes(state="awaiting", keep_ready_at=True)

    # No workflow: nothing ends here, so nothing is settled.
    return Intent(
        job_id=found.id, workflow_id=None, parent_id=None, decide=decide, park=wait_of(transaction, found)
    )


def wait_of(transaction: Transaction, row: JobRow) -> Awaiting | None:
    """The wait that a row's await columns tell of, as its park check saw it."""
    if row.await_name is None or row.await_scope is None:
        return None
    return Awaiting(
        scope=row.await_scope,
        name=row.await_name,
        read_scopes=names.read_scopes(row.id, row.workflow_id, row.await_scope),
        newer_than=newer_thans(transaction, {row.id: row.await_name}).get(row.id),
    )


# -- answers ------------------------------------------------------------------------


def _controlled(done: Done, job_id: int) -> Controlled:
    change = done.change_of(job_id)
    if change is not None:
        return Controlled(job_id=job_id, state=change.state)
    return _refused(job_id, done.rows[job_id].state) if job_id in done.rows else _missing(job_id)


def _refused(job_id: int, state: State) -> Controlled:
    return Controlled(job_id=job_id, state=state, reason=f"state is {state}")


def _missing(job_id: int) -> Controlled:
    return Controlled(job_id=job_id, state=None, reason=NOT_FOUND)
