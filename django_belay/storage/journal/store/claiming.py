"""Claims, leases, and taking back what ran out (§6)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import islice

from django_belay.contract.admission import (
    Limits,
    WindowUse,
    admit_under_global_limit,
    admit_under_rate,
    debit,
    window_start,
)
from django_belay.contract.job import Job, Lease
from django_belay.contract.outcome import apply_outcome, reclaim_outcome
from django_belay.storage.base import Claimed, ClaimRound, Demand, Reclaimed, Renewal

from . import moving
from .instants import ceil_ms
from .lane import count_by_key
from .row import Row, job_of
from .unit import Unit

#: An attempt at the column's bound stays there (rule 4).
LAST_ATTEMPT = 2**31 - 1


def claim(unit: Unit, round_: ClaimRound, demands: Sequence[Demand], limited: Sequence[str]) -> Claimed:
    """Contract: §6, plain; rules 12, 15, 17."""
    jobs: list[Job] = []
    for demand in demands:
        if demand.take > 0:
            rows = unit.view.lane(demand.queue).take(demand.take, unit.at)
            jobs += [job_of(_start(unit, row, round_)) for row in rows]
    claimable = [
        queue for queue in limited if queue in unit.view.lanes and unit.view.lanes[queue].has_due(unit.at)
    ]
    return Claimed(jobs=jobs, claimable=tuple(claimable))


def claim_limited(
    unit: Unit, round_: ClaimRound, demand: Demand, limits: Limits, local_limit: int
) -> list[Job]:
    """Contract: §6; rules 12-14."""
    take = _admitted(unit, demand, limits)
    if take <= 0:
        return []
    lane = unit.view.lane(demand.queue)
    if limits.partition is None:
        rows = lane.take(take, unit.at)
    else:
        per_key = limits.global_limit if limits.global_limit is not None else local_limit
        running = count_by_key(unit.view.live(demand.queue, unit.at), limits.partition)
        rows = lane.take_partitioned(limits.partition, take, unit.at, per_key=per_key, running=running)
    jobs = [job_of(_start(unit, row, round_)) for row in rows]
    if limits.rate is not None and jobs:
        rate = limits.rate
        debit_rate(unit, rate.bucket(demand.queue), amount=len(jobs) * rate.estimate, period_s=rate.period_s)
    return jobs


def _start(unit: Unit, row: Row, round_: ClaimRound) -> Row:
    mine = unit.edit(row)
    mine["state"] = "running"
    mine["attempt"] = min(row["attempt"], LAST_ATTEMPT - 1) + 1
    mine["lease_until"] = ceil_ms(round_.lease_until)
    mine["leased_by"] = round_.leased_by
    if row["started_at"] is None:
        mine["started_at"] = unit.at
    return mine


def _admitted(unit: Unit, demand: Demand, limits: Limits) -> int:
    """How many jobs the global limit and the rate admit; with a partition the limit caps each key."""
    take = demand.take
    if limits.global_limit is not None and limits.partition is None:
        running = len(unit.view.live(demand.queue, unit.at))
        take = admit_under_global_limit(limits.global_limit, running, demand=take)
    if limits.rate is not None:
        take = admit_under_rate(limits.rate, _use(unit, demand.queue, limits), demand=take, now=unit.now)
    return take


def _use(unit: Unit, queue: str, limits: Limits) -> WindowUse:
    assert limits.rate is not None
    bucket, period_s = limits.rate.bucket(queue), limits.rate.period_s
    window = window_start(unit.now, period_s)
    current, previous = (
        unit.table_row("rate", rate_key(bucket, start)) for start in (window, window - period_s)
    )
    return WindowUse(
        current=0 if current is None else current["count"],
        previous=0 if previous is None else previous["count"],
    )


def rate_key(bucket: str, window: int) -> str:
    """The key of a bucket's window."""
    return f"{bucket}\0{window}"


def debit_rate(unit: Unit, bucket: str, *, amount: int, period_s: int) -> None:
    """Add to the bucket's current window; a negative amount credits (§6)."""
    window = window_start(unit.now, period_s)
    key = rate_key(bucket, window)
    before = unit.table_row("rate", key)
    count = debit(0 if before is None else before["count"], amount)
    unit.put("rate", key, {"bucket": bucket, "window_start": window, "count": count})


def prune_rate(unit: Unit, *, older_than: datetime) -> int:
    """Delete counters of windows that began before; how many (§8.7)."""
    before = int(older_than.timestamp())
    old = [key for key, row in unit.table("rate") if row["window_start"] < before]
    for key in old:
        unit.drop("rate", key)
    return len(old)


# -- leases ---------------------------------------------------------------------


def renew(unit: Unit, leases: Sequence[Lease], until: datetime) -> Renewal:
    """Prolong leases, in memory alone: a lease is no promise that outlives its owner by much.

    Contract: §6; rules 15, 16.
    """
    renewed, lost = set(), set()
    until_ms = ceil_ms(until)
    for lease in leases:
        row = unit.view.open.get(lease.job_id)
        if row is not None and row["state"] == "running" and row["leased_by"] == lease.leased_by:
            unit.view.renew(row, until_ms)
            renewed.add(lease.job_id)
        else:
            lost.add(lease.job_id)
    # An id that was asked for under an older lease, too, is ours all the same.
    return Renewal(renewed=frozenset(renewed), lost=frozenset(lost - renewed))


def adopt(unit: Unit, leases: Sequence[Lease]) -> None:
    """Whose runs these are, told to an owner that took over while core jobs ran.

    Their records name no holder. A core job has been claimed once, so its attempt tells it.
    """
    for lease in leases:
        row = unit.view.open.get(lease.job_id)
        if row is None or row["state"] != "running" or row["leased_by"] is not None:
            continue
        if row["attempt"] == lease.attempt:
            unit.view.open[lease.job_id] = {**row, "leased_by": lease.leased_by}


@dataclass(slots=True, frozen=True)
class Expired:
    """A running job whose lease ran out, and what its delay is reckoned from."""

    job_id: int
    attempt: int


def find_expired(unit: Unit, *, limit: int) -> list[Expired]:
    """At most so many leases that ran out."""
    return [Expired(row["id"], row["attempt"]) for row in islice(unit.view.expired(unit.at), limit)]


def reclaim_one(unit: Unit, row: Row, delay: timedelta) -> Reclaimed:
    """Take back one lease that ran out, with full settlement (§6)."""
    outcome = reclaim_outcome(
        attempt=row["attempt"],
        max_attempts=row["max_attempts"],
        now=unit.now,
        ready_at=unit.now + delay,
    )
    holder = row["leased_by"]
    moving.change(unit, row, apply_outcome(outcome, now=unit.now, cancel_requested=row["cancel_requested"]))
    moving.conclude(unit)
    state = unit.get(row["id"])["state"]
    return Reclaimed(job_id=row["id"], kind=row["kind"], leased_by=holder, state=state)
