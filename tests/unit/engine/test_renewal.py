from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

from django_belay.contract.job import Lease
from django_belay.engine.renewal import HeldLeases, Renewer
from django_belay.storage.base import Renewal
from django_belay.testing.clock import SimClock


class FakeStorage:
    def __init__(self, *answers: Renewal) -> None:
        self.answers = list(answers)
        self.asked: list[list[int]] = []
        self.until: datetime | None = None

    def renew_leases(self, leases: Sequence[Lease], *, until: datetime) -> Renewal:
        self.asked.append(sorted(lease.job_id for lease in leases))
        self.until = until
        return self.answers.pop(0)


def renewal(renewed: set[int], lost: set[int] | None = None) -> Renewal:
    return Renewal(renewed=frozenset(renewed), lost=frozenset(lost or ()))


def make(storage: Any, held: HeldLeases) -> tuple[Renewer, list[tuple[int, list[int]]], SimClock]:
    lost: list[tuple[int, list[int]]] = []
    clock = SimClock()

    def on_lost(owner: int, leases: Sequence[Lease]) -> None:
        lost.append((owner, [lease.job_id for lease in leases]))

    # A time to live of zero: even a lease of this moment is old enough to renew.
    return Renewer(storage, clock, held, ttl=timedelta(0), on_lost=on_lost), lost, clock


def test_locked_rows_are_asked_again_and_lost_ones_are_told_to_their_owner() -> None:
    """Rule 16: an id that a renewal does not return is not lost for that alone."""
    held = HeldLeases()
    held.add(7, "n:1:1", [(1, 1, None), (2, 1, None)])
    held.add(8, "n:2:1", [(3, 1, None)])
    storage = FakeStorage(renewal({1}, {3}), renewal({2}))
    renewer, lost, clock = make(storage, held)
    renewer.turn()
    assert storage.asked == [[1, 2, 3], [2]]
    assert storage.until == clock.now()
    assert lost == [(8, [3])]
    assert len(held) == 2


def test_renewal_ends_with_the_time_a_job_may_take() -> None:
    held = HeldLeases()
    held.add(1, "n:1:1", [(1, 1, -1.0), (2, 1, 100.0)])
    storage = FakeStorage(renewal({2}))
    make(storage, held)[0].turn()
    assert storage.asked == [[2]]


def test_an_ack_that_is_kept_back_limits_the_renewal() -> None:
    held = HeldLeases()
    held.add(1, "n:1:1", [(1, 1, None)])
    held.limit([(1, "n:1:1")], to_s=-1.0)
    assert [lease.job_id for lease in held.take_expired()] == [1]


def test_a_newer_claim_replaces_an_older_lease_of_the_job() -> None:
    held = HeldLeases()
    held.add(1, "n:1:1", [(1, 1, None)])
    held.add(2, "n:2:5", [(1, 2, None)])
    held.remove([(1, "n:1:1")])
    assert [(lease.leased_by, owner) for lease, owner in held.older_than(0)] == [("n:2:5", 2)]


def test_a_dead_childs_leases_are_not_renewed() -> None:
    held = HeldLeases()
    held.add(1, "n:1:1", [(1, 1, None)])
    held.add(2, "n:2:1", [(2, 1, None)])
    assert held.drop_owner(1) == 1
    assert [lease.job_id for lease, _ in held.older_than(0)] == [2]
