"""Enqueueing: contract §5, rules 7, 8, 9, 11."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any

import psycopg
import pytest

from django_belay.contract.job import NewJob, UniqueMode
from django_belay.contract.notification import PokePolicy
from django_belay.exceptions import Conflict
from django_belay.storage.base import Inserted, JobFilter, Storage
from django_belay.storage.postgres.store import PostgresStore
from django_belay.testing.clock import SimClock


def keyed(key: str | None, mode: Any = "incomplete", **rest: Any) -> NewJob:
    return NewJob(kind="k", unique_key=key, unique_mode=mode if key is not None else None, **rest)


def holds(inserted: Inserted) -> Inserted:
    return Inserted(job_id=inserted.job_id, state=inserted.state, duplicate=True)


def ready_count(store: Storage) -> int:
    return len(store.list_jobs(JobFilter(), limit=10_000))


# -- §5.1


def test_5_1_a_new_row_has_the_contracts_values(store: Storage, clock: SimClock) -> None:
    [inserted] = store.insert_jobs([NewJob(kind="shop.mail", input={"n": 1})], now=clock.now())
    job = store.get_job(inserted.job_id)
    assert (job.kind, job.queue, job.state, job.input, job.meta) == (
        "shop.mail",
        "default",
        "ready",
        {"n": 1},
        {},
    )
    assert (job.attempt, job.max_attempts, job.priority, job.errors) == (0, 20, 0, [])
    assert (job.spent_usd_micros, job.spent_tokens, job.cancel_requested) == (0, 0, False)
    assert job.ready_at == job.inserted_at == clock.now()
    assert (job.started_at, job.finished_at, job.lease_until, job.leased_by) == (None, None, None, None)
    assert (list(job.wf_deps), list(job.wf_ignore)) == ([], [])


def test_5_1_every_column_that_an_enqueuer_chooses_arrives(store: Storage, clock: SimClock) -> None:
    later = clock.now() + timedelta(hours=1, milliseconds=7)
    new = NewJob(
        kind="k",
        queue="q",
        input={"text": 'quo"te \\ % ü', "list": [1, None, 2.5]},
        meta={"a": {"b": True}},
        state="held",
        priority=-7,
        max_attempts=3,
        partition_key="p",
        ready_at=later,
        workflow_id="w",
        wf_name="n",
        wf_deps=("a,b", 'c"d', ""),
        wf_ignore=("failed",),
        cron_name="c",
        cron_slot=later,
        unique_key="u",
        unique_mode="always",
        parent_id=2**40,
        budget_usd_micros=2**50,
        budget_tokens=5,
    )
    [inserted] = store.insert_jobs([new], now=clock.now())
    job = store.get_job(inserted.job_id)
    for name in NewJob.__slots__:
        found, given = getattr(job, name), getattr(new, name)
        assert (tuple(found) if name in ("wf_deps", "wf_ignore") else found) == given, name
    assert inserted.state == "held"


def test_5_1_answers_match_inputs_by_index_and_ids_follow_the_inputs_order(
    store: Storage, clock: SimClock
) -> None:
    jobs = [keyed(f"key-{n * 7919 % 100:02}", input={"n": n}) for n in range(100)]
    answers = store.insert_jobs(jobs, now=clock.now())
    assert [store.get_job(answer.job_id).input["n"] for answer in answers] == list(range(100))
    ids = [answer.job_id for answer in answers]
    assert ids == sorted(ids)


def test_5_1_nothing_to_insert_is_an_empty_answer(store: Storage, clock: SimClock) -> None:
    assert store.insert_jobs([], now=clock.now()) == []


# -- §5.2


def test_5_2_incomplete_reports_the_holder_until_it_ends(store: Storage, clock: SimClock) -> None:
    [first] = store.insert_jobs([keyed("a")], now=clock.now())
    [again] = store.insert_jobs([keyed("a")], now=clock.now())
    assert again == holds(first)
    assert ready_count(store) == 1


@pytest.mark.parametrize("state", ["succeeded", "failed", "cancelled"])
def test_5_2_an_ended_job_frees_an_incomplete_key(
    store: Storage, clock: SimClock, connection: psycopg.Connection[Any], state: str
) -> None:
    [first] = store.insert_jobs([keyed("a")], now=clock.now())
    connection.execute("UPDATE belay_jobs SET state = %s", (state,))
    [second] = store.insert_jobs([keyed("a")], now=clock.now())
    assert not second.duplicate
    assert second.job_id != first.job_id


@pytest.mark.parametrize("mode", ["window", "always"])
def test_5_2_window_and_always_keys_outlast_their_job(
    store: Storage, clock: SimClock, connection: psycopg.Connection[Any], mode: str
) -> None:
    [first] = store.insert_jobs([keyed("a@1", mode)], now=clock.now())
    connection.execute("UPDATE belay_jobs SET state = 'succeeded'")
    [second] = store.insert_jobs([keyed("a@1", mode)], now=clock.now())
    assert second == Inserted(job_id=first.job_id, state="succeeded", duplicate=True)


def test_5_2_modes_do_not_block_each_other(store: Storage, clock: SimClock) -> None:
    answers = store.insert_jobs([keyed("a"), keyed("a", "always")], now=clock.now())
    assert [answer.duplicate for answer in answers] == [False, False]
    [third] = store.insert_jobs([keyed("a", "window")], now=clock.now())
    assert third == holds(answers[1])


def test_5_2_a_key_twice_in_one_batch_is_a_duplicate_of_the_first(store: Storage, clock: SimClock) -> None:
    first, plain, second = store.insert_jobs([keyed("a"), keyed(None), keyed("a")], now=clock.now())
    assert second == holds(first)
    assert not plain.duplicate


def test_8_5_a_cron_slot_is_inserted_once(store: Storage, clock: SimClock) -> None:
    job = NewJob(kind="k", cron_name="nightly", cron_slot=clock.now())
    [first] = store.insert_jobs([job], now=clock.now())
    assert store.insert_jobs([job, job], now=clock.now()) == [holds(first), holds(first)]


def test_5_2_find_by_unique_key_gives_the_newest(
    store: Storage, clock: SimClock, connection: psycopg.Connection[Any]
) -> None:
    assert store.find_by_unique_key("a") is None
    store.insert_jobs([keyed("a")], now=clock.now())
    connection.execute("UPDATE belay_jobs SET state = 'failed'")
    [second] = store.insert_jobs([keyed("a")], now=clock.now())
    found = store.find_by_unique_key("a")
    assert found is not None
    assert found.id == second.job_id


# -- rules


def test_rule_7_a_sequence_behind_its_table_is_a_conflict_and_writes_nothing(
    store: Storage, clock: SimClock, connection: psycopg.Connection[Any]
) -> None:
    store.insert_jobs([NewJob(kind="k") for _ in range(3)], now=clock.now())
    connection.execute(
        "SELECT setval(pg_get_serial_sequence('belay_jobs', 'id'), (SELECT max(id) - 1 FROM belay_jobs))"
    )
    with pytest.raises(Conflict, match="stands behind its table"):
        store.insert_jobs([NewJob(kind="k"), NewJob(kind="k")], now=clock.now())
    assert ready_count(store) == 3


def test_rule_8_a_known_duplicate_burns_no_sequence_value(
    store: Storage, clock: SimClock, connection: psycopg.Connection[Any]
) -> None:
    slot = NewJob(kind="k", cron_name="c", cron_slot=clock.now())
    jobs = [keyed("a"), keyed("b", "always"), slot]
    store.insert_jobs(jobs, now=clock.now())
    before = connection.execute("SELECT last_value FROM belay_jobs_id_seq").fetchone()
    assert all(answer.duplicate for answer in store.insert_jobs(jobs, now=clock.now()))
    assert connection.execute("SELECT last_value FROM belay_jobs_id_seq").fetchone() == before


def test_rule_8_a_holder_that_ends_before_it_is_looked_for_frees_the_key(
    store: Storage, clock: SimClock, behaviour_params: dict[str, str]
) -> None:
    """The holder commits, unseen by our snapshot, and ends while we look for it."""
    with psycopg.connect(**behaviour_params) as other:
        other.execute(
            "INSERT INTO belay_jobs (kind, queue, unique_key, unique_mode, inserted_at) "
            "VALUES ('k', 'q', 'a', 'incomplete', %s)",
            (clock.now(),),
        )
        answers: list[Inserted] = []
        thread = threading.Thread(
            target=lambda: answers.extend(store.insert_jobs([keyed("a")], now=clock.now()))
        )
        thread.start()
        wait_until_blocked(behaviour_params)
        other.execute("UPDATE belay_jobs SET state = 'succeeded'")
        other.commit()
        thread.join(20)
    assert [answer.duplicate for answer in answers] == [False]


def test_rule_8_a_holder_gone_between_insert_and_look_up_means_insert_again(
    make_postgres_store: Callable[..., PostgresStore],
    clock: SimClock,
    connection: psycopg.Connection[Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """First answer: skipped, its holder not seen. Then the holder has ended."""
    store = make_postgres_store()
    run, rounds = store.session.run, []

    def skipped_once(name: str, params: Any = None) -> Any:
        rounds.append(name)
        return [(0, False, None, None, 0)] if len(rounds) == 1 else run(name, params)

    monkeypatch.setattr(store.session, "run", skipped_once)
    [inserted] = store.insert_jobs([keyed("a")], now=clock.now())
    assert len(rounds) == 2
    assert not inserted.duplicate


def test_rule_8_the_turns_are_bounded(
    make_postgres_store: Callable[..., PostgresStore], clock: SimClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = make_postgres_store()
    monkeypatch.setattr(store.session, "run", lambda *_: [(0, False, None, None, 0)])
    with pytest.raises(Conflict, match="key 'a'"):
        store.insert_jobs([keyed("a")], now=clock.now())


def test_rule_8_a_holder_that_commits_meanwhile_is_found(
    store: Storage, clock: SimClock, behaviour_params: dict[str, str]
) -> None:
    with psycopg.connect(**behaviour_params) as other:
        row = other.execute(
            "INSERT INTO belay_jobs (kind, queue, unique_key, unique_mode, inserted_at) "
            "VALUES ('k', 'q', 'a', 'incomplete', %s) RETURNING id",
            (clock.now(),),
        ).fetchone()
        assert row is not None
        answers: list[Inserted] = []
        thread = threading.Thread(
            target=lambda: answers.extend(store.insert_jobs([keyed("a"), keyed("b")], now=clock.now()))
        )
        thread.start()
        wait_until_blocked(behaviour_params)
        other.commit()
        thread.join(20)
    assert answers[0] == Inserted(job_id=row[0], state="ready", duplicate=True)
    assert not answers[1].duplicate


def wait_until_blocked(params: dict[str, str]) -> None:
    with psycopg.connect(**params, autocommit=True) as watcher:
        for _ in range(2000):
            row = watcher.execute(
                "SELECT count(*) FROM pg_locks WHERE NOT granted AND locktype = 'transactionid'"
            ).fetchone()
            if row and row[0]:
                return
    raise AssertionError("nobody waits for the other transaction")


@pytest.mark.parametrize("mode", ["incomplete", "window", "always"])
def test_5_2_of_one_calls_rows_with_a_key_the_first_has_it(
    store: Storage, clock: SimClock, mode: UniqueMode
) -> None:
    first = NewJob(kind="first", unique_key="u@7", unique_mode=mode)
    later = NewJob(kind="later", unique_key="u@7", unique_mode="always" if mode == "window" else mode)
    slotted = replace(later, cron_name="c", cron_slot=clock.now())

    answers = store.insert_jobs([first, later, slotted], now=clock.now())

    assert [one.duplicate for one in answers] == [False, True, True]
    assert store.get_job(answers[0].job_id).kind == "first"


def test_rule_9_callers_with_keys_in_opposite_order_do_not_deadlock(
    make_postgres_store: Callable[..., PostgresStore], clock: SimClock, connection: psycopg.Connection[Any]
) -> None:
    store = make_postgres_store()
    before = deadlocks(connection)
    for turn in range(15):
        barrier = threading.Barrier(2)
        keys = [f"{turn}-{n}" for n in range(60)]
        answers: list[Inserted] = []

        def enqueue(order: list[str], barrier: threading.Barrier = barrier, into: Any = answers) -> None:
            barrier.wait()
            into.extend(store.insert_jobs([keyed(key) for key in order], now=clock.now()))

        threads = [threading.Thread(target=enqueue, args=(order,)) for order in (keys, keys[::-1])]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
        assert len(answers) == 120
        assert sum(not answer.duplicate for answer in answers) == 60
    assert deadlocks(connection) == before


def deadlocks(connection: psycopg.Connection[Any]) -> int:
    row = connection.execute(
        "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()"
    ).fetchone()
    assert row is not None
    return int(row[0])


def test_invariant_7_many_callers_of_one_key_insert_one_job(
    make_postgres_store: Callable[..., PostgresStore], clock: SimClock
) -> None:
    store = make_postgres_store()
    barrier = threading.Barrier(8)
    answers: list[Inserted] = []

    def enqueue() -> None:
        barrier.wait()
        answers.extend(store.insert_jobs([keyed("one")], now=clock.now()))

    threads = [threading.Thread(target=enqueue) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert len({answer.job_id for answer in answers}) == 1
    assert sum(not answer.duplicate for answer in answers) == 1


# -- rule 11: pokes


@pytest.fixture
def heard(behaviour_params: dict[str, str]) -> Any:
    with psycopg.connect(**behaviour_params, autocommit=True) as listener:
        listener.execute("LISTEN belay_belay_behaviour")

        def payloads() -> list[str]:
            listener.execute("SELECT 1")
            return [notification.payload for notification in listener.notifies(timeout=0.2)]

        yield payloads


def test_rule_11_an_insert_pokes_each_queue_once_a_batch(
    make_postgres_store: Callable[..., PostgresStore], clock: SimClock, heard: Any
) -> None:
    store = make_postgres_store(poke=PokePolicy(mode="always"))
    store.insert_jobs([NewJob(kind="k", queue=queue) for queue in ("a", "b", "a")], now=clock.now())
    assert sorted(heard()) == ['{"t":"p","q":"a"}', '{"t":"p","q":"b"}']


def test_rule_11_auto_pokes_a_queue_at_most_once_an_interval(
    make_postgres_store: Callable[..., PostgresStore], clock: SimClock, heard: Any
) -> None:
    store = make_postgres_store()
    for _ in range(3):
        store.insert_jobs([NewJob(kind="k")], now=clock.now())
    assert len(heard()) == 1
    clock.advance(1)
    store.insert_jobs([NewJob(kind="k")], now=clock.now())
    assert len(heard()) == 1


def test_rule_11_off_later_held_and_duplicate_jobs_poke_nobody(
    make_postgres_store: Callable[..., PostgresStore], clock: SimClock, heard: Any
) -> None:
    make_postgres_store(poke=PokePolicy(mode="off")).insert_jobs([keyed("a")], now=clock.now())
    store = make_postgres_store(poke=PokePolicy(mode="always"))
    later = clock.now() + timedelta(seconds=1)
    store.insert_jobs(
        [keyed("a"), NewJob(kind="k", ready_at=later), NewJob(kind="k", state="held")], now=clock.now()
    )
    assert heard() == []


def test_rule_11_a_queue_whose_poke_would_not_fit_is_inserted_without(
    make_postgres_store: Callable[..., PostgresStore], clock: SimClock, heard: Any
) -> None:
    store = make_postgres_store(poke=PokePolicy(mode="always"))
    [inserted] = store.insert_jobs([NewJob(kind="k", queue="q" * 8000)], now=clock.now())
    assert not inserted.duplicate
    assert heard() == []


def test_one_insert_is_one_round_trip(
    make_postgres_store: Callable[..., PostgresStore], clock: SimClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = make_postgres_store()
    ran: list[str] = []
    run = store.session.run
    monkeypatch.setattr(store.session, "run", lambda name, params: ran.append(name) or run(name, params))
    monkeypatch.setattr(store.session, "transaction", lambda: pytest.fail("no transaction is needed"))
    store.insert_jobs([keyed("a")], now=clock.now())
    store.insert_jobs([keyed("a")], now=clock.now())
    assert ran == ["insert_jobs", "insert_jobs"]
