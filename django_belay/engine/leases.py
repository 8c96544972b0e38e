"""The leases a process holds: published before user code starts, let go after the ack (rule 16)."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from typing import Protocol

from django_belay.contract.job import Lease


class Publisher(Protocol):
    """Tells whoever renews leases what a process holds."""

    def held(self, leased_by: str, entries: Sequence[tuple[int, int, float | None]]) -> None:
        """Id, attempt and seconds to renew for, of one claim round."""
        ...

    def done(self, leases: Sequence[Lease]) -> None: ...

    def late(self, leases: Sequence[Lease]) -> None: ...


class LeaseBook:
    """What a process holds now."""

    def __init__(self, publisher: Publisher) -> None:
        self._publisher = publisher
        self._lock = threading.Lock()
        self._held: dict[tuple[int, str], Lease] = {}

    def hold(self, leased_by: str, leases: Iterable[tuple[Lease, float | None]]) -> None:
        """Note and publish one round's leases with the seconds each may be renewed for."""
        entries = []
        with self._lock:
            for lease, renew_for_s in leases:
                self._held[lease.job_id, leased_by] = lease
                entries.append((lease.job_id, lease.attempt, renew_for_s))
        self._publisher.held(leased_by, entries)

    def release(self, leases: Sequence[Lease]) -> None:
        """Let go of leases: acked, stale, lost or given up."""
        with self._lock:
            for lease in leases:
                self._held.pop((lease.job_id, lease.leased_by), None)
        self._publisher.done(leases)

    def delay(self, leases: Sequence[Lease]) -> None:
        """The acks of these are kept back; renewals go on for a bounded time only."""
        if leases:
            self._publisher.late(leases)

    def all(self) -> list[Lease]:
        """Everything held now."""
        with self._lock:
            return list(self._held.values())

    def __len__(self) -> int:
        return len(self._held)
