"""Handles: what they read, what they wait for, what they refuse."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from decimal import Decimal
from random import Random
from typing import Any

import pytest
from asgiref.sync import async_to_sync
from django.db import connection, transaction
from django.utils import timezone

from django_belay import client
from django_belay.contract.outcome import Cancelled, Failed, Retried, Succeeded
from django_belay.exceptions import (
    BudgetExceeded,
    ConfigurationError,
    InvalidInput,
    JobCancelled,
    JobFailed,
    JobNotFound,
    PayloadTooLarge,
    ResultTimeout,
)
from django_belay.storage.base import Controlled, NewStep
from django_belay.testing import override_belay
from tests.app import jobs
from tests.integration.worker import claim, run, storage

pytestmark = pytest.mark.django_db


def done(answer: Any) -> bool:
    """Whether a call did something, at once."""
    assert isinstance(answer, Controlled)
    return answer.done


def test_a_handle_is_its_id() -> None:
    job = jobs.echo.enqueue(1)
    assert (job, hash(job)) == (client.get(job.id), hash(client.get(job.id)))
    assert repr(job) == f"<JobHandle {job.id}: ready>"
    assert not job.is_finished


def test_the_result_comes_decoded() -> None:
    job = jobs.echo.enqueue(1)
    run(Succeeded(b'{"answer":42}'))
    assert job.result(timeout=1) == {"answer": 42}
    assert async_to_sync(job.aresult)(1) == {"answer": 42}
    nothing = jobs.echo.enqueue(1)
    run(Succeeded())
    assert nothing.result(timeout=1) is None


@pytest.mark.parametrize(
    ("outcome", "error", "said"),
    [
        (Failed(error={"error": "boom", "attempt": 1}), JobFailed, "attempt 1 of 20: boom"),
        (Failed(error={"error": "no", "type": "ValueError"}), JobFailed, "of 20: ValueError: no"),
        (Failed(error={"error": "KeyError", "type": "KeyError"}), JobFailed, "of 20: KeyError$"),
        (Cancelled(reason="no need"), JobCancelled, "no need"),
        (Failed(error={"error": "budget_exceeded", "detail": "usd"}), BudgetExceeded, "usd"),
    ],
)
def test_another_end_is_raised(outcome: Any, error: type[JobFailed], said: str) -> None:
    job = jobs.echo.enqueue(1)
    run(outcome)
    with pytest.raises(error, match=said) as caught:
        job.result(timeout=1)
    assert caught.value.job_id == job.id
    assert len(caught.value.errors) == 1


def test_a_job_that_goes_on_times_out() -> None:
    job = jobs.echo.enqueue(1)
    with pytest.raises(ResultTimeout, match="goes on") as caught:
        job.result(timeout=0)
    assert caught.value.job_id == job.id
    with pytest.raises(ResultTimeout):
        async_to_sync(job.aresult)(0.001)
    with pytest.raises(InvalidInput, match="timeout"):
        job.result(timeout=-1)


@pytest.mark.django_db(transaction=True)
def test_waiting_inside_the_enqueueing_transaction_is_refused_at_once() -> None:
    other = jobs.echo.enqueue(0)

    def refused(job: client.JobHandle) -> bool:
        try:
            job.result(timeout=0)
        except ConfigurationError as error:
            return "after the atomic() block" in str(error)
        except ResultTimeout:
            return False
        raise AssertionError("a result of a job that did not run")

    with transaction.atomic():
        assert not refused(other)
        job = jobs.echo.enqueue(1)
        with transaction.atomic():
            inner = jobs.echo.enqueue(2)
        assert (refused(job), refused(inner), refused(other)) == (True, True, False)
        with ThreadPoolExecutor(1) as pool:  # committed later than this transaction began
            later = pool.submit(enqueue_elsewhere).result()
        assert not refused(later)
    assert not refused(job)


def enqueue_elsewhere() -> client.JobHandle:
    try:
        return jobs.echo.enqueue(3)
    finally:
        connection.close()


def test_a_job_that_is_gone_is_said_to_be() -> None:
    with pytest.raises(JobNotFound, match="pruned"):
        client.get(2**40)
    for call in (client.cancel, client.retry, client.await_result):
        with pytest.raises(JobNotFound):
            call(2**40)  # type: ignore[operator]
    with pytest.raises(JobNotFound):
        client.signal(2**40, "go")


@pytest.mark.parametrize("job_id", [0, -1, 2**63, "1", True, None])
def test_what_is_no_id_is_refused(job_id: Any) -> None:
    with pytest.raises(InvalidInput, match="job id"):
        client.get(job_id)


def test_retry_gives_another_attempt() -> None:
    job = jobs.send_receipt.using(max_attempts=1, queue="default").enqueue(1)
    assert not done(job.retry())
    run(Failed(error={"error": "x"}))
    assert done(job.retry())
    assert (job.refresh().state, job.job.max_attempts) == ("ready", 2)


def test_a_running_job_is_asked_to_stop() -> None:
    job = jobs.echo.enqueue(1)
    claim()
    answer = job.cancel("enough")
    assert isinstance(answer, Controlled)
    assert answer.requested
    assert job.refresh().job.cancel_requested
    assert job.state == "running"


def test_an_ended_job_is_left_alone() -> None:
    job = jobs.echo.enqueue(1)
    run(Succeeded())
    answer = job.cancel()
    assert isinstance(answer, Controlled)
    assert not answer.done
    assert "succeeded" in str(answer.reason)


def test_steps_and_events_come_decoded() -> None:
    job = jobs.echo.enqueue(1)
    claim()
    now = timezone.now()
    storage().put_step(job.id, NewStep(name="a", value=b"[1]", usd_micros=20_000, tokens=5), now=now)
    storage().put_step(job.id, NewStep(name="$sleep:x", value=b"0"), now=now)
    for n in range(3):
        storage().append_event(job.id, {"n": n}, now=now)
    first, second = job.steps()
    assert (first.seq, first.name, first.value, first.usd, first.tokens) == (1, "a", [1], Decimal("0.02"), 5)
    assert second.is_reserved
    assert not first.is_reserved
    assert [event.payload["n"] for event in job.events(after=1)] == [1, 2]
    assert len(async_to_sync(job.aevents)(limit=1)) == 1
    assert async_to_sync(job.asteps)() == job.steps()


@pytest.mark.parametrize(
    ("name", "payload", "path"),
    [("go", "\0", "payload"), ("go", float("nan"), "payload"), ("", 1, "name"), ("$children", 1, "name"),
     ("a\0", 1, "name"), ("x" * 1001, 1, "name"), ("√" * 334, 1, "name"), (3, 1, "name")],
)  # fmt: skip
def test_a_signal_that_cannot_be_stored_is_refused(name: Any, payload: Any, path: str) -> None:
    with pytest.raises(InvalidInput, match=path):
        jobs.echo.enqueue(1).signal(name, payload)


def test_a_scope_and_name_at_their_bounds_fit_into_the_index() -> None:
    """Random text: what repeats itself would be compressed."""
    random = Random(7)
    scope, name = ("".join(chr(random.randrange(0x4E00, 0x9FFF)) for _ in range(333)) for _ in "sn")
    assert client.signal(scope, name, 1) == []
    with pytest.raises(InvalidInput, match="scope"):
        client.signal(scope + "√", name, 1)


@pytest.mark.parametrize(
    "call",
    [
        lambda job: job.events(after=2**63),
        lambda job: job.events(after=True),
        lambda job: job.events(limit=-1),
        lambda job: job.events(limit=2**31),
        lambda job: client.list_jobs(ids=[job.id, 2**63]),
        lambda job: client.list_jobs(ids=["1"]),  # type: ignore[list-item]
        lambda job: client.list_jobs(parent_id=2**63),
        lambda job: client.list_jobs(before_id=2**63),
        lambda job: client.list_jobs(since=timedelta(1)),  # type: ignore[arg-type]
        lambda job: client.list_jobs(limit="5"),  # type: ignore[arg-type]
        lambda job: client.list_jobs(states=[[]]),  # type: ignore[list-item]
        lambda job: client.list_jobs(queue="a\0"),
        lambda job: client.list_jobs(kind="\ud800"),
        lambda job: client.list_jobs(workflow_id=7),  # type: ignore[arg-type]
    ],
)
def test_a_read_that_cannot_be_asked_leaves_the_transaction_usable(call: Any) -> None:
    job = jobs.echo.enqueue(1)
    with pytest.raises(InvalidInput):
        call(job)
    assert job.refresh().state == "ready"


def test_a_signals_ceiling_is_named() -> None:
    job = jobs.echo.enqueue(1)
    with (
        override_belay(MAX_SIGNAL_BYTES=10),
        pytest.raises(PayloadTooLarge, match="MAX_SIGNAL"),
    ):
        job.signal("go", "x" * 9)


def test_jobs_are_listed_by_page() -> None:
    ids = jobs.echo.enqueue_many([{"value": n} for n in range(5)]).ids
    jobs.send_receipt.enqueue(1)
    first = client.list_jobs(kind="belay_testapp.echo", limit=3)
    assert [job.id for job in first] == ids[:1:-1]
    assert [job.id for job in client.list_jobs(queue="default", before_id=first[-1].id)] == ids[1::-1]
    assert client.list_jobs(since=timezone.now() + timedelta(minutes=1)) == []
    with pytest.raises(InvalidInput, match="awaiting"):
        client.list_jobs(states=["waiting"])  # type: ignore[list-item]


def test_stats_count_by_queue() -> None:
    jobs.echo.enqueue(1)
    jobs.echo.using(run_after=timedelta(hours=1)).enqueue(1)
    run(Retried(ready_at=timezone.now(), error={"error": "x"}))
    (queue,) = client.stats()
    assert (queue.queue, queue.ready, queue.scheduled, queue.running) == ("default", 1, 1, 0)
