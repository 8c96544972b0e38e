"""How jobs move: column effects, settlement, parents told, all in one unit (§7, §8.3, §8.4).

The owner applies one operation after the other, so the locks of rule 19 have nothing to guard here;
what they guard on PostgreSQL is decided by the same functions.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence, Set
from dataclasses import replace
from datetime import datetime

from django_belay.contract import names
from django_belay.contract.error_entry import storable_entry, with_entry
from django_belay.contract.job import JSON
from django_belay.contract.outcome import Awaiting, Changes
from django_belay.contract.settlement import DOOMED, Member, Settlement, settle
from django_belay.contract.state import is_terminal
from django_belay.contract.wait_record import latest_newer_than

from .instants import floor_ms
from .row import Row, pack, unpack
from .unit import Unit
from .view import Workflow, waits_of

Decide = Callable[[Row, bool], Changes | None]


def change(unit: Unit, row: Row, changes: Changes) -> None:
    """Write column effects, and note what they bring about; :func:`conclude` sees to that."""
    mine = unit.edit(row)
    mine["state"] = changes.state
    mine["lease_until"] = mine["leased_by"] = None
    mine["attempt"] = row["attempt"] + changes.attempt_delta
    if not changes.keep_ready_at:
        mine["ready_at"] = unit.due(changes.ready_at)
    if changes.state == "succeeded":
        mine["result"] = pack(changes.result)
    if changes.error is not None:
        errors = row["errors"] if isinstance(row["errors"], list) else [row["errors"]]
        mine["errors"] = with_entry(errors, storable_entry(changes.error))
    mine["finished_at"] = None if changes.finished_at is None else floor_ms(changes.finished_at)
    if not changes.keep_await:
        mine["await_scope"], mine["await_name"] = changes.await_scope, changes.await_name
    if changes.state == "ready" and (mine["ready_at"] is None or mine["ready_at"] <= unit.at):
        unit.queues_due.add(mine["queue"])
    if is_terminal(changes.state):
        unit.ended.append(row["id"])
    elif changes.state == "held":
        unit.reheld.append(row["id"])


def conclude(unit: Unit) -> None:
    """Settle the workflows of what ended or is held again, then tell the parents (§8.3, §8.4)."""
    _settle_changed(unit)
    parents = {unit.rows[job_id]["parent_id"] for job_id in unit.ended}
    for parent_id in sorted(parent for parent in parents if parent is not None):
        deliver(unit, names.job_scope(parent_id), names.CHILDREN_SIGNAL, {})


# -- signals --------------------------------------------------------------------


def signal_key(scope: str, name: str) -> str:
    """The key of a signal's row: no text that PostgreSQL takes holds a NUL."""
    return f"{scope}\0{name}"


def write_signal(unit: Unit, scope: str, name: str, payload: JSON) -> None:
    """Upsert; a payload is always newer than the one it replaces, whatever the clocks say (rule 27)."""
    before = unit.table_row("signals", signal_key(scope, name))
    at = unit.at if before is None else max(unit.at, before["inserted_at"] + 1)
    row = {"scope": scope, "name": name, "payload": payload, "inserted_at": at}
    unit.put("signals", signal_key(scope, name), row)


def deliver(unit: Unit, scope: str, name: str, payload: JSON) -> list[int]:
    """Upsert a signal and wake whoever waits for it; their ids.

    Contract: §8.1; rule 23.
    """
    write_signal(unit, scope, name, payload)
    return wake(unit, scope, name)


def wake(unit: Unit, scope: str, name: str) -> list[int]:
    """Wake whoever waits for a name on a scope; their ids, ascending."""
    known: Set[int] = unit.view.waiting.get((scope, name), frozenset())
    parked_now = {job_id for job_id, row in unit.rows.items() if row["state"] == "awaiting"}
    found = []
    for job_id in sorted({*known, *parked_now}):
        row = unit.find(job_id)
        if row is not None and row["state"] == "awaiting" and (scope, name) in waits_of(row):
            change(unit, row, woken(unit))
            found.append(job_id)
    return found


def woken(unit: Unit) -> Changes:
    """What waking does to a row (§8.1)."""
    return Changes(state="ready", ready_at=unit.now, keep_await=False)


def is_signal_there(unit: Unit, park: Awaiting) -> bool:
    """Whether a park finds its signal (§7, rules 23, 27)."""
    newer_than = None if park.newer_than is None else floor_ms(park.newer_than)
    for scope in {park.scope, *park.read_scopes}:
        row = unit.table_row("signals", signal_key(scope, park.name))
        if row is not None and (newer_than is None or row["inserted_at"] > newer_than):
            return True
    return False


def wait_of(unit: Unit, row: Row) -> Awaiting | None:
    """The wait that a row's await columns tell of, as its park check saw it."""
    name, scope = row["await_name"], row["await_scope"]
    if name is None:
        return None
    return Awaiting(
        scope=names.job_scope(row["id"]) if scope is None else scope,
        name=name,
        read_scopes=names.read_scopes(row["id"], row["workflow_id"], scope),
        newer_than=newer_than_of(unit, row["id"], name),
    )


def newer_than_of(unit: Unit, job_id: int, name: str) -> datetime | None:
    """The instant that a payload must pass to wake the job's current wait (rules 23, 27)."""
    keys = unit.view.steps.get(job_id, {})
    rows = ((step, unit.table_row("steps", key)) for step, key in keys.items() if step.startswith("$await:"))
    return latest_newer_than(name, ((step, unpack(row["value"])) for step, row in rows if row is not None))


# -- settlement -----------------------------------------------------------------


def _settle_changed(unit: Unit) -> None:
    reheld = {unit.rows[job_id]["workflow_id"] for job_id in unit.reheld}
    for workflow_id in sorted(one for one in reheld if one is not None):
        settle_workflow(unit, workflow_id)
    ended = deque(unit.ended)
    while ended:
        row = unit.rows[ended.popleft()]
        if row["workflow_id"] is None or row["wf_name"] is None or row["workflow_id"] in reheld:
            continue
        settlement = _settle_dependents(unit, row["workflow_id"], row["wf_name"])
        ended.extend(_apply(unit, settlement))


def settle_workflow(unit: Unit, workflow_id: str) -> int:
    """Settle a workflow as a whole; how many of its members changed."""
    members = dict(_members(unit, workflow_id))
    settlement = settle(members.values())
    _apply(unit, settlement)
    return len(settlement.releases) + len(settlement.dooms)


def resettle(unit: Unit, workflow_id: str) -> int:
    """Settle a workflow whatever happened to it; how many of its members changed (§11, R2)."""
    changed = settle_workflow(unit, workflow_id)
    conclude(unit)
    return changed


def _members(unit: Unit, workflow_id: str) -> Iterable[tuple[int, Member]]:
    workflow = unit.view.workflows.get(workflow_id, Workflow())
    ids = {
        *workflow.states,
        *(job_id for job_id, row in unit.rows.items() if row["workflow_id"] == workflow_id),
    }
    return ((job_id, _member(unit, workflow, job_id)) for job_id in ids)


def _member(unit: Unit, workflow: Workflow, job_id: int) -> Member:
    row = unit.rows.get(job_id) or unit.view.open.get(job_id)
    if row is None:
        name, state = workflow.names[job_id], workflow.states[job_id]
        return Member(job_id=job_id, name=_name(job_id, name), state=state)
    is_held = row["state"] == "held"
    return Member(
        job_id=job_id,
        name=_name(job_id, row["wf_name"]),
        state=row["state"],
        deps=tuple(row["wf_deps"]) if is_held else (),
        ignore=tuple(row["wf_ignore"]) if is_held else (),
    )


def _name(job_id: int, name: str | None) -> str:
    # A member without a name is nobody's dep.
    return f"\0{job_id}" if name is None else name


def _settle_dependents(unit: Unit, workflow_id: str, ended: str) -> Settlement:
    """What the end of one member does to those that name it: nobody else can move by it.

    Reads those and their deps, not the workflow: a batch of 10,000 ends in linear time. What a doom
    does to others in turn is asked again with that name.
    """
    workflow = unit.view.workflows.get(workflow_id)
    if workflow is None:
        return Settlement()
    waiting = (
        unit.rows.get(job_id) or unit.view.open[job_id] for job_id in workflow.dependents.get(ended, ())
    )
    held = [row for row in waiting if row["state"] == "held" and _may_move(unit, workflow, row, ended)]
    members = {row["id"]: _member(unit, workflow, row["id"]) for row in held}
    for row in held:
        for dep in row["wf_deps"]:
            newest = workflow.newest.get(dep)
            if newest is not None and newest not in members:
                members[newest] = replace(_member(unit, workflow, newest), deps=())
    found = settle(members.values())
    return Settlement(
        releases=tuple(row["id"] for row in held if row["id"] in found.releases),
        dooms=tuple(row["id"] for row in held if row["id"] in found.dooms),
    )


def _may_move(unit: Unit, workflow: Workflow, held: Row, ended: str) -> bool:
    """Whether a held member is released or doomed by this end, told without reading all its deps.

    While another dep is open it can only be doomed, and only by this one.
    """
    newest = workflow.newest.get(ended)
    state = None if newest is None else unit.state_of(newest)
    if state in ("failed", "cancelled") and state not in held["wf_ignore"]:
        return True
    last = workflow.open_deps.get(held["id"])
    if last is not None and _is_open(unit, workflow, last):
        return False  # most likely the one that was open last time still is
    found = next((dep for dep in reversed(held["wf_deps"]) if _is_open(unit, workflow, dep)), None)
    if found is None:
        workflow.open_deps.pop(held["id"], None)
        return True
    workflow.open_deps[held["id"]] = found
    return False


def _is_open(unit: Unit, workflow: Workflow, name: str) -> bool:
    newest = workflow.newest.get(name)
    state = None if newest is None else unit.state_of(newest)
    return state is not None and not is_terminal(state)


def _apply(unit: Unit, settlement: Settlement) -> Sequence[int]:
    for job_id in settlement.releases:
        row = unit.get(job_id)
        # A release keeps the instant that the member was scheduled for.
        change(unit, row, Changes(state="ready", keep_ready_at=True))
    for job_id in settlement.dooms:
        row = unit.get(job_id)
        doom = Changes(state="cancelled", keep_ready_at=True, error={"reason": DOOMED}, finished_at=unit.now)
        change(unit, row, doom)
    return settlement.dooms
