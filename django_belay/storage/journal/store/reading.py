"""Reading jobs: lists, counts, relations."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence

from django_belay.contract.job import Job
from django_belay.contract.names import spawn_stem
from django_belay.contract.state import TERMINAL
from django_belay.storage.base import ChildEnd, JobFilter, MemberState, QueueStats

from .instants import ceil_ms, to_instant
from .row import Row, job_of, unpack
from .unit import Unit

_INDEX = re.compile(r"^(.*):[0-9]+$", re.DOTALL)


def list_jobs(unit: Unit, jobs: JobFilter, *, limit: int) -> list[Job]:
    """Newest first; the next page starts below the last id."""
    found: list[Job] = []
    if limit <= 0:
        return found
    for job_id in _candidates(unit, jobs):
        if jobs.before_id is not None and job_id >= jobs.before_id:
            continue
        if jobs.states is not None and unit.state_of(job_id) not in jobs.states:
            continue
        row = unit.find(job_id)
        if row is not None and _fits(row, jobs):
            found.append(job_of(row))
            if len(found) == limit:
                break
    return found


def _candidates(unit: Unit, jobs: JobFilter) -> Iterable[int]:
    """Ids of all that may fit, descending."""
    view = unit.view
    if jobs.ids is not None:
        return sorted(set(jobs.ids), reverse=True)
    if jobs.parent_id is not None:
        children = view.children.get(jobs.parent_id)
        return [] if children is None else sorted(children.states, reverse=True)
    if jobs.workflow_id is not None:
        workflow = view.workflows.get(jobs.workflow_id)
        return [] if workflow is None else sorted(workflow.states, reverse=True)
    if jobs.states is not None and not TERMINAL & set(jobs.states):
        return sorted(view.open, reverse=True)
    return unit.memory.newest_first()


def _fits(row: Row, jobs: JobFilter) -> bool:
    return (
        (jobs.queue is None or row["queue"] == jobs.queue)
        and (jobs.kind is None or row["kind"] == jobs.kind)
        and (jobs.workflow_id is None or row["workflow_id"] == jobs.workflow_id)
        and (jobs.parent_id is None or row["parent_id"] == jobs.parent_id)
        and (jobs.since is None or row["inserted_at"] >= ceil_ms(jobs.since))
    )


def find_by_unique_key(unit: Unit, key: str) -> Job | None:
    """The newest row with this key that decisions know of, else the newest there is."""
    known = [job_id for job_id in (unit.view.open_keys.get(key), unit.view.kept_keys.get(key)) if job_id]
    newest = max(known, default=0)
    for job_id in unit.memory.newest_first():
        if job_id == newest:
            break
        row = unit.find(job_id) if _may_have_key(unit, job_id) else None
        if row is not None and row["unique_key"] == key:
            return job_of(row)
    return job_of(unit.get(newest)) if newest else None


def _may_have_key(unit: Unit, job_id: int) -> bool:
    """Whether the job is an extended one: a core job has no key."""
    key = unit.memory.ids.key_of(job_id)
    return key is not None and key in unit.memory.state.extended


# -- relations ------------------------------------------------------------------


def children(unit: Unit, parent_id: int) -> list[Job]:
    """By id (§8.4)."""
    found = unit.view.children.get(parent_id)
    return [] if found is None else [job_of(unit.get(job_id)) for job_id in sorted(found.states)]


def has_incomplete_child(unit: Unit, parent_id: int, *, spawns: Sequence[str] | None) -> bool:
    """With ``spawns`` of the children of these names alone (rule 32)."""
    found = unit.view.children.get(parent_id)
    if found is None or not found.open:
        return False
    if spawns is None:
        return True
    stems = {spawn_stem(parent_id, name) for name in spawns}
    return any(_stem(unit.view.open[job_id]["unique_key"]) in stems for job_id in found.open)


def _stem(key: str | None) -> str | None:
    match = None if key is None else _INDEX.match(key)
    return None if match is None else match[1]


def find_spawned(unit: Unit, parent_id: int, keys: Sequence[str]) -> dict[str, int]:
    """The ids of a job's children by their unique keys (§8.4)."""
    family = unit.view.children.get(parent_id)
    if family is None:
        return {}
    found = ((key, unit.view.kept_keys.get(key)) for key in keys)
    return {key: job_id for key, job_id in found if job_id is not None and job_id in family.states}


def child_ends(unit: Unit, parent_id: int, ids: Sequence[int]) -> list[ChildEnd]:
    """Those of the children that are there (§8.4)."""
    family = unit.view.children.get(parent_id)
    if family is None:
        return []
    return [_child_end(unit.get(job_id)) for job_id in dict.fromkeys(ids) if job_id in family.states]


def _child_end(row: Row) -> ChildEnd:
    return ChildEnd(
        job_id=row["id"],
        kind=row["kind"],
        state=row["state"],
        attempt=row["attempt"],
        max_attempts=row["max_attempts"],
        result=unpack(row["result"]),
        # As on PostgreSQL: those of a success are of attempts that no longer matter.
        errors=[] if row["state"] == "succeeded" else row["errors"],
    )


def workflow_jobs(unit: Unit, workflow_id: str) -> list[Job]:
    """By id (§8.3)."""
    found = unit.view.workflows.get(workflow_id)
    return [] if found is None else [job_of(unit.get(job_id)) for job_id in sorted(found.states)]


def workflow_states(unit: Unit, workflow_id: str) -> list[MemberState]:
    """By id (§8.3)."""
    found = unit.view.workflows.get(workflow_id)
    if found is None:
        return []
    return [
        MemberState(job_id=job_id, name=found.names[job_id], state=state)
        for job_id, state in sorted(found.states.items())
    ]


# -- counts ---------------------------------------------------------------------


def has_retry_ahead(unit: Unit, queues: Sequence[str]) -> bool:
    """Whether a job whose attempt failed is due again later in one of the queues."""
    wanted = frozenset(queues)
    return any(
        row["state"] == "ready"
        and row["queue"] in wanted
        and (row["ready_at"] or 0) > unit.at
        and row["started_at"] is not None
        and row["attempt"] > 0
        for row in unit.view.open.values()
    )


def queue_stats(unit: Unit) -> list[QueueStats]:
    """Counts of every queue that has a job which is not succeeded or cancelled."""
    counts: defaultdict[str, Counter[str]] = defaultdict(Counter)
    oldest: dict[str, int] = {}
    for queue, word, ready_at in _open_rows(unit):
        counts[queue][word] += 1
        if word == "ready" and ready_at is not None:
            oldest[queue] = min(ready_at, oldest.get(queue, ready_at))
    for queue, failed in unit.view.failed.items():
        if failed:
            counts[queue]["failed"] = failed
    return [
        QueueStats(
            queue=queue,
            ready=of_queue["ready"],
            scheduled=of_queue["scheduled"],
            running=of_queue["running"],
            awaiting=of_queue["awaiting"],
            held=of_queue["held"],
            paused=of_queue["paused"],
            failed=of_queue["failed"],
            oldest_ready_at=to_instant(oldest.get(queue)),
        )
        for queue, of_queue in sorted(counts.items())
    ]


def _open_rows(unit: Unit) -> Iterator[tuple[str, str, int | None]]:
    for row in unit.view.open.values():
        ready_at = row["ready_at"]
        word: str = row["state"]
        if word == "ready" and ready_at is not None and ready_at > unit.at:
            word = "scheduled"
        yield row["queue"], word, ready_at
