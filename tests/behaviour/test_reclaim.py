"""Taking back expired leases: contract §6, rules 4, 16, 19, 22."""

from __future__ import annotations

import logging
from datetime import timedelta
from typing import Any

import psycopg
import pytest

from django_belay.contract.outcome import iso
from django_belay.storage.base import Reclaimed, Storage
from django_belay.testing.clock import SimClock
from tests.behaviour.driving import LEASE_TTL, add, claim_one, end, running, states, wait

DELAY = timedelta(seconds=4)


def reclaim(store: Storage, clock: SimClock, **options: Any) -> list[Reclaimed]:
    return store.reclaim_expired(now=clock.now(), backoff=lambda _attempt: DELAY, **options)


def test_6_an_expired_job_gets_another_attempt_after_the_policys_delay(
    store: Storage, clock: SimClock
) -> None:
    [job] = running(store, clock)
    clock.advance(LEASE_TTL)

    assert reclaim(store, clock) == [
        Reclaimed(job_id=job.id, kind="k", leased_by=job.leased_by, state="ready")
    ]

    after = store.get_job(job.id)
    assert (after.attempt, after.ready_at, after.leased_by) == (1, clock.now() + DELAY, None)
    assert after.errors == [{"error": "lease_expired", "at": iso(clock.now()), "attempt": 1}]


def test_6_a_live_lease_is_left_alone(store: Storage, clock: SimClock) -> None:
    [job] = running(store, clock)
    clock.advance(LEASE_TTL - timedelta(microseconds=1))
    assert reclaim(store, clock) == []
    assert states(store, [job.id]) == ["running"]


def test_6_the_last_attempt_fails_with_full_settlement(store: Storage, clock: SimClock) -> None:
    [parent] = add(store, clock, queue="parents")
    [job] = running(store, clock, max_attempts=1, workflow_id="w", wf_name="a", parent_id=parent)
    [held] = add(store, clock, state="held", workflow_id="w", wf_name="b", wf_deps=("a",))
    waiting = claim_one(store, clock, queue="parents")
    end(store, clock, waiting, wait(waiting, "$children"))
    clock.advance(LEASE_TTL)

    [reclaimed] = reclaim(store, clock)

    assert reclaimed.state == "failed"
    assert states(store, [job.id, held, parent]) == ["failed", "cancelled", "ready"]
    assert store.get_job(job.id).finished_at == clock.now()


def test_22_a_job_to_cancel_is_cancelled_instead(store: Storage, clock: SimClock) -> None:
    [job] = running(store, clock)
    store.request_cancel(job.id, reason="enough", now=clock.now())
    clock.advance(LEASE_TTL)
    [reclaimed] = reclaim(store, clock)
    assert reclaimed.state == "cancelled"
    assert [sorted(entry) for entry in store.get_job(job.id).errors] == [["at", "attempt", "error", "reason"]]


def test_16_backoff_is_asked_with_the_attempt(store: Storage, clock: SimClock) -> None:
    [job] = running(store, clock)
    asked: list[int] = []
    clock.advance(LEASE_TTL)

    def backoff(attempt: int) -> timedelta:
        asked.append(attempt)
        return DELAY

    store.reclaim_expired(now=clock.now(), backoff=backoff)
    assert set(asked) == {job.attempt}


def test_a_sweep_is_bounded_and_the_next_one_goes_on(store: Storage, clock: SimClock) -> None:
    running(store, clock, 5)
    clock.advance(LEASE_TTL)
    assert [len(reclaim(store, clock, limit=2)) for _ in range(4)] == [2, 2, 1, 0]


def test_19_a_row_that_an_ack_holds_is_passed_over_without_waiting(
    store: Storage, clock: SimClock, connection: psycopg.Connection[Any]
) -> None:
    held, free = running(store, clock, 2)
    clock.advance(LEASE_TTL)
    with connection.transaction():
        connection.execute("SELECT 1 FROM belay_jobs WHERE id = %s FOR UPDATE", (held.id,))
        assert [one.job_id for one in reclaim(store, clock)] == [free.id]


@pytest.mark.parametrize("limit", [200, 1])
def test_4_a_poison_row_stops_no_other(
    store: Storage,
    clock: SimClock,
    connection: psycopg.Connection[Any],
    caplog: pytest.LogCaptureFixture,
    limit: int,
) -> None:
    """The poison is the oldest; a sweep of any size gets past it and says so."""
    [bad] = running(store, clock, kind="poison", queue="p")
    clock.advance(1)
    good = running(store, clock, 2)
    clock.advance(LEASE_TTL)
    connection.execute(
        "ALTER TABLE belay_jobs ADD CONSTRAINT refuse CHECK (kind <> 'poison' OR state = 'running')"
    )
    try:
        with caplog.at_level(logging.WARNING, "django_belay.sweeper"):
            reclaimed = [one.job_id for _ in good for one in reclaim(store, clock, limit=limit)]
    finally:
        connection.execute("ALTER TABLE belay_jobs DROP CONSTRAINT refuse")
    assert sorted(reclaimed) == [job.id for job in good]
    assert states(store, [bad.id]) == ["running"]
    assert f"job {bad.id} (poison)" in caplog.text


@pytest.mark.parametrize(
    "spoil",
    [
        "leased_by = NULL",
        "errors = 'null'",
        "lease_until = '-infinity'",
        "kind = 'Elixir.Unknown'",
        "max_attempts = -1",
    ],
)
def test_4_odd_rows_are_taken_back_like_any_other(
    store: Storage, clock: SimClock, connection: psycopg.Connection[Any], spoil: str
) -> None:
    jobs = running(store, clock, 3)
    connection.execute(f"UPDATE belay_jobs SET {spoil} WHERE id = {jobs[1].id}")
    clock.advance(LEASE_TTL)
    assert sorted(one.job_id for one in reclaim(store, clock)) == [job.id for job in jobs]


def test_4_rows_that_run_under_no_lease_are_taken_back_in_bounded_batches(
    store: Storage, clock: SimClock, connection: psycopg.Connection[Any]
) -> None:
    """No transition leaves one behind; left alone it would hold up its parent and its workflow for ever."""
    lost = running(store, clock, 5, workflow_id="w", wf_name="a")
    [dependent] = add(store, clock, state="held", workflow_id="w", wf_name="b", wf_deps=("a",), queue="x")
    [alive] = running(store, clock)
    connection.execute(
        "UPDATE belay_jobs SET lease_until = NULL, leased_by = NULL, max_attempts = 1 WHERE id = ANY(%s)",
        [[job.id for job in lost]],
    )
    assert len(reclaim(store, clock, limit=3)) == 3
    assert [one.leased_by for one in reclaim(store, clock)] == [None, None]
    assert states(store, [*(job.id for job in lost), alive.id]) == ["failed"] * 5 + ["running"]
    assert states(store, [dependent]) == ["cancelled"]
