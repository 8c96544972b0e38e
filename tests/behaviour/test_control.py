"""Operator moves: rules 5, 38; erasing payloads."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import psycopg
import pytest

from django_belay.contract.job import Lease
from django_belay.contract.outcome import Failed, Succeeded
from django_belay.storage.base import NewStep, Storage
from django_belay.testing.clock import SimClock
from tests.behaviour.driving import add, claim, end, running, states, wait


def test_38_a_ready_job_is_rescheduled_to_now_or_later(store: Storage, clock: SimClock) -> None:
    later, sooner = add(store, clock), add(store, clock, ready_at=clock.now() + timedelta(days=1))
    store.reschedule(later[0], ready_at=clock.now() + timedelta(hours=1), now=clock.now())
    assert store.reschedule(sooner[0], ready_at=clock.now(), now=clock.now()).state == "ready"
    assert [job.id for job in claim(store, clock)] == sooner


def test_38_an_awaiting_job_is_told_to_time_out_now(store: Storage, clock: SimClock) -> None:
    [job] = running(store, clock)
    end(store, clock, job, wait(job))
    assert store.reschedule(job.id, ready_at=clock.now(), now=clock.now()).state == "awaiting"
    [claimed] = claim(store, clock, queue="running")
    assert (claimed.id, claimed.await_name) == (job.id, "go")


def test_38_a_waiting_job_is_moved(store: Storage, clock: SimClock) -> None:
    [job_id] = add(store, clock, priority=3)
    store.move(job_id, queue="other", now=clock.now())
    assert (store.get_job(job_id).queue, store.get_job(job_id).priority) == ("other", 3)
    store.move(job_id, priority=-1, now=clock.now())
    assert (store.get_job(job_id).queue, store.get_job(job_id).priority) == ("other", -1)


def test_38_what_makes_a_job_due_pokes_its_queue(
    store: Storage, clock: SimClock, connection: psycopg.Connection[Any]
) -> None:
    [job_id] = add(store, clock, ready_at=clock.now() + timedelta(days=1))
    connection.execute("LISTEN belay_belay_behaviour")
    store.reschedule(job_id, ready_at=clock.now(), now=clock.now())
    store.move(job_id, queue="other", now=clock.now())
    pokes = [notify.payload for notify in connection.notifies(timeout=0.2)]
    assert pokes == ['{"t":"p","q":"default"}', '{"t":"p","q":"other"}']


def test_5_a_frozen_job_is_not_claimed_until_it_is_unfrozen(store: Storage, clock: SimClock) -> None:
    [job_id] = add(store, clock, ready_at=clock.now() + timedelta(seconds=5))
    assert store.freeze(job_id, now=clock.now()).state == "paused"
    clock.advance(10)
    assert claim(store, clock) == []
    assert store.unfreeze(job_id, now=clock.now()).state == "ready"
    assert [job.id for job in claim(store, clock)] == [job_id]


def test_5_freezing_keeps_the_schedule(store: Storage, clock: SimClock) -> None:
    due = clock.now() + timedelta(hours=1)
    [job_id] = add(store, clock, ready_at=due)
    store.freeze(job_id, now=clock.now())
    store.unfreeze(job_id, now=clock.now())
    assert store.get_job(job_id).ready_at == due


def test_5_freezing_a_ready_job_clears_its_await_columns(store: Storage, clock: SimClock) -> None:
    [job] = running(store, clock)
    end(store, clock, job, wait(job, deadline=clock.now()))
    [timed_out] = claim(store, clock, queue="running")
    store.hand_back([Lease.of(timed_out)], now=clock.now())
    assert store.get_job(job.id).await_name == "go"
    store.freeze(job.id, now=clock.now())
    assert store.get_job(job.id).await_name is None
    assert store.unfreeze(job.id, now=clock.now()).state == "ready"


def test_5_a_frozen_wait_keeps_its_deadline(store: Storage, clock: SimClock) -> None:
    due = clock.now() + timedelta(hours=1)
    [job] = running(store, clock)
    end(store, clock, job, wait(job, deadline=due))
    store.freeze(job.id, now=clock.now())
    store.unfreeze(job.id, now=clock.now())
    after = store.get_job(job.id)
    assert (after.state, after.ready_at, after.await_name) == ("awaiting", due, "go")


@pytest.mark.parametrize("operation", ["reschedule", "move", "freeze", "unfreeze", "erase_payload"])
def test_a_job_in_another_state_is_left_alone_and_one_that_is_gone_is_answered(
    store: Storage, clock: SimClock, operation: str
) -> None:
    [job] = running(store, clock)
    before = store.get_job(job.id)
    options: dict[str, Any] = {
        "reschedule": {"ready_at": clock.now()}, "move": {"queue": "other"},
    }.get(operation, {})  # fmt: skip
    answer = getattr(store, operation)(job.id, now=clock.now(), **options)
    assert (answer.done, answer.state, answer.reason) == (False, "running", "state is running")
    assert store.get_job(job.id) == before
    gone = getattr(store, operation)(4711, now=clock.now(), **options)
    assert (gone.done, gone.state, gone.reason) == (False, None, "not found")


def test_erase_payload_leaves_shape_and_numbers(store: Storage, clock: SimClock) -> None:
    [job] = running(store, clock, input={"secret": 1}, meta={"secret": 2})
    store.put_step(job.id, NewStep(name="s", value=b'"secret"', usd_micros=7), now=clock.now())
    store.append_event(job.id, {"secret": 3}, now=clock.now())
    store.put_signal(f"job:{job.id}", "go", "secret", now=clock.now())
    end(store, clock, job, Failed(error={"error": "secret", "attempt": 1, "traceback": "secret"}))

    assert store.erase_payload(job.id, now=clock.now()).state == "failed"

    after = store.get_job(job.id)
    [step] = store.get_steps(job.id)
    [event] = store.list_events(job.id)
    assert "secret" not in repr((after, step, event))
    assert store.list_signals(f"job:{job.id}") == []
    assert (step.name, step.usd_micros, after.spent_usd_micros) == ("s", 7, 7)
    assert after.errors == [{"error": "$erased", "attempt": 1}]
    assert after.result is None
    assert states(store, [job.id]) == ["failed"]


def test_erase_payload_takes_the_result(store: Storage, clock: SimClock) -> None:
    [job] = running(store, clock)
    end(store, clock, job, Succeeded(b'"secret"'))
    store.erase_payload(job.id, now=clock.now())
    assert store.get_job(job.id).result == b'{"$erased":true}'
