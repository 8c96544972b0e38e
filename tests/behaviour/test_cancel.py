"""Cancelling: contract §8.6, rule 19."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest

from django_belay.contract.outcome import Succeeded
from django_belay.storage.base import Controlled, Storage
from django_belay.testing.clock import SimClock
from tests.behaviour.driving import add, end, running, states, wait


@pytest.mark.parametrize("state", ["ready", "awaiting", "held", "paused"])
def test_8_6_a_parked_job_is_cancelled_at_once(store: Storage, clock: SimClock, state: str) -> None:
    if state == "held":
        [job_id] = add(store, clock, state="held", workflow_id="w", wf_name="b", wf_deps=("a",))
    elif state == "awaiting":
        [job] = running(store, clock)
        end(store, clock, job, wait(job))
        job_id = job.id
    else:
        [job_id] = add(store, clock)
        if state == "paused":
            store.freeze(job_id, now=clock.now())
    assert states(store, [job_id]) == [state]
    clock.advance(1)

    assert store.request_cancel(job_id, reason="enough", now=clock.now()) == [
        Controlled(job_id=job_id, state="cancelled")
    ]

    after = store.get_job(job_id)
    assert (after.state, after.finished_at, after.errors) == (
        "cancelled",
        clock.now(),
        [{"reason": "enough"}],
    )
    assert after.cancel_requested is False


def test_8_6_a_running_job_is_asked_to_stop(store: Storage, clock: SimClock) -> None:
    [job] = running(store, clock)
    expected = [Controlled(job_id=job.id, state="running", requested=True)]
    assert store.request_cancel(job.id, reason="enough", now=clock.now()) == expected
    assert store.request_cancel(job.id, reason="enough", now=clock.now()) == expected
    standing = store.get_standing(job.id)
    assert (standing.state, standing.cancel_requested) == ("running", True)


def test_a_job_that_has_ended_is_left_alone(store: Storage, clock: SimClock) -> None:
    [job] = running(store, clock)
    end(store, clock, job, Succeeded())
    before = store.get_job(job.id)
    [answer] = store.request_cancel(job.id, reason="enough", now=clock.now())
    assert (answer.done, answer.reason) == (False, "state is succeeded")
    assert store.get_job(job.id) == before


def test_a_job_that_is_gone_is_answered(store: Storage, clock: SimClock) -> None:
    for tree in (False, True):
        assert store.request_cancel(4711, reason="enough", tree=tree, now=clock.now()) == [
            Controlled(job_id=4711, state=None, reason="not found")
        ]


def test_8_6_cancelling_a_member_settles_its_workflow(store: Storage, clock: SimClock) -> None:
    [first] = add(store, clock, workflow_id="w", wf_name="a")
    [doomed] = add(store, clock, state="held", workflow_id="w", wf_name="b", wf_deps=("a",))
    [released] = add(
        store, clock, state="held", workflow_id="w", wf_name="c", wf_deps=("a",), wf_ignore=("cancelled",)
    )
    store.request_cancel(first, reason="enough", now=clock.now())
    assert states(store, [doomed, released]) == ["cancelled", "ready"]


def test_8_6_a_tree_takes_its_unfinished_descendants_along(store: Storage, clock: SimClock) -> None:
    [root] = running(store, clock)
    [runs] = running(store, clock, parent_id=root.id)
    [waits] = add(store, clock, parent_id=root.id)
    [ended] = running(store, clock, parent_id=root.id)
    [below_ended] = add(store, clock, parent_id=ended.id)
    [below_waits] = add(store, clock, parent_id=waits)
    [stranger] = add(store, clock)
    end(store, clock, ended)

    answers = store.request_cancel(root.id, reason="enough", tree=True, now=clock.now())

    assert answers[0] == Controlled(job_id=root.id, state="running", requested=True)
    assert sorted(answer.job_id for answer in answers) == [root.id, runs.id, waits, below_ended, below_waits]
    assert all(answer.done for answer in answers)
    assert states(store, [runs.id, waits, ended.id, below_ended, below_waits, stranger]) == [
        "running", "cancelled", "succeeded", "cancelled", "cancelled", "ready",
    ]  # fmt: skip
    assert store.get_standing(runs.id).cancel_requested


def test_8_6_a_tree_below_a_job_that_has_ended_is_cancelled_too(store: Storage, clock: SimClock) -> None:
    [root] = running(store, clock)
    [child] = add(store, clock, parent_id=root.id)
    end(store, clock, root)
    answers = store.request_cancel(root.id, reason="enough", tree=True, now=clock.now())
    assert [(answer.job_id, answer.done) for answer in answers] == [(root.id, False), (child, True)]


@pytest.mark.usefixtures("one_owner")
def test_a_large_tree_is_cancelled_whole(store: Storage, clock: SimClock) -> None:
    [root] = add(store, clock)
    children = add(store, clock, 600, parent_id=root)
    answers = store.request_cancel(root, reason="enough", tree=True, now=clock.now())
    assert len(answers) == 601
    assert set(states(store, [root, *children[::50]])) == {"cancelled"}


def test_a_tree_that_bites_its_tail_ends(
    store: Storage, clock: SimClock, connection: psycopg.Connection[Any]
) -> None:
    """A foreign writer may have made a cycle."""
    [first] = add(store, clock)
    [second] = add(store, clock, parent_id=first)
    connection.execute("UPDATE belay_jobs SET parent_id = %s WHERE id = %s", (second, first))
    answers = store.request_cancel(first, reason="enough", tree=True, now=clock.now())
    assert [answer.job_id for answer in answers] == [first, second]


def test_a_tree_whose_root_is_gone_is_left_alone(store: Storage, clock: SimClock) -> None:
    """The answer is "not found": then nothing was done."""
    [child] = add(store, clock, parent_id=10**9)
    [answer] = store.request_cancel(10**9, reason="", tree=True, now=clock.now())
    assert answer.state is None
    assert states(store, [child]) == ["ready"]
