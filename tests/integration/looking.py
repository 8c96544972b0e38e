"""What is in the storage, whichever it is: read through the client."""

from __future__ import annotations

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
