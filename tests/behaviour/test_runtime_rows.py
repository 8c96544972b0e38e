"""Queues, crons, slots, nodes, waiters, and the counts of queues: §3, §8.5, rules 2, 11, 18, 35."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest

from django_belay.contract.job import NewJob
from django_belay.exceptions import JobNotFound
from django_belay.storage.base import (
    ClaimRound,
    CronRow,
    Demand,
    Inserted,
    JobFilter,
    NodeRow,
    QueueRow,
    QueueStats,
    Storage,
)
from django_belay.storage.postgres import read
from django_belay.storage.postgres.store import PostgresStore
from django_belay.testing.clock import SimClock

CRON = CronRow(
    name="nightly", expression="0 3 * * *", kind="shop.report", input={"a": 1}, opts={"queue": "q"}
)


# -- queues


def test_deleting_a_queue_whose_pause_was_taken_back_finds_nothing(store: Storage, clock: SimClock) -> None:
    for node in (None, "n1"):
        store.pause_queue("q", node=node, now=clock.now())
        store.resume_queue("q", node=node, now=clock.now())
        store.resume_queue("other", node=node, now=clock.now())

    assert [store.delete_queue(name) for name in ("q", "other")] == [False, False]


def test_3_a_queue_row_is_written_read_replaced_and_deleted(store: Storage, clock: SimClock) -> None:
    opts = {"limit": {"min": 1, "max": 5}, "rate": {"allowed": 3, "period": 60}}
    store.put_queue("q", {"limit": 1}, now=clock.now())
    clock.advance(1)
    store.put_queue("q", opts, now=clock.now())
    assert store.list_queues() == [QueueRow(name="q", opts=opts, updated_at=clock.now())]
    assert store.delete_queue("q")
    assert not store.delete_queue("q")
    assert store.list_queues() == []


def test_rule_2_a_pause_lives_in_our_own_table(
    store: Storage, clock: SimClock, connection: psycopg.Connection[Any]
) -> None:
    store.put_queue("q", {"limit": 1}, now=clock.now())
    store.pause_queue("q", now=clock.now())
    store.pause_queue("bare", now=clock.now())
    assert [(row.name, row.opts, row.paused) for row in store.list_queues()] == [
        ("bare", {}, True),
        ("q", {"limit": 1}, True),
    ]
    assert connection.execute("SELECT name, opts FROM belay_queues").fetchall() == [("q", {"limit": 1})]
    store.resume_queue("q", now=clock.now())
    store.resume_queue("bare", now=clock.now())
    assert [(row.name, row.paused) for row in store.list_queues()] == [("q", False)]


def test_rule_2_pauses_of_single_nodes_stand_beside_the_one_for_all(store: Storage, clock: SimClock) -> None:
    for node in ("venus", "mars", "mars"):
        store.pause_queue("q", node=node, now=clock.now())
    store.pause_queue("other", now=clock.now())
    assert [(row.name, row.paused, row.paused_nodes) for row in store.list_queues()] == [
        ("other", True, ()),
        ("q", False, ("mars", "venus")),
    ]
    store.resume_queue("q", now=clock.now())
    store.resume_queue("q", node="venus", now=clock.now())
    assert [row.paused_nodes for row in store.list_queues() if row.name == "q"] == [("mars",)]
    assert store.delete_queue("q")
    assert [row.name for row in store.list_queues()] == ["other"]


def test_deleting_a_queue_forgets_its_pause(store: Storage, clock: SimClock) -> None:
    store.pause_queue("q", now=clock.now())
    assert store.delete_queue("q")
    store.put_queue("q", {}, now=clock.now())
    assert [row.paused for row in store.list_queues()] == [False]


def test_3_rows_that_the_elixir_sdk_wrote_are_read(
    store: Storage, connection: psycopg.Connection[Any]
) -> None:
    connection.execute(
        'INSERT INTO belay_queues (name, opts) VALUES (\'q\', \'{"partition": ["input", "t"]}\')'
    )
    connection.execute(
        "INSERT INTO belay_crons (name, expression, worker) VALUES ('c', '@daily', 'App.Mailer')"
    )
    assert store.list_queues() == [QueueRow(name="q", opts={"partition": ["input", "t"]})]
    assert store.list_crons() == [
        CronRow(name="c", expression="@daily", kind="App.Mailer", input={}, opts={})
    ]


# -- crons


def test_3_a_cron_row_is_written_read_replaced_and_deleted(store: Storage, clock: SimClock) -> None:
    store.put_cron(CRON, now=clock.now())
    full = replace(CRON, timezone="Europe/Berlin", catch_up="all", paused=True, expression="@hourly")
    store.put_cron(full, now=clock.now())
    assert store.list_crons() == [replace(full, updated_at=clock.now())]
    assert store.delete_cron("nightly")
    assert not store.delete_cron("nightly")
    store.put_cron(CRON, now=clock.now())
    assert store.list_crons() == [replace(CRON, updated_at=clock.now())]


def test_rule_2_zone_and_catch_up_live_in_our_own_table(
    store: Storage, clock: SimClock, connection: psycopg.Connection[Any]
) -> None:
    store.put_cron(replace(CRON, timezone="UTC", catch_up="none"), now=clock.now())
    assert connection.execute("SELECT opts FROM belay_crons").fetchall() == [({"queue": "q"},)]
    assert connection.execute("SELECT * FROM belay_x_crons").fetchall() == [("nightly", "UTC", "none")]


def test_8_5_an_entry_is_paused_and_resumed(store: Storage, clock: SimClock) -> None:
    store.put_cron(CRON, now=clock.now())
    assert store.pause_cron("nightly", now=clock.now())
    assert [cron.paused for cron in store.list_crons()] == [True]
    assert store.resume_cron("nightly", now=clock.now())
    assert [cron.paused for cron in store.list_crons()] == [False]
    assert not store.pause_cron("other", now=clock.now())


def slot(clock: SimClock, **columns: Any) -> NewJob:
    return NewJob(**{"kind": "k", "cron_name": "c", "cron_slot": clock.now(), **columns})


def test_8_5_a_slot_fires_once(store: Storage, clock: SimClock) -> None:
    fired = store.fire_cron(slot(clock), now=clock.now())
    assert fired is not None
    assert store.fire_cron(slot(clock), now=clock.now()) is None
    assert store.last_cron_slots() == {"c": clock.now()}
    assert store.get_job(fired.job_id).cron_slot == clock.now()


def test_8_5_concurrent_nodes_fire_a_slot_once(
    make_postgres_store: Callable[..., PostgresStore], clock: SimClock
) -> None:
    store = make_postgres_store()
    barrier = threading.Barrier(8)
    fired: list[Inserted | None] = []

    def fire() -> None:
        barrier.wait()
        fired.append(store.fire_cron(slot(clock), now=clock.now()))

    threads = [threading.Thread(target=fire) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert len(fired) == 8
    assert sum(one is not None for one in fired) == 1
    assert len(store.list_jobs(JobFilter(), limit=10)) == 1


def test_rule_35_a_clock_set_back_fires_nothing_twice(store: Storage, clock: SimClock) -> None:
    store.fire_cron(slot(clock), now=clock.now())
    clock.advance(-60)
    assert store.fire_cron(slot(clock), now=clock.now()) is None


def test_rule_35_pruning_jobs_leaves_the_slot_memory(
    store: Storage, clock: SimClock, connection: psycopg.Connection[Any]
) -> None:
    store.fire_cron(slot(clock), now=clock.now())
    connection.execute("DELETE FROM belay_jobs")
    assert store.fire_cron(slot(clock), now=clock.now()) is None
    assert store.last_cron_slots() == {"c": clock.now()}


def test_8_5_a_slot_that_a_foreign_sdk_fired_is_not_fired_again(store: Storage, clock: SimClock) -> None:
    store.insert_jobs([slot(clock), slot(clock, cron_name="other")], now=clock.now())
    assert store.last_cron_slots() == {"c": clock.now(), "other": clock.now()}
    assert store.fire_cron(slot(clock), now=clock.now()) is None
    assert len(store.list_jobs(JobFilter(), limit=10)) == 2


def test_8_5_an_entry_whose_unique_key_is_held_answers_with_the_holder(
    store: Storage, clock: SimClock
) -> None:
    key = {"unique_key": "u", "unique_mode": "incomplete"}
    [held] = store.insert_jobs([NewJob(kind="k", **key)], now=clock.now())  # type: ignore[arg-type]
    fired = store.fire_cron(slot(clock, **key), now=clock.now())
    assert fired == Inserted(job_id=held.job_id, state="ready", duplicate=True)
    assert store.last_cron_slots() == {"c": clock.now()}


def test_rule_35_slot_and_job_are_written_together(
    make_postgres_store: Callable[..., PostgresStore], clock: SimClock
) -> None:
    store = make_postgres_store()
    with pytest.raises(Exception, match="null"):
        store.fire_cron(replace(slot(clock), kind=None), now=clock.now())  # type: ignore[arg-type]
    assert store.last_cron_slots() == {}


# -- nodes, waiters, clock


def test_a_heartbeat_replaces_the_one_before(store: Storage, clock: SimClock) -> None:
    node = NodeRow(
        incarnation="n:1",
        node="n",
        started_at=clock.now(),
        beat_at=clock.now(),
        claimed_at=None,
        facts={"queues": ["a"], "free": 3},
    )
    store.beat(node)
    clock.advance(5)
    node = replace(node, beat_at=clock.now(), claimed_at=clock.now(), facts={})
    store.beat(node)
    assert store.list_nodes() == [node]


def test_rule_11_a_waiter_stands_until_its_latest_time_and_old_ones_go(
    store: Storage, clock: SimClock, connection: psycopg.Connection[Any]
) -> None:
    now = clock.now()
    store.register_waiter(1, until=now + timedelta(seconds=9), now=now)
    store.register_waiter(1, until=now + timedelta(seconds=3), now=now)
    assert connection.execute("SELECT * FROM belay_x_waiters").fetchall() == [(1, now + timedelta(seconds=9))]
    clock.advance(10)
    store.register_waiter(2, until=clock.now(), now=clock.now())
    assert connection.execute("SELECT job_id FROM belay_x_waiters").fetchall() == [(2,)]


def test_rule_18_the_storage_tells_its_clock(store: Storage) -> None:
    assert abs(store.read_clock() - datetime.now(UTC)) < timedelta(minutes=5)
    assert store.read_clock().utcoffset() == timedelta(0)


# -- reads


def test_an_unknown_id_is_job_not_found(store: Storage) -> None:
    with pytest.raises(JobNotFound, match="job 12 was not found"):
        store.get_job(12)


def test_a_listing_is_newest_first_and_every_part_of_a_filter_holds(store: Storage, clock: SimClock) -> None:
    old = store.insert_jobs([NewJob(kind="a", queue="q"), NewJob(kind="b", queue="q")], now=clock.now())
    clock.advance(10)
    new = store.insert_jobs(
        [
            NewJob(kind="a", queue="r", workflow_id="w", wf_name="n", parent_id=old[0].job_id),
            NewJob(kind="a", queue="q", state="held"),
        ],
        now=clock.now(),
    )
    ids = [one.job_id for one in old + new]

    def listed(limit: int = 10, **parts: Any) -> list[int]:
        return [ids.index(job.id) for job in store.list_jobs(JobFilter(**parts), limit=limit)]

    assert listed() == [3, 2, 1, 0]
    assert listed(limit=2) == [3, 2]
    assert listed(limit=2, before_id=ids[2]) == [1, 0]
    assert listed(queue="q") == [3, 1, 0]
    assert listed(queue="q", kind="a") == [3, 0]
    assert listed(states=["held"]) == [3]
    assert listed(states=["held", "ready"], since=clock.now()) == [3, 2]
    assert listed(ids=[ids[0], ids[2], -1]) == [2, 0]
    assert listed(ids=[]) == []
    assert listed(workflow_id="w") == listed(parent_id=ids[0]) == [2]


def test_8_4_children_by_id_and_whether_one_is_incomplete(
    store: Storage, clock: SimClock, connection: psycopg.Connection[Any]
) -> None:
    [parent] = store.insert_jobs([NewJob(kind="p")], now=clock.now())
    children = store.insert_jobs([NewJob(kind="c", parent_id=parent.job_id)] * 2, now=clock.now())
    assert [job.id for job in store.children(parent.job_id)] == [one.job_id for one in children]
    connection.execute("UPDATE belay_jobs SET state = 'succeeded' WHERE id = %s", (children[0].job_id,))
    assert store.has_incomplete_child(parent.job_id)
    connection.execute("UPDATE belay_jobs SET state = 'cancelled' WHERE parent_id IS NOT NULL")
    assert not store.has_incomplete_child(parent.job_id)
    assert store.children(parent.job_id + 100) == []


def test_8_3_the_members_of_a_workflow_by_id(store: Storage, clock: SimClock) -> None:
    members = store.insert_jobs(
        [NewJob(kind="k", workflow_id="w", wf_name=name) for name in "ba"], now=clock.now()
    )
    assert [job.id for job in store.workflow_jobs("w")] == [one.job_id for one in members]


def test_queue_stats_count_what_is_not_done(
    store: Storage, clock: SimClock, connection: psycopg.Connection[Any]
) -> None:
    now = clock.now()
    store.insert_jobs([NewJob(kind="k", queue="q")] * 9, now=now)
    store.insert_jobs(
        [NewJob(kind="k", queue="q", ready_at=now + timedelta(seconds=1), priority=-1)], now=now
    )
    store.insert_jobs([NewJob(kind="k", queue="q", ready_at=now - timedelta(seconds=9), priority=3)], now=now)
    store.claim(ClaimRound(leased_by="n", lease_until=now), demands=[Demand(queue="q", take=2)], now=now)
    ids = [job.id for job in store.list_jobs(JobFilter(states=["ready"]), limit=20)]
    for job_id, state in zip(ids[2:], ("awaiting", "held", "paused", "failed", "succeeded"), strict=False):
        connection.execute("UPDATE belay_jobs SET state = %s WHERE id = %s", (state, job_id))
    store.insert_jobs([NewJob(kind="k", queue="only-held", state="held")], now=now)
    assert store.queue_stats(now=now) == [
        QueueStats(queue="only-held", held=1),
        QueueStats(
            queue="q",
            ready=3,
            scheduled=1,
            running=2,
            awaiting=1,
            held=1,
            paused=1,
            failed=1,
            oldest_ready_at=now - timedelta(seconds=9),
        ),
    ]


def test_queue_stats_stop_counting_at_a_cap(
    postgres_store: PostgresStore, clock: SimClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(read, "COUNT_CAP", 4)
    postgres_store.insert_jobs([NewJob(kind="k")] * 6, now=clock.now())
    assert [row.ready for row in postgres_store.queue_stats(now=clock.now())] == [4]
