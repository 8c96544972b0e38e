"""Rule 10: what joins the caller's transaction, what follows its commit, and under which isolation."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from django.db import connection, transaction
from django.test import TestCase
from django.test.utils import CaptureQueriesContext

from django_belay import client, db
from django_belay.contract.outcome import Failed
from django_belay.deferred import Deferred
from django_belay.exceptions import ConfigurationError, JobNotFound, StillDeferred
from django_belay.models import Signal
from django_belay.storage.base import Controlled, NewStep
from tests.app import jobs
from tests.integration.looking import count
from tests.integration.worker import claim, park, run, storage

committed = pytest.mark.django_db(transaction=True)


class Undo(Exception):
    """Rolls a transaction back."""


@pytest.fixture
def repeatable_read() -> Iterator[None]:
    """A connection whose transactions are REPEATABLE READ unless they say otherwise."""
    with connection.cursor() as cursor:
        cursor.execute("SET SESSION CHARACTERISTICS AS TRANSACTION ISOLATION LEVEL REPEATABLE READ")
    yield
    connection.close()


# -- signals -----------------------------------------------------------------------


@pytest.mark.postgres
@committed
def test_a_signal_in_a_transaction_joins_it_and_wakes_after_the_commit() -> None:
    job = jobs.echo.enqueue(1)
    park("go")
    with transaction.atomic():
        woken = job.signal("go", {"a": 1})
        assert isinstance(woken, Deferred)
        assert not woken.is_done
        assert job.refresh().state == "awaiting"
        assert Signal.objects.get(scope=f"job:{job.id}").payload == {"a": 1}
    assert woken.get() == [job.id]
    assert job.refresh().state == "ready"


@committed
def test_a_signal_that_is_rolled_back_was_never_sent() -> None:
    job = jobs.echo.enqueue(1)
    park("go")
    with pytest.raises(Undo), transaction.atomic():  # noqa: PT012
        woken = job.signal("go")
        raise Undo
    assert isinstance(woken, Deferred)
    with pytest.raises(StillDeferred, match="rolled back"):
        woken.get()
    assert not Signal.objects.exists()
    assert job.refresh().state == "awaiting"


@pytest.mark.postgres
@committed
@pytest.mark.usefixtures("repeatable_read")
def test_a_delivery_from_a_repeatable_read_transaction_finds_a_later_awaiter() -> None:
    job = jobs.echo.enqueue(1)
    with transaction.atomic():
        assert count() == 1  # the snapshot is taken: the park comes after it
        park_elsewhere(job.id)
        woken = job.signal("go")
    assert isinstance(woken, Deferred)
    assert woken.get() == [job.id]


def park_elsewhere(job_id: int) -> None:
    """Park the job over another connection."""
    import threading

    def work() -> None:
        try:
            park("go")
        finally:
            connection.close()

    thread = threading.Thread(target=work)
    thread.start()
    thread.join(30)


@committed
def test_a_signal_outside_a_transaction_acts_at_once() -> None:
    job = jobs.echo.enqueue(1)
    park("go")
    assert job.signal("go") == [job.id]


@committed
def test_steering_reaches_the_inbox() -> None:
    job = jobs.echo.enqueue(1)
    job.steer("left")
    assert Signal.objects.get().name == "$steer"


# -- cancel and retry ----------------------------------------------------------------


@committed
def test_cancel_and_retry_in_a_transaction_follow_its_commit() -> None:
    job, other = jobs.echo.enqueue(1), jobs.echo.enqueue(2)
    other.cancel()
    with transaction.atomic():
        cancelled, retried = job.cancel("no need"), other.retry()
        assert isinstance(cancelled, Deferred)
        assert isinstance(retried, Deferred)
        assert (job.refresh().state, other.refresh().state) == ("ready", "cancelled")
    assert cancelled.get().done
    assert retried.get().done
    assert (job.refresh().state, other.refresh().state) == ("cancelled", "ready")
    assert job.job.errors[-1]["reason"] == "no need"


@committed
def test_a_cancel_that_is_rolled_back_is_forgotten() -> None:
    job = jobs.echo.enqueue(1)
    with pytest.raises(Undo), transaction.atomic():  # noqa: PT012
        job.cancel()
        raise Undo
    assert job.refresh().state == "ready"


@pytest.mark.postgres
@committed
def test_join_cancels_in_the_callers_transaction() -> None:
    job = jobs.echo.enqueue(1)
    with pytest.raises(Undo), transaction.atomic():  # noqa: PT012
        answer = job.cancel(join=True)
        assert isinstance(answer, Controlled)
        assert answer.done
        assert job.refresh().state == "cancelled"
        raise Undo
    assert job.refresh().state == "ready"


@committed
def test_what_fails_after_the_commit_is_kept_for_who_asks(caplog: pytest.LogCaptureFixture) -> None:
    ran = []
    with transaction.atomic():
        answer = client.cancel(2**40)
        transaction.on_commit(lambda: ran.append(1))
    assert ran == [1]
    assert isinstance(answer, Deferred)
    with pytest.raises(JobNotFound):
        answer.get()
    assert "cancelling job" in caplog.text


@pytest.mark.postgres
@committed
@pytest.mark.usefixtures("repeatable_read")
def test_transactions_of_our_own_are_read_committed() -> None:
    job = jobs.echo.enqueue(1)
    with CaptureQueriesContext(connection) as queries:
        job.cancel()
    assert "ISOLATION LEVEL READ COMMITTED" in queries[1]["sql"]  # after BEGIN


@committed
def test_a_joined_one_leaves_the_callers_isolation_alone() -> None:
    with transaction.atomic(), CaptureQueriesContext(connection) as queries:
        jobs.echo.enqueue_many([{"value": 1}, {"value": 2}])
    assert not [query for query in queries if "ISOLATION" in query["sql"] or "SAVEPOINT" in query["sql"]]


class InATestCase(TestCase):
    """Blocks that TestCase opens never commit: there these calls act at once."""

    def test_calls_act_at_once(self) -> None:
        job = jobs.echo.enqueue(1)
        park("go")
        assert job.signal("go") == [job.id]
        run(Failed(error={"error": "x"}))
        answer = job.retry()
        assert isinstance(answer, Controlled)
        assert answer.done

    def test_a_block_inside_counts(self) -> None:
        job = jobs.echo.enqueue(1)
        with self.captureOnCommitCallbacks(execute=True), transaction.atomic():
            answer = job.cancel()
            assert isinstance(answer, Deferred)
        assert job.refresh().state == "cancelled"


# -- atomic steps (rule 31) --------------------------------------------------------------


@pytest.mark.postgres
@committed
def test_an_atomic_step_commits_with_the_orms_work() -> None:
    job = jobs.echo.enqueue(1)
    claim()
    with pytest.raises(Undo), storage().atomic_step() as joined:  # noqa: PT012
        joined.put_step(job.id, NewStep(name="a", value=b"1"), now=job.job.inserted_at)
        raise Undo
    assert job.steps() == []
    with storage().atomic_step() as joined:
        joined.put_step(job.id, NewStep(name="a", value=b"1"), now=job.job.inserted_at)
        assert connection.in_atomic_block
    assert [step.value for step in job.steps()] == [1]


@pytest.mark.postgres
@committed
def test_an_atomic_step_in_an_open_transaction_is_an_error() -> None:
    with (
        pytest.raises(ConfigurationError, match="outermost"),
        transaction.atomic(),
        storage().atomic_step(),
    ):
        pass


@pytest.mark.postgres
@committed
@pytest.mark.usefixtures("repeatable_read")
def test_an_atomic_step_is_read_committed() -> None:
    with CaptureQueriesContext(connection) as queries, storage().atomic_step():
        pass
    assert any("ISOLATION LEVEL READ COMMITTED" in query["sql"] for query in queries)


@pytest.mark.postgres
@committed
def test_the_workers_storage_steps_on_djangos_connection() -> None:
    store = db.storage_for_worker(pool_size=1)
    try:
        with store.atomic_step():
            assert connection.in_atomic_block
    finally:
        store.close()
