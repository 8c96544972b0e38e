"""What a compaction keeps, in canonical order, record by record (spec G.2).

Reads the state as it was when a log began, beside an owner that goes on changing it; holds
one key list at a time and no copy of the state.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import Any, Final, NamedTuple, Protocol

from django_belay.storage.journal.format.event_v2 import ResultRecorded, decode_event_v2, encode_event_v2
from django_belay.storage.journal.format.extension import Row, TableRows, encode_body
from django_belay.storage.journal.format.limits import MAX_TIME
from django_belay.storage.journal.format.manifest import Retention
from django_belay.storage.journal.format.pair import encode_payload
from django_belay.storage.journal.format.refusal import refuse
from django_belay.storage.journal.format.snapshot import TERMINAL, Job
from django_belay.storage.journal.state import finished
from django_belay.storage.journal.state.rows import TERMINAL as TERMINAL_STATES
from django_belay.storage.journal.state.rows import ExtendedJob, FinishedRow
from django_belay.storage.journal.state.schedule import Schedule, checkpoint
from django_belay.storage.journal.state.store_state import Change, StoreState

from .reader import SegmentReader

_TABLE_BODY_BYTES: Final = 1 << 20
# Rows of these belong to one job, and go with it.
_OF_A_JOB: Final = frozenset({"steps", "events"})


class Keeper(Protocol):
    """Whoever has indexes over the state, and more reasons to keep a finished job than its age."""

    def may_go(self, job_id: bytes) -> bool:
        """Whether nobody can see a finished job any more; from then on, for good."""

    def number_of(self, job_id: bytes) -> int:
        """The number that rows of tables know a job by."""

    def forget(self, job_ids: set[bytes]) -> None:
        """These went: the state has let go of them. Under the owner's lock."""


class Kept(NamedTuple):
    """One record of the base, and whose it is."""

    record_type: int
    payload_schema: int
    payload: bytes
    table: str
    key: Any


@dataclass(slots=True)
class Selection:
    """What is kept and what expired. ``expired`` and ``dropped`` fill while :meth:`records` is drawn."""

    state: StoreState
    log: Change
    reader: SegmentReader
    captured_at: int
    retention: Retention
    orders: dict[bytes, int] | None = None
    keeper: Keeper | None = None
    expired: set[bytes] = field(default_factory=set)
    expired_extended: set[bytes] = field(default_factory=set)
    dropped: list[tuple[str, str]] = field(default_factory=list)

    def records(self) -> Iterator[Kept]:
        """Every record of the base: jobs, rows, schedules, results, tables."""
        yield from self._jobs()
        yield from self._extended()
        yield from self._schedules()
        yield from self._results()
        yield from self._tables()

    def _keys(self, name: str) -> Iterator[Any]:
        """Each key once, ascending."""
        return (key for key, _ in groupby(self.state.keys_at(self.log, name)))

    def _jobs(self) -> Iterator[Kept]:
        for job_id in self._keys("jobs"):
            entry = self.state.entry_at(self.log, "jobs", job_id)
            if entry is None:
                continue
            if self._is_expired(entry) and self._may_go(job_id):
                self.expired.add(job_id)
                continue
            if isinstance(entry, bytes):
                entry = finished.unpack(job_id, entry, self.reader.definition)
            if self.orders is not None and entry.availability_order is not None:
                entry = replace(entry, availability_order=self.orders[job_id])
            yield Kept(*encode_payload(entry), "jobs", job_id)

    def _is_expired(self, entry: Job | bytes) -> bool:
        if isinstance(entry, bytes):
            return self._has_passed(finished.terminal_at_of(entry))
        return entry.state in TERMINAL and self._has_passed(entry.terminal_at)

    def _may_go(self, job_id: bytes) -> bool:
        return self.keeper is None or self.keeper.may_go(job_id)

    def _has_passed(self, terminal_at: object) -> bool:
        duration = self.retention.milliseconds
        if duration is None:
            return False
        if type(terminal_at) is not int or not 0 <= terminal_at <= MAX_TIME:
            raise refuse("invalid_payload", "retention_timestamp_unavailable")
        return self.captured_at >= duration and terminal_at <= self.captured_at - duration

    def _extended(self) -> Iterator[Kept]:
        parents, workflows = self._unfinished()
        for job_id in self._keys("extended"):
            entry = self.state.entry_at(self.log, "extended", job_id)
            if entry is None:
                continue
            if self._is_row_expired(entry, parents, workflows) and self._may_go(job_id):
                self.expired_extended.add(job_id)
                continue
            job = self.state.whole_row(job_id, entry)
            row = encode_body({**job.row, "revision": job.revision})
            yield Kept(*encode_payload(Row(job_id=job_id, row=row)), "extended", job_id)

    def _unfinished(self) -> tuple[set[object], set[object]]:
        """Ids of unfinished jobs and of workflows with an unfinished member: those keep their own."""
        parents: set[object] = set()
        workflows: set[object] = set()
        for job_id in self._keys("extended"):
            entry = self.state.entry_at(self.log, "extended", job_id)
            if entry is not None and entry.column("state") not in TERMINAL_STATES:
                parents.add(entry.column("id"))
                workflows.add(entry.column("workflow_id"))
        return parents, workflows

    def _is_row_expired(
        self, entry: ExtendedJob | FinishedRow, parents: set[object], workflows: set[object]
    ) -> bool:
        if entry.column("state") not in TERMINAL_STATES or not self._has_passed(entry.column("finished_at")):
            return False
        parent, workflow = entry.column("parent_id"), entry.column("workflow_id")
        needed = (parent is not None and parent in parents) or (
            workflow is not None and workflow in workflows
        )
        return not needed

    def _schedules(self) -> Iterator[Kept]:
        names = self._keys("schedules")
        for name in sorted(names, key=str.encode):
            entry: Schedule | None = self.state.entry_at(self.log, "schedules", name)
            if entry is None:
                continue
            members = frozenset(item for item in entry.active_job_ids if self._is_open(item))
            item = checkpoint(entry, at=self.captured_at, active_job_ids=members)
            yield Kept(*encode_payload(item), "schedules", name)

    def _is_open(self, job_id: bytes) -> bool:
        entry = self.state.entry_at(self.log, "jobs", job_id)
        if isinstance(entry, Job):
            return entry.state not in TERMINAL
        extended = self.state.entry_at(self.log, "extended", job_id)
        return extended is not None and extended.column("state") not in TERMINAL_STATES

    def _results(self) -> Iterator[Kept]:
        for job_id in self._keys("results"):
            entry = self.state.entry_at(self.log, "results", job_id)
            if entry is None or job_id in self.expired:
                continue
            item: ResultRecorded | Any = (
                self.reader.result(entry) if isinstance(entry, int) else decode_event_v2(10, 2, entry)
            )
            yield Kept(10, 2, encode_event_v2(item), "results", job_id)

    def _tables(self) -> Iterator[Kept]:
        gone = self._gone_numbers()
        for table in sorted(self.state.tables):
            pending: list[list[Any]] = []
            size = 0
            for key in self._keys(f"tables.{table}"):
                row = self.state.entry_at(self.log, f"tables.{table}", key)
                if row is None:
                    continue
                if self._goes_with_job(table, key, row, gone):
                    self.dropped.append((table, key))
                    continue
                pending.append([key, row])
                size += len(encode_body([key, row]))
                if size >= _TABLE_BODY_BYTES:
                    yield _table_record(table, pending)
                    pending, size = [], 0
            if pending:
                yield _table_record(table, pending)

    def _gone_numbers(self) -> set[int]:
        if self.keeper is None:
            return set()
        return {self.keeper.number_of(job_id) for job_id in (*self.expired, *self.expired_extended)}

    def _goes_with_job(self, table: str, key: str, row: dict[str, Any], gone: set[int]) -> bool:
        """Whether a row of a table says something of a job that is not kept."""
        if self.keeper is None:
            return False
        if table == "ids":
            job_id = bytes.fromhex(key)
            return job_id in self.expired or job_id in self.expired_extended
        return table in _OF_A_JOB and row.get("job_id") in gone


def renumbered(state: StoreState) -> dict[bytes, int] | None:
    """New availability orders 1..n for a state at rest; None when extended jobs share the counter."""
    if state.extended:
        return None
    waiting = [job for job in state.jobs.values() if isinstance(job, Job) and job.state == "available"]
    waiting.sort(
        key=lambda job: (
            job.definition.queue_key.encode(),
            job.eligible_at or 0,
            job.availability_order or 0,
            job.job_id,
        )
    )
    return {job.job_id: number for number, job in enumerate(waiting, start=1)}


def _table_record(table: str, rows: list[list[Any]]) -> Kept:
    return Kept(*encode_payload(TableRows(table=table, rows=encode_body(rows))), f"tables.{table}", None)
