"""Everything a store holds, changed by one record at a time (spec E.5, E.7, F.8)."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any, Final, Protocol, TypeAlias

from django_belay.storage.journal.format import event_v1
from django_belay.storage.journal.format.definition import JobDefinition
from django_belay.storage.journal.format.event_v1 import Inserted, JobEvent
from django_belay.storage.journal.format.event_v2 import (
    ResultRecorded,
    ScheduleCheckpoint,
    ScheduleState,
    encode_event_v2,
)
from django_belay.storage.journal.format.extension import Frame, Operation, Row, TableRows
from django_belay.storage.journal.format.pair import Payload
from django_belay.storage.journal.format.refusal import refuse
from django_belay.storage.journal.format.snapshot import TERMINAL, Job

from . import finished, rows
from .schedule import Schedule, ScheduleEvent, advance, restore
from .transition import check_revision, insert, transition

Change: TypeAlias = dict[tuple[str, Any], Any]
_MISSING: Final = object()
_MUTATIONS: Final = frozenset(event_v1.CLASSES.values())


class Loader(Protocol):
    """Reads back from the segments what the state does not keep in memory."""

    def definition(self, where: int) -> JobDefinition:
        """The definition in the snapshot or insertion at a place."""

    def columns(self, where: int, job_id: bytes) -> dict[str, Any]:
        """The columns that the row or operation at a place states for a job."""


class StoreState:
    """The private candidate of a recovery, and afterwards the state of its owner.

    Not thread-safe: one owner applies every record. Without a ``loader`` (tests, tools) finished
    jobs stay whole; with one their definitions and rows are dropped as soon as the records
    that hold them have a place on disk.
    """

    def __init__(self, loader: Loader | None = None) -> None:
        self.jobs: dict[bytes, Job | bytes] = {}
        self.results: dict[bytes, int | bytes] = {}
        self.schedules: dict[str, Schedule] = {}
        self.extended: dict[bytes, rows.ExtendedJob | rows.FinishedRow] = {}
        self.tables: dict[str, dict[str, dict[str, Any]]] = {}
        self.next_order = 1
        self.open_frame: str | None = None
        self._loader = loader
        self._places: dict[bytes, int] = {}
        self._unwritten: list[tuple[str, bytes, int]] | None = None
        self._held: list[tuple[Payload, int]] = []
        self._logs: list[Change] = []
        self._orders: set[int] = set()
        self._last: dict[str, Any] = {}

    # -- reading ------------------------------------------------------------

    def find_job(self, job_id: bytes) -> Job | None:
        """The whole core job, its definition read back if it has to be."""
        entry = self.jobs.get(job_id)
        return entry if entry is None or isinstance(entry, Job) else self._unpack(job_id, entry)

    def find_row(self, job_id: bytes) -> rows.ExtendedJob | None:
        """The whole extended job, its row put together from its records if it has to be."""
        entry = self.extended.get(job_id)
        return None if entry is None else self.whole_row(job_id, entry)

    def whole_row(self, job_id: bytes, entry: rows.ExtendedJob | rows.FinishedRow) -> rows.ExtendedJob:
        """An entry of ``extended`` with its whole row."""
        if isinstance(entry, rows.ExtendedJob):
            return entry
        assert self._loader is not None
        row: dict[str, Any] = {}
        for where in entry.trail:
            row.update(self._loader.columns(where, job_id))
        return rows.ExtendedJob(job_id=job_id, revision=entry.revision, row=row, trail=entry.trail)

    def has_job(self, job_id: bytes) -> bool:
        """Whether the id is taken by a core or an extended job."""
        return job_id in self.jobs or job_id in self.extended

    def count_states(self) -> dict[str, int]:
        """Core jobs by state."""
        counts = Counter(
            finished.state_of(entry) if isinstance(entry, bytes) else entry.state
            for entry in self.jobs.values()
        )
        return dict(sorted(counts.items()))

    def _unpack(self, job_id: bytes, entry: bytes) -> Job:
        assert self._loader is not None
        return finished.unpack(job_id, entry, self._loader.definition)

    # -- base ---------------------------------------------------------------

    def apply_base(self, item: Payload, where: int = 0) -> None:
        """Take in one record of a base segment."""
        if isinstance(item, Job):
            self._restore_job(item, where)
        elif isinstance(item, ResultRecorded):
            self._ascend("results", item.job_id)
            self._record_result(item, where)
        elif isinstance(item, ScheduleCheckpoint | ScheduleState):
            self._ascend("schedules", item.schedule_id.encode())
            self.schedules[item.schedule_id] = restore(item)
        elif isinstance(item, Row):
            self._restore_row(item, where)
        elif isinstance(item, TableRows):
            self._restore_table(item)
        else:
            raise refuse("unsupported_semantics", "record_profile", type(item).__name__)

    def finish_base(self, availability_frontier: int | None) -> None:
        """Close the base: the next order follows all that were ever seen."""
        self.next_order = max([self.next_order, (availability_frontier or 0) + 1])
        self._orders.clear()
        self._last.clear()

    def _restore_job(self, job: Job, where: int) -> None:
        self._ascend("jobs", job.job_id)
        if job.job_id in self.extended:
            raise refuse("consumer_rejected", "duplicate_snapshot", job.job_id.hex())
        order = job.availability_order
        if order is not None:
            self._take_order(order)
        self._put_job(job, where)

    def _restore_row(self, item: Row, where: int) -> None:
        job = rows.read_row(item)
        self._ascend("extended", job.job_id)
        if job.job_id in self.jobs:
            raise refuse("consumer_rejected", "duplicate_snapshot", job.job_id.hex())
        if job.order is not None:
            self._take_order(job.order)
        self._put_row(job, rows.extend_trail((), where, first=True))

    def _restore_table(self, item: TableRows) -> None:
        table = self.tables.setdefault(item.table, {})
        for key, row in rows.read_table(item).items():
            self._ascend("tables", (item.table, key))
            table[key] = row

    def _take_order(self, order: int) -> None:
        if order in self._orders:
            raise refuse("consumer_rejected", "duplicate_availability_order", order)
        self._orders.add(order)
        self.next_order = max(self.next_order, order + 1)

    def _ascend(self, kind: str, key: Any) -> None:
        previous = self._last.get(kind)
        if previous is not None and key <= previous:
            reason = "duplicate_snapshot" if key == previous else "snapshot_order"
            raise refuse("consumer_rejected", reason, kind)
        self._last[kind] = key

    # -- tail ---------------------------------------------------------------

    def apply(self, item: Payload, where: int = 0) -> None:
        """Take in one record of the tail.

        A refusal leaves the state as it was, except inside an open frame, whose records
        are held back and judged together when it commits.
        """
        if isinstance(item, Frame):
            self._frame(item)
        elif self.open_frame is not None:
            self._held.append((item, where))
        else:
            self._apply(item, where)

    def apply_together(self, items: list[tuple[Payload, int]]) -> None:
        """Take in several records or, when one is refused, none."""
        log: Change = {}
        frame, held, order = self.open_frame, list(self._held), self.next_order
        unwritten = len(self._unwritten or ())
        self._logs.append(log)
        try:
            for item, where in items:
                self.apply(item, where)
        except BaseException:
            self._undo(log)
            self.open_frame, self._held, self.next_order = frame, held, order
            if self._unwritten is not None:
                del self._unwritten[unwritten:]
            raise
        finally:
            self.unwatch(log)

    def drop_open_frame(self) -> None:
        """Forget the records of a frame that never committed."""
        self.open_frame = None
        self._held.clear()

    def _frame(self, item: Frame) -> None:
        if item.mark == "begin":
            if self.open_frame is not None:
                raise refuse("consumer_rejected", "invalid_transition", "frame already open")
            self.open_frame = item.operation
            return
        if self.open_frame != item.operation:
            raise refuse("consumer_rejected", "invalid_transition", "no such frame", item.operation)
        held = list(self._held)
        self.drop_open_frame()
        if item.mark == "commit":
            try:
                self.apply_together(held)
            except BaseException:  # refused, so not closed: on disk the frame is still open
                self.open_frame, self._held = item.operation, held
                raise

    def _apply(self, item: Payload, where: int) -> None:
        kind = type(item)
        if kind is Inserted:
            self._insert(item, where)  # type: ignore[arg-type]
        elif kind in _MUTATIONS:
            self._mutate(item)  # type: ignore[arg-type]
        elif isinstance(item, ResultRecorded):
            self._record_result(item, where)
        elif isinstance(item, ScheduleEvent):
            self._put("schedules", item.schedule_id, advance(self.schedules.get(item.schedule_id), item))
        elif isinstance(item, Operation):
            self._operate(item, where)
        elif isinstance(item, Row):
            self._promote(item, where)
        else:
            raise refuse("unsupported_semantics", "record_profile", kind.__name__)

    def _insert(self, event: Inserted, where: int) -> None:
        if self.has_job(event.job_id):
            raise refuse("consumer_rejected", "duplicate_insert", event.job_id.hex())
        order = event.availability_order
        if order is not None:
            self._check_order(order)
        self._put_job(insert(event), where)
        if order is not None:
            self.next_order += 1

    def _mutate(self, event: JobEvent) -> None:
        job_id = event.job_id
        entry = self.jobs.get(job_id)
        if entry is None:
            raise refuse("consumer_rejected", "missing_job", job_id.hex())
        where = self._places.get(job_id, 0)
        if type(entry) is bytes:
            where = finished.where_of(entry)
            entry = self._unpack(job_id, entry)
        assert isinstance(entry, Job)
        check_revision(entry, event)
        order: int | None = getattr(event, "availability_order", None)
        if order is not None:
            self._check_order(order)
        self._put_job(transition(entry, event), where)
        if order is not None:
            self.next_order += 1

    def _check_order(self, order: int) -> None:
        if order != self.next_order:
            raise refuse("consumer_rejected", "availability_order_conflict", self.next_order, order)

    def _put_job(self, job: Job, where: int) -> None:
        entry: Job | bytes = job
        if where and self._loader is not None:
            if job.state not in TERMINAL:
                self._places[job.job_id] = where
            elif self._unwritten is None:
                entry = finished.pack(job, where)
                self._places.pop(job.job_id, None)
            else:
                self._places[job.job_id] = where
                self._unwritten.append(("jobs", job.job_id, where))
        if self._logs:
            self._put("jobs", job.job_id, entry)
        else:
            self.jobs[job.job_id] = entry

    def _record_result(self, item: ResultRecorded, where: int) -> None:
        entry = self.jobs.get(item.job_id)
        if entry is None:
            raise refuse("consumer_rejected", "missing_job", item.job_id.hex())
        state = finished.state_of(entry) if isinstance(entry, bytes) else entry.state
        revision = finished.revision_of(entry) if isinstance(entry, bytes) else entry.revision
        if item.expected_revision != revision:
            raise refuse(
                "consumer_rejected", "revision_conflict", item.job_id.hex(), item.expected_revision, revision
            )
        if state != "completed" or item.job_id in self.results:
            raise refuse("consumer_rejected", "invalid_transition", item.job_id.hex(), "result")
        if not where or self._loader is None:
            self._put("results", item.job_id, encode_event_v2(item))
        elif self._unwritten is None:
            self._put("results", item.job_id, where)
        else:
            self._put("results", item.job_id, encode_event_v2(item))
            self._unwritten.append(("results", item.job_id, where))

    # -- extension ----------------------------------------------------------

    def _promote(self, item: Row, where: int) -> None:
        job = rows.read_row(item)
        core = self.jobs.get(job.job_id)
        if core is None:
            raise refuse("consumer_rejected", "missing_job", job.job_id.hex())
        revision = finished.revision_of(core) if isinstance(core, bytes) else core.revision
        if job.revision != revision:
            raise refuse("consumer_rejected", "revision_conflict", job.job_id.hex(), job.revision, revision)
        self._remove("jobs", job.job_id)
        self._remove("results", job.job_id)
        self._remove("_places", job.job_id)
        self._put_row(job, rows.extend_trail((), where, first=True))

    def _operate(self, item: Operation, where: int) -> None:
        effects = list(rows.read_effects(item))
        before: dict[bytes, rows.ExtendedJob | None] = {}
        # All are judged, and read back, before one is applied: keys do not repeat.
        for effect in effects:
            if isinstance(effect, rows.JobEffect):
                self._check_row(effect)
                if effect.changes is not None:
                    before[effect.job_id] = self.find_row(effect.job_id)
        for effect in effects:
            if isinstance(effect, rows.TableEffect):
                self._change_table(effect)
            elif effect.changes is None:
                self._remove("extended", effect.job_id)
            else:
                self._change_row(effect.job_id, effect.revision, effect.changes, before[effect.job_id], where)

    def _check_row(self, effect: rows.JobEffect) -> None:
        if effect.job_id in self.jobs:
            raise refuse("consumer_rejected", "invalid_transition", effect.job_id.hex(), "core job")
        before = self.extended.get(effect.job_id)
        current = 0 if before is None else before.revision
        if effect.changes is not None and effect.revision <= current:
            raise refuse(
                "consumer_rejected", "revision_conflict", effect.job_id.hex(), effect.revision, current
            )

    def _change_row(
        self,
        job_id: bytes,
        revision: int,
        changes: dict[str, Any],
        before: rows.ExtendedJob | None,
        where: int,
    ) -> None:
        row = {**({} if before is None else before.row), **changes}
        job = rows.ExtendedJob(job_id=job_id, revision=revision, row=row)
        if job.order is not None:
            self.next_order = max(self.next_order, job.order + 1)
        trail = () if before is None else before.trail
        self._put_row(job, rows.extend_trail(trail, where, first=before is None))

    def _put_row(self, job: rows.ExtendedJob, trail: tuple[int, ...]) -> None:
        entry: rows.ExtendedJob | rows.FinishedRow = job
        if self._loader is not None:
            entry = job = replace(job, trail=trail)
            if rows.can_shrink(job):
                if self._unwritten is None:
                    entry = rows.shrink(job)
                else:
                    self._unwritten.append(("extended", job.job_id, trail[-1]))
        self._put("extended", job.job_id, entry)

    def _change_table(self, effect: rows.TableEffect) -> None:
        self.tables.setdefault(effect.table, {})
        name = f"tables.{effect.table}"
        if effect.row is None:
            self._remove(name, effect.key)
        else:
            self._put(name, effect.key, effect.row)

    # -- changes ------------------------------------------------------------

    def watch(self) -> Change:
        """Begin to note, for every entry that changes from now on, what it was before."""
        log: Change = {}
        self._logs.append(log)
        return log

    def unwatch(self, log: Change) -> None:
        """Stop noting into ``log``."""
        self._logs[:] = [item for item in self._logs if item is not log]

    def keys_at(self, log: Change, name: str) -> list[Any]:
        """The keys table ``name`` may have had when ``log`` began, ascending.

        Safe beside the thread that applies records: listing the keys is one step of the
        interpreter, and a key removed since stands in the log. A key may come twice.
        """
        table = self._table(name)
        keys = list(table)
        keys.extend(key for table_name, key in tuple(log) if table_name == name and key not in table)
        keys.sort()
        return keys

    def entry_at(self, log: Change, name: str, key: Any) -> Any:
        """What ``key`` held when ``log`` began, or None. Safe beside the applying thread."""
        # The table first: whoever changes an entry writes the log before the table.
        now = self._table(name).get(key, _MISSING)
        then = log.get((name, key), now)
        return None if then is _MISSING else then

    def forget(self, name: str, key: Any) -> None:
        """Drop an entry that compaction did not keep."""
        self._remove(name, key)

    def move_job(self, job_id: bytes, where: int) -> None:
        """A compaction wrote the job's definition anew at ``where``."""
        entry = self.jobs.get(job_id)
        if isinstance(entry, bytes):
            self.jobs[job_id] = finished.moved(entry, where)
        elif entry is not None and self._loader is not None:
            self._places[job_id] = where

    def go_live(self) -> None:
        """From now on records are applied before they are written: nothing is dropped from memory
        until :meth:`written` says that its bytes can be read back."""
        self._unwritten = []

    def written(self, before: int) -> None:
        """Everything that stands before the location ``before`` is on disk."""
        waiting, self._unwritten = self._unwritten or [], []
        for item in waiting:
            table, job_id, where = item
            if where >= before:
                self._unwritten.append(item)
            elif table == "results":
                if job_id in self.results:
                    self.results[job_id] = where
            elif table == "extended":
                row = self.extended.get(job_id)
                if isinstance(row, rows.ExtendedJob) and rows.can_shrink(row) and row.trail[-1] < before:
                    self.extended[job_id] = rows.shrink(row)
            else:
                self._pack(job_id)

    def _pack(self, job_id: bytes) -> None:
        job, where = self.jobs.get(job_id), self._places.get(job_id, 0)
        if isinstance(job, Job) and job.state in TERMINAL and where:
            self.jobs[job_id] = finished.pack(job, where)
            del self._places[job_id]

    def renumber(self, orders: dict[bytes, int]) -> None:
        """A compaction at rest gave the waiting jobs new orders, 1..n."""
        for job_id, order in orders.items():
            entry = self.jobs[job_id]
            assert isinstance(entry, Job)
            self.jobs[job_id] = replace(entry, availability_order=order)
        self.next_order = len(orders) + 1

    def move_row(self, job_id: bytes, trail: tuple[int, ...]) -> None:
        """A compaction wrote the records of the job's row anew at these places."""
        entry = self.extended.get(job_id)
        if self._loader is None or entry is None:
            return
        if isinstance(entry, rows.FinishedRow):
            self.extended[job_id] = entry.moved(trail)
        else:
            self.extended[job_id] = replace(entry, trail=trail)

    def move_result(self, job_id: bytes, where: int) -> None:
        """A compaction wrote the job's result anew at ``where``."""
        if isinstance(self.results.get(job_id), int):
            self.results[job_id] = where

    def _put(self, name: str, key: Any, value: Any) -> None:
        table = self._table(name)
        for log in self._logs:
            log.setdefault((name, key), table.get(key, _MISSING))
        table[key] = value

    def _remove(self, name: str, key: Any) -> None:
        table = self._table(name)
        for log in self._logs:
            log.setdefault((name, key), table.get(key, _MISSING))
        table.pop(key, None)

    def _table(self, name: str) -> dict[Any, Any]:
        if name.startswith("tables."):
            return self.tables.setdefault(name[7:], {})
        table: dict[Any, Any] = getattr(self, name)
        return table

    def _undo(self, log: Change) -> None:
        for (name, key), before in log.items():
            table = self._table(name)
            if before is _MISSING:
                table.pop(key, None)
            else:
                table[key] = before
