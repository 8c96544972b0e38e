"""Signals: an inbox of latest payloads (§8.1, rules 23, 27)."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from django_belay.contract.job import Lease, Signal
from django_belay.contract.names import CHILDREN_SIGNAL, job_of_scope
from django_belay.exceptions import JobNotFound

from . import job_journal, moving
from .instants import floor_ms, to_instant
from .unit import Unit


def find_signal(
    unit: Unit, scopes: Sequence[str], name: str, *, newer_than: datetime | None
) -> Signal | None:
    """Of the first scope, in the given order, that has one."""
    after = None if newer_than is None else floor_ms(newer_than)
    for scope in scopes:
        row = unit.table_row("signals", moving.signal_key(scope, name))
        if row is not None and (after is None or row["inserted_at"] > after):
            return _signal(row)
    return None


def list_signals(unit: Unit, scope: str) -> list[Signal]:
    """By name."""
    found = [_signal(row) for _, row in unit.table("signals") if row["scope"] == scope]
    return sorted(found, key=lambda signal: signal.name)


def check_target(unit: Unit, scope: str, *, to_job: bool) -> None:
    """Raises ``JobNotFound`` for a signal to a job that is gone."""
    job_id = job_of_scope(scope) if to_job else None
    if to_job and (job_id is None or not unit.has(job_id)):
        raise JobNotFound(job_id or 0)


def clear(unit: Unit, scope: str, name: str) -> bool:
    """Whether there was one."""
    key = moving.signal_key(scope, name)
    if unit.table_row("signals", key) is None:
        return False
    unit.drop("signals", key)
    return True


def clear_in_run(unit: Unit, lease: Lease, scope: str, name: str, *, step: str | None) -> bool | None:
    """Whether there was one; ``None`` when the lease is lost or the step stands already (rules 15, 30)."""
    row = unit.view.open.get(lease.job_id)
    if row is None or row["state"] != "running" or row["leased_by"] != lease.leased_by:
        return None
    if step is not None and job_journal.find_step(unit, lease.job_id, step) is not None:
        return None
    was_there = clear(unit, scope, name)
    if step is not None:
        job_journal.note_step(unit, lease.job_id, step, b"true" if was_there else b"false")
    return was_there


def resettle(unit: Unit, *, limit: int) -> int:
    """Wake jobs whose signal is there (§8.4, R2); how many.

    No wake is ever lost here; a store that another writer left may still hold such a job.
    """
    woken = 0
    waiting = sorted({job_id for found in unit.view.waiting.values() for job_id in found})
    for job_id in waiting:
        row = unit.view.open[job_id]
        wait = moving.wait_of(unit, row)
        if wait is not None and moving.is_signal_there(unit, wait):
            moving.change(unit, row, moving.woken(unit))
            woken += 1
            if woken == limit:
                break
    return woken


def resettle_parents(unit: Unit, *, limit: int) -> int:
    """Wake jobs that wait for ``$children`` with no incomplete child left (§8.4, R2)."""
    woken = 0
    for parent_id, children in sorted(unit.view.children.items()):
        row = unit.view.open.get(parent_id)
        if row is None or children.open or row["state"] != "awaiting":
            continue
        if row["await_name"] != CHILDREN_SIGNAL:
            continue
        moving.change(unit, row, moving.woken(unit))
        woken += 1
        if woken == limit:
            break
    return woken


def prune(unit: Unit, *, older_than: datetime, limit: int) -> int:
    """Delete the oldest signals that were kept long enough (§8.7); how many."""
    before = floor_ms(older_than)
    old = sorted(
        (row["inserted_at"], key) for key, row in unit.table("signals") if row["inserted_at"] <= before
    )
    for _, key in old[:limit]:
        unit.drop("signals", key)
    return len(old[:limit])


def _signal(row: dict[str, Any]) -> Signal:
    return Signal(
        scope=row["scope"],
        name=row["name"],
        payload=row["payload"],
        inserted_at=to_instant(row["inserted_at"]),
    )
