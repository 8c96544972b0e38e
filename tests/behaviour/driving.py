"""Short forms for tests that drive jobs through a storage."""

from __future__ import annotations

import itertools
from datetime import datetime, timedelta
from typing import Any

from django_belay.contract.job import Job, Lease, NewJob
from django_belay.contract.names import job_scope, read_scopes
from django_belay.contract.outcome import Awaiting, Outcome, Succeeded
from django_belay.storage.base import Ack, AckResult, ClaimRound, Demand, Storage
from django_belay.testing.clock import SimClock

LEASE_TTL = timedelta(seconds=30)

_rounds = itertools.count(1)


def add(store: Storage, clock: SimClock, count: int = 1, **fields: Any) -> list[int]:
    """Insert equal jobs; their ids."""
    jobs = [NewJob(**{"kind": "k", **fields}) for _ in range(count)]
    return [inserted.job_id for inserted in store.insert_jobs(jobs, now=clock.now())]


def claim(store: Storage, clock: SimClock, count: int = 100, *, queue: str = "default") -> list[Job]:
    """Claim up to ``count`` jobs in a round of its own, by id."""
    now = clock.now()
    round_ = ClaimRound(leased_by=f"node:1:{next(_rounds)}", lease_until=now + LEASE_TTL)
    claimed = store.claim(round_, demands=[Demand(queue=queue, take=count)], now=now)
    return sorted(claimed.jobs, key=lambda job: job.id)


def claim_one(store: Storage, clock: SimClock, *, queue: str = "default") -> Job:
    [job] = claim(store, clock, 1, queue=queue)
    return job


def running(store: Storage, clock: SimClock, count: int = 1, **fields: Any) -> list[Job]:
    """Insert equal jobs and claim them."""
    ids = add(store, clock, count, **{"queue": "running", **fields})
    jobs = claim(store, clock, count, queue=fields.get("queue", "running"))
    assert [job.id for job in jobs] == ids
    return jobs


def ack_of(job: Job, outcome: Outcome | None = None, *enqueue: NewJob) -> Ack:
    return Ack(lease=Lease.of(job), outcome=outcome or Succeeded(), enqueue=enqueue)


def end(store: Storage, clock: SimClock, job: Job, outcome: Outcome | None = None) -> AckResult:
    return store.ack(ack_of(job, outcome), now=clock.now())


def wait(
    job: Job,
    name: str = "go",
    *,
    scope: str | None = None,
    deadline: datetime | None = None,
    newer_than: datetime | None = None,
) -> Awaiting:
    """The park of a job on a signal, reading every scope that it has."""
    return Awaiting(
        scope=job_scope(job.id) if scope is None else scope,
        name=name,
        read_scopes=read_scopes(job.id, job.workflow_id, scope),
        deadline=deadline,
        newer_than=newer_than,
    )


def states(store: Storage, ids: list[int]) -> list[str]:
    return [store.get_job(job_id).state for job_id in ids]
