"""Retry by an operator: contract §8.6, rules 9, 34."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import psycopg
import pytest

from django_belay.contract.job import NewJob
from django_belay.contract.outcome import Cancelled, Failed, Snoozed, Succeeded
from django_belay.storage.base import Controlled, Storage
from django_belay.storage.postgres.store import PostgresStore
from django_belay.testing.clock import SimClock
from tests.behaviour.driving import add, claim_one, end, running, states, wait

FAILED = Failed(error={"error": "no"})


@pytest.mark.parametrize("outcome", [FAILED, Cancelled(reason="enough")], ids=["failed", "cancelled"])
def test_34_retry_does_its_four_things(store: Storage, clock: SimClock, outcome: Failed | Cancelled) -> None:
    [job] = running(store, clock, max_attempts=1)
    store.request_cancel(job.id, reason="enough", now=clock.now())
    end(store, clock, job, outcome)
    clock.advance(5)

    assert store.retry(job.id, now=clock.now()) == Controlled(job_id=job.id, state="ready")

    after = store.get_job(job.id)
    assert (after.state, after.ready_at, after.finished_at) == ("ready", clock.now(), None)
    assert after.cancel_requested is False
    assert (after.attempt, after.max_attempts) == (1, 2)
    assert (after.lease_until, after.leased_by) == (None, None)
    assert len(after.errors) == 1
    assert end(store, clock, claim_one(store, clock, queue="running"), FAILED)


def test_34_attempts_that_are_left_stay(store: Storage, clock: SimClock) -> None:
    [job] = running(store, clock, max_attempts=20)
    end(store, clock, job, FAILED)
    store.retry(job.id, now=clock.now())
    assert store.get_job(job.id).max_attempts == 20


def test_8_6_a_member_with_deps_is_held_again_until_they_allow(store: Storage, clock: SimClock) -> None:
    [dep] = running(store, clock, workflow_id="w", wf_name="a")
    [job] = add(store, clock, state="held", workflow_id="w", wf_name="b", wf_deps=("a",))
    end(store, clock, dep, FAILED)
    assert states(store, [job]) == ["cancelled"]

    assert store.retry(job, now=clock.now()).state == "cancelled"  # doomed again
    assert store.get_job(job).finished_at == clock.now()

    store.retry(dep.id, now=clock.now())
    assert store.retry(job, now=clock.now()).state == "held"  # its dep has not ended
    assert store.get_job(job).finished_at is None

    end(store, clock, claim_one(store, clock, queue="running"))
    assert states(store, [dep.id, job]) == ["succeeded", "ready"]


def test_8_6_a_member_whose_deps_succeeded_is_released_at_once(store: Storage, clock: SimClock) -> None:
    [dep] = running(store, clock, workflow_id="w", wf_name="a")
    [job] = add(store, clock, state="held", workflow_id="w", wf_name="b", wf_deps=("a",))
    end(store, clock, dep)
    end(store, clock, claim_one(store, clock), FAILED)
    clock.advance(1)
    assert store.retry(job, now=clock.now()).state == "ready"
    assert store.get_job(job).ready_at == clock.now()


def test_a_job_that_was_cancelled_in_a_wait_does_not_believe_that_it_timed_out(
    store: Storage, clock: SimClock
) -> None:
    [job] = running(store, clock)
    end(store, clock, job, wait(job))
    store.request_cancel(job.id, reason="enough", now=clock.now())
    store.retry(job.id, now=clock.now())
    assert store.get_job(job.id).await_name is None


@pytest.mark.parametrize("state", ["ready", "running", "succeeded"])
def test_only_a_failed_or_cancelled_job_is_retried(store: Storage, clock: SimClock, state: str) -> None:
    [job] = running(store, clock)
    if state != "running":
        end(store, clock, job, Succeeded() if state == "succeeded" else Snoozed(until=clock.now()))
    answer = store.retry(job.id, now=clock.now())
    assert (answer.done, answer.reason, answer.state) == (False, f"state is {state}", state)


def test_a_job_that_is_gone_is_answered(store: Storage, clock: SimClock) -> None:
    assert store.retry(4711, now=clock.now()) == Controlled(job_id=4711, state=None, reason="not found")


def test_9_a_key_that_is_held_again_is_reported_with_its_holder(store: Storage, clock: SimClock) -> None:
    [job] = running(store, clock, unique_key="u", unique_mode="incomplete")
    end(store, clock, job, FAILED)
    [holder] = add(store, clock, unique_key="u", unique_mode="incomplete")
    answer = store.retry(job.id, now=clock.now())
    assert (answer.done, answer.reason) == (False, f"key held by {holder}")
    assert states(store, [job.id]) == ["failed"]


def test_9_two_retries_of_one_key_at_the_same_time_never_raise(
    make_postgres_store: Callable[..., PostgresStore], clock: SimClock
) -> None:
    stores = [make_postgres_store(size=1) for _ in range(4)]
    for _ in range(10):
        rivals = []
        for _ in stores:
            [job] = running(stores[0], clock, unique_key="u", unique_mode="incomplete")
            end(stores[0], clock, job, FAILED)
            rivals.append(job.id)
        answers: list[Controlled] = []
        barrier = threading.Barrier(len(stores))

        def retry(
            store: Storage,
            job_id: int,
            barrier: threading.Barrier = barrier,
            answers: list[Controlled] = answers,
        ) -> None:
            barrier.wait()
            answers.append(store.retry(job_id, now=clock.now()))

        threads = [threading.Thread(target=retry, args=pair) for pair in zip(stores, rivals, strict=True)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        [winner] = [answer.job_id for answer in answers if answer.done]
        assert {answer.reason for answer in answers if not answer.done} == {f"key held by {winner}"}
        store = stores[0]
        store.request_cancel(winner, reason="tidy", now=clock.now())


@pytest.mark.usefixtures("one_owner")
def test_many_members_are_retried_whatever_their_order(store: Storage, clock: SimClock) -> None:
    """More than one transaction's worth, each dependent before what it depends on."""
    [root] = add(store, clock, workflow_id="w", wf_name="root")
    middle = [
        NewJob(kind="k", state="held", workflow_id="w", wf_name=f"m{n}", wf_deps=("root",))
        for n in range(140)
    ]
    last = [
        NewJob(kind="k", state="held", workflow_id="w", wf_name=f"l{n}", wf_deps=(f"m{n}",))
        for n in range(140)
    ]
    inserted = store.insert_jobs([*middle, *last], now=clock.now())
    ids = [root, *(one.job_id for one in inserted)]
    store.request_cancel(root, reason="not yet", now=clock.now())
    assert set(states(store, ids)) == {"cancelled"}
    answers = store.retry_many(ids[::-1], now=clock.now())
    assert [answer.job_id for answer in answers] == ids[::-1]
    assert {answer.state for answer in answers[:-1]} == {"held"}
    assert set(states(store, ids[1:])) == {"held"}


def test_34_a_job_at_the_bound_of_its_attempts_is_retried(
    store: Storage, clock: SimClock, connection: psycopg.Connection[Any]
) -> None:
    ids = add(store, clock, 2, state="failed")
    connection.execute("UPDATE belay_jobs SET attempt = 2147483647 WHERE id = %s", (ids[0],))
    store.retry_many(ids, now=clock.now())
    assert states(store, ids) == ["ready", "ready"]
