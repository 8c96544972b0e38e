"""Claiming jobs (§6)."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from django_belay.contract.admission import Limits, Partition, pick_partitioned
from django_belay.contract.job import Job
from django_belay.storage.base import Claimed, ClaimRound, Demand
from django_belay.storage.postgres import limits as rates
from django_belay.storage.postgres.partition import index_name
from django_belay.storage.postgres.rows import job_from_row
from django_belay.storage.postgres.session import Rows, Session, Transaction, atomically

# The first prefix that a partitioned claim ranks, in multiples of what it may take, and
# by how much the next one is wider.
PREFIX_FACTOR = 8
MIN_PREFIX = 256
WIDENING = 4


def claim(
    session: Session,
    round_: ClaimRound,
    *,
    demands: Sequence[Demand],
    limited: Sequence[str],
    now: datetime,
) -> Claimed:
    """Claim from unlimited queues in one statement, a transaction of its own.

    Contract: §6, plain; rules 12, 15.
    """
    rows = session.run("claim", _claim_params(round_, demands, limited, now))
    return Claimed(
        jobs=[job_from_row(row[:-1]) for row in rows if row[0] is not None],
        claimable=tuple(rows[0][-1]) if rows else (),
    )


def claim_limited(
    session: Session,
    round_: ClaimRound,
    *,
    demand: Demand,
    limits: Limits,
    local_limit: int,
    now: datetime,
) -> list[Job]:
    """Claim from one limited queue in one transaction under its lock.

    Contract: §6; rules 12-14, 19.
    """

    def operation(transaction: Transaction) -> list[Job]:
        rates.lock(transaction, demand.queue, limits)
        take = rates.admitted(transaction, demand, limits, now=now)
        if take <= 0:
            return []
        if limits.partition is None:
            jobs = _claim_plain(transaction, round_, Demand(queue=demand.queue, take=take), now)
        else:
            per_key = limits.global_limit if limits.global_limit is not None else local_limit
            ids = _pick(transaction, demand.queue, limits.partition, per_key=per_key, take=take, now=now)
            jobs = _claim_ids(transaction, round_, demand.queue, ids, now)
        rates.debit_claimed(transaction, demand.queue, limits, claimed=len(jobs), now=now)
        return jobs

    return atomically(session, operation)


def _claim_params(
    round_: ClaimRound, demands: Sequence[Demand], limited: Sequence[str], now: datetime
) -> dict[str, Any]:
    wanted = [demand for demand in demands if demand.take > 0]
    return {
        "queues": [demand.queue for demand in wanted],
        "takes": [demand.take for demand in wanted],
        "limited": list(limited),
        "lease_until": round_.lease_until,
        "leased_by": round_.leased_by,
        "now": now,
    }


def _claim_plain(transaction: Transaction, round_: ClaimRound, demand: Demand, now: datetime) -> list[Job]:
    rows = transaction.run("claim", _claim_params(round_, [demand], (), now))
    return [job_from_row(row[:-1]) for row in rows if row[0] is not None]


def _pick(
    transaction: Transaction,
    queue: str,
    partition: Partition,
    *,
    per_key: int,
    take: int,
    now: datetime,
) -> list[int]:
    """The ids to claim, exact: the ranked prefix is widened until it suffices (rule 14)."""
    where = {"queue": queue, "field": partition.column, "key": partition.key, "now": now}
    running: dict[str, int] = dict(transaction.run("running_by_key", where))
    width = max(take * PREFIX_FACTOR, MIN_PREFIX)
    while True:
        rows = transaction.run("rank_candidates", {**where, "width": width, "per_key_limit": per_key})
        picked = _admitted(rows, per_key=per_key, running=running, take=take)
        seen = rows[0][2] if rows else 0
        if len(picked) == take or seen < width:
            return picked
        if _has_key_index(transaction, queue, partition):
            return _pick_by_key(transaction, where, per_key=per_key, running=running, take=take)
        width *= WIDENING


def _pick_by_key(
    transaction: Transaction,
    where: dict[str, Any],
    *,
    per_key: int,
    running: dict[str, int],
    take: int,
) -> list[int]:
    """The same ids from the first rows of each key: what full keys hold is not read."""
    live = {"live_keys": list(running), "live_counts": list(running.values())}
    rows = transaction.run("rank_by_key", {**where, **live, "per_key_limit": per_key, "take": take})
    return _admitted(rows, per_key=per_key, running=running, take=take)


def _admitted(rows: Rows, *, per_key: int, running: dict[str, int], take: int) -> list[int]:
    candidates = ((row[0], row[1]) for row in rows)
    return pick_partitioned(candidates, per_key_limit=per_key, running=running, take=take)


def _has_key_index(transaction: Transaction, queue: str, partition: Partition) -> bool:
    [(found,)] = transaction.run("has_index", {"name": index_name(queue, partition)})
    return bool(found)


def _claim_ids(
    transaction: Transaction, round_: ClaimRound, queue: str, ids: Sequence[int], now: datetime
) -> list[Job]:
    if not ids:
        return []
    rows = transaction.run(
        "claim_ids",
        {
            "ids": list(ids),
            "queue": queue,
            "lease_until": round_.lease_until,
            "leased_by": round_.leased_by,
            "now": now,
        },
    )
    return [job_from_row(row) for row in rows]
