"""Rows that are set at run time: queues, crons and their slots (§3, §8.5; rules 2, 35)."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from django_belay.contract.job import JSON, NewJob
from django_belay.storage.base import CronRow, Inserted, QueueRow

from .inserting import Inserter
from .instants import floor_ms, to_instant
from .unit import Unit

# -- queues


def put_queue(unit: Unit, name: str, opts: JSON) -> None:
    """Write a queue's row; its pauses stay."""
    unit.put("queues", name, {**_queue(unit, name), "opts": opts, "updated_at": unit.at})


def delete_queue(unit: Unit, name: str) -> bool:
    """Forget what was set about a queue, its pauses included; whether there was anything."""
    row = unit.table_row("queues", name)
    if row is None:
        return False
    unit.drop("queues", name)
    return _says_anything(row)


def list_queues(unit: Unit) -> list[QueueRow]:
    """By name; one that is only paused has empty ``opts``."""
    return [
        QueueRow(
            name=name,
            opts={} if row["opts"] is None else row["opts"],
            paused=row["paused"],
            paused_nodes=tuple(row["paused_nodes"]),
            updated_at=to_instant(row["updated_at"]),
        )
        for name, row in unit.table("queues")
        if _says_anything(row)
    ]


def _says_anything(row: dict[str, Any]) -> bool:
    return row["opts"] is not None or row["paused"] or bool(row["paused_nodes"])


def pause_queue(unit: Unit, name: str, node: str | None) -> None:
    """Pause a queue for every node, or for one."""
    before = _queue(unit, name)
    nodes = before["paused_nodes"] if node is None else sorted({*before["paused_nodes"], node})
    paused = before["paused"] or node is None
    unit.put("queues", name, {**before, "paused": paused, "paused_nodes": nodes, "updated_at": unit.at})


def resume_queue(unit: Unit, name: str, node: str | None) -> None:
    """Take back the pause for every node, or the one for this node."""
    before = _queue(unit, name)
    nodes = [one for one in before["paused_nodes"] if one != node]
    paused = before["paused"] and node is not None
    unit.put("queues", name, {**before, "paused": paused, "paused_nodes": nodes, "updated_at": unit.at})


def _queue(unit: Unit, name: str) -> dict[str, Any]:
    found = unit.table_row("queues", name)
    return {"opts": None, "paused": False, "paused_nodes": []} if found is None else found


# -- crons


def put_cron(unit: Unit, cron: CronRow) -> None:
    """Write an entry's row."""
    unit.put(
        "crons",
        cron.name,
        {
            "expression": cron.expression,
            "kind": cron.kind,
            "input": cron.input,
            "opts": cron.opts,
            "paused": cron.paused,
            "timezone": cron.timezone,
            "catch_up": cron.catch_up,
            "updated_at": unit.at,
        },
    )


def delete_cron(unit: Unit, name: str) -> bool:
    """Whether there was one."""
    if unit.table_row("crons", name) is None:
        return False
    unit.drop("crons", name)
    return True


def list_crons(unit: Unit) -> list[CronRow]:
    """By name."""
    return [
        CronRow(
            name=name,
            expression=row["expression"],
            kind=row["kind"],
            input=row["input"],
            opts=row["opts"],
            paused=row["paused"],
            timezone=row["timezone"],
            catch_up=row["catch_up"],
            updated_at=to_instant(row["updated_at"]),
        )
        for name, row in unit.table("crons")
    ]


def set_cron_paused(unit: Unit, name: str, *, paused: bool) -> bool:
    """Whether the entry has a row to pause."""
    row = unit.table_row("crons", name)
    if row is None:
        return False
    unit.put("crons", name, {**row, "paused": paused, "updated_at": unit.at})
    return True


# -- slots


def last_cron_slots(unit: Unit) -> dict[str, datetime]:
    """The newest slot of each entry that was fired, remembered or still seen on a job."""
    newest = {name: row["slot"] for name, row in unit.table("slots")}
    for name, slot in unit.view.slots:
        newest[name] = max(slot, newest.get(name, slot))
    return {name: to_instant(slot) for name, slot in newest.items()}


def fire_cron(unit: Unit, job: NewJob) -> Inserted | None:
    """Insert an entry's job and remember its slot together; ``None`` when it was fired before.

    A job whose unique key is held counts as fired: the answer is its holder.

    Contract: §8.5; rule 35.
    """
    assert job.cron_name is not None
    assert job.cron_slot is not None
    slot = floor_ms(job.cron_slot)
    before = unit.table_row("slots", job.cron_name)
    if before is not None and before["slot"] >= slot:
        return None
    unit.put("slots", job.cron_name, {"slot": slot, "fired_at": unit.at})
    [inserted] = Inserter(unit).insert([job])
    if inserted.duplicate and unit.view.slots.get((job.cron_name, slot)) == inserted.job_id:
        return None
    return inserted
