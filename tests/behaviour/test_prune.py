"""Retention: contract §8.7, rules 30, 36."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import psycopg
import pytest

from django_belay.contract.outcome import Cancelled, Failed
from django_belay.contract.state import State
from django_belay.contract.uniqueness import window_key
from django_belay.storage.base import NewStep, NodeRow, Storage
from django_belay.testing.clock import SimClock
from tests.behaviour.driving import add, claim, end, running, states, wait

DAY = timedelta(days=1)
RETENTION: dict[State, timedelta | None] = {"succeeded": DAY, "failed": 7 * DAY, "cancelled": None}


def prune(store: Storage, clock: SimClock, **options: Any) -> int:
    return store.prune_jobs(RETENTION, now=clock.now(), **options)


def left(connection: psycopg.Connection[Any], table: str = "belay_jobs", column: str = "id") -> list[int]:
    rows = connection.execute(f"SELECT {column} FROM {table} ORDER BY 1").fetchall()
    return [row[0] for row in rows]


def test_8_7_each_state_has_a_retention_of_its_own(
    store: Storage, clock: SimClock, connection: psycopg.Connection[Any]
) -> None:
    succeeded, failed, cancelled = running(store, clock, 3)
    end(store, clock, succeeded)
    end(store, clock, failed, Failed(error={}))
    end(store, clock, cancelled, Cancelled(reason=""))
    clock.advance(DAY - timedelta(seconds=1))
    assert prune(store, clock) == 0
    clock.advance(1)
    assert prune(store, clock) == 1
    assert left(connection) == [failed.id, cancelled.id]
    clock.advance(6 * DAY)
    assert prune(store, clock) == 1
    clock.advance(1000 * DAY)
    assert prune(store, clock) == 0
    assert left(connection) == [cancelled.id]


def test_8_7_steps_and_events_go_with_their_job(
    store: Storage, clock: SimClock, connection: psycopg.Connection[Any]
) -> None:
    gone, stays = running(store, clock, 2)
    for job in (gone, stays):
        store.put_step(job.id, NewStep(name="s", value=b"1"), now=clock.now())
        store.append_event(job.id, {}, now=clock.now())
    end(store, clock, gone)
    clock.advance(DAY)
    prune(store, clock)
    assert left(connection, "belay_steps", "job_id") == [stays.id]
    assert left(connection, "belay_events", "job_id") == [stays.id]


def test_8_7_what_has_not_ended_is_never_pruned(
    store: Storage, clock: SimClock, connection: psycopg.Connection[Any]
) -> None:
    add(store, clock)
    add(store, clock, state="held", workflow_id="w", wf_deps=("a",))
    [job] = running(store, clock)
    end(store, clock, job, wait(job))
    running(store, clock)
    clock.advance(10_000 * DAY)
    prune(store, clock)
    assert len(left(connection)) == 4


def test_36_a_child_of_an_unfinished_parent_stays_until_that_ends(store: Storage, clock: SimClock) -> None:
    [parent] = running(store, clock, queue="parents")
    [child] = running(store, clock, parent_id=parent.id)
    end(store, clock, child)
    clock.advance(DAY)
    assert prune(store, clock) == 0
    end(store, clock, parent)
    assert prune(store, clock) == 1


def test_36_a_child_whose_parent_is_gone_is_pruned(store: Storage, clock: SimClock) -> None:
    [child] = running(store, clock, parent_id=4711)
    end(store, clock, child)
    clock.advance(DAY)
    assert prune(store, clock) == 1


def test_36_a_member_of_an_unfinished_workflow_stays_until_that_ends(store: Storage, clock: SimClock) -> None:
    first, second = running(store, clock, 2, workflow_id="w", wf_name="a")
    end(store, clock, first)
    clock.advance(DAY)
    assert prune(store, clock) == 0
    end(store, clock, second)
    clock.advance(DAY)
    assert prune(store, clock) == 2


def test_36_a_window_key_holds_until_its_window_is_over(store: Storage, clock: SimClock) -> None:
    window = timedelta(days=90)
    key = window_key("report", window=window, now=clock.now())
    [job] = running(store, clock, unique_key=key, unique_mode="window")
    end(store, clock, job)
    clock.advance(2 * DAY)
    assert prune(store, clock) == 0
    clock.advance(2 * window)
    assert prune(store, clock) == 1


@pytest.mark.parametrize("key", ["$spawn:1:a:0", "plain", "report@7"])
def test_36_an_always_key_lasts_as_long_as_retention(store: Storage, clock: SimClock, key: str) -> None:
    [job] = running(store, clock, unique_key=key, unique_mode="always")
    end(store, clock, job)
    clock.advance(DAY)
    assert prune(store, clock) == 1


@pytest.mark.parametrize(
    "spoil",
    [
        "unique_key = 'k@1', inserted_at = 'infinity'",
        "unique_key = 'k@1', inserted_at = '-infinity'",
        "unique_key = 'k@3', inserted_at = '9000-01-01'",
        "unique_key = 'k@' || repeat('9', 400)",
        "unique_key = 'k@' || repeat('9', 5000)",
    ],
)
def test_4_an_odd_window_key_stops_no_pruning(
    store: Storage, clock: SimClock, connection: psycopg.Connection[Any], spoil: str
) -> None:
    odd, plain = running(store, clock, 2)
    end(store, clock, odd)
    end(store, clock, plain)
    connection.execute(f"UPDATE belay_jobs SET unique_mode = 'window', {spoil} WHERE id = {odd.id}")
    clock.advance(DAY)
    prune(store, clock)
    assert plain.id not in left(connection)


@pytest.mark.usefixtures("one_owner")
def test_8_7_a_batch_is_bounded_and_spared_jobs_do_not_stop_the_next(store: Storage, clock: SimClock) -> None:
    """The oldest 60 are spared; calls of at most 10 deletions get past them."""
    [parent] = running(store, clock, queue="parents")
    spared = running(store, clock, 60, parent_id=parent.id)
    for job in spared:
        end(store, clock, job)
    clock.advance(1)
    for job in running(store, clock, 25):
        end(store, clock, job)
    clock.advance(2 * DAY)
    counts = [prune(store, clock, limit=10) for _ in range(6)]
    assert max(counts) <= 10
    assert sum(counts) == 25
    assert set(states(store, [job.id for job in spared])) == {"succeeded"}


def test_36_a_job_that_is_retried_meanwhile_is_not_deleted(
    store: Storage, clock: SimClock, connection: psycopg.Connection[Any]
) -> None:
    [job] = running(store, clock)
    end(store, clock, job, Failed(error={}))
    clock.advance(8 * DAY)
    with connection.transaction():
        connection.execute("SELECT 1 FROM belay_jobs FOR UPDATE")
        assert prune(store, clock) == 0
    store.retry(job.id, now=clock.now())
    assert prune(store, clock) == 0
    assert [one.id for one in claim(store, clock, queue="running")] == [job.id]


def test_8_7_signals_past_their_ttl_are_pruned_in_batches(store: Storage, clock: SimClock) -> None:
    for number in range(5):
        store.put_signal("s", f"old{number}", 1, now=clock.now())
    clock.advance(10)
    store.put_signal("s", "new", 1, now=clock.now())
    older_than = clock.now() - timedelta(seconds=1)
    assert [store.prune_signals(older_than=older_than, limit=3) for _ in range(3)] == [3, 2, 0]
    assert [signal.name for signal in store.list_signals("s")] == ["new"]


def test_8_7_rate_windows_older_than_a_day_are_pruned(
    store: Storage, clock: SimClock, connection: psycopg.Connection[Any]
) -> None:
    store.debit_rate("queue:q", amount=1, period_s=60, now=clock.now())
    clock.advance(2 * DAY)
    store.debit_rate("queue:q", amount=1, period_s=60, now=clock.now())
    assert store.prune_rate(older_than=clock.now() - DAY) == 1
    assert connection.execute("SELECT count(*) FROM belay_rate").fetchone() == (1,)


def test_nodes_that_have_not_beaten_are_pruned(store: Storage, clock: SimClock) -> None:
    for name in ("old", "new"):
        store.beat(
            NodeRow(
                incarnation=name, node=name, started_at=clock.now(), beat_at=clock.advance(10),
                claimed_at=None, facts={},
            )
        )  # fmt: skip
    assert store.prune_nodes(older_than=clock.now()) == 1
    assert [node.incarnation for node in store.list_nodes()] == ["new"]
