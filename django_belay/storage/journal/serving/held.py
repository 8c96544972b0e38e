"""The leases that a process holds, for an owner that takes over while its jobs run."""

from __future__ import annotations

import threading
from collections.abc import Iterable

from django_belay.contract.job import Job, Lease


class HeldLeases:
    """From a claim until the run's end was answered, or the lease is lost. Safe to use from many threads."""

    def __init__(self) -> None:
        self._by_job: dict[int, Lease] = {}
        self._lock = threading.Lock()

    def add(self, jobs: Iterable[Job]) -> None:
        """Jobs that were claimed."""
        with self._lock:
            self._by_job.update((job.id, Lease.of(job)) for job in jobs)

    def drop(self, leases: Iterable[Lease]) -> None:
        """Leases that are over; a later one of the same job stays."""
        with self._lock:
            for lease in leases:
                held = self._by_job.get(lease.job_id)
                if held is not None and held.attempt == lease.attempt and held.leased_by == lease.leased_by:
                    del self._by_job[lease.job_id]

    def all(self) -> list[Lease]:
        """What is held now."""
        with self._lock:
            return list(self._by_job.values())
