"""A journal whose owner is replaced between every two operations."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Any

from django_belay.contract.job import Job, Lease
from django_belay.storage.base import Claimed, Renewal
from django_belay.storage.journal.store.store import JournalStore

# Held in the owner's memory alone, as the mapping page says: nothing to find after it.
OF_THE_OWNER = frozenset({"beat", "listener", "list_nodes", "prune_nodes", "register_waiter"})


class RecoveringStore:
    """Passes each operation to a new owner, which has read everything from the disk.

    It tells a new owner whose runs there are and renews their leases, as a client does that has lost its
    connection.
    """

    def __init__(self, own: Callable[[], JournalStore]) -> None:
        self._own = own
        self._owner = own()
        self._leases: dict[int, tuple[Lease, Any]] = {}

    def close(self) -> None:
        self._owner.close()

    @property
    def owner(self) -> JournalStore:
        """The owner that did the last operation."""
        return self._owner

    @property
    def capabilities(self) -> Any:
        return self._owner.capabilities

    def __getattr__(self, name: str) -> Any:
        if name in OF_THE_OWNER:
            return getattr(self._owner, name)

        def call(*args: Any, **kwargs: Any) -> Any:
            self._replace_owner()
            answer = getattr(self._owner, name)(*args, **kwargs)
            if name in ("claim", "claim_limited"):
                jobs: list[Job] = answer.jobs if isinstance(answer, Claimed) else answer
                self._leases.update({job.id: (Lease.of(job), job.lease_until) for job in jobs})
            if name == "renew_leases":
                self._note_renewed(answer, kwargs["until"])
            return answer

        return call

    def _replace_owner(self) -> None:
        hidden = self._owner.memory.hidden
        self._owner.close()
        self._owner = self._own()
        self._hide(hidden)
        self._owner.adopt_leases([lease for lease, _ in self._leases.values()])
        for lease, until in self._leases.values():
            self._owner.renew_leases([lease], until=until)

    def _hide(self, pruned: set[int]) -> None:
        """Prune again what was pruned: an owner does so before it serves, by its own retention."""
        memory = self._owner.memory
        for job_id in sorted(pruned):
            row = memory.find(job_id)
            if row is not None:
                memory.hide(row)

    def _note_renewed(self, answer: Renewal, until: datetime) -> None:
        for job_id in answer.renewed:
            self._leases[job_id] = (self._leases[job_id][0], until)
