"""Renews leases for children: their interpreters may be busy, this process's never is (rule 16)."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import timedelta

from django_belay.contract.job import Lease
from django_belay.engine.clock import Clock
from django_belay.engine.telemetry import lease_log
from django_belay.storage.base import Storage

BATCH = 500
ASK_AGAIN = 4


@dataclass(slots=True)
class _Held:
    lease: Lease
    owner: int
    since: float
    renew_until: float | None


class HeldLeases:
    """What the children of a supervisor hold, as they publish it. Safe for threads.

    A job has one entry: a newer claim of it means that the older lease is gone.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._by_job: dict[int, _Held] = {}

    def add(self, owner: int, leased_by: str, entries: Iterable[tuple[int, int, float | None]]) -> None:
        """One round of a child: id, attempt, seconds to renew for."""
        now = time.monotonic()
        with self._lock:
            for job_id, attempt, renew_for_s in entries:
                self._by_job[job_id] = _Held(
                    lease=Lease(job_id=job_id, attempt=attempt, leased_by=leased_by),
                    owner=owner,
                    since=now,
                    renew_until=None if renew_for_s is None else now + renew_for_s,
                )

    def remove(self, pairs: Iterable[tuple[int, str]]) -> None:
        with self._lock:
            for job_id, leased_by in pairs:
                held = self._by_job.get(job_id)
                if held is not None and held.lease.leased_by == leased_by:
                    del self._by_job[job_id]

    def limit(self, pairs: Iterable[tuple[int, str]], *, to_s: float) -> None:
        """Renew these for at most so long from now: their acks are kept back."""
        until = time.monotonic() + to_s
        with self._lock:
            for job_id, leased_by in pairs:
                held = self._by_job.get(job_id)
                if held is not None and held.lease.leased_by == leased_by:
                    # The run is over, so its own time limit does not matter any more.
                    held.renew_until = until

    def drop_owner(self, owner: int) -> int:
        """Forget a dead child's leases, which run out; how many."""
        with self._lock:
            gone = [job_id for job_id, held in self._by_job.items() if held.owner == owner]
            for job_id in gone:
                del self._by_job[job_id]
        return len(gone)

    def take_expired(self) -> list[Lease]:
        """Remove and return those that are not to be renewed any more."""
        now = time.monotonic()
        with self._lock:
            over = [h for h in self._by_job.values() if h.renew_until is not None and h.renew_until < now]
            for held in over:
                del self._by_job[held.lease.job_id]
        return [held.lease for held in over]

    def older_than(self, age_s: float) -> list[tuple[Lease, int]]:
        """Leases and owners, without those that were claimed a moment ago."""
        before = time.monotonic() - age_s
        with self._lock:
            return [(held.lease, held.owner) for held in self._by_job.values() if held.since <= before]

    def __len__(self) -> int:
        return len(self._by_job)


class Renewer:
    """Renews what is held every third of a lease, and says what is lost."""

    def __init__(
        self,
        storage: Storage,
        clock: Clock,
        held: HeldLeases,
        *,
        ttl: timedelta,
        on_lost: Callable[[int, Sequence[Lease]], None],
    ) -> None:
        self._storage = storage
        self._clock = clock
        self._held = held
        self._ttl = ttl
        self._on_lost = on_lost

    def turn(self) -> None:
        for lease in self._held.take_expired():
            lease_log.warning(
                "job %s: its lease is renewed no longer (past its timeout, or its end could not be written)",
                lease.job_id,
                extra={"belay_job_id": lease.job_id, "belay_attempt": lease.attempt},
            )
        # A lease of the last moment has most of its time left; renewing it would double
        # the writes of short jobs. The first renewal comes before half of the lease is over.
        held = self._held.older_than(self._ttl.total_seconds() / 6)
        for start in range(0, len(held), BATCH):
            self._renew(held[start : start + BATCH])

    def _renew(self, held: list[tuple[Lease, int]]) -> None:
        rest = dict(held)
        for tries in range(ASK_AGAIN):
            until = self._clock.now() + self._ttl
            renewal = self._storage.renew_leases(list(rest), until=until)
            self._report_lost([(lease, rest[lease]) for lease in rest if lease.job_id in renewal.lost])
            answered = renewal.renewed | renewal.lost
            rest = {lease: owner for lease, owner in rest.items() if lease.job_id not in answered}
            if not rest:
                return
            time.sleep(0.05 * 2**tries)  # somebody holds the row, perhaps its own ack

    def _report_lost(self, lost: list[tuple[Lease, int]]) -> None:
        self._held.remove([(lease.job_id, lease.leased_by) for lease, _ in lost])
        for owner in {owner for _, owner in lost}:
            self._on_lost(owner, [lease for lease, of in lost if of == owner])
