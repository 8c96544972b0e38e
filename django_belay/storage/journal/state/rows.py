"""Extended jobs and the extension tables, changed by the effects of operations.

Effects are JSON objects::

    {"jobs":   {"<32 hex id>": {"revision": 3, "set": {"state": "ready", …}} or null},
     "tables": {"steps": {"<key>": {…} or null}, …}}

``set`` holds the changed columns; for a job not seen before it is the whole row. A null
is a tombstone. Nothing is recomputed here: a record says what changed, and that is done.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from django_belay.storage.journal.format.domain import is_id, is_seq
from django_belay.storage.journal.format.extension import TABLES, Operation, Row, TableRows, decode_body
from django_belay.storage.journal.format.refusal import refuse

TERMINAL: Final = frozenset({"succeeded", "failed", "cancelled"})
# What decisions ask of a finished job: the rest of its row is read back when somebody looks at it.
COLUMNS: Final = (
    "id", "state", "workflow_id", "wf_name", "parent_id", "unique_key", "unique_mode", "finished_at",
)  # fmt: skip
MOST_PLACES: Final = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class ExtendedJob:
    """A job whose row needs more than the contract's records. ``row`` holds its wire columns.

    ``trail`` are the places of the records that the row adds up from, oldest first; it is
    empty when one of them has no place.
    """

    job_id: bytes
    revision: int
    row: dict[str, Any]
    trail: tuple[int, ...] = field(default=(), compare=False)

    @property
    def order(self) -> int | None:
        """Its availability order, when it has one."""
        value = self.row.get("order")
        return value if is_seq(value) else None

    def column(self, name: str) -> Any:
        """One of :data:`COLUMNS`."""
        return self.row.get(name)


class FinishedRow(NamedTuple):
    """An extended job that has ended: what decisions need, and where its row stands."""

    revision: int
    columns: tuple[Any, ...]
    trail: tuple[int, ...]

    def column(self, name: str) -> Any:
        """One of :data:`COLUMNS`."""
        return self.columns[COLUMNS.index(name)]


def can_shrink(job: ExtendedJob) -> bool:
    """Whether the job has ended and its row can be put together again from its records."""
    state = job.row.get("state")  # which may be of any type that JSON has
    return isinstance(state, str) and state in TERMINAL and 0 < len(job.trail) <= MOST_PLACES


def shrink(job: ExtendedJob) -> FinishedRow:
    """The job without what nobody decides by."""
    return FinishedRow(job.revision, tuple(job.row.get(name) for name in COLUMNS), job.trail)


def extend_trail(trail: tuple[int, ...], where: int, *, first: bool) -> tuple[int, ...]:
    """The trail with one more record; one without a place leaves none to be put together."""
    return (*trail, where) if where and (trail or first) else ()


def columns_at(item: object, job_id: bytes) -> dict[str, Any]:
    """The columns that the record at a place of a job's trail states."""
    if isinstance(item, Row):
        return read_row(item).row
    assert isinstance(item, Operation)
    for effect in read_effects(item):
        if isinstance(effect, JobEffect) and effect.job_id == job_id:
            return effect.changes or {}
    raise refuse("physical_corruption", "trail_mismatch", job_id.hex())


@dataclass(frozen=True, slots=True, kw_only=True)
class JobEffect:
    """What an operation did to one extended job; ``changes`` None removes it."""

    job_id: bytes
    revision: int
    changes: dict[str, Any] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class TableEffect:
    """What an operation did to one row of an extension table; ``row`` None removes it."""

    table: str
    key: str
    row: dict[str, Any] | None


def read_row(record: Row) -> ExtendedJob:
    """The extended job a (129,1) record states."""
    row = decode_body(record.row)
    if not isinstance(row, dict) or not is_seq(row.get("revision")):
        raise refuse("invalid_payload", "invalid_extension", 129)
    revision = row.pop("revision")
    return ExtendedJob(job_id=record.job_id, revision=revision, row=row)


def read_table(record: TableRows) -> dict[str, dict[str, Any]]:
    """The rows a (130,1) record states, ascending by key."""
    rows = decode_body(record.rows)
    if not isinstance(rows, list) or not rows:
        raise refuse("invalid_payload", "invalid_extension", 130)
    result: dict[str, dict[str, Any]] = {}
    previous: str | None = None
    for item in rows:
        if not (isinstance(item, list) and len(item) == 2):
            raise refuse("invalid_payload", "invalid_extension", 130)
        key, row = item
        if not (isinstance(key, str) and isinstance(row, dict)):
            raise refuse("invalid_payload", "invalid_extension", 130)
        if previous is not None and key <= previous:
            raise refuse("invalid_payload", "invalid_extension", 130, "key order")
        previous = key
        result[key] = row
    return result


def read_effects(record: Operation) -> Iterator[JobEffect | TableEffect]:
    """What a (128,1) record changed, jobs first."""
    effects = decode_body(record.effects)
    if not isinstance(effects, dict) or not effects.keys() <= {"jobs", "tables"}:
        raise refuse("invalid_payload", "invalid_extension", 128)
    yield from _job_effects(_object(effects.get("jobs", {})))
    for table, rows in _object(effects.get("tables", {})).items():
        if table not in TABLES:
            raise refuse("invalid_payload", "invalid_extension", 128, table)
        for key, row in _object(rows).items():
            if row is not None and not isinstance(row, dict):
                raise refuse("invalid_payload", "invalid_extension", 128)
            yield TableEffect(table=table, key=key, row=row)


def _job_effects(jobs: dict[str, Any]) -> Iterator[JobEffect]:
    for text, effect in jobs.items():
        try:
            job_id = bytes.fromhex(text)
        except ValueError:
            raise refuse("invalid_payload", "invalid_extension", 128) from None
        if not is_id(job_id) or text != job_id.hex():
            raise refuse("invalid_payload", "invalid_extension", 128)
        if effect is None:
            yield JobEffect(job_id=job_id, revision=0, changes=None)
            continue
        if not isinstance(effect, dict) or effect.keys() != {"revision", "set"}:
            raise refuse("invalid_payload", "invalid_extension", 128)
        if not (is_seq(effect["revision"]) and isinstance(effect["set"], dict)):
            raise refuse("invalid_payload", "invalid_extension", 128)
        yield JobEffect(job_id=job_id, revision=effect["revision"], changes=effect["set"])


def _object(value: object) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise refuse("invalid_payload", "invalid_extension", 128)
    return value
