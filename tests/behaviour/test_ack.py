"""The end of a run: contract §7, rules 11, 15, 21, 22, 24, 25."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any

import psycopg
import pytest

from django_belay.contract.error_entry import MAX_ENTRIES, TRACEBACK_BYTES, with_entry
from django_belay.contract.job import Lease, NewJob
from django_belay.contract.outcome import (
    Awaiting,
    Cancelled,
    Failed,
    Outcome,
    Retried,
    Snoozed,
    Succeeded,
    apply_outcome,
)
from django_belay.exceptions import Contended, StorageError
from django_belay.storage.base import Ack, AckGroupError, Applied, JobFilter, Stale, Storage
from django_belay.storage.postgres.store import PostgresStore
from django_belay.testing.clock import START, SimClock
from tests.behaviour.driving import ack_of, add, claim, claim_one, end, running, states, wait

LATER = START + timedelta(minutes=5)
ERROR = {"error": "no", "attempt": 1}
PARK = Awaiting(scope="s", name="go", read_scopes=("s",), deadline=LATER)
OUTCOMES: list[Outcome] = [
    Succeeded(b'{"n":1}'),
    Retried(ready_at=LATER, error=ERROR),
    Failed(error=ERROR),
    Cancelled(reason="enough"),
    Snoozed(until=LATER),
    PARK,
]


# -- §7, outcome effects


@pytest.mark.parametrize("outcome", OUTCOMES, ids=lambda outcome: type(outcome).__name__)
@pytest.mark.parametrize("lone", [True, False], ids=["plain", "child"])
def test_7_an_outcome_writes_what_apply_outcome_says(
    store: Storage, clock: SimClock, outcome: Outcome, lone: bool
) -> None:
    parent = None if lone else add(store, clock, queue="parents")[0]
    [job] = running(store, clock, parent_id=parent)
    expected = apply_outcome(outcome, now=clock.advance(1), cancel_requested=False)

    assert end(store, clock, job, outcome) == Applied(job.id, expected.state)

    after = store.get_job(job.id)
    assert after.state == expected.state
    assert after.attempt == 1 + expected.attempt_delta
    assert after.ready_at == (job.ready_at if expected.keep_ready_at else expected.ready_at)
    assert after.finished_at == expected.finished_at
    assert after.errors == ([] if expected.error is None else [expected.error])
    assert after.result == expected.result
    assert (after.await_scope, after.await_name) == (expected.await_scope, expected.await_name)
    assert (after.lease_until, after.leased_by) == (None, None)


def test_24_success_clears_the_await_columns_that_a_deadline_claim_kept(
    store: Storage, clock: SimClock
) -> None:
    [job] = running(store, clock)
    end(store, clock, job, wait(job, deadline=clock.now() + timedelta(seconds=5)))
    clock.advance(5)
    again = claim_one(store, clock, queue="running")
    assert again.await_name == "go"

    end(store, clock, again)

    assert store.get_job(job.id).await_name is None


# -- the fence


@pytest.mark.parametrize("outcome", OUTCOMES, ids=lambda outcome: type(outcome).__name__)
def test_7_a_stale_attempt_changes_nothing(store: Storage, clock: SimClock, outcome: Outcome) -> None:
    [job] = running(store, clock)
    clock.advance(31)
    store.reclaim_expired(now=clock.now(), backoff=lambda _: timedelta(0))
    claim_one(store, clock, queue="running")
    before = store.get_job(job.id)

    assert end(store, clock, job, outcome) == Stale(job.id)

    assert store.get_job(job.id) == before


def test_15_a_resent_park_does_not_hit_the_next_run_of_the_same_attempt(
    store: Storage, clock: SimClock
) -> None:
    [job] = running(store, clock)
    end(store, clock, job, wait(job))
    store.put_signal(f"job:{job.id}", "go", 1, now=clock.now())
    again = claim_one(store, clock, queue="running")
    assert again.attempt == job.attempt

    assert end(store, clock, job, wait(job)) == Stale(job.id)
    assert end(store, clock, job, Succeeded(b"1")) == Stale(job.id)

    assert store.get_job(job.id).state == "running"


@pytest.mark.parametrize("outcome", OUTCOMES, ids=lambda outcome: type(outcome).__name__)
def test_7_the_attempt_fences_of_its_own(store: Storage, clock: SimClock, outcome: Outcome) -> None:
    """A foreign SDK's leased_by may be the same in every round."""
    [job] = running(store, clock)
    earlier = Ack(lease=replace(Lease.of(job), attempt=0), outcome=outcome)
    assert store.ack(earlier, now=clock.now()) == Stale(job.id)
    assert store.get_job(job.id) == job


def test_7_an_ack_of_a_job_that_is_gone_is_stale(
    store: Storage, clock: SimClock, connection: psycopg.Connection[Any]
) -> None:
    first, second = running(store, clock, 2)
    connection.execute("DELETE FROM belay_jobs")
    assert end(store, clock, first) == Stale(first.id)
    assert end(store, clock, second, Snoozed(until=LATER)) == Stale(second.id)


# -- rule 22


@pytest.mark.parametrize("outcome", [OUTCOMES[1], OUTCOMES[4], PARK], ids=["retry", "snooze", "park"])
def test_22_what_would_go_on_is_cancelled_when_that_was_requested(
    store: Storage, clock: SimClock, outcome: Outcome
) -> None:
    [job] = running(store, clock)
    store.request_cancel(job.id, reason="enough", now=clock.now())

    assert end(store, clock, job, outcome) == Applied(job.id, "cancelled")

    after = store.get_job(job.id)
    assert after.finished_at == clock.now()
    assert after.errors[0]["reason"] == "cancel_requested"
    assert after.cancel_requested


def test_22_hand_back_of_a_job_to_cancel_cancels_it_and_settles(store: Storage, clock: SimClock) -> None:
    [job] = running(store, clock, workflow_id="w", wf_name="a")
    [held] = add(store, clock, state="held", workflow_id="w", wf_name="b", wf_deps=("a",))
    store.request_cancel(job.id, reason="enough", now=clock.now())

    assert store.hand_back([Lease.of(job)], now=clock.now()) == [Applied(job.id, "cancelled")]

    assert store.get_job(held).state == "cancelled"


def test_hand_back_returns_the_attempt_and_the_job_at_once(store: Storage, clock: SimClock) -> None:
    jobs = running(store, clock, 3)
    clock.advance(1)
    assert store.hand_back([Lease.of(job) for job in jobs], now=clock.now()) == [
        Applied(job.id, "ready") for job in jobs
    ]
    assert [job.attempt for job in claim(store, clock, queue="running")] == [1, 1, 1]


# -- rule 25


@pytest.mark.parametrize("outcome", [Failed, lambda error: Retried(ready_at=LATER, error=error)])
def test_25_an_error_that_jsonb_refuses_is_stored_all_the_same(
    store: Storage, clock: SimClock, outcome: Callable[..., Outcome]
) -> None:
    [job] = running(store, clock)
    entry = {"error": "a\0b\ud800", "traceback": "x" * 100_000 + "the end", "odd": {1: float("nan")}}

    end(store, clock, job, outcome(error=entry))

    [stored] = store.get_job(job.id).errors
    assert stored["error"] == "a�b�"
    assert len(stored["traceback"].encode()) <= TRACEBACK_BYTES
    assert stored["traceback"].endswith("the end")


def test_25_a_reason_that_jsonb_refuses_is_stored_all_the_same(store: Storage, clock: SimClock) -> None:
    [job] = running(store, clock)
    end(store, clock, job, Cancelled(reason="\0\ud800" * 9_000))
    assert store.get_job(job.id).errors[0]["reason"].startswith("��")


@pytest.mark.parametrize("outcome", [Failed, lambda error: Retried(ready_at=START, error=error)])
def test_25_the_list_of_errors_is_bounded_as_with_entry_says(
    store: Storage, clock: SimClock, connection: psycopg.Connection[Any], outcome: Callable[..., Outcome]
) -> None:
    [job_id] = add(store, clock, max_attempts=1000)
    expected: list[Any] = []
    for n in range(MAX_ENTRIES + 5):
        end(store, clock, claim_one(store, clock), outcome(error={"n": n}))
        connection.execute("UPDATE belay_jobs SET state = 'ready'")
        expected = with_entry(expected, {"n": n})
    assert store.get_job(job_id).errors == expected
    assert len(expected) == MAX_ENTRIES


@pytest.mark.parametrize("odd", ['{"not": "a list"}', '"text"', "null", "7"])
@pytest.mark.parametrize("outcome", [Failed(error=ERROR), Retried(ready_at=START, error=ERROR)])
def test_4_errors_that_are_no_list_stop_no_ack(
    store: Storage, clock: SimClock, connection: psycopg.Connection[Any], odd: str, outcome: Outcome
) -> None:
    [job] = running(store, clock)
    connection.execute("UPDATE belay_jobs SET errors = %s::jsonb", (odd,))
    assert isinstance(end(store, clock, job, outcome), Applied)
    assert store.get_job(job.id).errors[-1] == ERROR


# -- rule 21, groups


def test_21_plain_acks_share_a_transaction_and_a_stale_row_falls_out_alone(
    store: Storage, clock: SimClock, connection: psycopg.Connection[Any]
) -> None:
    first, stale, last = running(store, clock, 3)
    end(store, clock, stale, Snoozed(until=clock.now()))

    results = store.ack_group([ack_of(job) for job in (first, stale, last)], now=clock.now())

    assert results == [Applied(first.id, "succeeded"), Stale(stale.id), Applied(last.id, "succeeded")]
    written = connection.execute("SELECT xmin::text FROM belay_jobs WHERE state = 'succeeded'").fetchall()
    assert len(written) == 2
    assert len(set(written)) == 1


def test_21_every_outcome_in_one_group(store: Storage, clock: SimClock) -> None:
    jobs = running(store, clock, 6)
    results = store.ack_group(
        [ack_of(job, outcome) for job, outcome in zip(jobs, OUTCOMES, strict=True)], now=clock.now()
    )
    expected = ["succeeded", "ready", "failed", "cancelled", "ready", "awaiting"]
    assert [result.state for result in results if isinstance(result, Applied)] == expected


def test_21_acks_of_different_workflows_share_no_transaction(
    store: Storage, clock: SimClock, connection: psycopg.Connection[Any]
) -> None:
    one = running(store, clock, 2, workflow_id="one", wf_name="x")
    two = running(store, clock, 2, workflow_id="two", wf_name="x")
    store.ack_group([ack_of(job) for job in (one[0], two[0], one[1], two[1])], now=clock.now())
    rows = connection.execute(
        "SELECT workflow_id, count(DISTINCT xmin::text), count(*) FROM belay_jobs GROUP BY 1 ORDER BY 1"
    ).fetchall()
    assert rows == [("one", 1, 2), ("two", 1, 2)]
    assert connection.execute("SELECT count(DISTINCT xmin::text) FROM belay_jobs").fetchone() == (2,)


@pytest.fixture
def poison(connection: psycopg.Connection[Any]) -> Any:
    """Rows of the kind ``poison`` cannot be updated."""
    connection.execute(
        "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS"
        " $$BEGIN RAISE EXCEPTION 'poison'; END$$;"
        "CREATE TRIGGER refuse BEFORE UPDATE ON belay_jobs FOR EACH ROW"
        " WHEN (OLD.kind = 'poison' AND OLD.state = 'running') EXECUTE FUNCTION refuse()"
    )
    yield
    connection.execute("DROP TRIGGER refuse ON belay_jobs; DROP FUNCTION refuse()")


@pytest.mark.parametrize("outcome", [Succeeded(), Snoozed(until=LATER)], ids=["ended", "snoozed"])
def test_21_when_a_group_fails_its_members_are_sent_one_by_one(
    store: Storage, clock: SimClock, poison: None, outcome: Outcome
) -> None:
    good = running(store, clock, 2)
    [bad] = running(store, clock, kind="poison", queue="p")

    with pytest.raises(AckGroupError) as caught:
        store.ack_group([ack_of(job, outcome) for job in (good[0], bad, good[1])], now=clock.now())

    first, failed, last = caught.value.results
    assert isinstance(first, Applied)
    assert failed is None
    assert isinstance(last, Applied)
    assert isinstance(caught.value.failures[1], StorageError)
    assert store.get_job(bad.id).state == "running"


def test_ack_of_one_job_raises_its_own_error(store: Storage, clock: SimClock, poison: None) -> None:
    [bad] = running(store, clock, kind="poison")
    with pytest.raises(StorageError, match="poison"):
        end(store, clock, bad)


def test_a_group_of_many_is_cut_and_answers_each_by_index(store: Storage, clock: SimClock) -> None:
    jobs = running(store, clock, 700)
    results = store.ack_group([ack_of(job) for job in reversed(jobs)], now=clock.now())
    assert results == [Applied(job.id, "succeeded") for job in reversed(jobs)]


def test_the_same_ack_twice_in_a_group_writes_once(store: Storage, clock: SimClock) -> None:
    [job] = running(store, clock)
    snoozed = ack_of(job, Snoozed(until=LATER))
    assert store.ack_group([snoozed, snoozed], now=clock.now()) == [Applied(job.id, "ready"), Stale(job.id)]


# -- follow-ups


def test_a_follow_up_is_inserted_with_its_ack_and_not_with_a_stale_one(
    store: Storage, clock: SimClock
) -> None:
    first, stale = running(store, clock, 2)
    end(store, clock, stale, Snoozed(until=LATER))
    acks = [ack_of(job, Failed(error=ERROR), NewJob(kind="after")) for job in (first, stale)]

    store.ack_group(acks, now=clock.now())

    assert len(store.list_jobs(JobFilter(kind="after"), limit=10)) == 1


def test_a_follow_up_that_cannot_be_inserted_takes_its_ack_with_it(store: Storage, clock: SimClock) -> None:
    [job] = running(store, clock)
    with pytest.raises(StorageError):
        store.ack(ack_of(job, Failed(error=ERROR), NewJob(kind="nul\0")), now=clock.now())
    assert states(store, [job.id]) == ["running"]


# -- rule 11, hints


def hints(connection: psycopg.Connection[Any]) -> list[str]:
    return [notify.payload for notify in connection.notifies(timeout=0.2)]


@pytest.fixture
def listening(connection: psycopg.Connection[Any]) -> psycopg.Connection[Any]:
    connection.execute("LISTEN belay_belay_behaviour")
    return connection


@pytest.mark.parametrize("queue", ["plain", "grouped"])
def test_11_an_ended_job_is_announced_only_to_who_waits(
    store: Storage, clock: SimClock, listening: psycopg.Connection[Any], queue: str
) -> None:
    parent = add(store, clock, queue="parents")[0] if queue == "grouped" else None
    waited, other = running(store, clock, 2, parent_id=parent)
    store.register_waiter(waited.id, until=LATER, now=clock.now())
    hints(listening)

    store.ack_group([ack_of(waited), ack_of(other)], now=clock.now())

    assert hints(listening) == [f'{{"t":"r","id":{waited.id}}}']


def test_11_a_job_that_is_ready_again_now_pokes_its_queue_and_a_later_one_does_not(
    store: Storage, clock: SimClock, listening: psycopg.Connection[Any]
) -> None:
    now_job, later_job = running(store, clock, 2)
    clock.advance(1)
    hints(listening)
    end(store, clock, later_job, Snoozed(until=clock.now() + timedelta(seconds=1)))
    assert hints(listening) == []
    end(store, clock, now_job, Snoozed(until=clock.now()))
    assert hints(listening) == ['{"t":"p","q":"running"}']


def test_a_locked_row_holds_up_no_other_end(
    make_postgres_store: Callable[..., PostgresStore], behaviour_params: dict[str, str], clock: SimClock
) -> None:
    """Somebody looks at one job with FOR UPDATE and goes to lunch (rule 21)."""
    store = make_postgres_store(statement_timeout_s=0.5)
    jobs = running(store, clock, 20)
    with psycopg.connect(**behaviour_params) as visitor:
        visitor.execute("SELECT FROM belay_jobs WHERE id = %s FOR UPDATE", [jobs[10].id])
        with pytest.raises(AckGroupError) as caught:
            store.ack_group([ack_of(job) for job in jobs], now=clock.now())
    assert list(caught.value.failures) == [10]
    assert isinstance(caught.value.failures[10], Contended)
    assert [job.id for job in jobs if store.get_job(job.id).state == "running"] == [jobs[10].id]
    assert store.ack(ack_of(jobs[10]), now=clock.now()) == Applied(jobs[10].id, "succeeded")
