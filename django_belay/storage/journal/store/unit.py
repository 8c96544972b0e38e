"""One operation: what it reads and changes, written at its end as one batch of records.

Nothing is visible before the batch was accepted: an operation that raises, or whose records are
refused, leaves no trace.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

from django_belay.contract.state import State
from django_belay.exceptions import JobNotFound

from .instants import ceil_ms, floor_ms
from .row import Row

if TYPE_CHECKING:
    from .memory import Memory

#: Who an operation's record names when no client asked for it.
OWNER: Final = "owner"


class Unit:
    """What one operation sees of the store, its own changes included.

    Args:
        name: The operation, as its record names it.
    """

    def __init__(self, memory: Memory, name: str, now: datetime) -> None:
        self.memory = memory
        self.view = memory.view
        self.name = name
        self.now = now
        self.at = floor_ms(now)
        self.rows: dict[int, Row] = {}
        self.keys: dict[int, bytes] = {}
        self.tables: defaultdict[str, dict[str, dict[str, Any] | None]] = defaultdict(dict)
        self.queues_due: set[str] = set()
        self.ended: list[int] = []
        self.reheld: list[int] = []
        #: New rows are written whole as extended ones, whatever they say.
        self.states_rows = False
        #: Who asked, in the operation's record.
        self.client = OWNER
        self.request = 0
        #: Key and row of what was answered, written where the operation has a record of its own.
        self.answer: tuple[str, dict[str, Any]] | None = None

    def due(self, instant: datetime | None) -> int | None:
        """The millisecond at which something is due: never early, and at once what is due already.

        An instant of this very millisecond that has come would otherwise be due in the next one: nobody
        would be told of it now.
        """
        due = ceil_ms(instant)
        return min(due, self.at) if due is not None and instant is not None and instant <= self.now else due

    # -- jobs ---------------------------------------------------------------

    def find(self, job_id: int) -> Row | None:
        """The row as this operation left it so far; ``None`` when there is no such job."""
        changed = self.rows.get(job_id)
        return self.memory.find(job_id) if changed is None else changed

    def get(self, job_id: int) -> Row:
        """The row. Raises ``JobNotFound``."""
        row = self.find(job_id)
        if row is None:
            raise JobNotFound(job_id)
        return row

    def edit(self, row: Row) -> Row:
        """The row to write into; the same one each time."""
        mine = self.rows.get(row["id"])
        if mine is None:
            mine = self.rows[row["id"]] = row.copy()
        return mine

    def add(self, row: Row, key: bytes) -> None:
        """A job that was not there."""
        self.rows[row["id"]] = row
        self.keys[row["id"]] = key

    def has(self, job_id: int) -> bool:
        """Whether there is such a job."""
        return job_id in self.rows or self.memory.has(job_id)

    def state_of(self, job_id: int) -> State | None:
        """Only the state, without reading a finished job back."""
        row = self.rows.get(job_id) or self.view.open.get(job_id)
        return self.memory.ended_state_of(job_id) if row is None else row["state"]

    # -- tables -------------------------------------------------------------

    def table_row(self, table: str, key: str) -> dict[str, Any] | None:
        """A row of an extension table."""
        mine = self.tables.get(table)
        if mine is not None and key in mine:
            return mine[key]
        return self.memory.table(table).get(key)

    def put(self, table: str, key: str, row: dict[str, Any]) -> None:
        """Write a row of an extension table."""
        self.tables[table][key] = row

    def drop(self, table: str, key: str) -> None:
        """Delete a row of an extension table that is there."""
        self.tables[table][key] = None

    def table(self, table: str) -> Iterator[tuple[str, dict[str, Any]]]:
        """Every row of a small table, by key."""
        mine = self.tables.get(table, {})
        stored = self.memory.table(table)
        for key in sorted({*stored, *mine}):
            row = mine[key] if key in mine else stored[key]
            if row is not None:
                yield key, row

    @property
    def is_empty(self) -> bool:
        """Whether nothing was changed."""
        return not self.rows and not any(self.tables.values())
