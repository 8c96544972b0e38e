"""The $children signal: contract §7.2, §8.4, §11 R1, rules 21, 24."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

import pytest

from django_belay.contract.job import Job
from django_belay.contract.outcome import Cancelled, Failed, Outcome, Retried, Succeeded
from django_belay.storage.base import Storage
from django_belay.storage.postgres.store import PostgresStore
from django_belay.testing.clock import SimClock
from tests.behaviour.driving import ack_of, add, claim_one, end, running, wait


def parked_parent(store: Storage, clock: SimClock) -> Job:
    add(store, clock, queue="parents")
    parent = claim_one(store, clock, queue="parents")
    end(store, clock, parent, wait(parent, "$children"))
    return parent


@pytest.mark.parametrize(
    "outcome", [Succeeded(), Failed(error={}), Cancelled(reason="")], ids=["succeeded", "failed", "cancelled"]
)
def test_7_2_every_end_of_a_child_is_told_to_its_parent(
    store: Storage, clock: SimClock, outcome: Outcome
) -> None:
    """Also with siblings left: counting them would lose the last one (R1)."""
    parent = parked_parent(store, clock)
    first, _sibling = running(store, clock, 2, parent_id=parent.id)

    end(store, clock, first, outcome)

    assert store.get_job(parent.id).state == "ready"
    assert store.find_signal([f"job:{parent.id}"], "$children") is not None


def test_7_2_a_child_that_goes_on_tells_nothing(store: Storage, clock: SimClock) -> None:
    parent = parked_parent(store, clock)
    [child] = running(store, clock, parent_id=parent.id)
    end(store, clock, child, Retried(ready_at=clock.now(), error={}))
    assert store.find_signal([f"job:{parent.id}"], "$children") is None
    assert store.get_job(parent.id).state == "awaiting"


def test_7_2_a_parent_that_waits_for_something_else_sleeps_on(store: Storage, clock: SimClock) -> None:
    add(store, clock, queue="parents")
    parent = claim_one(store, clock, queue="parents")
    end(store, clock, parent, wait(parent, "go"))
    [child] = running(store, clock, parent_id=parent.id)
    end(store, clock, child)
    assert store.get_job(parent.id).state == "awaiting"


def test_7_2_a_cancelled_child_tells_its_parent(store: Storage, clock: SimClock) -> None:
    parent = parked_parent(store, clock)
    [child] = add(store, clock, parent_id=parent.id)
    store.request_cancel(child, reason="enough", now=clock.now())
    assert store.get_job(parent.id).state == "ready"


def test_7_2_the_end_of_a_child_whose_parent_is_gone_is_written(store: Storage, clock: SimClock) -> None:
    [child] = running(store, clock, parent_id=987_654)
    end(store, clock, child)
    assert store.get_job(child.id).state == "succeeded"


def test_21_children_of_one_parent_end_in_a_group_and_wake_it_once(store: Storage, clock: SimClock) -> None:
    parent = parked_parent(store, clock)
    children = running(store, clock, 50, parent_id=parent.id)
    store.ack_group([ack_of(child) for child in children], now=clock.now())
    assert store.get_job(parent.id).state == "ready"
    assert not store.has_incomplete_child(parent.id)


def test_r1_the_last_children_end_at_the_same_time_and_the_parent_never_sleeps_on(
    make_postgres_store: Callable[..., PostgresStore], clock: SimClock
) -> None:
    """Acks of the last two children against the parent's own park (§8.4's protocol)."""
    stores = [make_postgres_store(size=1) for _ in range(3)]
    for _ in range(25):
        add(stores[0], clock, queue="parents")
        parent = claim_one(stores[0], clock, queue="parents")
        children = running(stores[0], clock, 2, parent_id=parent.id)
        barrier = threading.Barrier(3)

        def ack(store: Storage, jobs: Sequence[Job], barrier: threading.Barrier = barrier) -> None:
            barrier.wait()
            store.ack_group([ack_of(job) for job in jobs], now=clock.now())

        def park(store: Storage, parent: Job = parent, barrier: threading.Barrier = barrier) -> None:
            barrier.wait()
            store.clear_signal(f"job:{parent.id}", "$children")
            if store.has_incomplete_child(parent.id):
                end(store, clock, parent, wait(parent, "$children"))
            else:
                end(store, clock, parent)

        threads = [
            threading.Thread(target=ack, args=(stores[0], children[:1])),
            threading.Thread(target=ack, args=(stores[1], children[1:])),
            threading.Thread(target=park, args=(stores[2],)),
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert stores[0].get_job(parent.id).state in ("ready", "succeeded")
        stores[0].request_cancel(parent.id, reason="tidy", now=clock.now())


def test_8_4_the_ends_of_children_come_once_and_with_errors_only_of_those_that_did_not_succeed(
    store: Storage, clock: SimClock
) -> None:
    parent, other = add(store, clock, 2, queue="parents")
    failed, well = running(store, clock, 2, parent_id=parent, max_attempts=2)
    [foreign] = running(store, clock, parent_id=other)
    end(store, clock, failed, Failed(error={"error": "boom"}))
    end(store, clock, well, Retried(ready_at=clock.now(), error={"error": "once"}))
    end(store, clock, claim_one(store, clock, queue="running"), Succeeded(b"1"))

    ends = store.child_ends(parent, [well.id, failed.id, well.id, foreign.id, 5])

    assert {one.job_id: one.errors for one in ends} == {well.id: [], failed.id: [{"error": "boom"}]}
    assert len(ends) == 2
