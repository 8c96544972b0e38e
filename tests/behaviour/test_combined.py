"""Steps, standings and signals asked by many threads at once (§8.2, §8.1)."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from typing import Any

import psycopg
import pytest

from django_belay.exceptions import JobNotFound, StorageError
from django_belay.storage.base import NewStep
from django_belay.storage.postgres import combining
from django_belay.storage.postgres.store import PostgresStore
from django_belay.testing.clock import SimClock
from tests.behaviour.driving import add

THREADS = 30
STEPS = 12


@pytest.fixture
def combined(make_postgres_store: Callable[..., PostgresStore]) -> PostgresStore:
    plain = make_postgres_store(size=THREADS)
    return PostgresStore(plain.session, combines=True)


@pytest.fixture
def statements(combined: PostgresStore, monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often each statement was sent."""
    sent: Counter[str] = Counter()
    run = combined.session.run

    def count(name: str, params: Any = None) -> Any:
        sent[name] += 1
        return run(name, params)

    monkeypatch.setattr(combined.session, "run", count)
    return sent


def in_threads(work: Callable[[int], None], count: int = THREADS) -> list[BaseException]:
    """Run it in so many threads that start together; what they raised."""
    barrier = threading.Barrier(count)
    errors: list[BaseException] = []

    def run(number: int) -> None:
        barrier.wait(20)
        try:
            work(number)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    return errors


def test_8_2_every_step_is_journaled_once_and_in_its_jobs_order(
    combined: PostgresStore, clock: SimClock, statements: Counter[str]
) -> None:
    ids = add(combined, clock, THREADS)

    def work(number: int) -> None:
        for step in range(STEPS):
            assert combined.get_standing(ids[number]).spent_tokens == 0
            new = NewStep(name=f"s{step}", value=str(number).encode())
            written = combined.put_step(ids[number], new, now=clock.now())
            assert (written.inserted, written.value) == (True, str(number).encode())

    assert in_threads(work) == []
    for number, job_id in enumerate(ids):
        steps = combined.get_steps(job_id)
        assert [(step.seq, step.name, step.value) for step in steps] == [
            (n + 1, f"s{n}", str(number).encode()) for n in range(STEPS)
        ]
    assert statements["put_steps"] > 0
    assert statements["put_step"] + statements["put_steps"] < THREADS * STEPS


def test_29_the_first_value_stays_and_charges_add_up(combined: PostgresStore, clock: SimClock) -> None:
    ids = add(combined, clock, 3)

    def work(number: int) -> None:
        job_id = ids[number % 3]
        combined.put_step(job_id, NewStep(name="once", value=str(number).encode()), now=clock.now())
        combined.put_step(job_id, NewStep(name=f"paid{number}", value=b"0", tokens=2), now=clock.now())

    assert in_threads(work) == []
    for job_id in ids:
        assert len([step for step in combined.get_steps(job_id) if step.name == "once"]) == 1
        assert combined.get_standing(job_id).spent_tokens == 2 * THREADS // 3


def test_30_a_job_that_is_gone_and_a_step_that_is_refused_spoil_no_other(
    combined: PostgresStore, clock: SimClock, connection: psycopg.Connection[Any]
) -> None:
    ids = add(combined, clock, THREADS)
    connection.execute("DELETE FROM belay_jobs WHERE id = %s", [ids[0]])

    def work(number: int) -> None:
        name = "with\0nul" if number == 1 else "s"
        for turn in range(5):
            combined.put_step(ids[number], NewStep(name=f"{name}{turn}", value=b"1"), now=clock.now())

    errors = in_threads(work)
    assert {type(error) for error in errors} == {JobNotFound, StorageError}
    assert [len(combined.get_steps(job_id)) for job_id in ids[2:]] == [5] * (THREADS - 2)


def test_a_row_that_is_held_keeps_no_other_job_from_its_steps(
    combined: PostgresStore, clock: SimClock, connection: psycopg.Connection[Any]
) -> None:
    """An operator looks at some rows; the others go on, and these once he lets go."""
    ids = add(combined, clock, THREADS)
    held = ids[: combining.WIDTH + 2]
    done = threading.Semaphore(0)

    def work(number: int) -> None:
        for step in range(STEPS):
            combined.put_step(ids[number], NewStep(name=f"s{step}", value=b"1"), now=clock.now())
        done.release()

    def let_go_when_the_others_are_done(number: int) -> None:
        if number < THREADS:
            work(number)
            return
        for _ in ids[len(held) :]:
            assert done.acquire(timeout=20)
        assert not done.acquire(blocking=False)
        operator.rollback()

    with psycopg.connect(connection.info.dsn, password=connection.info.password) as operator:
        operator.execute("SELECT FROM belay_jobs WHERE id = ANY(%s) FOR UPDATE", [held])
        assert in_threads(let_go_when_the_others_are_done, THREADS + 1) == []
    assert [len(combined.get_steps(job_id)) for job_id in ids] == [STEPS] * THREADS


def test_23_each_wait_finds_the_signal_of_its_own_first_scope(
    combined: PostgresStore, clock: SimClock, statements: Counter[str]
) -> None:
    for number in range(THREADS):
        combined.put_signal(f"own:{number}", "go", number, now=clock.now())
    combined.put_signal("shared", "go", "shared", now=clock.now())
    found: dict[int, Any] = {}

    def work(number: int) -> None:
        scopes = [f"own:{number}", "shared"] if number % 2 else ["shared", f"own:{number}"]
        for _ in range(5):
            signal = combined.find_signal(scopes, "go")
            assert signal is not None
            found[number] = signal.payload
            assert combined.find_signal(scopes, "go", newer_than=clock.now()) is None

    assert in_threads(work) == []
    assert found == {number: number if number % 2 else "shared" for number in range(THREADS)}
    assert statements["find_signals"] > 0
