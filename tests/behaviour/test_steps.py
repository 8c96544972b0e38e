"""Steps: contract §8.2, §11.3, §11.4, rules 29, 30."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import psycopg
import pytest

from django_belay.contract.job import Lease
from django_belay.exceptions import ConfigurationError, JobNotFound
from django_belay.storage.base import NewStep, StepWritten, Storage
from django_belay.storage.postgres.store import PostgresStore
from django_belay.testing.clock import SimClock
from tests.behaviour.driving import add, running


def put(
    store: Storage, clock: SimClock, job_id: int, name: str, value: bytes = b"1", **cost: int
) -> StepWritten:
    return store.put_step(job_id, NewStep(name=name, value=value, **cost), now=clock.now())


def test_8_2_a_step_is_journaled_charged_and_answered_with_the_standing(
    store: Storage, clock: SimClock
) -> None:
    [job] = running(store, clock, budget_usd_micros=10, budget_tokens=100)

    first = put(store, clock, job.id, "a", b"[1]", usd_micros=6, tokens=40)
    second = put(store, clock, job.id, "b", b"[2]", usd_micros=6)

    assert (first.inserted, first.value, first.standing.over_budget) == (True, b"[1]", False)
    assert first.standing.is_held_by(Lease.of(job))
    assert second.standing.over_budget
    assert (second.standing.spent_usd_micros, second.standing.spent_tokens) == (12, 40)
    assert second.standing == store.get_standing(job.id)
    steps = store.get_steps(job.id)
    assert [(step.seq, step.name, step.value) for step in steps] == [(1, "a", b"[1]"), (2, "b", b"[2]")]
    assert (steps[0].usd_micros, steps[0].tokens, steps[0].inserted_at) == (6, 40, clock.now())


def test_29_the_first_value_stays_and_a_body_that_ran_twice_is_charged_twice(
    store: Storage, clock: SimClock
) -> None:
    [job] = running(store, clock)
    put(store, clock, job.id, "a", b'{"error":"shaped"}', usd_micros=5)

    again = put(store, clock, job.id, "a", b"2", usd_micros=5, tokens=1)

    assert (again.inserted, again.value) == (False, b'{"error":"shaped"}')
    assert (again.standing.spent_usd_micros, again.standing.spent_tokens) == (10, 1)
    assert len(store.get_steps(job.id)) == 1


def test_29_a_value_of_null_bytes_written_by_a_foreign_sdk_is_answered(
    store: Storage, clock: SimClock, connection: psycopg.Connection[Any]
) -> None:
    [job] = running(store, clock)
    connection.execute("INSERT INTO belay_steps (job_id, seq, name) VALUES (%s, 7, 'a')", (job.id,))
    again = put(store, clock, job.id, "a")
    assert (again.inserted, again.value) == (False, None)
    put(store, clock, job.id, "b")
    found = store.find_step(job.id, "b")
    assert found is not None
    assert found.seq == 8


def test_30_a_step_of_a_job_that_is_gone_leaves_no_orphan(
    store: Storage, clock: SimClock, connection: psycopg.Connection[Any]
) -> None:
    with pytest.raises(JobNotFound):
        put(store, clock, 4711, "a", usd_micros=5)
    with pytest.raises(JobNotFound):
        store.get_standing(4711)
    assert connection.execute("SELECT count(*) FROM belay_steps").fetchone() == (0,)
    assert store.find_step(4711, "a") is None


def test_8_2_a_step_passes_a_lease_that_is_renewed_meanwhile(
    store: Storage, clock: SimClock, connection: psycopg.Connection[Any]
) -> None:
    """A step without cost takes a lock that an update of other columns does not wait for."""
    [job] = running(store, clock)
    with connection.transaction():
        connection.execute("UPDATE belay_jobs SET lease_until = lease_until WHERE id = %s", (job.id,))
        assert put(store, clock, job.id, "a").inserted


def test_11_3_two_runs_of_one_step_at_the_same_time_agree_on_a_value(
    make_postgres_store: Callable[..., PostgresStore], clock: SimClock
) -> None:
    stores = [make_postgres_store(size=1) for _ in range(4)]
    [job_id] = add(stores[0], clock)
    for number in range(25):
        barrier = threading.Barrier(len(stores))
        answers: list[StepWritten] = []

        def race(
            store: Storage,
            value: int,
            name: str = f"s{number}",
            barrier: threading.Barrier = barrier,
            answers: list[StepWritten] = answers,
        ) -> None:
            barrier.wait()
            answers.append(put(store, clock, job_id, name, b"%d" % value, usd_micros=1))

        threads = [threading.Thread(target=race, args=(store, n)) for n, store in enumerate(stores)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert [answer.inserted for answer in answers].count(True) == 1
        assert len({answer.value for answer in answers}) == 1
    assert store_spend(stores[0], job_id) == 100


def store_spend(store: Storage, job_id: int) -> int:
    return store.get_standing(job_id).spent_usd_micros


def test_31_a_storage_without_a_django_connection_refuses_atomic_steps(store: Storage) -> None:
    with pytest.raises(ConfigurationError):
        store.atomic_step()


def test_journals_of_several_jobs_come_at_once_unless_they_are_long(
    postgres_store: PostgresStore, clock: SimClock
) -> None:
    store = postgres_store
    none, short, many, large = add(store, clock, 4)
    for n in range(16):
        put(store, clock, short, f"s{n:02}", b"%d" % n)
        put(store, clock, many, f"s{n:02}")
    put(store, clock, many, "one more")
    put(store, clock, large, "large", b"1" * 4097)
    found = store.get_short_journals([none, short, many, large])
    assert found == {none: [], short: store.get_steps(short)}
    assert [step.name for step in found[short]] == [f"s{n:02}" for n in range(16)]
