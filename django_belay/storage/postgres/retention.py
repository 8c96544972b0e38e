"""Deleting what has been kept long enough (§8.7, rule 36)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from django_belay.contract.state import State, is_terminal
from django_belay.contract.uniqueness import window_ends_at
from django_belay.storage.postgres.session import Session, Transaction, atomically

# Rows looked at in a call, in multiples of what it may delete: jobs that something
# unfinished needs must neither stop a sweep nor make it read them all.
LOOKS = 10


@dataclass(slots=True)
class Cursors:
    """Where the last look at each state ended, so that spared jobs are passed over."""

    after: dict[State, tuple[datetime, int]] = field(default_factory=dict)


def prune_jobs(
    session: Session,
    cursors: Cursors,
    retention: Mapping[State, timedelta | None],
    *,
    now: datetime,
    limit: int,
) -> int:
    """Delete at most ``limit`` ended jobs past their retention, with steps and events.

    Spared are children of an unfinished parent, members of an unfinished workflow, and
    ``window`` keys whose window is not over.
    """
    deleted = 0
    for state, kept_for in retention.items():
        if kept_for is not None and is_terminal(state):
            deleted += _prune_state(
                session, cursors, state, before=now - kept_for, now=now, limit=limit - deleted
            )
    return deleted


def prune_signals(session: Session, *, older_than: datetime, limit: int) -> int:
    return len(session.run("prune_signals", {"older_than": older_than, "limit": limit}))


def prune_rate(session: Session, *, older_than: datetime) -> int:
    return len(session.run("prune_rate", {"older_than": int(older_than.timestamp())}))


def prune_nodes(session: Session, *, older_than: datetime) -> int:
    return len(session.run("prune_nodes", {"older_than": older_than}))


def _prune_state(
    session: Session, cursors: Cursors, state: State, *, before: datetime, now: datetime, limit: int
) -> int:
    deleted = 0
    for _ in range(LOOKS):
        room = limit - deleted
        if room <= 0:
            break
        page = _page(session, cursors, state, before=before, limit=room)
        ids = [
            job_id
            for job_id, _, inserted_at, window_key, is_needed in page
            if not is_needed and _is_over(window_key, inserted_at, now)
        ]
        if ids:
            deleted += _delete(session, ids, state, before=before)
        if len(page) < room:
            cursors.after.pop(state, None)
            break
        cursors.after[state] = (page[-1][1], page[-1][0])
    return deleted


def _delete(session: Session, ids: Sequence[int], state: State, *, before: datetime) -> int:
    """Lock what is still prunable, then delete it; how many."""

    def lock_and_delete(transaction: Transaction) -> int:
        locked = transaction.run("lock_prunable", {"ids": ids, "state": state, "before": before})
        if locked:
            transaction.run("delete_jobs", {"ids": [job_id for (job_id,) in locked]})
        return len(locked)

    return atomically(session, lock_and_delete)


def _page(
    session: Session, cursors: Cursors, state: State, *, before: datetime, limit: int
) -> Sequence[tuple[Any, ...]]:
    after, after_id = cursors.after.get(state, ("-infinity", 0))
    return session.run(
        "find_prunable",
        {"state": state, "before": before, "after": after, "after_id": after_id, "limit": limit},
    )


def _is_over(window_key: str | None, inserted_at: datetime, now: datetime) -> bool:
    """Whether a job's window, if it has one, is over; a key without a bucket lasts as long as its row."""
    ends_at = None if window_key is None else window_ends_at(window_key, inserted_at)
    return ends_at is None or ends_at <= now
