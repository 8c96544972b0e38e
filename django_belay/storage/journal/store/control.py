"""What an operator does to a job (§8.6, rules 5, 9, 34, 38)."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from django_belay.contract import names
from django_belay.contract.erasure import ERASED, ERASED_TEXT
from django_belay.contract.outcome import Cancelled, Changes, apply_outcome
from django_belay.contract.state import is_terminal, sources
from django_belay.storage.base import Controlled

from . import moving
from .row import Row
from .unit import Unit

NOT_FOUND = "not found"


# -- retry ----------------------------------------------------------------------


def retry(unit: Unit, job_ids: Sequence[int]) -> list[Controlled]:
    """Run ended jobs again; those with deps are held again and their workflows settled.

    Contract: §8.6; rules 9, 34.
    """
    answers: dict[int, Controlled] = {}
    taken: dict[str, int] = {}
    for job_id in job_ids:
        row = unit.find(job_id)
        if row is None:
            answers[job_id] = _missing(job_id)
        elif row["state"] not in sources("retry"):
            answers[job_id] = _refused(row)
        elif (holder := _key_holder(unit, row, taken)) is not None:
            answers[job_id] = Controlled(job_id=job_id, state=row["state"], reason=f"key held by {holder}")
        else:
            _retry(unit, row)
            if row["unique_mode"] == "incomplete" and row["unique_key"] is not None:
                taken[row["unique_key"]] = job_id
    moving.conclude(unit)
    return [answers.get(job_id) or _controlled(unit, job_id) for job_id in job_ids]


def _retry(unit: Unit, row: Row) -> None:
    is_held = bool(row["wf_deps"]) and row["workflow_id"] is not None
    # The await columns go: the new run has not seen a time-out.
    changes = Changes(state="held" if is_held else "ready", ready_at=unit.now, keep_await=False)
    moving.change(unit, row, changes)
    mine = unit.edit(row)
    mine["cancel_requested"] = False
    mine["max_attempts"] = max(mine["max_attempts"], min(mine["attempt"], 2**31 - 2) + 1)


def _key_holder(unit: Unit, row: Row, taken: dict[str, int]) -> int | None:
    key = row["unique_key"]
    if row["unique_mode"] != "incomplete" or key is None:
        return None
    return taken.get(key) or unit.view.open_keys.get(key)


# -- cancel ---------------------------------------------------------------------


def cancel(unit: Unit, job_ids: Sequence[int], *, reason: str) -> list[Controlled]:
    """Cancel jobs, or ask running ones to stop (§8.6)."""
    answers: dict[int, Controlled] = {}
    for job_id in job_ids:
        row = unit.find(job_id)
        if row is None:
            answers[job_id] = _missing(job_id)
        elif row["state"] == "running" and unit.memory.profile != "strict":
            unit.edit(row)["cancel_requested"] = True
            answers[job_id] = Controlled(job_id=job_id, state="running", requested=True)
        elif row["state"] not in sources("cancel") and row["state"] != "running":
            answers[job_id] = _refused(row)
        else:
            outcome = Cancelled(reason=reason)
            moving.change(unit, row, apply_outcome(outcome, now=unit.now, cancel_requested=False))
    moving.conclude(unit)
    return [answers.get(job_id) or _controlled(unit, job_id) for job_id in job_ids]


def tree_of(unit: Unit, job_id: int) -> list[int]:
    """The job, then its descendants that have not ended, through those that have (§8.6)."""
    found: set[int] = set()
    left = [job_id]
    while left:
        children = unit.view.children.get(left.pop())
        new = [] if children is None else [child for child in children.states if child not in found]
        found.update(new)
        left += new
    found.discard(job_id)
    return [job_id, *(one for one in sorted(found) if not _is_ended(unit, one))]


def _is_ended(unit: Unit, job_id: int) -> bool:
    state = unit.state_of(job_id)
    return state is None or is_terminal(state)


# -- one row --------------------------------------------------------------------


def reschedule(unit: Unit, job_id: int, *, ready_at: datetime) -> Controlled:
    """Ready: due then; awaiting: its deadline (rule 38)."""
    row = unit.find(job_id)
    if row is None or row["state"] not in ("ready", "awaiting"):
        return _missing(job_id) if row is None else _refused(row)
    unit.edit(row)["ready_at"] = unit.due(ready_at)
    if ready_at <= unit.now:
        unit.queues_due.add(row["queue"])
    return Controlled(job_id=job_id, state=row["state"])


def move(unit: Unit, job_id: int, *, queue: str | None, priority: int | None) -> Controlled:
    """Give a waiting job another queue or priority (rule 38)."""
    row = unit.find(job_id)
    if row is None or row["state"] not in ("ready", "awaiting", "held", "paused"):
        return _missing(job_id) if row is None else _refused(row)
    mine = unit.edit(row)
    if queue is not None:
        mine["queue"] = queue
    if priority is not None:
        mine["priority"] = priority
    if row["state"] in ("ready", "awaiting"):
        unit.queues_due.add(mine["queue"])
    return Controlled(job_id=job_id, state=row["state"])


def freeze(unit: Unit, job_id: int) -> Controlled:
    """A wait that timed out into ready is forgotten; one that still waits goes on later (rule 5)."""
    row = unit.find(job_id)
    if row is None or row["state"] not in sources("freeze"):
        return _missing(job_id) if row is None else _refused(row)
    mine = unit.edit(row)
    if row["state"] != "awaiting":
        mine["await_scope"] = mine["await_name"] = None
    mine["state"] = "paused"
    return Controlled(job_id=job_id, state="paused")


def unfreeze(unit: Unit, job_id: int) -> Controlled:
    """Back to ready, or to its wait unless its signal came meanwhile (rules 5, 23)."""
    row = unit.find(job_id)
    if row is None or row["state"] not in sources("unfreeze"):
        return _missing(job_id) if row is None else _refused(row)
    wait = moving.wait_of(unit, row)
    if wait is None:
        changes = Changes(state="ready", keep_ready_at=True)
    elif moving.is_signal_there(unit, wait):
        changes = Changes(state="ready", ready_at=unit.now, keep_await=False)
    else:
        changes = Changes(state="awaiting", keep_ready_at=True)
    moving.change(unit, row, changes)
    return _controlled(unit, job_id)


def erase_payload(unit: Unit, job_id: int) -> Controlled:
    """Everything of an ended job that its author or its user wrote; shape and numbers stay."""
    row = unit.find(job_id)
    if row is None or not is_terminal(row["state"]):
        return _missing(job_id) if row is None else _refused(row)
    mine = unit.edit(row)
    mine["input"] = dict(ERASED)
    mine["meta"] = dict(ERASED)
    if row["result"] is not None:
        mine["result"] = ERASED_TEXT
    mine["errors"] = [_erased(entry) for entry in row["errors"]] if isinstance(row["errors"], list) else []
    for key in list(unit.view.steps.get(job_id, {}).values()):
        step = unit.table_row("steps", key)
        if step is not None and step["value"] is not None:
            unit.put("steps", key, {**step, "value": ERASED_TEXT})
    for seq in range(1, unit.view.events.get(job_id, 0) + 1):
        event = unit.table_row("events", f"{job_id}/{seq}")
        if event is not None:
            unit.put("events", f"{job_id}/{seq}", {**event, "payload": dict(ERASED)})
    scope = names.job_scope(job_id)
    for key, signal in list(unit.table("signals")):
        if signal["scope"] == scope:
            unit.drop("signals", key)
    return Controlled(job_id=job_id, state=row["state"])


def _erased(entry: Any) -> dict[str, Any]:
    attempt = entry.get("attempt") if isinstance(entry, dict) else None
    is_number = isinstance(attempt, int | float) and not isinstance(attempt, bool)
    return {"error": "$erased", "attempt": attempt} if is_number else {"error": "$erased"}


# -- answers --------------------------------------------------------------------


def _controlled(unit: Unit, job_id: int) -> Controlled:
    return Controlled(job_id=job_id, state=unit.get(job_id)["state"])


def _refused(row: Row) -> Controlled:
    return Controlled(job_id=row["id"], state=row["state"], reason=f"state is {row['state']}")


def _missing(job_id: int) -> Controlled:
    return Controlled(job_id=job_id, state=None, reason=NOT_FOUND)
