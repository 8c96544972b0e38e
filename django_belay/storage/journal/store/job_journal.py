"""The journal of a job: memoized steps with what they cost, and its stream of events (§8.2, §3)."""

from __future__ import annotations

from typing import Any

from django_belay.contract.job import JSON, Event, Standing, Step
from django_belay.exceptions import JobNotFound
from django_belay.storage.base import NewStep, StepWritten

from .instants import to_instant
from .row import Row, pack, unpack
from .unit import Unit


def standing_of(row: Row) -> Standing:
    """The pre-flight re-read (§8.2)."""
    return Standing(
        state=row["state"],
        leased_by=row["leased_by"],
        cancel_requested=row["cancel_requested"],
        budget_usd_micros=row["budget_usd_micros"],
        budget_tokens=row["budget_tokens"],
        spent_usd_micros=row["spent_usd_micros"],
        spent_tokens=row["spent_tokens"],
    )


def get_steps(unit: Unit, job_id: int) -> list[Step]:
    """By ``seq``."""
    rows = (unit.table_row("steps", key) for key in unit.view.steps.get(job_id, {}).values())
    return sorted((_step(row) for row in rows if row is not None), key=lambda step: step.seq)


def find_step(unit: Unit, job_id: int, name: str) -> Step | None:
    """The step of that name."""
    key = unit.view.steps.get(job_id, {}).get(name)
    row = None if key is None else unit.table_row("steps", key)
    return None if row is None else _step(row)


def put_step(unit: Unit, job_id: int, step: NewStep) -> StepWritten:
    """Journal and charge together; the first value of a name stays, a body that ran twice is charged twice.

    Raises:
        JobNotFound: The job is gone; nothing was written (rule 30).

    Contract: §8.2; rules 29, 30.
    """
    row = unit.get(job_id)
    if step.usd_micros or step.tokens:
        row = unit.edit(row)
        row["spent_usd_micros"] += step.usd_micros
        row["spent_tokens"] += step.tokens
    there = find_step(unit, job_id, step.name)
    if there is not None:
        return StepWritten(value=there.value, inserted=False, standing=standing_of(row))
    _add_step(unit, job_id, step)
    return StepWritten(value=step.value, inserted=True, standing=standing_of(row))


def note_step(unit: Unit, job_id: int, name: str, value: bytes) -> None:
    """Journal a step that is not there and costs nothing."""
    _add_step(unit, job_id, NewStep(name=name, value=value))


def _add_step(unit: Unit, job_id: int, step: NewStep) -> None:
    # Steps of a job are only ever pruned together, so their count is their highest number.
    seq = len(unit.view.steps.get(job_id, {})) + 1
    unit.put(
        "steps",
        f"{job_id}/{seq}",
        {
            "job_id": job_id,
            "seq": seq,
            "name": step.name,
            "value": pack(step.value),
            "usd_micros": step.usd_micros,
            "tokens": step.tokens,
            "inserted_at": unit.at,
        },
    )


def append_event(unit: Unit, job_id: int, payload: JSON) -> int:
    """The event's ``seq``. Raises ``JobNotFound`` (rule 30)."""
    if not unit.has(job_id):
        raise JobNotFound(job_id)
    seq = unit.view.events.get(job_id, 0) + 1
    row = {"job_id": job_id, "seq": seq, "payload": payload, "inserted_at": unit.at}
    unit.put("events", f"{job_id}/{seq}", row)
    return seq


def list_events(unit: Unit, job_id: int, *, after: int, limit: int) -> list[Event]:
    """By ``seq``, from the one after ``after`` on."""
    last = unit.view.events.get(job_id, 0)
    numbers = range(max(after, 0) + 1, min(last, max(after, 0) + limit) + 1)
    rows = (unit.table_row("events", f"{job_id}/{seq}") for seq in numbers)
    return [
        Event(
            job_id=job_id,
            seq=row["seq"],
            payload=row["payload"],
            inserted_at=to_instant(row["inserted_at"]),
        )
        for row in rows
        if row is not None
    ]


def _step(row: dict[str, Any]) -> Step:
    return Step(
        job_id=row["job_id"],
        seq=row["seq"],
        name=row["name"],
        value=unpack(row["value"]),
        usd_micros=row["usd_micros"],
        tokens=row["tokens"],
        inserted_at=to_instant(row["inserted_at"]),
    )
