"""Reconcilers: what a lost wake or a foreign writer left behind is set right (§8.4, §11 R2).

Each works in bounded batches and handles every job or workflow in a transaction of its
own, so that one that fails is logged and stops no other (rule 4).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TypeVar

from django_belay.contract import names
from django_belay.contract.notification import PokePolicy
from django_belay.contract.outcome import Awaiting, Changes
from django_belay.exceptions import Unavailable
from django_belay.storage.postgres import hints
from django_belay.storage.postgres.changes import JobRow, apply, lock_rows
from django_belay.storage.postgres.grouping import send_grouped
from django_belay.storage.postgres.locks import lock
from django_belay.storage.postgres.session import Session, Transaction, atomically
from django_belay.storage.postgres.settling import find_unsettled
from django_belay.storage.postgres.transitions import Intent, carry_out
from django_belay.storage.postgres.waits import newer_thans

logger = logging.getLogger("django_belay.sweeper")

# Jobs that wake in one transaction; each holds the locks of up to three scopes.
GROUP = 100
# Workflows whose members are read at once: one may have tens of thousands.
WORKFLOWS_READ = 20

T = TypeVar("T")


# -- children ------------------------------------------------------------------------


def resettle_parents(session: Session, *, poke: PokePolicy, now: datetime, limit: int) -> int:
    """Wake jobs that wait for ``$children`` though no unfinished child is left (§8.4, R2)."""
    found = [row[0] for row in session.run("find_finished_parents", {"ids": None, "limit": limit})]

    def wake(ids: Sequence[int]) -> int:
        return atomically(session, lambda transaction: _wake_parents(transaction, ids, poke=poke, now=now))

    return _in_groups(found, wake, what="waking parents")


def _wake_parents(transaction: Transaction, ids: Sequence[int], *, poke: PokePolicy, now: datetime) -> int:
    lock(transaction, scopes=[names.job_scope(job_id) for job_id in ids])
    rows = lock_rows(transaction, ids)
    still = transaction.run("find_finished_parents", {"ids": list(ids), "limit": len(ids)})
    woken = [row[0] for row in still if row[0] in rows]
    apply(transaction, {job_id: _woken(now) for job_id in woken})
    hints.send(transaction.run, poke=poke, queues={rows[job_id].queue for job_id in woken}, now=now)
    return len(woken)


# -- signals -------------------------------------------------------------------------


@dataclass(slots=True, frozen=True)
class _Waiting:
    id: int
    workflow_id: str | None
    await_scope: str | None
    await_name: str


def resettle_signals(session: Session, *, poke: PokePolicy, now: datetime, limit: int) -> int:
    """Wake jobs whose signal is there: lost wakes, and parks of a foreign SDK on another scope.

    A wait for a newer payload is left alone until there is one (rule 27), so the pages go
    on past such jobs.
    """
    woken, after, after_id = 0, "", 0
    while woken < limit:
        rows = session.run("find_signalled", {"after": after, "after_id": after_id, "limit": limit})
        found = [_Waiting(*row) for row in rows]
        if not found:
            break
        newer = newer_thans(session, {one.id: one.await_name for one in found})
        intents = {one.id: _wake_intent(one, newer.get(one.id), now) for one in found}

        def wake(ids: Sequence[int], intents: dict[int, Intent] = intents) -> int:
            chosen = [intents[job_id] for job_id in ids]
            return atomically(
                session, lambda transaction: len(carry_out(transaction, chosen, poke=poke, now=now).changes)
            )

        woken += _in_groups([one.id for one in found], wake, what="waking for signals")
        after, after_id = found[-1].await_name, found[-1].id
    return woken


def _wake_intent(one: _Waiting, newer_than: datetime | None, now: datetime) -> Intent:
    def decide(row: JobRow, signal_present: bool) -> Changes | None:
        still_waits = row.state == "awaiting" and row.await_name == one.await_name
        return _woken(now) if still_waits and signal_present else None

    park = Awaiting(
        scope=names.job_scope(one.id) if one.await_scope is None else one.await_scope,
        name=one.await_name,
        read_scopes=names.read_scopes(one.id, one.workflow_id, one.await_scope),
        newer_than=newer_than,
    )
    return Intent(job_id=one.id, workflow_id=None, parent_id=None, decide=decide, park=park)


def _woken(now: datetime) -> Changes:
    return Changes(state="ready", ready_at=now, keep_await=False)


# -- workflows -----------------------------------------------------------------------


@dataclass(slots=True)
class Rotation:
    """Where the last look ended: a bounded look each time sees everything in turn."""

    after: str | None = None


def resettle_workflows(
    session: Session, rotation: Rotation, *, poke: PokePolicy, now: datetime, limit: int
) -> int:
    """Settle the next ``limit`` workflows that have held members; members changed (§8.3)."""
    workflows = [
        workflow_id
        for some in _chunks(_next_workflows(session, rotation, limit), WORKFLOWS_READ)
        for workflow_id in find_unsettled(session.run, some)
    ]

    def settle(indices: Sequence[int]) -> int:
        chosen = [workflows[index] for index in indices]
        return atomically(
            session,
            lambda transaction: len(carry_out(transaction, [], workflows=chosen, poke=poke, now=now).settled),
        )

    return _in_groups(range(len(workflows)), settle, what="settling workflows", size=1)


def _next_workflows(session: Session, rotation: Rotation, limit: int) -> list[str]:
    start = rotation.after
    found = _held_workflows(session, start, limit)
    if len(found) < limit and start is not None:
        missing = limit - len(found)
        found += [one for one in _held_workflows(session, None, missing) if one not in found]
    rotation.after = found[-1] if len(found) == limit else None
    return found


def _held_workflows(session: Session, after: str | None, limit: int) -> list[str]:
    return [row[0] for row in session.run("find_held_workflows", {"after": after, "limit": limit})]


# -- groups --------------------------------------------------------------------------


def _in_groups(
    items: Sequence[int], operation: Callable[[Sequence[int]], int], *, what: str, size: int = GROUP
) -> int:
    """Run ``operation`` on groups; how much it changed. Failures are logged."""
    groups = _chunks(items, size)
    changed = 0

    def send(group: Sequence[int]) -> dict[int, bool]:
        nonlocal changed
        changed += operation(group)
        return dict.fromkeys(group, True)

    done, failures = send_grouped(groups, send)
    for item, error in failures.items():
        if isinstance(error, Unavailable) and not done:
            raise error
        logger.warning("%s: item %s failed: %s", what, item, error)
    return changed


def _chunks(items: Sequence[T], size: int) -> list[Sequence[T]]:
    return [items[start : start + size] for start in range(0, len(items), size)]
