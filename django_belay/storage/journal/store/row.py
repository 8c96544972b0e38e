"""A job as the journal's engine holds it: its wire columns in their JSON forms.

Instants are milliseconds, ``result`` is the envelope as text (``{"base64": …}`` where it is no
text). A row is never changed in place: whoever changes one copies it first.
"""

from __future__ import annotations

import base64
from typing import Any, Final, TypeAlias, TypedDict

from django_belay.contract.job import JSON, Job
from django_belay.contract.state import State

from .instants import to_instant

#: Bytes in JSON: text where they are UTF-8, as all but foreign envelopes are.
Packed: TypeAlias = "str | dict[str, str]"


class Row(TypedDict):
    """Every wire column (§3), and the contract's availability order."""

    id: int
    kind: str
    queue: str
    state: State
    input: JSON
    meta: JSON
    priority: int
    attempt: int
    max_attempts: int
    partition_key: str | None
    ready_at: int | None
    lease_until: int | None
    leased_by: str | None
    await_scope: str | None
    await_name: str | None
    workflow_id: str | None
    wf_name: str | None
    wf_deps: list[str]
    wf_ignore: list[str]
    cron_name: str | None
    cron_slot: int | None
    unique_key: str | None
    unique_mode: Any
    parent_id: int | None
    budget_usd_micros: int | None
    budget_tokens: int | None
    spent_usd_micros: int
    spent_tokens: int
    result: Packed | None
    errors: JSON
    cancel_requested: bool
    inserted_at: int
    started_at: int | None
    finished_at: int | None
    order: int | None


COLUMNS: Final[tuple[str, ...]] = tuple(Row.__annotations__)


def copy_of(row: Row) -> Row:
    """A row of its own, to be changed."""
    return row.copy()


def job_of(row: Row) -> Job:
    """The record that the protocol answers with."""
    return Job(
        row["id"],
        row["kind"],
        row["queue"],
        row["state"],
        row["input"],
        row["meta"],
        row["priority"],
        row["attempt"],
        row["max_attempts"],
        row["partition_key"],
        to_instant(row["ready_at"]),
        to_instant(row["lease_until"]),
        row["leased_by"],
        row["await_scope"],
        row["await_name"],
        row["workflow_id"],
        row["wf_name"],
        row["wf_deps"],
        row["wf_ignore"],
        row["cron_name"],
        to_instant(row["cron_slot"]),
        row["unique_key"],
        row["unique_mode"],
        row["parent_id"],
        row["budget_usd_micros"],
        row["budget_tokens"],
        row["spent_usd_micros"],
        row["spent_tokens"],
        unpack(row["result"]),
        row["errors"],
        row["cancel_requested"],
        to_instant(row["inserted_at"]),
        to_instant(row["started_at"]),
        to_instant(row["finished_at"]),
    )


def pack(data: bytes | None) -> Packed | None:
    """Bytes as a JSON value."""
    if data is None:
        return None
    try:
        return data.decode()
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(data).decode()}


def unpack(packed: Packed | None) -> bytes | None:
    """What :func:`pack` packed."""
    if packed is None:
        return None
    return packed.encode() if isinstance(packed, str) else base64.b64decode(packed["base64"])
