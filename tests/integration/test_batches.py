"""Batches: the job on completion runs once all others have ended, whatever became of them (§8.3)."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from asgiref.sync import async_to_sync
from django.db import connection, connections, transaction
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from django_belay import batches
from django_belay.batches import ON_COMPLETE, Batch
from django_belay.contract.job import Lease
from django_belay.contract.outcome import Cancelled, Failed, Succeeded
from django_belay.exceptions import InvalidInput, InvalidWorkflow, ResultTimeout, WorkflowNotFound
from django_belay.storage.base import Ack
from django_belay.workflows import call
from tests.app import jobs
from tests.integration.looking import count
from tests.integration.worker import claim, end, storage

pytestmark = pytest.mark.django_db
committed = pytest.mark.django_db(transaction=True)

FAILED = Failed(error={"error": "boom"})


def filled(count: int = 3, **options: Any) -> Batch:
    batch = Batch(jobs.summarise, **options)
    batch.add_many(jobs.plain, [{"number": n} for n in range(count)])
    return batch


def end_all(*outcomes: Any) -> list[str]:
    """Claim what is ready and end it so, the last outcome for all that are left; the names."""
    ran = sorted(claim(take=100), key=lambda job: job.id)
    for position, job in enumerate(ran):
        end(job, outcomes[min(position, len(outcomes) - 1)])
    return [str(job.wf_name) for job in ran]


def test_the_job_on_completion_waits_for_every_end() -> None:
    handle = filled(3).enqueue()
    first, second, third = claim()
    end(first, Succeeded(b"7"))
    end(second, FAILED)
    assert handle.on_complete.state == "held"
    assert handle.progress().on_complete == "held"
    end(third, Cancelled(reason="enough"))
    assert handle.on_complete.state == "ready"
    progress = handle.progress()
    assert (progress.total, progress.succeeded, progress.failed, progress.cancelled) == (3, 1, 1, 1)
    assert (progress.done, progress.pending, progress.progress) == (3, 0, 1.0)
    assert progress.is_complete
    assert not progress.is_finished
    assert end_all(Succeeded()) == [ON_COMPLETE]
    assert handle.progress().is_finished
    assert handle.wait(timeout=0).is_finished
    assert handle.results() == {"0": 7}


def test_it_gets_the_batchs_id_where_it_asks_for_it() -> None:
    handle = filled(1).enqueue()
    assert handle.on_complete.job.input == {"batch_id": handle.id}
    assert batches.get(handle.id).progress().total == 1
    plain = Batch(call(jobs.plain, 5)).enqueue()
    assert plain.on_complete.job.input == {"number": 5}
    given = Batch(call(jobs.summarise, "mine")).enqueue()
    assert given.on_complete.job.input == {"batch_id": "mine"}


def test_jobs_of_several_kinds_and_options_go_together() -> None:
    batch = Batch(name="mixed")
    assert batch.add(jobs.plain, 1) == 0
    assert batch.add(jobs.send_receipt.using(priority=-3), order_id=2) == 1
    handle = batch.enqueue()
    assert handle.id.startswith("mixed-")
    rows = [one.job for one in handle.jobs()]
    assert [(row.wf_name, row.queue, row.priority) for row in rows] == [
        ("0", "default", 0),
        ("1", "mail", -3),
    ]
    with pytest.raises(InvalidWorkflow, match="no member 'on_complete'"):
        _ = handle.on_complete
    assert handle.progress().on_complete is None


def test_an_empty_batch_completes_at_once() -> None:
    handle = Batch(jobs.summarise).enqueue()
    assert handle.on_complete.state == "ready"
    assert handle.progress().progress == 1.0
    with pytest.raises(InvalidWorkflow, match="no jobs"):
        Batch().enqueue()


def test_an_input_that_does_not_fit_is_named_by_its_index() -> None:
    batch = Batch(jobs.summarise)
    with pytest.raises(InvalidInput, match=r"inputs\[1\]"):
        batch.add_many(jobs.plain, [{"number": 1}, {"number": "x"}])
    with pytest.raises(InvalidInput, match=r"inputs\[0\].*dictionary"):
        batch.add_many(jobs.plain, [5])  # type: ignore[list-item]


def test_a_duplicate_refuses_the_batch() -> None:
    holder = jobs.once.enqueue(order_id=2)
    batch = Batch(jobs.summarise)
    batch.add_many(jobs.once, [{"order_id": 1}, {"order_id": 2}])
    with pytest.raises(InvalidWorkflow, match=f"held by job {holder.id}"):
        batch.enqueue()
    assert count() == 1


@committed
def test_a_rollback_removes_a_batch() -> None:
    with pytest.raises(RuntimeError), transaction.atomic():  # noqa: PT012
        handle = filled().enqueue()
        raise RuntimeError
    with pytest.raises(WorkflowNotFound):
        handle.progress()


def test_cancelling_a_batch_still_completes_it() -> None:
    handle = filled(3).enqueue()
    answers = handle.cancel("stop")
    assert isinstance(answers, list)
    assert len(answers) == 3
    assert handle.progress().cancelled == 3
    assert handle.on_complete.refresh().state == "ready"
    handle.cancel(on_complete=True)
    assert handle.on_complete.state == "cancelled"


def test_failed_jobs_of_a_batch_can_run_again() -> None:
    handle = filled(3).enqueue()
    end_all(Succeeded(), FAILED)
    answers = handle.retry_failed()
    assert isinstance(answers, list)
    assert [one.state for one in answers] == ["ready", "ready"]
    assert handle.progress().pending == 2


def test_a_batch_that_goes_on_times_out() -> None:
    handle = filled(2).enqueue()
    with pytest.raises(ResultTimeout, match="3 of 3"):
        handle.wait(timeout=0)


def test_the_async_twins_do_the_same() -> None:
    async def live() -> None:
        handle = await filled(2).aenqueue()
        assert (await handle.aprogress()).total == 2
        assert len(await handle.acancel(on_complete=True)) == 3  # type: ignore[arg-type]

    async_to_sync(live)()


@committed
def test_ends_at_once_complete_exactly_once() -> None:
    for _ in range(10):
        handle = filled(4).enqueue()
        ran = claim()
        barrier = threading.Barrier(len(ran))

        def run(job: Any, barrier: threading.Barrier = barrier) -> None:
            try:
                connection.ensure_connection()
                barrier.wait(20)
                storage().ack(Ack(lease=Lease.of(job), outcome=FAILED), now=timezone.now())
            finally:
                connections.close_all()

        threads = [threading.Thread(target=run, args=[job]) for job in ran]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
        assert [job.wf_name for job in claim()] == [ON_COMPLETE]
        handle.cancel(on_complete=True)


@pytest.mark.parametrize("outcome", [Succeeded(), FAILED], ids=["succeeded", "failed"])
def test_an_end_within_a_big_batch_reads_no_other_member(outcome: Any) -> None:
    filled(500).enqueue()
    with CaptureQueriesContext(connection) as seen:
        (job,) = claim(take=1)
        end(job, outcome)
    # The statement that reads all members is the one with the deps' CASE.
    assert not [query for query in seen if "ELSE '{}' END" in query["sql"]]
