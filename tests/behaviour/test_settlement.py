"""Workflow settlement inside transitions: contract §8.3, §11.5, rules 19, 21, 33."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import psycopg
import pytest

from django_belay.contract.job import NewJob
from django_belay.contract.outcome import Cancelled, Failed, Outcome, Retried, Snoozed, Succeeded
from django_belay.storage.base import Storage
from django_belay.storage.postgres.store import PostgresStore
from django_belay.testing.clock import SimClock
from tests.behaviour.driving import ack_of, add, claim, claim_one, end, states

FAILED = Failed(error={"error": "no"})


def flow(
    store: Storage, clock: SimClock, *, workflow: str = "w", **members: str | tuple[str, ...]
) -> dict[str, int]:
    """Insert a workflow: name → deps, where ``!failed`` and ``!cancelled`` are ignored outcomes."""
    jobs = []
    for name, given in members.items():
        parts = given.split() if isinstance(given, str) else given
        deps = tuple(part for part in parts if not part.startswith("!"))
        ignore = tuple(part[1:] for part in parts if part.startswith("!"))
        jobs.append(
            NewJob(
                kind="k", workflow_id=workflow, wf_name=name, wf_deps=deps, wf_ignore=ignore,
                state="held" if deps else "ready",
            )
        )  # fmt: skip
    inserted = store.insert_jobs(jobs, now=clock.now())
    return {name: one.job_id for name, one in zip(members, inserted, strict=True)}


def finish(store: Storage, clock: SimClock, outcomes: dict[str, Outcome]) -> None:
    """Claim what is ready and end the members that are named."""
    jobs = {str(job.wf_name): job for job in claim(store, clock)}
    store.ack_group([ack_of(jobs[name], outcome) for name, outcome in outcomes.items()], now=clock.now())


def found(store: Storage, ids: dict[str, int]) -> dict[str, str]:
    return {name: store.get_job(job_id).state for name, job_id in ids.items()}


def test_8_3_a_member_is_released_when_every_dep_succeeded(store: Storage, clock: SimClock) -> None:
    ids = flow(store, clock, a="", b="", c="a b")
    inserted_at = clock.now()
    clock.advance(1)
    finish(store, clock, {"a": Succeeded()})
    assert found(store, ids)["c"] == "held"
    clock.advance(31)
    store.reclaim_expired(now=clock.now(), backoff=lambda _: timedelta(0))
    finish(store, clock, {"b": Succeeded()})
    assert found(store, ids)["c"] == "ready"
    assert store.get_job(ids["c"]).ready_at == inserted_at


@pytest.mark.parametrize("outcome", [FAILED, Cancelled(reason="enough")], ids=["failed", "cancelled"])
def test_8_3_a_failed_dep_dooms_its_dependents_to_the_fixpoint(
    store: Storage, clock: SimClock, outcome: Outcome
) -> None:
    ids = flow(store, clock, a="", b="a", c="b", d="c !cancelled", e="b !failed", f="")
    finish(store, clock, {"a": outcome})
    assert {name: found(store, ids)[name] for name in "bcde"} == {
        "b": "cancelled", "c": "cancelled", "d": "ready", "e": "cancelled",
    }  # fmt: skip
    doomed = store.get_job(ids["c"])
    assert (doomed.finished_at, doomed.errors) == (clock.now(), [{"reason": "dependency_failed"}])


def test_8_3_an_ignored_outcome_releases(store: Storage, clock: SimClock) -> None:
    ids = flow(store, clock, a="", b="a !failed")
    finish(store, clock, {"a": FAILED})
    assert found(store, ids)["b"] == "ready"


@pytest.mark.parametrize(
    "outcome", [Snoozed(until=SimClock().now()), Retried(ready_at=SimClock().now(), error={})]
)
def test_8_3_what_does_not_end_settles_nothing(store: Storage, clock: SimClock, outcome: Outcome) -> None:
    ids = flow(store, clock, a="", b="a")
    finish(store, clock, {"a": outcome})
    assert found(store, ids) == {"a": "ready", "b": "held"}


def test_21_members_that_end_in_one_group_are_settled_once_and_together(
    store: Storage, clock: SimClock
) -> None:
    ids = flow(store, clock, a="", b="", c="a b", d="a", e="c")
    finish(store, clock, {"a": Succeeded(), "b": FAILED})
    assert found(store, ids) == {
        "a": "succeeded", "b": "failed", "c": "cancelled", "d": "ready", "e": "cancelled",
    }  # fmt: skip


def test_21_a_stale_member_of_a_group_does_not_settle(store: Storage, clock: SimClock) -> None:
    ids = flow(store, clock, a="", b="", c="a b")
    jobs = {job.wf_name: job for job in claim(store, clock)}
    end(store, clock, jobs["b"], Snoozed(until=clock.now()))
    store.ack_group([ack_of(jobs["a"]), ack_of(jobs["b"])], now=clock.now())
    assert found(store, ids) == {"a": "succeeded", "b": "ready", "c": "held"}


def test_33_a_dep_whose_row_is_gone_neither_releases_nor_dooms(
    store: Storage, clock: SimClock, connection: psycopg.Connection[Any]
) -> None:
    ids = flow(store, clock, a="", b="a gone")
    finish(store, clock, {"a": Succeeded()})
    assert found(store, ids)["b"] == "held"
    assert store.resettle_workflows(now=clock.now()) == 0
    assert found(store, ids)["b"] == "held"


def test_33_many_deps_are_released_by_the_last_one(store: Storage, clock: SimClock) -> None:
    """Over 64 deps the look before settlement asks another question."""
    names = [f"n{number}" for number in range(100)]
    ids = flow(store, clock, **dict.fromkeys(names, ""), last=tuple(names))
    jobs = claim(store, clock)
    for start in range(0, 100, 25):
        assert found(store, {"last": ids["last"]}) == {"last": "held"}
        store.ack_group([ack_of(job) for job in jobs[start : start + 25]], now=clock.now())
    assert found(store, {"last": ids["last"]}) == {"last": "ready"}


def test_33_many_deps_are_doomed_by_any_one(store: Storage, clock: SimClock) -> None:
    names = [f"n{number}" for number in range(100)]
    ids = flow(store, clock, **dict.fromkeys(names, ""), last=tuple(names))
    end(store, clock, claim(store, clock)[50], FAILED)
    assert store.get_job(ids["last"]).state == "cancelled"


@pytest.mark.parametrize("seed", range(4))
def test_8_3_every_end_settles_all_that_it_moves_at_once(store: Storage, clock: SimClock, seed: int) -> None:
    """The sweeper, which reads whole workflows, finds nothing left to settle."""
    rng = random.Random(seed)
    names = [f"m{number}" for number in range(40)]
    members = {}
    for number, name in enumerate(names):
        few = rng.randint(0, 3) if rng.random() < 0.8 else rng.randint(0, 40)
        deps = rng.sample(names[:number], min(few, number))
        members[name] = (*deps, *rng.sample(["!failed", "!cancelled"], rng.choice((0, 0, 1, 2))))
    ids = flow(store, clock, **members)
    while jobs := claim(store, clock):
        rng.shuffle(jobs)
        while jobs:
            group = [jobs.pop() for _ in range(min(len(jobs), rng.randint(1, 5)))]
            outcomes = [rng.choice((Succeeded(), Succeeded(), FAILED)) for _ in group]
            store.ack_group([ack_of(*pair) for pair in zip(group, outcomes, strict=True)], now=clock.now())
            assert store.resettle_workflows(now=clock.now()) == 0
    assert set(found(store, ids).values()) <= {"succeeded", "failed", "cancelled"}


def test_8_3_a_long_chain_is_doomed_to_its_end(store: Storage, clock: SimClock) -> None:
    names = [f"n{number}" for number in range(20)]
    ids = flow(
        store, clock, **{name: names[max(n - 1, 0) : n] for n, name in enumerate(names)}, x="n19 !cancelled"
    )
    finish(store, clock, {"n0": FAILED})
    assert found(store, ids) == {**dict.fromkeys(names, "cancelled"), "n0": "failed", "x": "ready"}


def test_8_3_equal_names_of_two_workflows_do_not_meet(store: Storage, clock: SimClock) -> None:
    ids = flow(store, clock, workflow="one", a="", b="a")
    others = flow(store, clock, workflow="two", a="", b="a")
    job = next(job for job in claim(store, clock) if job.workflow_id == "one")
    end(store, clock, job)
    assert (found(store, ids)["b"], found(store, others)["b"]) == ("ready", "held")


def test_4_deps_in_two_dimensions_and_of_any_length_settle(
    store: Storage, clock: SimClock, connection: psycopg.Connection[Any]
) -> None:
    long = "n" * 100_000
    ids = flow(store, clock, a="", x="", b="a", c="a")
    connection.execute("UPDATE belay_jobs SET wf_deps = '{{a,a},{a,a}}' WHERE id = %s", [ids["b"]])
    connection.execute("UPDATE belay_jobs SET wf_name = %s WHERE id = %s", [long, ids["x"]])
    connection.execute("UPDATE belay_jobs SET wf_deps = ARRAY['a', %s] WHERE id = %s", [long, ids["c"]])
    jobs = {job.id: job for job in claim(store, clock)}
    end(store, clock, jobs[ids["a"]])
    assert [found(store, ids)[name] for name in "bc"] == ["ready", "held"]
    end(store, clock, jobs[ids["x"]])
    assert found(store, ids)["c"] == "ready"


def test_8_3_of_two_rows_with_one_name_the_newest_speaks(
    store: Storage, clock: SimClock, connection: psycopg.Connection[Any]
) -> None:
    ids = flow(store, clock, a="", other="", b="a")
    connection.execute("UPDATE belay_jobs SET wf_name = 'a' WHERE id = %s", [ids["other"]])
    older, newer = claim(store, clock)
    end(store, clock, newer)
    assert found(store, ids)["b"] == "ready"
    end(store, clock, older, FAILED)
    assert found(store, ids)["b"] == "ready"


def test_members_without_a_name_or_with_one_twice_stop_nothing(
    store: Storage, clock: SimClock, connection: psycopg.Connection[Any]
) -> None:
    ids = flow(store, clock, a="", b="a", x="")
    connection.execute("UPDATE belay_jobs SET wf_name = NULL WHERE id = %s", (ids["x"],))
    jobs = {job.id: job for job in claim(store, clock)}
    store.ack_group([ack_of(jobs[ids["x"]]), ack_of(jobs[ids["a"]])], now=clock.now())
    assert found(store, ids) == {"a": "succeeded", "b": "ready", "x": "succeeded"}


def test_24_a_doomed_member_tells_its_parent(store: Storage, clock: SimClock) -> None:
    ids = flow(store, clock, a="")
    [child] = store.insert_jobs(
        [NewJob(kind="k", workflow_id="w", wf_name="b", wf_deps=("a",), state="held", parent_id=777)],
        now=clock.now(),
    )
    finish(store, clock, {"a": FAILED})
    assert store.get_job(child.job_id).state == "cancelled"
    assert store.find_signal(["job:777"], "$children") is not None
    assert found(store, ids) == {"a": "failed"}


def test_11_5_two_last_deps_that_end_at_the_same_time_release_once(
    make_postgres_store: Callable[..., PostgresStore], clock: SimClock
) -> None:
    stores = [make_postgres_store(size=1) for _ in range(2)]
    for number in range(25):
        ids = flow(stores[0], clock, workflow=f"w{number}", a="", b="", c="a b")
        jobs = claim(stores[0], clock)
        barrier = threading.Barrier(2)

        def ack(store: Storage, job: Any, barrier: threading.Barrier = barrier) -> None:
            barrier.wait()
            end(store, clock, job)

        threads = [
            threading.Thread(target=ack, args=(store, job)) for store, job in zip(stores, jobs, strict=True)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert found(stores[0], ids)["c"] == "ready"
        [released] = claim(stores[0], clock)
        end(stores[0], clock, released)


@pytest.mark.parametrize("how", ["ack", "reclaim", "cancel"])
def test_4_a_dependent_without_a_name_is_doomed_and_keeps_nobody_from_ending(
    store: Storage, clock: SimClock, how: str
) -> None:
    [failing] = add(store, clock, workflow_id="w", wf_name="a", max_attempts=1)
    [nameless] = add(store, clock, workflow_id="w", wf_deps=("a",), state="held")
    if how == "cancel":
        store.request_cancel(failing, reason="x", now=clock.now())
    else:
        job = claim_one(store, clock)
        if how == "ack":
            end(store, clock, job, Failed(error={"error": "x"}))
        else:
            clock.advance(31)
            store.reclaim_expired(now=clock.now(), backoff=lambda _: timedelta(0))
    ended = "cancelled" if how == "cancel" else "failed"
    assert states(store, [failing, nameless]) == [ended, "cancelled"]
