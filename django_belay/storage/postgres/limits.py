"""Limits of a queue: its locks, what they admit now, and the rate's counters (§6)."""

from __future__ import annotations

from datetime import datetime

from django_belay.contract.admission import (
    Limits,
    WindowUse,
    admit_under_global_limit,
    admit_under_rate,
    window_start,
)
from django_belay.contract.names import queue_lock, resource_lock
from django_belay.storage.base import Demand
from django_belay.storage.postgres.session import Session, Transaction


def lock(transaction: Transaction, queue: str, limits: Limits) -> None:
    """Serialise with every other claimer of the queue, and of its rate's resource (rules 12, 19)."""
    transaction.run("lock_queue", {"queue_lock": queue_lock(queue)})
    if limits.rate is not None and limits.rate.resource is not None:
        transaction.run("lock_resource", {"resource_lock": resource_lock(limits.rate.resource)})


def admitted(transaction: Transaction, demand: Demand, limits: Limits, *, now: datetime) -> int:
    """How many jobs the global limit and the rate admit: 0 to the demand.

    With a partition the global limit caps each key instead; see the ranking.

    Contract: §6, admission.
    """
    caps_queue = limits.global_limit is not None and limits.partition is None
    if not caps_queue and limits.rate is None:
        return demand.take
    running, used = _read_use(transaction, demand.queue, limits, now)
    take = demand.take
    if limits.global_limit is not None and caps_queue:
        take = admit_under_global_limit(limits.global_limit, running, demand=take)
    if limits.rate is not None:
        take = admit_under_rate(limits.rate, used, demand=take, now=now)
    return take


def debit_claimed(
    transaction: Transaction, queue: str, limits: Limits, *, claimed: int, now: datetime
) -> None:
    """Debit the rate's estimate for each job claimed (§6)."""
    if limits.rate is None or claimed == 0:
        return
    _debit(
        transaction,
        limits.rate.bucket(queue),
        amount=claimed * limits.rate.estimate,
        period_s=limits.rate.period_s,
        now=now,
    )


def debit_rate(session: Session, bucket: str, *, amount: int, period_s: int, now: datetime) -> None:
    """Add to the bucket's current window; a negative amount credits (§6)."""
    _debit(session, bucket, amount=amount, period_s=period_s, now=now)


def _debit(runner: Session | Transaction, bucket: str, *, amount: int, period_s: int, now: datetime) -> None:
    runner.run("debit_rate", {"bucket": bucket, "window": window_start(now, period_s), "amount": amount})


def _read_use(transaction: Transaction, queue: str, limits: Limits, now: datetime) -> tuple[int, WindowUse]:
    rate = limits.rate
    window = window_start(now, rate.period_s) if rate is not None else 0
    params = {
        "queue": queue,
        "now": now,
        "bucket": rate.bucket(queue) if rate is not None else "",
        "window": window,
        "previous": window - rate.period_s if rate is not None else 0,
    }
    [(running, current, previous)] = transaction.run("read_use", params)
    return running, WindowUse(current=current or 0, previous=previous or 0)
