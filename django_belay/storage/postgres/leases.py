"""Renewing leases (§6)."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from django_belay.contract.job import Lease
from django_belay.storage.base import Renewal
from django_belay.storage.postgres.session import Session


def renew(session: Session, leases: Sequence[Lease], *, until: datetime) -> Renewal:
    """Prolong leases in one statement.

    An id that is neither renewed nor lost was locked by somebody, perhaps by its own
    ack: ask again.

    Contract: §6; rules 15, 16, 19.
    """
    if not leases:
        return Renewal(renewed=frozenset(), lost=frozenset())
    rows = session.run(
        "renew_leases",
        {
            "ids": [lease.job_id for lease in leases],
            "leases": [lease.leased_by for lease in leases],
            "until": until,
        },
    )
    return Renewal(
        renewed=frozenset(job_id for job_id, renewed, _ in rows if renewed),
        lost=frozenset(job_id for job_id, renewed, ours in rows if not renewed and not ours),
    )
