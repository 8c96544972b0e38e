"""The journal of a job: memoized steps and what they cost (§8.2, rules 29, 30)."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from django_belay.contract.job import Standing, Step
from django_belay.exceptions import JobNotFound
from django_belay.storage.base import NewStep, StepWritten
from django_belay.storage.postgres.session import Session


def get_standing(session: Session, job_id: int) -> Standing:
    """The pre-flight re-read (§8.2)."""
    rows = session.run("get_standing", {"job_id": job_id})
    if not rows:
        raise JobNotFound(job_id)
    return _standing(rows[0])


def get_steps(session: Session, job_id: int) -> list[Step]:
    """By ``seq``."""
    return [_step(row) for row in session.run("get_steps", {"job_id": job_id})]


def find_step(session: Session, job_id: int, name: str) -> Step | None:
    rows = session.run("find_step", {"job_id": job_id, "name": name})
    return _step(rows[0]) if rows else None


def put_step(session: Session, job_id: int, step: NewStep, *, now: datetime) -> StepWritten:
    """Journal and charge in one round trip, in the session's transaction where one is open.

    Raises:
        JobNotFound: The job is gone; nothing was written (rule 30).
    """
    rows = session.run(
        "put_step",
        {
            "job_id": job_id,
            "name": step.name,
            "value": step.value,
            "usd_micros": step.usd_micros,
            "tokens": step.tokens,
            "now": now,
        },
    )
    if not rows:
        raise JobNotFound(job_id)
    inserted, value, is_seen, *standing = rows[0]
    if inserted:
        value = step.value
    elif not is_seen:
        # Committed by another run after this statement began; its snapshot is too old.
        found = find_step(session, job_id, step.name)
        value = None if found is None else found.value
    return StepWritten(value=value, inserted=inserted, standing=_standing(standing))


def _standing(row: Sequence[Any]) -> Standing:
    state, leased_by, cancel_requested, budget_usd, budget_tokens, spent_usd, spent_tokens = row
    return Standing(
        state=state,
        leased_by=leased_by,
        cancel_requested=cancel_requested,
        budget_usd_micros=budget_usd,
        budget_tokens=budget_tokens,
        spent_usd_micros=spent_usd,
        spent_tokens=spent_tokens,
    )


def _step(row: Sequence[Any]) -> Step:
    job_id, seq, name, value, usd_micros, tokens, inserted_at = row
    return Step(
        job_id=job_id,
        seq=seq,
        name=name,
        value=value,
        usd_micros=usd_micros,
        tokens=tokens,
        inserted_at=inserted_at,
    )
