"""Parking on a signal: contract §7 park-and-wake, rules 22, 23, 27."""

from __future__ import annotations

from datetime import timedelta

import pytest

from django_belay.contract import envelope
from django_belay.contract.names import await_until_step
from django_belay.contract.wait_record import wait_record
from django_belay.storage.base import Applied, NewStep, Storage
from django_belay.testing.clock import SimClock
from tests.behaviour.driving import ack_of, claim, end, running, wait


def test_7_a_park_that_finds_its_signal_returns_to_ready(store: Storage, clock: SimClock) -> None:
    [job] = running(store, clock)
    store.put_signal(f"job:{job.id}", "go", {"n": 1}, now=clock.now())
    clock.advance(1)

    assert end(store, clock, job, wait(job, deadline=clock.now() + timedelta(days=1))) == Applied(
        job.id, "ready"
    )

    after = store.get_job(job.id)
    assert (after.ready_at, after.attempt) == (clock.now(), 0)
    assert (after.await_scope, after.await_name) == (None, None)


@pytest.mark.parametrize("scope", ["custom", "job", "workflow"])
def test_23_a_park_checks_every_scope_that_it_reads(store: Storage, clock: SimClock, scope: str) -> None:
    [job] = running(store, clock, workflow_id="w", wf_name="a")
    named = {"custom": "orders", "job": f"job:{job.id}", "workflow": "wf:w"}
    store.put_signal(named[scope], "go", 1, now=clock.now())
    assert end(store, clock, job, wait(job, scope="orders")) == Applied(job.id, "ready")


def test_23_a_signal_of_another_name_or_scope_does_not_keep_it_from_parking(
    store: Storage, clock: SimClock
) -> None:
    [job] = running(store, clock)
    store.put_signal(f"job:{job.id}", "other", 1, now=clock.now())
    store.put_signal("wf:w", "go", 1, now=clock.now())
    assert end(store, clock, job, wait(job)) == Applied(job.id, "awaiting")


def test_27_a_wait_for_a_newer_payload_passes_over_the_one_it_saw(store: Storage, clock: SimClock) -> None:
    [job] = running(store, clock)
    store.put_signal(f"job:{job.id}", "go", 1, now=clock.now())
    seen = store.find_signal([f"job:{job.id}"], "go")
    assert seen is not None
    assert end(store, clock, job, wait(job, newer_than=seen.inserted_at)) == Applied(job.id, "awaiting")


def test_27_a_payload_is_newer_than_the_one_it_replaces_though_the_clock_was_set_back(
    store: Storage, clock: SimClock
) -> None:
    [job] = running(store, clock)
    store.put_signal(f"job:{job.id}", "go", 1, now=clock.now())
    seen = store.find_signal([f"job:{job.id}"], "go")
    assert seen is not None
    store.put_signal(f"job:{job.id}", "go", 2, now=clock.now() - timedelta(seconds=3))
    assert end(store, clock, job, wait(job, newer_than=seen.inserted_at)) == Applied(job.id, "ready")


def test_21_parks_of_one_group_each_look_for_their_own_signal(store: Storage, clock: SimClock) -> None:
    jobs = running(store, clock, 6)
    for job in jobs[::2]:
        store.put_signal(f"job:{job.id}", "go", 1, now=clock.now())
    results = store.ack_group([ack_of(job, wait(job)) for job in jobs], now=clock.now())
    assert [result.state for result in results if isinstance(result, Applied)] == ["ready", "awaiting"] * 3


def test_4_an_awaiting_job_is_claimable_only_when_its_deadline_is_due(
    store: Storage, clock: SimClock
) -> None:
    timed, endless = running(store, clock, 2)
    end(store, clock, timed, wait(timed, deadline=clock.now() + timedelta(seconds=10)))
    end(store, clock, endless, wait(endless))
    assert claim(store, clock, queue="running") == []
    clock.advance(10)
    [claimed] = claim(store, clock, queue="running")
    assert (claimed.id, claimed.await_name) == (timed.id, "go")


# -- freezing a wait (rule 5)


def test_5_unfreezing_a_wait_runs_the_park_check(store: Storage, clock: SimClock) -> None:
    waiting, signalled = running(store, clock, 2)
    for job in (waiting, signalled):
        end(store, clock, job, wait(job))
        assert store.freeze(job.id, now=clock.now()).state == "paused"
    assert store.put_signal(f"job:{signalled.id}", "go", 1, now=clock.now()) == []

    assert store.unfreeze(waiting.id, now=clock.now()).state == "awaiting"
    assert store.unfreeze(signalled.id, now=clock.now()).state == "ready"
    assert store.put_signal(f"job:{waiting.id}", "go", 1, now=clock.now()) == [waiting.id]


def test_27_unfreezing_a_wait_for_a_newer_payload_waits_on(store: Storage, clock: SimClock) -> None:
    [job] = running(store, clock)
    store.put_signal(f"job:{job.id}", "go", 1, now=clock.now())
    record = wait_record(until=None, newer_than=clock.now())
    step = NewStep(name=await_until_step("go", 2), value=envelope.encode(record))
    store.put_step(job.id, step, now=clock.now())
    end(store, clock, job, wait(job, newer_than=clock.now()))
    store.freeze(job.id, now=clock.now())
    assert store.unfreeze(job.id, now=clock.now()).state == "awaiting"
