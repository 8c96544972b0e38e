"""A job's append-only stream (§3, rules 30, 37)."""

from __future__ import annotations

from datetime import datetime

from django_belay.contract.job import JSON, Event
from django_belay.exceptions import Contended, JobNotFound
from django_belay.storage.postgres.rows import json_text
from django_belay.storage.postgres.session import Session

# Each turn means that another append of the same job went first.
MAX_TURNS = 100


def append_event(session: Session, job_id: int, payload: JSON, *, now: datetime) -> int:
    """The event's ``seq``; asks again when another append took the number (rule 37).

    Raises:
        JobNotFound: The job is gone; nothing was written (rule 30).
    """
    params = {"job_id": job_id, "payload": json_text(payload), "now": now}
    for _ in range(MAX_TURNS):
        rows = session.run("append_event", params)
        if not rows:
            raise JobNotFound(job_id)
        if rows[0][0] is not None:
            return int(rows[0][0])
    raise Contended(f"job {job_id}: {MAX_TURNS} times another event took the number of this one")


def list_events(session: Session, job_id: int, *, after: int, limit: int) -> list[Event]:
    """By ``seq``, from the one after ``after`` on."""
    rows = session.run("list_events", {"job_id": job_id, "after": after, "limit": limit})
    return [Event(job_id=row[0], seq=row[1], payload=row[2], inserted_at=row[3]) for row in rows]
