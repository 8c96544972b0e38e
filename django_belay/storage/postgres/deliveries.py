"""Delivering signals and waking who waits, under their scopes' locks (§8.1)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from django_belay.contract import names
from django_belay.contract.job import JSON
from django_belay.storage.postgres.rows import json_text
from django_belay.storage.postgres.session import Transaction


@dataclass(slots=True, frozen=True)
class Delivery:
    """A signal to put into a scope."""

    scope: str
    name: str
    payload: JSON

    @classmethod
    def of_children(cls, parent_id: int) -> Delivery:
        """The signal that a child of this job has ended; it carries nothing (§8.4, R1)."""
        return cls(names.job_scope(parent_id), names.CHILDREN_SIGNAL, {})


def deliver(
    transaction: Transaction, deliveries: Sequence[Delivery], *, now: datetime
) -> list[tuple[int, str]]:
    """Upsert signals and wake their waiters; id and queue of the jobs woken.

    The caller holds the scopes' locks.

    Contract: §8.1; rule 23.
    """
    rows = transaction.run(
        "deliver_signals",
        {
            "scopes": [delivery.scope for delivery in deliveries],
            "names": [delivery.name for delivery in deliveries],
            "payloads": [json_text(delivery.payload) for delivery in deliveries],
            "job_ids": [names.job_of_scope(delivery.scope) for delivery in deliveries],
            "workflow_ids": [names.workflow_of_scope(delivery.scope) for delivery in deliveries],
            "now": now,
        },
    )
    return [(job_id, queue) for job_id, queue in rows]
