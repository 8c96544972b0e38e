"""Extended jobs and the extension tables, changed by the effects of operations.

Effects are JSON objects::

    {"jobs":   {"<32 hex id>": {"revision": 3, "set": {"state": "ready", …}} or null},
     "tables": {"steps": {"<key>": {…} or null}, …}}

``set`` holds the changed columns; for a job not seen before it is the whole row. A null
is a tombstone. Nothing is recomputed here: a record says what changed, and that is done.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import orjson

from django_belay.storage.journal.format.domain import is_id, is_seq
from django_belay.storage.journal.format.extension import TABLES, Operation, Row, TableRows, decode_body
from django_belay.storage.journal.format.refusal import refuse

TERMINAL: Final = frozenset({"succeeded", "failed", "cancelled"})
# What decisions ask of a finished job: the rest of its row is read back when somebody looks at it.
COLUMNS: Final = (
    "id", "state", "finished_at", "workflow_id", "wf_name", "parent_id", "unique_key", "unique_mode",
    "cron_name", "cron_slot", "queue",
)  # fmt: skip
MOST_PLACES: Final = 32

_STATES: Final = ("succeeded", "failed", "cancelled")
# revision, state, length of the trail, id, end
_HEAD: Final = struct.Struct(">QBBqq")
_STATE_AT: Final = 8
_NULL: Final = -(2**63)
_NUMBERS: Final = ("id", "finished_at")
_OTHERS: Final = tuple(name for name in COLUMNS if name not in ("state", *_NUMBERS))
# Failed jobs are counted by queue, no others.
_OTHERS_BUT_QUEUE: Final = tuple(name for name in _OTHERS if name != "queue")


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


class FinishedRow(bytes):
    """An extended job that has ended: what decisions need, and where its row stands.

    Bytes, because a store keeps a million of them: revision, state and the length of the trail, id and
    the end where they are integers of 64 bits, the trail, then as JSON the columns that are not null.
    """

    __slots__ = ()

    @property
    def revision(self) -> int:
        """The job's revision."""
        return int(_HEAD.unpack_from(self)[0])

    @property
    def trail(self) -> tuple[int, ...]:
        """The places of the records that the row adds up from, oldest first."""
        return struct.unpack_from(f">{self[_STATE_AT + 1]}Q", self, _HEAD.size)

    def column(self, name: str) -> Any:
        """One of :data:`COLUMNS`."""
        if name == "state":
            return _STATES[self[_STATE_AT]]
        if name in _NUMBERS:
            value = _HEAD.unpack_from(self)[3 + _NUMBERS.index(name)]
            return None if value == _NULL else value
        rest = self[_HEAD.size + 8 * self[_STATE_AT + 1] :]
        return orjson.loads(rest).get(name) if rest else None

    def columns(self) -> dict[str, Any]:
        """All of :data:`COLUMNS`, read at once."""
        _, state, places, number, finished_at = _HEAD.unpack_from(self)
        rest = self[_HEAD.size + 8 * places :]
        columns = dict.fromkeys(COLUMNS) if not rest else {**dict.fromkeys(COLUMNS), **orjson.loads(rest)}
        columns["state"] = _STATES[state]
        columns["id"] = None if number == _NULL else number
        columns["finished_at"] = None if finished_at == _NULL else finished_at
        return columns

    def moved(self, trail: tuple[int, ...]) -> FinishedRow:
        """The same job, its records now at these places."""
        revision, state, places, number, finished_at = _HEAD.unpack_from(self)
        head = _HEAD.pack(revision, state, len(trail), number, finished_at)
        rest = self[_HEAD.size + 8 * places :]
        return FinishedRow(head + struct.pack(f">{len(trail)}Q", *trail) + rest)


def can_shrink(job: ExtendedJob) -> bool:
    """Whether the job has ended and its row can be put together again from its records."""
    return job.row.get("state") in TERMINAL and 0 < len(job.trail) <= MOST_PLACES


def shrink(job: ExtendedJob) -> FinishedRow | ExtendedJob:
    """The job without what nobody decides by; as it is when a column is none that can be packed."""
    row = job.row
    number, finished_at = (_NULL if row.get(name) is None else row[name] for name in _NUMBERS)
    wanted = _OTHERS if row["state"] == "failed" else _OTHERS_BUT_QUEUE
    rest = {name: row[name] for name in wanted if row.get(name) is not None}
    try:
        head = _HEAD.pack(job.revision, _STATES.index(row["state"]), len(job.trail), number, finished_at)
        text = orjson.dumps(rest) if rest else b""
    except (struct.error, orjson.JSONEncodeError):
        return job
    return FinishedRow(head + struct.pack(f">{len(job.trail)}Q", *job.trail) + text)


def extend_trail(trail: tuple[int, ...], where: int, *, first: bool) -> tuple[int, ...]:
    """The trail with one more record; one without a place leaves none to be put together."""
    return (*trail, where) if where and (trail or first) else ()


def stated_columns(item: object) -> dict[bytes, dict[str, Any]]:
    """The columns that the record at a place of a trail states, for each of its jobs."""
    if isinstance(item, Row):
        return {item.job_id: read_row(item).row}
    assert isinstance(item, Operation)
    effects = (effect for effect in read_effects(item) if isinstance(effect, JobEffect))
    return {effect.job_id: effect.changes or {} for effect in effects}


def columns_of(stated: Mapping[bytes, dict[str, Any]], job_id: bytes) -> dict[str, Any]:
    """Those of one job, which is among them unless the trail is wrong."""
    columns = stated.get(job_id)
    if columns is None:
        raise refuse("physical_corruption", "trail_mismatch", job_id.hex())
    return columns


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
    if not isinstance(row, dict) or not is_seq(row.get("revision")) or not _are_plain(row):
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
        columns = effect["set"]
        if not (is_seq(effect["revision"]) and isinstance(columns, dict) and _are_plain(columns)):
            raise refuse("invalid_payload", "invalid_extension", 128)
        yield JobEffect(job_id=job_id, revision=effect["revision"], changes=columns)


def _are_plain(columns: dict[str, Any]) -> bool:
    """Whether what decisions go by are numbers and texts: sets are made of them."""
    return not any(isinstance(columns.get(name), list | dict) for name in COLUMNS)


def _object(value: object) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise refuse("invalid_payload", "invalid_extension", 128)
    return value
