"""A worker by hand: claims and ends jobs over the client's own connection."""

from __future__ import annotations

from datetime import datetime, timedelta

from django.utils import timezone

from django_belay.contract.job import Job, Lease
from django_belay.contract.outcome import Awaiting, Outcome
from django_belay.db import storage_for_client
from django_belay.storage.base import Ack, AckResult, ClaimRound, Demand, Storage


def storage() -> Storage:
    """The storage over this thread's Django connection."""
    return storage_for_client().storage


def claim(queue: str = "default", *, take: int = 10, now: datetime | None = None) -> list[Job]:
    """Claim jobs of a queue."""
    at = now or timezone.now()
    round_ = ClaimRound(leased_by="tests:1:1", lease_until=at + timedelta(seconds=30))
    return storage().claim(round_, demands=[Demand(queue=queue, take=take)], now=at).jobs


def end(job: Job, outcome: Outcome) -> AckResult:
    """End a claimed job."""
    return storage().ack(Ack(lease=Lease.of(job), outcome=outcome), now=timezone.now())


def run(outcome: Outcome, queue: str = "default") -> Job:
    """Claim the next job and end it so."""
    (job,) = claim(queue, take=1)
    end(job, outcome)
    return job


def park(name: str, queue: str = "default") -> Job:
    """Claim the next job and park it on a signal of its own scope."""
    (job,) = claim(queue, take=1)
    scope = f"job:{job.id}"
    end(job, Awaiting(scope=scope, name=name, read_scopes=(scope,)))
    return job
