"""What a client needs of a storage beyond the protocol: how its writes go with the caller's transaction."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol, TypeAlias

from django_belay.contract.job import NewJob
from django_belay.db.transactions import CallersTransaction
from django_belay.deferred import Deferred
from django_belay.storage.base import Inserted, Storage

#: Called with the final answers: at once, or after the commit that the insert waits for.
Then: TypeAlias = Callable[[Sequence[Inserted]], object]


@dataclass(frozen=True, slots=True)
class Insertion:
    """What an insert answered, by index.

    ``deferred`` is set where the insert waits for the caller's commit: until then the answers hold
    reserved ids and ``duplicate`` is ``None``; after it the same list holds the final ones.
    """

    answers: list[Inserted]
    deferred: Deferred[list[Inserted]] | None = None


class ClientStorage(Protocol):
    """The storage as the client uses it, and what the caller has open beside it."""

    @property
    def storage(self) -> Storage:
        """The operations themselves."""
        ...

    @property
    def session(self) -> CallersTransaction:
        """The caller's transaction that enqueueing joins, or whose commit it waits for."""
        ...

    def insert(self, jobs: Sequence[NewJob], *, now: datetime, then: Then) -> Insertion:
        """Insert all rows or none, with the caller's transaction."""
        ...

    def insert_workflow(
        self, jobs: Sequence[NewJob], *, workflow_id: str, now: datetime, then: Then
    ) -> Insertion:
        """Insert all members of a new workflow, or none.

        Raises:
            InvalidWorkflow: The id is taken, or another job holds a member's key. Where the insert
                waits for the commit, that may come as the error of ``deferred``.
        """
        ...

    def is_uncommitted(self, job_id: int) -> bool:
        """Whether the caller's open transaction enqueued or changed the job: nobody else sees that yet."""
        ...
