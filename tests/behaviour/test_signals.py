"""Signals: contract §8.1, rules 10, 19, 23."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import psycopg
import pytest

from django_belay.storage.base import Applied, ClaimRound, Demand, Storage
from django_belay.storage.postgres.store import PostgresStore
from django_belay.testing.clock import SimClock
from tests.behaviour.driving import ack_of, claim, end, running, states, wait


def test_8_1_the_latest_payload_of_a_name_stays_until_it_is_cleared(store: Storage, clock: SimClock) -> None:
    store.put_signal("s", "go", {"n": 1}, now=clock.now())
    store.put_signal("s", "go", {"n": 2}, now=clock.advance(1))
    found = store.find_signal(["s"], "go")
    assert found is not None
    assert (found.payload, found.inserted_at) == ({"n": 2}, clock.now())
    assert store.clear_signal("s", "go")
    assert not store.clear_signal("s", "go")
    assert store.find_signal(["s"], "go") is None


def test_23_the_first_scope_in_order_that_has_one_wins(store: Storage, clock: SimClock) -> None:
    store.put_signal("wf:w", "go", "workflow", now=clock.now())
    store.put_signal("custom", "go", "custom", now=clock.now())
    for scopes, winner in (
        (["custom", "job:1", "wf:w"], "custom"),
        (["job:1", "wf:w", "custom"], "workflow"),
    ):
        found = store.find_signal(scopes, "go")
        assert found is not None
        assert found.payload == winner


def test_list_signals_gives_a_scope_by_name(store: Storage, clock: SimClock) -> None:
    for scope, name in (("s", "b"), ("s", "a"), ("t", "c")):
        store.put_signal(scope, name, None, now=clock.now())
    assert [signal.name for signal in store.list_signals("s")] == ["a", "b"]


@pytest.mark.parametrize("deliver", ["put", "write and wake"])
@pytest.mark.parametrize("parked_on", ["custom", None])
@pytest.mark.parametrize("sent_to", ["custom", "job:{id}", "wf:w"])
def test_23_a_delivery_wakes_whoever_reads_its_scope(
    store: Storage, clock: SimClock, deliver: str, parked_on: str | None, sent_to: str
) -> None:
    [job] = running(store, clock, workflow_id="w", wf_name="a")
    end(store, clock, job, wait(job, scope=parked_on))
    [other] = running(store, clock, workflow_id="x", wf_name="a")
    end(store, clock, other, wait(other, name="another"))
    scope = sent_to.format(id=job.id)
    clock.advance(1)

    if deliver == "put":
        woken = store.put_signal(scope, "go", 1, now=clock.now())
    else:
        store.write_signal(scope, "go", 1, now=clock.now())
        assert store.get_job(job.id).state == "awaiting"
        woken = store.wake_awaiting(scope, "go", now=clock.now())

    reads = parked_on is not None or sent_to != "custom"
    assert woken == ([job.id] if reads else [])
    after = store.get_job(job.id)
    assert after.state == ("ready" if reads else "awaiting")
    if reads:
        assert (after.ready_at, after.await_scope, after.await_name) == (clock.now(), None, None)
    assert store.get_job(other.id).state == "awaiting"


def test_10_a_wake_without_a_signal_wakes_nobody(store: Storage, clock: SimClock) -> None:
    [job] = running(store, clock)
    end(store, clock, job, wait(job))
    assert store.wake_awaiting(f"job:{job.id}", "go", now=clock.now()) == []


@pytest.mark.parametrize("scope", ["job:", "job:007", "job:99999999999999999999", "wf:", "", "job:x"])
def test_23_odd_scopes_are_only_names(store: Storage, clock: SimClock, scope: str) -> None:
    [job] = running(store, clock)
    end(store, clock, job, wait(job, scope=scope))
    assert store.put_signal(scope, "go", 1, now=clock.now()) == [job.id]


def test_8_1_a_woken_job_pokes_its_queue(
    store: Storage, clock: SimClock, connection: psycopg.Connection[Any]
) -> None:
    [job] = running(store, clock)
    end(store, clock, job, wait(job))
    connection.execute("LISTEN belay_belay_behaviour")
    store.put_signal(f"job:{job.id}", "go", 1, now=clock.advance(1))
    assert [notify.payload for notify in connection.notifies(timeout=0.2)] == ['{"t":"p","q":"running"}']


# -- no lost wake-up, no deadlock


def test_7_no_interleaving_of_parks_and_signals_loses_a_wake(
    make_postgres_store: Callable[..., PostgresStore], clock: SimClock
) -> None:
    """Grouped parks against bulk signals over job, workflow and custom scopes, in opposite orders."""
    store = make_postgres_store()
    jobs = running(store, clock, 60, workflow_id="w", wf_name="m") + running(store, clock, 60)
    stores = [make_postgres_store(size=2) for _ in range(4)]
    errors: list[BaseException] = []
    barrier = threading.Barrier(len(stores))
    shuffled = random.Random(7).sample(jobs, len(jobs))

    def park(mine: PostgresStore, part: list[Any]) -> None:
        for start in range(0, len(part), 10):
            group = [ack_of(job, wait(job, scope=f"s{job.id % 5}")) for job in part[start : start + 10]]
            mine.ack_group(group, now=clock.now())

    def signal(mine: PostgresStore, part: list[Any]) -> None:
        for job in part:
            scope = (f"s{job.id % 5}", f"job:{job.id}")[job.id % 2]
            mine.put_signal(scope, "go", job.id, now=clock.now())
        mine.put_signal("wf:w", "go", 0, now=clock.now())
        for number in range(5):
            mine.put_signal(f"s{number}", "go", 0, now=clock.now())

    def run(work: Callable[..., None], mine: PostgresStore, part: list[Any]) -> None:
        try:
            barrier.wait()
            work(mine, part)
        except BaseException as error:
            errors.append(error)

    plans = [(park, shuffled[:60]), (park, shuffled[60:]), (signal, jobs), (signal, jobs[::-1])]
    threads = [
        threading.Thread(target=run, args=(work, mine, part))
        for mine, (work, part) in zip(stores, plans, strict=True)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert errors == []
    assert set(states(store, [job.id for job in jobs])) == {"ready"}
    assert len(claim(store, clock, 200, queue="running")) == 120


@pytest.mark.parametrize(
    "at", ["infinity", "294276-12-31 23:59:59.999999+00", "-infinity", "4713-01-01 BC", None]
)
def test_4_a_signal_with_an_odd_instant_is_replaced_by_a_newer_one(
    store: Storage, clock: SimClock, connection: psycopg.Connection[Any], at: str | None
) -> None:
    """A child's end is delivered over it, too."""
    [parent] = running(store, clock)
    [child] = running(store, clock, parent_id=parent.id, queue="children")
    connection.execute(
        "INSERT INTO belay_signals VALUES (%(own)s, '$children', '{}', %(at)s), ('s', 'a', '1', %(at)s),"
        " ('s', 'b', '1', %(at)s)",
        {"own": f"job:{parent.id}", "at": at},
    )
    assert end(store, clock, child) == Applied(child.id, "succeeded")
    store.put_signal("s", "a", 2, now=clock.now())
    store.write_signal("s", "b", 2, now=clock.now())
    first = [signal.inserted_at for signal in store.list_signals("s")]
    store.put_signal("s", "a", 3, now=clock.now())
    store.write_signal("s", "b", 3, now=clock.now())
    second = store.list_signals("s")
    assert [signal.payload for signal in second] == [3, 3]
    assert all(before < signal.inserted_at for before, signal in zip(first, second, strict=True))


def test_a_woken_job_is_due_within_the_same_millisecond(store: Storage, clock: SimClock) -> None:
    [job] = running(store, clock)
    end(store, clock, job, wait(job))
    at = clock.now().replace(microsecond=700)
    store.put_signal(f"job:{job.id}", "go", 1, now=at)
    round_ = ClaimRound(leased_by="w:1", lease_until=at + timedelta(seconds=30))
    soon = at + timedelta(microseconds=1)
    assert [
        one.id for one in store.claim(round_, demands=[Demand(queue="running", take=1)], now=soon).jobs
    ] == [job.id]
