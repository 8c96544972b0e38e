"""Renewing leases: contract §6, rules 15, 16, 19."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import psycopg
import pytest

from django_belay.contract.job import Lease, NewJob
from django_belay.storage.base import ClaimRound, Demand, Renewal, Storage
from django_belay.testing.clock import SimClock

TTL = timedelta(seconds=30)


def claim(store: Storage, clock: SimClock, count: int, name: str = "node:1:1") -> list[Lease]:
    store.insert_jobs([NewJob(kind="k") for _ in range(count)], now=clock.now())
    round_ = ClaimRound(leased_by=name, lease_until=clock.now() + TTL)
    found = store.claim(round_, demands=[Demand(queue="default", take=count)], now=clock.now())
    return [Lease.of(job) for job in found.jobs]


def test_6_a_renewal_moves_lease_until_and_nothing_else(store: Storage, clock: SimClock) -> None:
    [lease] = claim(store, clock, 1)
    before = store.get_job(lease.job_id)
    until = clock.now() + 2 * TTL
    assert store.renew_leases([lease], until=until) == Renewal(
        renewed=frozenset({lease.job_id}), lost=frozenset()
    )
    before.lease_until = until
    assert store.get_job(lease.job_id) == before


def test_rule_15_what_is_held_is_not_lost_for_an_older_lease_asked_with_it(
    store: Storage, clock: SimClock
) -> None:
    [lease] = claim(store, clock, 1)
    older = Lease(job_id=lease.job_id, attempt=1, leased_by="node:1:0")
    held = Renewal(renewed=frozenset({lease.job_id}), lost=frozenset())
    assert store.renew_leases([older, lease, older], until=clock.now() + 2 * TTL) == held


def test_rule_15_a_renewal_is_by_pairs_of_id_and_leased_by(store: Storage, clock: SimClock) -> None:
    [first] = claim(store, clock, 1, "node:1:1")
    [second] = claim(store, clock, 1, "node:1:2")
    swapped = [
        Lease(job_id=first.job_id, attempt=1, leased_by=second.leased_by),
        Lease(job_id=second.job_id, attempt=1, leased_by=first.leased_by),
    ]
    until = clock.now() + 2 * TTL
    assert store.renew_leases(swapped, until=until) == Renewal(
        renewed=frozenset(), lost=frozenset({first.job_id, second.job_id})
    )
    assert store.get_job(first.job_id).lease_until != until


@pytest.mark.parametrize("state", ["ready", "succeeded", "awaiting"])
def test_rule_16_a_job_that_left_running_is_lost(
    store: Storage, clock: SimClock, connection: psycopg.Connection[Any], state: str
) -> None:
    left, kept = claim(store, clock, 2)
    connection.execute("UPDATE belay_jobs SET state = %s WHERE id = %s", (state, left.job_id))
    found = store.renew_leases([left, kept], until=clock.now() + 2 * TTL)
    assert found == Renewal(renewed=frozenset({kept.job_id}), lost=frozenset({left.job_id}))


def test_rule_16_a_job_that_is_gone_is_lost(
    store: Storage, clock: SimClock, connection: psycopg.Connection[Any]
) -> None:
    [lease] = claim(store, clock, 1)
    connection.execute("DELETE FROM belay_jobs")
    assert store.renew_leases([lease], until=clock.now()).lost == {lease.job_id}


def test_rule_16_a_locked_row_is_neither_renewed_nor_lost_and_is_not_waited_for(
    store: Storage, clock: SimClock, behaviour_params: dict[str, str]
) -> None:
    locked, free = claim(store, clock, 2)
    until = clock.now() + 2 * TTL
    with psycopg.connect(**behaviour_params) as acker:
        acker.execute("SELECT FROM belay_jobs WHERE id = %s FOR UPDATE", (locked.job_id,))
        found = store.renew_leases([locked, free], until=until)
        assert found == Renewal(renewed=frozenset({free.job_id}), lost=frozenset())
    assert store.renew_leases([locked], until=until).renewed == {locked.job_id}


def test_a_renewal_of_nothing_asks_nothing(store: Storage, clock: SimClock) -> None:
    assert store.renew_leases([], until=clock.now()) == Renewal(renewed=frozenset(), lost=frozenset())
