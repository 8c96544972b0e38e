"""Reading jobs: one record, lists, counts."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import datetime
from typing import Any, TypeVar

from django_belay.contract.job import Job
from django_belay.contract.names import spawn_stem
from django_belay.exceptions import JobNotFound
from django_belay.storage.base import ChildEnd, JobFilter, MemberState, QueueStats
from django_belay.storage.postgres.rows import job_from_row
from django_belay.storage.postgres.session import Session

# Where the counts of a queue stop: a dashboard needs to know that a backlog is long,
# not to read all of it.
COUNT_CAP = 100_000

T = TypeVar("T")


def get_job(session: Session, job_id: int) -> Job:
    """Raises ``JobNotFound``."""
    rows = session.run("get_job", {"id": job_id})
    if not rows:
        raise JobNotFound(job_id)
    return job_from_row(rows[0])


def list_jobs(session: Session, jobs: JobFilter, *, limit: int) -> list[Job]:
    """Newest first; the next page starts below the last id."""
    rows = session.run("list_jobs", {**_filter_params(jobs), "limit": limit})
    return [job_from_row(row) for row in rows]


def find_by_unique_key(session: Session, key: str) -> Job | None:
    """The newest row with this key, whatever its mode and state."""
    rows = session.run("find_by_unique_key", {"key": key})
    return job_from_row(rows[0]) if rows else None


def children(session: Session, parent_id: int) -> list[Job]:
    """By id (§8.4)."""
    return [job_from_row(row) for row in session.run("children", {"parent_id": parent_id})]


def has_incomplete_child(session: Session, parent_id: int, *, spawns: Sequence[str] | None = None) -> bool:
    """One indexed EXISTS (rule 32)."""
    stems = None if spawns is None else [spawn_stem(parent_id, name) for name in spawns]
    statement = "has_incomplete_child" if stems is None else "has_incomplete_spawned"
    [(found,)] = session.run(statement, {"parent_id": parent_id, "stems": stems})
    return bool(found)


def find_spawned(session: Session, parent_id: int, keys: Sequence[str]) -> dict[str, int]:
    """Ids by unique key (§8.4)."""
    rows = session.run("find_spawned", {"parent_id": parent_id, "keys": list(keys)})
    return {key: job_id for job_id, key in rows}


def child_ends(session: Session, parent_id: int, ids: Sequence[int]) -> list[ChildEnd]:
    """Those of the children that are there (§8.4)."""
    rows = session.run("child_ends", {"parent_id": parent_id, "ids": list(ids)})
    return [
        ChildEnd(
            job_id=job_id,
            kind=kind,
            state=state,
            attempt=attempt,
            max_attempts=max_attempts,
            result=result,
            errors=errors,
        )
        for job_id, kind, state, attempt, max_attempts, result, errors in rows
    ]


def has_retry_ahead(session: Session, queues: Sequence[str], *, now: datetime) -> bool:
    """Whether a job whose attempt failed is due again later in one of the queues."""
    [(found,)] = session.run("has_retry_ahead", {"queues": list(queues), "now": now})
    return bool(found)


def workflow_jobs(session: Session, workflow_id: str) -> list[Job]:
    """By id (§8.3)."""
    return [job_from_row(row) for row in session.run("workflow_jobs", {"workflow_id": workflow_id})]


def workflow_states(session: Session, workflow_id: str) -> list[MemberState]:
    """By id (§8.3)."""
    return [
        MemberState(job_id=job_id, name=name, state=state)
        for job_id, name, state in session.run("workflow_states", {"workflow_id": workflow_id})
    ]


def has_open_member(session: Session, workflow_id: str) -> bool:
    """One indexed EXISTS."""
    [(found,)] = session.run("has_open_member", {"workflow_id": workflow_id})
    return bool(found)


def queue_stats(session: Session, *, now: datetime) -> list[QueueStats]:
    """Counts of every queue that has a job which is not succeeded or cancelled; each stops at ``COUNT_CAP``."""
    rows = session.run("queue_stats", {"now": now, "cap": COUNT_CAP})
    return [
        QueueStats(
            queue=queue,
            ready=ready,
            scheduled=scheduled,
            running=running,
            awaiting=awaiting,
            held=held,
            paused=paused,
            failed=failed,
            oldest_ready_at=oldest,
        )
        for queue, ready, scheduled, running, awaiting, held, paused, failed, oldest in rows
    ]


def _filter_params(jobs: JobFilter) -> dict[str, Any]:
    return {
        "ids": _listed(jobs.ids),
        "states": _listed(jobs.states),
        "queue": jobs.queue,
        "kind": jobs.kind,
        "workflow_id": jobs.workflow_id,
        "parent_id": jobs.parent_id,
        "since": jobs.since,
        "before_id": jobs.before_id,
    }


def _listed(values: Collection[T] | None) -> list[T] | None:
    return None if values is None else list(values)
