"""What is in the storage, whichever it is: read through the client."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from django_belay import client
from django_belay.contract.job import Job


def rows(**where: Any) -> list[Job]:
    """The jobs that fit, oldest first; keywords are those of ``client.list_jobs``."""
    return [handle.job for handle in client.list_jobs(**where, limit=10_000)][::-1]


def get_row(job_id: int) -> Job:
    """One job."""
    return client.get_row(job_id)


def count(**where: Any) -> int:
    """How many jobs fit."""
    return len(rows(**where))


def is_at(found: datetime | None, wanted: datetime) -> bool:
    """Whether an instant is that one, as far as a storage that counts milliseconds can tell."""
    return found is not None and abs(found - wanted) <= timedelta(milliseconds=1)
