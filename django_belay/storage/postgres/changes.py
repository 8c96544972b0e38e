"""Rows as a transition reads them, and the changes that it writes (§7)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from django_belay.contract.error_entry import storable_entry
from django_belay.contract.job import JSON
from django_belay.contract.outcome import Changes
from django_belay.contract.state import State
from django_belay.storage.postgres.rows import json_text
from django_belay.storage.postgres.session import Transaction


@dataclass(slots=True)
class JobRow:
    """The columns of a job that decide a transition, in the order of look_rows and lock_rows."""

    id: int
    state: State
    attempt: int
    max_attempts: int
    leased_by: str | None
    lease_until: datetime | None
    ready_at: datetime | None
    cancel_requested: bool
    queue: str
    workflow_id: str | None
    wf_name: str | None
    has_deps: bool
    parent_id: int | None
    await_scope: str | None
    await_name: str | None
    unique_key: str | None
    unique_mode: str | None


def look(transaction: Transaction, ids: Sequence[int]) -> dict[int, JobRow]:
    """Rows as they are now, without a lock: what chooses the locks (rule 19)."""
    return _by_id(transaction.run("look_rows", {"ids": list(ids)}))


def lock_rows(
    transaction: Transaction, ids: Sequence[int], *, parents: Sequence[int] = (), scopes: Sequence[str] = ()
) -> dict[int, JobRow]:
    """Lock rows in id order, and with them whoever waits for ``$children`` of ``parents``."""
    params = {"ids": list(ids), "parents": list(parents), "scopes": list(scopes)}
    return _by_id(transaction.run("lock_rows", params))


def apply(transaction: Transaction, changes: Mapping[int, Changes]) -> None:
    """Write column effects to rows that this transaction has locked."""
    if not changes:
        return
    ordered = list(changes.values())
    transaction.run(
        "apply_changes",
        {
            "ids": list(changes),
            "states": [change.state for change in ordered],
            "attempt_deltas": [change.attempt_delta for change in ordered],
            "ready_ats": [change.ready_at for change in ordered],
            "keep_ready_ats": [change.keep_ready_at for change in ordered],
            "results": [change.result for change in ordered],
            "errors": [error_text(change.error) for change in ordered],
            "finished_ats": [change.finished_at for change in ordered],
            "await_scopes": [change.await_scope for change in ordered],
            "await_names": [change.await_name for change in ordered],
            "keep_awaits": [change.keep_await for change in ordered],
        },
    )


def error_text(entry: Mapping[str, JSON] | None) -> str | None:
    """An entry of ``errors`` as ``jsonb`` takes it, whatever it holds (rule 25)."""
    return None if entry is None else json_text(storable_entry(entry))


def _by_id(rows: Sequence[tuple[object, ...]]) -> dict[int, JobRow]:
    found = (JobRow(*row) for row in rows)  # type: ignore[arg-type]
    return {row.id: row for row in found}
