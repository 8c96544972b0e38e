"""What the owner has in memory, and how an operation's changes become records.

The journal's own state is the truth, record by record; beside it stand the indexes that decisions
use. Everything happens under the owner's lock.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from itertools import chain
from typing import Any, Final, Literal, TypeAlias

from django_belay.contract.state import State
from django_belay.exceptions import JournalError
from django_belay.storage.journal.files.journal import Journal
from django_belay.storage.journal.format.event_v2 import ResultRecorded, decode_event_v2
from django_belay.storage.journal.format.extension import Frame, Operation, encode_body
from django_belay.storage.journal.format.extension import Row as RowRecord
from django_belay.storage.journal.format.pair import Payload
from django_belay.storage.journal.format.snapshot import Job as CoreJob
from django_belay.storage.journal.state import finished
from django_belay.storage.journal.state.rows import ExtendedJob, FinishedRow

from . import answered, core, strict
from .ids import IdBook
from .row import COLUMNS, Row
from .unit import Unit
from .view import View

#: Told under the owner's lock of what an operation changed: the sequence of its last record (0: none),
#: rows by id and table rows by table and key, ``None`` for what is gone. It must be quick, must not
#: raise, and must change nothing that it is given.
Observer: TypeAlias = Callable[
    [int, Mapping[int, Row | None], Mapping[str, Mapping[str, dict[str, Any] | None]]], None
]

# A record's body may take 8 MiB; an operation that needs more is framed.
Profile: TypeAlias = Literal["belay", "strict"]

BODY_BYTES: Final = 4 * 2**20
_ENDED_STATES: Final[dict[str, State]] = {
    "completed": "succeeded",
    "discarded": "failed",
    "cancelled": "cancelled",
}


class Memory:
    """The journal's state with the engine's indexes beside it.

    Args:
        journal: Owned and active.
        lease_ms: How long the lease of a job that ran when the owner before died is waited for.
        now_ms: When this owner began.
        profile: ``strict`` writes the contract's own records alone.
    """

    def __init__(self, journal: Journal, *, lease_ms: int, now_ms: int, profile: Profile = "belay") -> None:
        self.journal = journal
        self.profile = profile
        self.state = journal.state
        self.view = View()
        self.ids = IdBook()
        self.hidden: set[int] = set()
        self.observers: list[Observer] = []
        self._recover(now_ms + lease_ms)

    # -- reading ------------------------------------------------------------

    def find(self, job_id: int) -> Row | None:
        """The whole row; a finished one is read back from the segments."""
        row = self.view.open.get(job_id)
        if row is not None:
            return row
        key = self.ids.key_of(job_id)
        if key is None or job_id in self.hidden:
            return None
        return self._read(job_id, key)

    def has(self, job_id: int) -> bool:
        """Whether there is such a job."""
        return job_id in self.view.open or (job_id not in self.hidden and self.ids.key_of(job_id) is not None)

    def ended_state_of(self, job_id: int) -> State | None:
        """The state of a finished job, without reading it back."""
        key = self.ids.key_of(job_id)
        if key is None or job_id in self.hidden:
            return None
        extended = self.state.extended.get(key)
        if extended is not None:
            found: State = extended.column("state")
            return found
        entry = self.state.jobs[key]
        return _ENDED_STATES[finished.state_of(entry) if isinstance(entry, bytes) else entry.state]

    def newest_first(self) -> Iterator[int]:
        """The ids of all jobs, descending."""
        return (job_id for job_id in self.ids.newest_first() if job_id not in self.hidden)

    def table(self, name: str) -> Mapping[str, dict[str, Any]]:
        """An extension table."""
        return self.state.tables.setdefault(name, {})

    def _read(self, job_id: int, key: bytes) -> Row:
        extended = self.state.find_row(key)
        if extended is not None:
            return _complete(extended.row)
        job = self.state.find_job(key)
        assert job is not None
        return core.row_of(job_id, job, self._result(key))

    def _result(self, key: bytes) -> ResultRecorded | None:
        entry = self.state.results.get(key)
        if entry is None:
            return None
        if isinstance(entry, int):
            return self.journal.recovered.reader.result(entry)
        event = decode_event_v2(10, 2, entry)
        assert isinstance(event, ResultRecorded)
        return event

    # -- recovery -----------------------------------------------------------

    def _recover(self, lease_until: int) -> None:
        """Build the indexes. Jobs that ran keep running; those without a known lease get a new one."""
        recorded = {bytes.fromhex(key): row["number"] for key, row in self.table("ids").items()}
        for key in sorted(chain(self.state.jobs, self.state.extended)):
            number = self.ids.add(key, recorded=recorded)
            entry = self.state.extended.get(key) or self.state.jobs[key]
            row = self._indexed(number, key, entry)
            if row is not None:
                if row["state"] == "running":
                    row = row.copy()
                    row["lease_until"] = max(row["lease_until"] or 0, lease_until)
                self.view.replace(None, row)
        self.view.sort_ended()
        for table in ("steps", "events"):
            for key_text, table_row in self.table(table).items():
                self.view.note_table(table, key_text, table_row, None)

    def _indexed(self, number: int, key: bytes, entry: Any) -> Row | None:
        """The row of an entry that indexes speak of; a finished core job that did not fail is in none."""
        if isinstance(entry, FinishedRow):
            return _complete(entry.columns())
        if isinstance(entry, bytes):
            if finished.state_of(entry) == "discarded":
                return self._read(number, key)
            state = _ENDED_STATES[finished.state_of(entry)]
            self.view.ended[state].extend((finished.terminal_at_of(entry), number))
            return None
        if isinstance(entry, CoreJob):
            return core.row_of(number, entry, self._result(key))
        assert isinstance(entry, ExtendedJob)
        return _complete(entry.row)

    # -- writing ------------------------------------------------------------

    def commit(self, unit: Unit) -> int:
        """Write what a unit changed; the sequence to wait for, 0 when it changed nothing.

        Raises:
            JournalError: Refused, and nothing has changed.
        """
        if unit.is_empty:
            return 0
        records = _Records(self, unit)
        batch = records.build()
        if batch:
            sequence = self.journal.submit(batch)
        else:
            sequence = 0
        for job_id, key in unit.keys.items():
            number = self.ids.add(key)
            assert number == job_id
        for job_id, after in unit.rows.items():
            before = records.befores[job_id]
            stored = self.state.extended.get(self.key_of(job_id))
            if self.profile == "strict":
                after = unit.rows[job_id] = strict.row_after(self.state, self.key_of(job_id), after)
            if isinstance(stored, ExtendedJob):
                after = stored.row  # type: ignore[assignment]  # one copy in memory, not two
            self.view.replace(before, after)
        for table, rows in unit.tables.items():
            for key_text, row in rows.items():
                self.view.note_table(table, key_text, row, records.old_tables.get((table, key_text)))
        for observer in self.observers:
            observer(sequence, unit.rows, unit.tables)
        return sequence

    def key_of(self, job_id: int) -> bytes:
        """The 16-byte id of a job that is there."""
        key = self.ids.key_of(job_id)
        assert key is not None
        return key

    def hide(self, row: Row) -> None:
        """A finished job is past its retention: gone for everyone; its bytes go by compaction."""
        self.view.replace(row, None)
        self.hidden.add(row["id"])
        for observer in self.observers:
            observer(0, {row["id"]: None}, {})

    # -- compaction ---------------------------------------------------------

    def may_go(self, job_id: bytes) -> bool:
        """Whether a compaction may leave a finished job out: only what was pruned before."""
        return self.ids.number_of(job_id) in self.hidden

    def number_of(self, job_id: bytes) -> int:
        """The number of a job that is there."""
        return self.ids.number_of(job_id)

    def forget(self, job_ids: set[bytes]) -> None:
        """A compaction left these hidden jobs out, with their steps and events."""
        numbers = self.ids.remove(job_ids)
        self.hidden -= numbers
        for number in numbers:
            self.view.steps.pop(number, None)
            self.view.events.pop(number, None)


class _Records:
    """The records of one unit."""

    def __init__(self, memory: Memory, unit: Unit) -> None:
        self._memory = memory
        self._unit = unit
        self._orders = core.Orders(memory.state.next_order)
        self._records: list[Payload] = []
        self._jobs: dict[str, Any] = {}
        self._promoted: dict[int, int] = {}
        self._is_tied = False
        self.befores: dict[int, Row | None] = {}
        self.old_tables: dict[tuple[str, str], dict[str, Any]] = {}

    def build(self) -> list[Payload]:
        """Core records, promotions, then what the extension has to say.

        Core records take their orders first: they are checked one by one as they are applied.
        """
        unit = self._unit
        if self._memory.profile == "strict":
            strict.refuse_tables(unit.tables)
        # What ends one job and inserts another, nobody sends again whole after a power cut between their
        # records: it is said by an operation. The contract's own records have nothing that ties them.
        self._is_tied = 0 < len(unit.keys) < len(unit.rows) and self._memory.profile != "strict"
        extended: list[Row] = []
        for job_id, row in unit.rows.items():
            if not (self._insert(unit.keys[job_id], row) if job_id in unit.keys else self._change(row)):
                extended.append(row)
        for row in extended:
            self._extend(row)
        tables = {table: self._table_effects(table, rows) for table, rows in unit.tables.items()}
        self._operate(self._jobs, {table: rows for table, rows in tables.items() if rows})
        return self._records

    def _insert(self, key: bytes, row: Row) -> bool:
        """Write a new job as a core one; whether it is one."""
        self.befores[row["id"]] = None
        definition = None if self._unit.states_rows else core.definition_of(row)
        if definition is None and self._memory.profile == "strict":
            strict.refuse_insertion(row)
        if definition is None:
            return False
        order = self._orders.take() if _is_due(row, self._unit.at) else None
        row["order"] = order
        self._records.append(core.inserted(key, row, definition, order))
        return True

    def _change(self, row: Row) -> bool:
        """Write a change that the contract's records can say, if it is one; promote the job if not."""
        memory = self._memory
        before = memory.find(row["id"])
        assert before is not None
        self.befores[row["id"]] = before
        key = memory.key_of(row["id"])
        job = memory.state.find_job(key)
        if job is None and memory.profile == "strict":
            strict.refuse("a change of an extended job, which another profile wrote")
        if job is None:
            return False
        events = None
        if not self._is_tied:
            events = core.events_of(job, before, row, at=self._unit.at, orders=self._orders)
        if events is None and memory.profile == "strict":
            events = strict.events_of(job, before, row, at=self._unit.at, orders=self._orders)
        if events is None:
            body = encode_body({**before, "revision": job.revision})
            self._records.append(RowRecord(job_id=key, row=body))
            self._promoted[row["id"]] = job.revision
            return False
        row["order"] = None
        self._records += events
        return True

    def _extend(self, row: Row) -> None:
        """What an operation did to one extended job."""
        job_id, before = row["id"], self.befores[row["id"]]
        if before is None:
            row["order"] = self._orders.take() if _is_due(row, self._unit.at) else None
            self._jobs[self._unit.keys[job_id].hex()] = {"revision": 1, "set": dict(row)}
            return
        if row["state"] != "ready":
            row["order"] = None
        elif before["state"] != "ready" or before["ready_at"] != row["ready_at"]:
            row["order"] = self._orders.take() if _is_due(row, self._unit.at) else None
        key = self._memory.key_of(job_id)
        revision = self._promoted.get(job_id)
        columns: Mapping[str, Any] = before
        if revision is None:
            stored = self._memory.state.extended[key]
            revision = stored.revision
            if isinstance(stored, ExtendedJob):
                columns = stored.row  # what was renewed since stands in memory alone
        changes = {name: row[name] for name in COLUMNS if row[name] != columns.get(name)}  # type: ignore[literal-required]
        self._jobs[key.hex()] = {"revision": revision + 1, "set": changes}

    def _table_effects(self, table: str, rows: Mapping[str, dict[str, Any] | None]) -> dict[str, Any]:
        stored = self._memory.table(table)
        effects: dict[str, Any] = {}
        for key, row in rows.items():
            before = stored.get(key)
            if before is not None:
                self.old_tables[table, key] = before
            if row != before:
                effects[key] = row
        return effects

    def _operate(self, jobs: dict[str, Any], tables: dict[str, Any]) -> None:
        """One operation record, or several in a frame."""
        if not jobs and not tables:
            return
        if self._unit.answer is not None:
            key, row = self._unit.answer
            tables = {**tables, answered.TABLE: {key: row}}
        bodies = list(_split(jobs, tables))
        operations: list[Payload] = [
            Operation(
                at=self._unit.at,
                client=self._unit.client,
                effects=body,
                op=self._unit.name,
                request=self._unit.request,
            )
            for body in bodies
        ]
        if len(operations) == 1 and not (self._records and self._is_mixed()):
            self._records += operations
            return
        name = self._unit.name
        begin, commit = Frame(mark="begin", operation=name), Frame(mark="commit", operation=name)
        self._records = [begin, *self._records, *operations, commit]

    def _is_mixed(self) -> bool:
        """Whether records of other jobs stand beside the operation: then a crash must not part them."""
        return any(not isinstance(record, RowRecord) for record in self._records)


def _split(jobs: dict[str, Any], tables: dict[str, Any]) -> Iterator[bytes]:
    """Bodies that hold these effects between them, each within a record."""
    effects: dict[str, Any] = {}
    if jobs:
        effects["jobs"] = jobs
    if tables:
        effects["tables"] = tables
    items = [("jobs", key, value) for key, value in jobs.items()]
    items += [(table, key, value) for table, rows in tables.items() for key, value in rows.items()]
    try:
        body = encode_body(effects)
    except JournalError:
        if len(items) == 1:
            raise
        body = b""
    if body and (len(body) <= BODY_BYTES or len(items) == 1):
        yield body
        return
    for half in (items[: len(items) // 2], items[len(items) // 2 :]):
        some_jobs = {key: value for kind, key, value in half if kind == "jobs"}
        some_tables: dict[str, Any] = {}
        for kind, key, value in half:
            if kind != "jobs":
                some_tables.setdefault(kind, {})[key] = value
        yield from _split(some_jobs, some_tables)


def _is_due(row: Row, at: int) -> bool:
    """Whether the row takes its place in its queue now."""
    return row["state"] == "ready" and (row["ready_at"] is None or row["ready_at"] <= at)


def _complete(row: Mapping[str, Any]) -> Row:
    """A stored row with every column, also one that an earlier version did not know."""
    if row.keys() >= set(COLUMNS):
        return row  # type: ignore[return-value]
    return {**dict.fromkeys(COLUMNS), **row}  # type: ignore[typeddict-item]
