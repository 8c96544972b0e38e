"""Rows as both storages give and take them whole: what moves an installation from one to the other.

A row is a JSON object: instants are ISO 8601 text in UTC, bytes are text, or ``{"base64": …}`` where
they are none. Ids stay what they are.
"""

from __future__ import annotations

import base64
import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final, Protocol, TypeAlias

from django_belay.contract.envelope import Opaque
from django_belay.contract.job import JSON, Job
from django_belay.contract.outcome import iso
from django_belay.exceptions import StorageError

Row: TypeAlias = dict[str, JSON]

#: What an installation consists of, in the order in which it is given and taken: jobs come first.
TABLES: Final = ("jobs", "steps", "events", "signals", "rate", "queues", "crons", "slots")

#: Columns that hold instants, by table.
INSTANTS: Final[Mapping[str, tuple[str, ...]]] = {
    "jobs": ("ready_at", "lease_until", "cron_slot", "inserted_at", "started_at", "finished_at"),
    "steps": ("inserted_at",),
    "events": ("inserted_at",),
    "signals": ("inserted_at",),
    "rate": (),
    "queues": ("updated_at",),
    "crons": ("updated_at",),
    "slots": ("slot", "fired_at"),
}
#: Columns that hold bytes, by table.
BYTES: Final[Mapping[str, str]] = {"jobs": "result", "steps": "value"}


class Transferable(Protocol):
    """A storage's rows, for a process that has it to itself."""

    def count(self) -> dict[str, int]:
        """How many rows each table has; steps and events of jobs that are there."""
        ...

    def running(self) -> int:
        """Jobs that run."""
        ...

    def alive(self, *, since: datetime) -> list[str]:
        """Workers that were heard of since then."""
        ...

    def dump(self, table: str) -> Iterator[Row]:
        """Every row of a table: jobs by id, what belongs to jobs by job and number."""
        ...

    def load(self, table: str, rows: Sequence[Row], *, now: datetime) -> None:
        """Add rows as they are."""
        ...

    def finish(self, *, now: datetime) -> None:
        """Called once after the last row: what is inserted next comes after what was loaded."""
        ...


def row_of(job: Job) -> Row:
    """A job as a row.

    Raises:
        StorageError: A column holds what no JSON of Python can carry.
    """
    row: Row = {}
    for one in dataclasses.fields(Job):
        value = getattr(job, one.name)
        if isinstance(value, Opaque):
            raise StorageError(
                f"job {job.id}: its {one.name} holds what cannot be moved ({value.reason}); mend or delete the row"
            )
        row[one.name] = plain(value)
    row["wf_deps"], row["wf_ignore"] = list(job.wf_deps), list(job.wf_ignore)
    return row


def plain(value: Any) -> JSON:
    """A column as JSON."""
    if isinstance(value, datetime):
        return iso(value)
    return packed(value) if isinstance(value, bytes) else value


def packed(data: bytes | None) -> JSON:
    """Bytes as JSON."""
    if data is None:
        return None
    try:
        return data.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(data).decode()}


def unpacked(value: JSON) -> bytes | None:
    """What :func:`packed` packed."""
    if value is None:
        return None
    return value.encode() if isinstance(value, str) else base64.b64decode(value["base64"])


def instant(text: str | None) -> datetime | None:
    """The instant of a column."""
    return None if text is None else datetime.fromisoformat(text).astimezone(UTC)
