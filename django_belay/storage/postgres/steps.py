"""The journal of a job: memoized steps and what they cost (§8.2, rules 29, 30)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django_belay.contract.job import Standing, Step
from django_belay.exceptions import JobNotFound
from django_belay.storage.base import NewStep, StepWritten
from django_belay.storage.postgres.combining import Alone, Combiner
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


def get_short_journals(session: Session, job_ids: Sequence[int]) -> dict[int, list[Step]]:
    """Those of jobs with at most 16 steps of at most 4 KiB: a claim's journals are held in memory at once."""
    found: dict[int, list[Step]] = {job_id: [] for job_id in job_ids}
    for *row, is_long in session.run("get_short_journals", {"job_ids": list(job_ids)}):
        if is_long:
            found.pop(row[0], None)
        elif (steps := found.get(row[0])) is not None:
            steps.append(_step(row))
    return found


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


# -- many at once -------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Write:
    """A free step of one job."""

    job_id: int
    step: NewStep
    now: datetime


def standings(session: Session) -> Combiner[int, Standing]:
    """Reads standings for the threads of a process."""

    def many(job_ids: Sequence[int]) -> list[Standing | Exception]:
        rows = session.run("get_standings", {"job_ids": list(job_ids)})
        found = {row[0]: _standing(row[1:]) for row in rows}
        return [found.get(job_id) or JobNotFound(job_id) for job_id in job_ids]

    return Combiner(lambda job_id: get_standing(session, job_id), many, key=lambda job_id: job_id)


def journals(session: Session) -> Combiner[int, list[Step]]:
    """Reads the steps of resumed jobs for the threads of a process."""

    def many(job_ids: Sequence[int]) -> list[list[Step] | Exception]:
        found: dict[int, list[Step]] = {job_id: [] for job_id in job_ids}
        for row in session.run("get_steps_of", {"job_ids": list(job_ids)}):
            found[row[0]].append(_step(row))
        return [found[job_id] for job_id in job_ids]

    return Combiner(lambda job_id: get_steps(session, job_id), many, key=lambda job_id: job_id)


def writes(session: Session) -> Combiner[Write, StepWritten]:
    """Writes free steps of different jobs for the threads of a process."""
    return Combiner(
        lambda one: put_step(session, one.job_id, one.step, now=one.now),
        lambda some: _put_steps(session, some),
        key=lambda one: one.job_id,
    )


def _put_steps(session: Session, some: Sequence[Write]) -> list[StepWritten | Exception]:
    rows = session.run(
        "put_steps",
        {
            "job_ids": [one.job_id for one in some],
            "names": [one.step.name for one in some],
            "values": [one.step.value for one in some],
            "nows": [one.now for one in some],
        },
    )
    # What is not among the rows is held by somebody, or gone: put_step waits for it, or says so.
    answers: list[StepWritten | Exception] = [Alone() for _ in some]
    for n, inserted, value, is_seen, *standing in rows:
        one = some[n - 1]
        if inserted:
            value = one.step.value
        elif not is_seen:
            # Committed by another run after this statement began; its snapshot is too old.
            found = find_step(session, one.job_id, one.step.name)
            value = None if found is None else found.value
        answers[n - 1] = StepWritten(value=value, inserted=inserted, standing=_standing(standing))
    return answers


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
