"""How many jobs a limited queue may claim now (§6)."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from django_belay.contract.names import queue_bucket, resource_bucket

# belay_rate.count is int4 (rule 13).
MAX_COUNT = 2**31 - 1


@dataclass(slots=True, kw_only=True, frozen=True)
class Rate:
    """A sliding-window limit: ``allowed`` units in ``period_s`` seconds.

    ``estimate`` units are debited for each claimed job; ``resource`` names a bucket
    that several queues share.
    """

    allowed: int
    period_s: int
    estimate: int = 1
    resource: str | None = None

    def bucket(self, queue: str) -> str:
        """The counter that this rate reads and debits."""
        return resource_bucket(self.resource) if self.resource is not None else queue_bucket(queue)


@dataclass(slots=True, kw_only=True, frozen=True)
class Partition:
    """Which field of a job fairness is counted by."""

    column: Literal["input", "meta"]
    key: str


@dataclass(slots=True, kw_only=True, frozen=True)
class Limits:
    """What makes a queue limited: its claims are serialised under the queue's lock.

    With a partition, ``global_limit`` (else ``local_limit``) caps each key, not the queue.
    """

    global_limit: int | None = None
    rate: Rate | None = None
    partition: Partition | None = None

    @property
    def is_limited(self) -> bool:
        """Whether claims need the queue's lock (§6)."""
        return self.global_limit is not None or self.rate is not None or self.partition is not None


@dataclass(slots=True, kw_only=True, frozen=True)
class WindowUse:
    """Counts of the current and of the previous window."""

    current: int = 0
    previous: int = 0


def window_start(now: datetime, period_s: int) -> int:
    """Epoch second at which the window holding ``now`` began."""
    return math.floor(now.timestamp()) // period_s * period_s


def admit_under_global_limit(limit: int, running: int, *, demand: int) -> int:
    """How many jobs fit under a global limit: 0 to ``demand``.

    Args:
        running: Live-leased running jobs of the queue.

    Contract: §6, global_limit.
    """
    return max(0, min(demand, limit - running))


def admit_under_rate(rate: Rate, used: WindowUse, *, demand: int, now: datetime) -> int:
    """How many jobs a queue may claim now under its rate limit: 0 to ``demand``.

    Args:
        used: Counts of the current and the previous window of ``rate.period_s`` seconds.
        demand: Free slots of the asking worker.

    Contract: §6, rate; rule 13 for the rounding.
    """
    start = window_start(now, rate.period_s)
    share = 1 - (now.timestamp() - start) / rate.period_s
    spent = used.current + round_half_away(used.previous * share)
    room = max(min(rate.allowed - spent, rate.allowed), 0)
    return min(demand, room // max(rate.estimate, 1))


def round_half_away(value: float) -> int:
    """``round`` as the contract's formula means it, for values above zero (rule 13)."""
    return math.floor(value + 0.5)


def debit(count: int, amount: int) -> int:
    """A window's count after a debit, or a credit when ``amount`` is negative, within int4."""
    return max(-MAX_COUNT, min(MAX_COUNT, count + amount))


def pick_partitioned(
    candidates: Iterable[tuple[int, str]],
    *,
    per_key_limit: int,
    running: Mapping[str, int],
    take: int,
) -> list[int]:
    """Of ``(id, key)`` in claim order, the ids to claim.

    A row is kept when its rank in its key is at most the limit less the key's
    live-running jobs. A row's rank depends on earlier rows only, so a prefix of the
    backlog gives the same answer as the whole (rule 14).

    Contract: §6, partitioned.
    """
    room: dict[str, int] = {}
    picked: list[int] = []
    for job_id, key in candidates:
        left = room.get(key)
        if left is None:
            left = max(per_key_limit - running.get(key, 0), 0)
        if left > 0 and len(picked) < take:
            picked.append(job_id)
            left -= 1
        room[key] = left
    return picked
