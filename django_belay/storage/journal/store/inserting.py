"""Inserting jobs (§5)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from django_belay.contract.job import NewJob
from django_belay.contract.workflow_graph import duplicate_member, id_taken
from django_belay.exceptions import Conflict, StorageError
from django_belay.storage.base import Inserted

from .instants import floor_ms
from .reading import workflow_states
from .row import Row
from .unit import Unit
from .view import WINDOWED

_TEXTS: Final = ("kind", "queue", "partition_key", "workflow_id", "wf_name", "cron_name", "unique_key")


class Inserter:
    """Inserts rows in one unit; a later row sees the keys of an earlier one."""

    def __init__(self, unit: Unit) -> None:
        self._unit = unit
        self._open_keys: dict[str, int] = {}
        self._kept_keys: dict[str, int] = {}
        self._slots: dict[tuple[str, int], int] = {}

    def insert(self, jobs: Sequence[NewJob], *, ids: Sequence[int] | None = None) -> list[Inserted]:
        """Insert rows, all or none, and answer each by its index.

        Args:
            ids: Reserved before; one that a job has already is that job, inserted by an earlier
                sending of the same call.

        Contract: §5; rules 7-9.
        """
        if ids is not None and len(ids) != len(jobs):
            raise ValueError(f"{len(jobs)} jobs and {len(ids)} reserved ids")
        return [self._insert(job, None if ids is None else ids[n]) for n, job in enumerate(jobs)]

    def insert_members(
        self, jobs: Sequence[NewJob], ids: Sequence[int], *, workflow_id: str
    ) -> list[Inserted]:
        """Insert a new workflow's members, all under their own ids; sent again, it finds them there.

        Raises:
            InvalidWorkflow: The id is taken, or another job holds a member's key; nothing was inserted.

        Contract: §5.1, §8.3.
        """
        is_resent = all(self._unit.state_of(job_id) is not None for job_id in ids)
        if not is_resent and workflow_states(self._unit, workflow_id):
            raise id_taken(workflow_id)
        inserted = self.insert(jobs, ids=ids)
        for job, answer in zip(jobs, inserted, strict=True):
            if answer.duplicate:
                raise duplicate_member(job, answer.job_id, answer.state)
        return inserted

    def _insert(self, job: NewJob, reserved: int | None) -> Inserted:
        unit = self._unit
        if reserved is not None:
            there = unit.state_of(reserved)
            if there is not None:
                return Inserted(job_id=reserved, state=there)
        _check_texts(job)
        holder = self._holder(job)
        if holder is not None:
            state = unit.state_of(holder)
            assert state is not None
            return Inserted(job_id=holder, state=state, duplicate=True)
        book = unit.memory.ids
        job_id = book.draw(unit.at) if reserved is None else reserved
        row = _row(job, job_id, unit)
        unit.add(row, book.new_key(job_id))
        self._remember(row)
        if row["state"] == "ready" and (row["ready_at"] or 0) <= unit.at:
            unit.queues_due.add(row["queue"])
        return Inserted(job_id=job_id, state=row["state"])

    def _holder(self, job: NewJob) -> int | None:
        """The job that holds this one's key or slot (§5.2)."""
        key, view = job.unique_key, self._unit.view
        found: int | None = None
        if key is not None and job.unique_mode == "incomplete":
            found = self._open_keys.get(key) or view.open_keys.get(key)
        elif key is not None and job.unique_mode in WINDOWED:
            found = self._kept_keys.get(key) or view.kept_keys.get(key)
        if found is None and job.cron_name is not None and job.cron_slot is not None:
            slot = (job.cron_name, floor_ms(job.cron_slot))
            found = self._slots.get(slot) or view.slots.get(slot)
        if found is None:
            return None
        if self._unit.state_of(found) is None:
            raise Conflict(f"job {found} holds the key {key!r} and cannot be read; nothing was inserted")
        return found

    def _remember(self, row: Row) -> None:
        key = row["unique_key"]
        if key is not None and row["unique_mode"] == "incomplete":
            self._open_keys[key] = row["id"]
        elif key is not None and row["unique_mode"] in WINDOWED:
            self._kept_keys[key] = row["id"]
        if row["cron_name"] is not None and row["cron_slot"] is not None:
            self._slots[row["cron_name"], row["cron_slot"]] = row["id"]


def _check_texts(job: NewJob) -> None:
    """Refuse what the other storage cannot hold either: text with a NUL.

    Raises:
        StorageError: Names the column; nothing was inserted.
    """
    for name in _TEXTS:
        value = getattr(job, name)
        if value is not None and "\0" in value:
            raise StorageError(
                f"{name} {value!r:.60} holds a NUL, which no storage keeps; nothing was inserted"
            )


def _row(job: NewJob, job_id: int, unit: Unit) -> Row:
    at = unit.at
    return {
        "id": job_id,
        "kind": job.kind,
        "queue": job.queue,
        "state": job.state,
        "input": job.input,
        "meta": job.meta,
        "priority": job.priority,
        "attempt": 0,
        "max_attempts": job.max_attempts,
        "partition_key": job.partition_key,
        "ready_at": at if job.ready_at is None else unit.due(job.ready_at),
        "lease_until": None,
        "leased_by": None,
        "await_scope": None,
        "await_name": None,
        "workflow_id": job.workflow_id,
        "wf_name": job.wf_name,
        "wf_deps": list(job.wf_deps),
        "wf_ignore": list(job.wf_ignore),
        "cron_name": job.cron_name,
        "cron_slot": None if job.cron_slot is None else floor_ms(job.cron_slot),
        "unique_key": job.unique_key,
        "unique_mode": job.unique_mode,
        "parent_id": job.parent_id,
        "budget_usd_micros": job.budget_usd_micros,
        "budget_tokens": job.budget_tokens,
        "spent_usd_micros": 0,
        "spent_tokens": 0,
        "result": None,
        "errors": [],
        "cancel_requested": False,
        "inserted_at": at,
        "started_at": None,
        "finished_at": None,
        "order": None,
    }
