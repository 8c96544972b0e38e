"""An installation's rows in a journal, whole: see :mod:`django_belay.storage.transferring`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, Final

from django_belay.exceptions import StorageError
from django_belay.storage.transferring import INSTANTS, TABLES, Row, instant, plain, row_of

from . import moving, runtime
from .claiming import rate_key
from .ids import LAST_NUMBER
from .instants import ceil_ms, floor_ms, to_instant
from .row import job_of
from .store import JournalStore
from .unit import Unit

#: What is due is rounded up: never early. What has happened is rounded down.
_DUE: Final = frozenset({"ready_at", "lease_until"})


class JournalRows:
    """Reads from and writes to a store that this process owns. Rows are written as extended ones, as they are."""

    def __init__(self, store: JournalStore) -> None:
        self._store = store
        self._memory = store.memory

    def count(self) -> dict[str, int]:
        return {table: sum(1 for _ in self._keys(table)) for table in TABLES}

    def _keys(self, table: str) -> Iterator[Any]:
        if table == "jobs":
            return self._memory.newest_first()
        if table in ("steps", "events"):
            return (key for key, _ in self._of_jobs(table))
        if table == "queues":
            return iter(runtime.list_queues(self._unit()))
        return iter(self._memory.table(table))

    def running(self) -> int:
        return sum(row["state"] == "running" for row in self._memory.view.open.values())

    def alive(self, *, since: datetime) -> list[str]:
        """None: whoever has the store to itself has no worker on it."""
        return []

    def _unit(self, now: datetime | None = None, name: str = "read") -> Unit:
        return Unit(self._memory, name, to_instant(0) if now is None else now)

    # -- giving -------------------------------------------------------------

    def dump(self, table: str) -> Iterator[Row]:
        if table == "jobs":
            return self._jobs()
        if table in ("steps", "events"):
            return (_given(table, row) for _, row in sorted(self._of_jobs(table), key=_place))
        return (_given(table, _named(table, key, row)) for key, row in self._rows(table))

    def _jobs(self) -> Iterator[Row]:
        for job_id in sorted(self._memory.newest_first()):
            row = self._memory.find(job_id)
            if row is None:
                raise StorageError(f"job {job_id} went while it was read: somebody works on this store")
            yield row_of(job_of(row))

    def _of_jobs(self, table: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
        """What belongs to jobs that are there: that of pruned ones goes with the next compaction."""
        rows = self._memory.table(table).items()
        return ((key, row) for key, row in rows if self._memory.has(row["job_id"]))

    def _rows(self, table: str) -> Iterator[tuple[str, dict[str, Any]]]:
        shown = {row.name for row in runtime.list_queues(self._unit())}
        return ((key, row) for key, row in self._unit().table(table) if table != "queues" or key in shown)

    # -- taking -------------------------------------------------------------

    def load(self, table: str, rows: Sequence[Row], *, now: datetime) -> None:
        take_row = self._take_job if table == "jobs" else _putting(table)

        def take(unit: Unit) -> None:
            unit.states_rows = True
            for row in rows:
                take_row(unit, row)

        self._store._write("transfer", now, take)

    def _take_job(self, unit: Unit, row: Row) -> None:
        job_id = row["id"]
        if not 0 < job_id <= LAST_NUMBER:
            raise StorageError(f"job {job_id}: the ids of a journal go from 1 to {LAST_NUMBER}")
        taken: Any = {**_taken("jobs", row), "order": None}
        unit.add(taken, self._memory.ids.new_key(job_id))

    def finish(self, *, now: datetime) -> None:
        """Ids are drawn above the highest there is."""


def _putting(table: str) -> Callable[[Unit, Row], None]:
    """Puts a row of an extension table."""

    def put(unit: Unit, row: Row) -> None:
        taken = _taken(table, row)
        key = _key(table, taken)
        for name in _NAMED.get(table, ()):
            del taken[name]
        unit.put(table, key, taken)

    return put


#: Columns that stand in a row's key alone.
_NAMED: Final[Mapping[str, tuple[str, ...]]] = {"queues": ("name",), "crons": ("name",), "slots": ("name",)}


def _key(table: str, row: Mapping[str, Any]) -> str:
    if table in ("steps", "events"):
        return f"{row['job_id']}/{row['seq']}"
    if table == "signals":
        return moving.signal_key(row["scope"], row["name"])
    if table == "rate":
        return rate_key(row["bucket"], row["window_start"])
    name: str = row["name"]
    return name


def _named(table: str, key: str, row: dict[str, Any]) -> dict[str, Any]:
    return {"name": key, **row} if table in _NAMED else row


def _place(item: tuple[str, Mapping[str, Any]]) -> tuple[int, int]:
    return item[1]["job_id"], item[1]["seq"]


def _given(table: str, row: Mapping[str, Any]) -> Row:
    return {**row, **{name: plain(to_instant(row.get(name))) for name in INSTANTS[table]}}


def _taken(table: str, row: Row) -> dict[str, Any]:
    taken = dict(row)
    for name in INSTANTS[table]:
        at = instant(row[name])
        taken[name] = None if at is None else ceil_ms(at) if name in _DUE else floor_ms(at)
    return taken
