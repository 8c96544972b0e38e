"""``drain()``: what it runs, on whose connection, and what it says about it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest
from asgiref.sync import async_to_sync
from django.contrib.auth.models import Group
from django.db import IntegrityError, connection, transaction
from django.db.transaction import TransactionManagementError
from django.test import TestCase, TransactionTestCase

from django_belay import client, queues
from django_belay.contract.outcome import Awaiting
from django_belay.db import storage_for_client
from django_belay.exceptions import ConfigurationError, JobFailed
from django_belay.jobs import job
from django_belay.registry import registry
from django_belay.signals import job_enqueued, job_finished, job_started
from django_belay.testing import DrainReport, SimClock, adrain, assert_enqueued, drain, override_belay
from tests.integration import worker

pytestmark = pytest.mark.django_db
committed = pytest.mark.django_db(transaction=True)

ran: list[Any] = []


@pytest.fixture(autouse=True)
def forget_runs() -> Iterator[None]:
    ran.clear()
    yield
    ran.clear()


@job(kind="drain.note")
def note(ctx, what: str = "") -> str:
    ran.append(what)
    return what


@job(kind="drain.count_groups")
def count_groups(ctx) -> int:
    return Group.objects.count()


@job(kind="drain.make_group")
def make_group(ctx, name: str) -> None:
    Group.objects.create(name=name)


@job(kind="drain.fails", max_attempts=2, backoff=[60])
def fails(ctx, error: str = "no") -> None:
    ran.append(ctx.attempt)
    raise ValueError(error)


@job(kind="drain.breaks_the_transaction", max_attempts=1)
def breaks_the_transaction(ctx, swallow: bool) -> str:
    Group.objects.create(name="of the job")
    try:
        Group.objects.create(name="of the job")
    except IntegrityError:
        if not swallow:
            raise
    return "went on"


@job(kind="drain.enqueues")
def enqueues(ctx, left: int) -> None:
    ran.append(left)
    if left:
        enqueues.using(queue="mail" if left % 2 else "ai").enqueue(left - 1)


@job(kind="drain.breaks_after_on_commit", max_attempts=1)
def breaks_after_on_commit(ctx) -> None:
    transaction.on_commit(lambda: ran.append("of what was taken back"))
    Group.objects.create(name="twice")
    Group.objects.create(name="twice")


@job(kind="drain.on_commit")
def calls_back(ctx, error: str = "") -> None:
    def callback() -> None:
        ran.append("committed")
        if error:
            raise ValueError(error)

    with transaction.atomic():
        transaction.on_commit(callback)


@job(kind="drain.ends_the_test")
def ends_the_test(ctx) -> None:
    pytest.fail("seen in the job")


@job(kind="drain.gives_up")
def gives_up(ctx) -> None:
    ctx.fail("no use")


@job(kind="drain.drains")
def drains(ctx) -> None:
    drain()


@job(kind="drain.asynchronous")
async def asynchronous(ctx) -> list[str]:
    await Group.objects.acreate(name="of the job")
    return [group.name async for group in Group.objects.order_by("name")]


# -- connections and transactions -----------------------------------------------------


def test_a_job_sees_what_the_test_has_not_committed() -> None:
    Group.objects.create(name="a")
    handle = count_groups.enqueue()
    drain()
    assert handle.result(timeout=0) == 1


def test_the_test_sees_what_a_job_did() -> None:
    make_group.enqueue("made")
    drain()
    assert Group.objects.filter(name="made").exists()


@committed
def test_outside_a_transaction_it_commits() -> None:
    make_group.enqueue("made")
    drain()
    seen: list[int] = []

    def look() -> None:
        seen.append(Group.objects.count())
        connection.close()

    thread = threading.Thread(target=look)
    thread.start()
    thread.join()
    assert seen == [1]


@pytest.mark.postgres
@committed
def test_the_callers_connection_stays_open() -> None:
    connection.ensure_connection()
    before = connection.connection
    note.enqueue()
    drain()
    assert connection.connection is before
    assert not before.closed


def test_a_failed_statement_costs_the_jobs_changes_and_not_the_test() -> None:
    Group.objects.create(name="of the test")
    handle = breaks_the_transaction.enqueue(swallow=False)
    [run] = drain().runs
    assert run.outcome == "failed"
    assert isinstance(run.error, IntegrityError)
    assert handle.refresh().state == "failed"
    assert [group.name for group in Group.objects.all()] == ["of the test"]


def test_a_swallowed_statement_error_is_told() -> None:
    breaks_the_transaction.enqueue(swallow=True)
    [run] = drain().runs
    assert isinstance(run.error, TransactionManagementError)
    assert "TransactionTestCase" in str(run.error)


@committed
def test_outside_a_transaction_a_swallowed_error_costs_nothing() -> None:
    handle = breaks_the_transaction.enqueue(swallow=True)
    drain(raise_failures=True)
    assert handle.result(timeout=0) == "went on"
    assert Group.objects.count() == 1


def test_callbacks_of_a_job_run() -> None:
    transaction.on_commit(lambda: ran.append("of the test"))
    calls_back.enqueue()
    drain(raise_failures=True)
    assert ran == ["committed"]


def test_a_failing_callback_fails_the_job() -> None:
    calls_back.enqueue(error="no")
    [run] = drain().runs
    assert run.outcome == "retry"
    assert str(run.error) == "no"


def test_callbacks_of_changes_that_were_taken_back_never_run() -> None:
    breaks_after_on_commit.enqueue()
    with TestCase.captureOnCommitCallbacks(execute=True) as captured:
        assert drain().counts == {"failed": 1}
    assert captured == []
    assert ran == []


@pytest.mark.postgres
def test_in_the_callers_own_transaction_callbacks_wait_for_it() -> None:
    with TestCase.captureOnCommitCallbacks(execute=True), transaction.atomic():
        calls_back.enqueue()
        drain(raise_failures=True)
        assert ran == []
    assert ran == ["committed"]


def test_an_async_job_uses_the_tests_connection() -> None:
    Group.objects.create(name="of the test")
    handle = asynchronous.enqueue()
    drain(raise_failures=True)
    assert handle.result(timeout=0) == ["of the job", "of the test"]


@committed
def test_adrain_runs_jobs() -> None:
    async def act() -> DrainReport:
        await note.aenqueue("x")
        await asynchronous.aenqueue()
        return await adrain(raise_failures=True)

    assert async_to_sync(act)().counts == {"succeeded": 2}


# -- what runs -------------------------------------------------------------------------


def test_jobs_enqueued_by_jobs_run_whatever_their_queue() -> None:
    enqueues.enqueue(3)
    assert len(drain()) == 4
    assert ran == [3, 2, 1, 0]


def test_only_the_queue_asked_for() -> None:
    note.enqueue("default")
    note.using(queue="mail").enqueue("mail")
    drain("mail")
    assert ran == ["mail"]


def test_a_queue_that_no_setting_names_is_served() -> None:
    note.using(queue="elsewhere").enqueue("x")
    assert drain().runs[0].queue == "elsewhere"


def test_smaller_priorities_first() -> None:
    for priority in (3, -1, 2):
        note.using(priority=priority).enqueue(str(priority))
    drain()
    assert ran == ["-1", "2", "3"]


def test_no_more_than_the_limit() -> None:
    for number in range(3):
        note.enqueue(str(number))
    assert len(drain(limit=2)) == 2
    assert ran == ["0", "1"]
    assert len(drain(limit=0)) == 0


def test_a_paused_queue_is_left_alone() -> None:
    note.using(queue="mail").enqueue("x")
    queues.pause("mail")
    assert len(drain(with_scheduled=True)) == 0
    assert len(drain("mail")) == 0
    queues.resume("mail")
    assert len(drain()) == 1


def test_jobs_that_enqueue_themselves_for_ever_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("django_belay.testing._drain.MAX_RUNS", 5)
    enqueues.enqueue(10)
    with pytest.raises(RuntimeError, match="limit="):
        drain()
    assert len(ran) == 5


def test_a_job_may_not_drain() -> None:
    drains.enqueue()
    [run] = drain().runs
    assert isinstance(run.error, ConfigurationError)
    note.enqueue()
    assert len(drain()) == 1


def test_a_kind_of_nobody_is_put_back_once() -> None:
    handle = client.enqueue_job("Elsewhere.Mailer")
    report = drain(with_scheduled=True)
    assert report.counts == {"snooze": 1}
    assert handle.refresh().state == "ready"


@pytest.mark.postgres
def test_a_signal_written_in_a_test_wakes_who_waits() -> None:
    handle = note.enqueue("woken")
    parked = worker.claim(take=1)[0]
    scope = f"job:{parked.id}"
    worker.end(parked, Awaiting(scope=scope, name="go", read_scopes=(scope,)))
    assert len(drain()) == 0
    storage_for_client().storage.write_signal(scope, "go", 1, now=parked.inserted_at)
    drain()
    assert handle.refresh().state == "succeeded"


# -- time ------------------------------------------------------------------------------


def test_a_scheduled_job_waits_for_its_time(belay_clock: SimClock) -> None:
    note.using(run_after=timedelta(hours=1)).enqueue("later")
    assert len(drain()) == 0
    belay_clock.advance(3600)
    assert len(drain()) == 1


def test_with_scheduled_moves_a_simulated_clock(belay_clock: SimClock) -> None:
    started = belay_clock.now()
    note.using(run_after=timedelta(hours=2)).enqueue("second")
    note.using(run_after=timedelta(hours=1)).enqueue("first")
    drain(with_scheduled=True)
    assert ran == ["first", "second"]
    assert belay_clock.now() == started + timedelta(hours=2)


def test_with_scheduled_goes_through_retries_on_the_real_clock() -> None:
    handle = fails.enqueue()
    report = drain(with_scheduled=True)
    assert report.counts == {"retry": 1, "failed": 1}
    assert ran == [1, 2]
    assert handle.refresh().state == "failed"


def test_backoff_follows_the_clock(belay_clock: SimClock) -> None:
    fails.enqueue()
    assert drain().counts == {"retry": 1}
    belay_clock.advance(59)
    assert len(drain()) == 0
    belay_clock.advance(1)
    assert drain().counts == {"failed": 1}


def test_an_expired_lease_is_taken_back(belay_clock: SimClock) -> None:
    handle = note.enqueue("again")
    worker.claim(now=belay_clock.now())
    belay_clock.advance(29)
    assert len(drain()) == 0
    belay_clock.advance(2)
    assert len(drain()) == 0  # taken back, and due after its backoff
    belay_clock.advance(2)
    drain()
    assert handle.refresh().job.attempt == 2
    assert ran == ["again"]


def test_a_rate_window_follows_the_clock(belay_clock: SimClock) -> None:
    with override_belay(QUEUES={"default": {"limit": 10, "rate": {"allowed": 2, "period": 60}}}):
        for number in range(5):
            note.enqueue(str(number))
        assert len(drain()) == 2
        assert len(drain()) == 0
        belay_clock.advance(180)
        assert len(drain()) == 2


def test_a_global_limit_counts_what_others_run() -> None:
    with override_belay(QUEUES={"default": {"limit": 10, "global_limit": 1}}):
        note.enqueue("held by another")
        held = worker.claim(take=1)
        note.enqueue("x")
        assert len(drain()) == 0
        assert len(held) == 1


# -- the report ------------------------------------------------------------------------


def test_the_report_says_what_became_of_the_jobs() -> None:
    good, bad = note.enqueue("good"), fails.enqueue("bad luck")
    report = drain()
    assert report.counts == {"succeeded": 1, "retry": 1}
    assert report.counts["failed"] == 0
    assert report.job_ids == [good.id, bad.id]
    [failure] = report.failures
    assert (failure.job_id, failure.attempt, failure.state) == (bad.id, 1, "ready")
    assert str(failure.error) == "bad luck"
    assert "bad luck" in repr(report)
    assert repr(DrainReport()) == "<DrainReport: nothing to run>"


def test_failures_are_raised_if_asked_for_once_they_are_written() -> None:
    handle = fails.enqueue("as it was")
    note.enqueue("not reached")
    with pytest.raises(ValueError, match="as it was"):
        drain(raise_failures=True)
    assert len(handle.refresh().job.errors) == 1
    assert ran == [1]


def test_a_failure_without_an_exception_is_raised_too() -> None:
    gives_up.enqueue()
    with pytest.raises(JobFailed, match="no use"):
        drain(raise_failures=True)


def test_the_end_of_a_test_passes_through() -> None:
    handle = ends_the_test.enqueue()
    with pytest.raises(pytest.fail.Exception, match="seen in the job"):
        drain()
    assert handle.refresh().state == "ready"


def test_signals_of_a_worker_are_sent() -> None:
    heard: list[Any] = []

    def started(sender: str, **_: Any) -> None:
        heard.append((sender, "started"))

    def finished(sender: str, *, outcome: str, **_: Any) -> None:
        heard.append((sender, outcome))

    job_started.connect(started)
    job_finished.connect(finished)
    try:
        note.enqueue()
        drain()
    finally:
        job_started.disconnect(started)
        job_finished.disconnect(finished)
    assert heard == [("drain.note", "started"), ("drain.note", "succeeded")]


def trace(context: Any, call_next: Callable[[Any], Any]) -> Any:
    ran.append("before")
    result = call_next(context)
    ran.append("after")
    return result


def test_middleware_is_around_jobs() -> None:
    with override_belay(MIDDLEWARE=[f"{__name__}.trace"]):
        note.enqueue("job")
        drain()
    assert ran == ["before", "job", "after"]


# -- Django's test cases ------------------------------------------------------------------


class InATestCase(TestCase):
    @classmethod
    def setUpTestData(cls) -> None:
        Group.objects.create(name="of the class")

    def test_jobs_see_the_data_of_the_class(self) -> None:
        handle = count_groups.enqueue()
        drain(raise_failures=True)
        assert handle.result(timeout=0) == 1

    def test_on_commit_needs_captured_callbacks(self) -> None:
        with self.captureOnCommitCallbacks(execute=True):
            with transaction.atomic():
                note.enqueue_on_commit("later")
            assert len(drain()) == 0
        assert len(drain()) == 1


class InATransactionTestCase(TransactionTestCase):
    def test_jobs_run(self) -> None:
        note.enqueue("x")
        assert len(drain()) == 1


def test_every_job_here_is_known() -> None:
    assert "drain.note" in registry
    note.enqueue("x")
    assert_enqueued(note)


@job(kind="drain.family")
def family(ctx) -> list[str]:
    return ctx.map_children("notes", note, [{"what": "a"}, {"what": "b"}])


def test_the_signal_of_an_enqueueing_is_sent_for_children_too() -> None:
    told: list[tuple[str, list[int]]] = []

    def hear(sender: str, job_ids: list[int], **_: Any) -> None:
        told.append((sender, job_ids))

    job_enqueued.connect(hear)
    try:
        parent = family.enqueue()
        drain()
    finally:
        job_enqueued.disconnect(hear)
    assert parent.result(timeout=0) == ["a", "b"]
    children = sorted(child.id for child in client.list_jobs(parent_id=parent.id))
    assert told == [("drain.family", [parent.id]), ("drain.note", children)]
