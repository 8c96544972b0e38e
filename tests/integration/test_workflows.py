"""Workflows: what is refused when they are built, how they settle, what can be done to them (§8.3)."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from asgiref.sync import async_to_sync
from django.db import connection, connections, transaction
from django.utils import timezone

from django_belay import client, workflows
from django_belay.contract.job import Lease
from django_belay.contract.outcome import Cancelled, Failed, Succeeded
from django_belay.deferred import Deferred
from django_belay.exceptions import (
    ConfigurationError,
    InvalidInput,
    InvalidWorkflow,
    ResultTimeout,
    WorkflowNotFound,
)
from django_belay.models import Job
from django_belay.signals import job_enqueued
from django_belay.storage.base import Ack, Controlled
from django_belay.storage.postgres import control
from django_belay.workflows import Workflow, WorkflowHandle, call, call_kind
from tests.app import jobs
from tests.integration.looking import count, is_at, rows
from tests.integration.worker import claim, end, park, storage

pytestmark = pytest.mark.django_db
committed = pytest.mark.django_db(transaction=True)

FAILED = Failed(error={"error": "boom"})


def diamond(**options: Any) -> Workflow:
    """a → b, c → d."""
    flow = Workflow("diamond", **options)
    a = flow.add("a", jobs.plain, 1)
    b = flow.add("b", jobs.plain, number=2, deps=[a])
    flow.add("c", jobs.echo, 3, deps="a")
    flow.add("d", jobs.echo, value=4, deps=[b, "c"])
    return flow


def run_ready(outcomes: dict[str, Any] | None = None) -> set[str]:
    """Claim what is ready and end it, by default with success; the names that ran."""
    ran = claim(take=100)
    for job in ran:
        end(job, (outcomes or {}).get(str(job.wf_name), Succeeded(b'"%s"' % str(job.wf_name).encode())))
    return {str(job.wf_name) for job in ran}


def answers(value: Any) -> list[Controlled]:
    """What a bulk call did, at once."""
    assert isinstance(value, list)
    return value


# -- building ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("build", "said"),
    [
        (lambda flow: flow.add("a", jobs.plain, 1), "two members 'a'"),
        (lambda flow: flow.add("b", jobs.plain, 1, deps=["b"]), "'b' depends on itself"),
        (lambda flow: flow.add("b", jobs.plain, 1, ignore=["succeeded"]), "'b' ignores 'succeeded'"),
        (lambda flow: flow.add("", jobs.plain, 1), "member=''"),
        (lambda flow: flow.add("b", jobs.plain, 1, deps=[7]), "depends on 7"),
        (
            lambda flow: flow.add("b", jobs.plain, 1, deps=[Workflow().add("x", jobs.plain, 1)]),
            "another workflow",
        ),
        (lambda _: Workflow("a\0b"), "name="),
        (lambda _: Workflow(id="x" * 300), "id="),
    ],
)
def test_what_is_no_member_is_refused_when_it_is_added(build: Callable[[Workflow], Any], said: str) -> None:
    flow = Workflow()
    flow.add("a", jobs.plain, 1)
    with pytest.raises(InvalidWorkflow, match=said):
        build(flow)
    assert len(flow) == 1


def test_arguments_are_checked_when_a_member_is_added() -> None:
    flow = Workflow()
    with pytest.raises(InvalidInput, match=r"x\.input"):
        flow.add("x", jobs.plain, number="many")
    with pytest.raises(ConfigurationError, match="is no job"):
        flow.add("x", print, 1)  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match="has its arguments already"):
        flow.add("x", call(jobs.plain, 1), 2)
    assert len(flow) == 0


def test_a_cycle_is_named_and_nothing_is_written() -> None:
    flow = Workflow()
    flow.add("a", jobs.plain, 1, deps=["c"])
    flow.add("b", jobs.plain, 1, deps=["a"])
    flow.add("c", jobs.plain, 1, deps=["b"])
    with pytest.raises(InvalidWorkflow, match="a → c → b → a"):
        flow.enqueue()
    assert not rows()


@pytest.mark.parametrize("flow", [Workflow, lambda: _with_unknown_dep()])
def test_an_unfit_workflow_writes_nothing(flow: Callable[[], Workflow]) -> None:
    with pytest.raises(InvalidWorkflow):
        flow().enqueue()
    assert not rows()


def _with_unknown_dep() -> Workflow:
    flow = Workflow()
    flow.add("a", jobs.plain, 1, deps=["nobody"])
    return flow


def test_names_may_be_used_before_they_are_added() -> None:
    flow = Workflow()
    flow.add("late", jobs.plain, 1, deps=["early"])
    flow.add("early", jobs.plain, 1)
    assert flow.check() == ["early", "late"]


def test_a_call_takes_arguments_that_add_has_itself() -> None:
    flow = Workflow()
    flow.add("a", call(jobs.send_receipt.using(queue="default"), order_id=1, copy=True))
    flow.add("b", call_kind("MyApp.Mailer", {"deps": ["x"]}, queue="elixir", priority=2), deps=["a"])
    handle = flow.enqueue()
    a, b = (one.job for one in handle.jobs())
    assert (a.kind, a.queue, a.input, a.max_attempts) == (
        "belay_testapp.send_receipt",
        "default",
        {"order_id": 1, "copy": True},
        5,
    )
    assert (b.kind, b.queue, b.input, b.priority, b.state) == (
        "MyApp.Mailer",
        "elixir",
        {"deps": ["x"]},
        2,
        "held",
    )


# -- inserting -----------------------------------------------------------------------


def test_members_carry_what_settlement_reads() -> None:
    flow = Workflow("etl")
    a = flow.add("a", jobs.plain, 1)
    flow.add("b", jobs.plain, 2, deps=[a, "a"], ignore="failed")
    handle = flow.enqueue()
    assert handle.id.startswith("etl-")
    rows = [one.job for one in handle.jobs()]
    assert [
        (row.wf_name, row.workflow_id, row.state, list(row.wf_deps), list(row.wf_ignore)) for row in rows
    ] == [
        ("a", handle.id, "ready", [], []),
        ("b", handle.id, "held", ["a"], ["failed"]),
    ]


@pytest.mark.postgres
def test_a_large_workflow_goes_in_by_one_insert(django_assert_max_num_queries: Any) -> None:
    flow = Workflow()
    for n in range(6_000):
        flow.add(str(n), jobs.plain, n, deps=[str(n - 1)] if n else [])
    with django_assert_max_num_queries(6) as seen:
        handle = flow.enqueue()
    assert sum("INSERT INTO belay_jobs" in query["sql"] for query in seen.captured_queries) == 1
    assert handle.status().counts == {"ready": 1, "held": 5_999}


def test_a_workflow_is_as_old_as_its_insert() -> None:
    flow = Workflow()
    flow.add("later", jobs.plain.using(run_after=timedelta(hours=1)), 1)
    built_by = timezone.now()
    row = flow.enqueue().job("later").job
    assert row.inserted_at >= built_by or is_at(row.inserted_at, built_by)
    assert row.ready_at is not None
    assert (
        timedelta(hours=1) - timedelta(minutes=1)
        < row.ready_at - built_by
        <= timedelta(hours=1, milliseconds=1)
    )


@pytest.mark.postgres
@committed
def test_a_rollback_removes_a_workflow() -> None:
    flow = diamond()
    with pytest.raises(RuntimeError), transaction.atomic():  # noqa: PT012
        handle = flow.enqueue()
        assert handle.status().total == 4
        raise RuntimeError
    with pytest.raises(WorkflowNotFound):
        handle.status()
    assert flow.enqueue().status().total == 4


def test_an_id_is_used_once() -> None:
    diamond(id="mine").enqueue()
    with pytest.raises(InvalidWorkflow, match="'mine' already"):
        diamond(id="mine").enqueue()
    assert workflows.get("mine").status().total == 4


@pytest.mark.postgres
@committed
def test_of_two_with_one_id_the_second_waits_and_is_refused() -> None:
    outcomes: list[str] = []

    def insert() -> None:
        try:
            diamond(id="shared").enqueue()
            outcomes.append("in")
        except InvalidWorkflow:
            outcomes.append("refused")
        finally:
            connections.close_all()

    second = threading.Thread(target=insert)
    with transaction.atomic():
        diamond(id="shared").enqueue()
        second.start()
        until(lambda: bool(outcomes) or is_somebody_waiting())
    second.join(30)
    assert outcomes == ["refused"]
    assert workflows.get("shared").status().total == 4


def until(holds: Callable[[], bool]) -> None:
    give_up_at = time.monotonic() + 20
    while not holds():
        assert time.monotonic() < give_up_at
        time.sleep(0.005)  # another connection's wait for a lock tells nobody


def is_somebody_waiting() -> bool:
    with connection.cursor() as cursor:
        cursor.execute("SELECT EXISTS (SELECT 1 FROM pg_locks WHERE locktype = 'advisory' AND NOT granted)")
        return bool(cursor.fetchone()[0])


@pytest.mark.postgres
def test_a_member_whose_key_is_held_refuses_the_workflow_and_spares_the_transaction() -> None:
    holder = jobs.once.enqueue(order_id=1)
    told: list[Any] = []
    flow = Workflow()
    flow.add("a", jobs.plain, 1)
    flow.add("b", jobs.once, order_id=1, deps=["a"])
    with transaction.atomic():
        job_enqueued.connect(told.append)
        try:
            with pytest.raises(InvalidWorkflow, match=f"'b' is a duplicate.*held by job {holder.id}"):
                flow.enqueue()
        finally:
            job_enqueued.disconnect(told.append)
        jobs.plain.enqueue(2)
    assert count() == 2
    assert not told


def test_two_members_with_one_key_are_refused() -> None:
    flow = Workflow()
    flow.add("a", jobs.once, order_id=1)
    flow.add("b", jobs.once, order_id=1, deps=["a"])
    with pytest.raises(InvalidWorkflow, match="is a duplicate"):
        flow.enqueue()
    assert not rows()


def test_receivers_hear_of_the_members() -> None:
    heard: list[int] = []

    def receive(job_ids: list[int], **_: Any) -> None:
        heard.extend(job_ids)

    job_enqueued.connect(receive)
    try:
        handle = diamond().enqueue()
    finally:
        job_enqueued.disconnect(receive)
    assert sorted(heard) == [one.id for one in handle.jobs()]


# -- running -------------------------------------------------------------------------


def test_members_run_in_the_order_of_their_dependencies() -> None:
    handle = diamond().enqueue()
    assert [run_ready(), run_ready(), run_ready(), run_ready()] == [{"a"}, {"b", "c"}, {"d"}, set()]
    status = handle.wait(timeout=0)
    assert status.is_finished
    assert status.is_successful
    assert handle.results() == {"a": "a", "b": "b", "c": "c", "d": "d"}


def test_a_failure_cancels_what_depends_on_it_but_not_who_ignores_it() -> None:
    flow = diamond()
    flow.add("always", jobs.plain, 9, deps=["d", "b"], ignore=["failed", "cancelled"])
    handle = flow.enqueue()
    run_ready()
    run_ready({"b": FAILED})
    assert dict(handle.status().states) == {
        "a": "succeeded", "b": "failed", "c": "succeeded", "d": "cancelled", "always": "ready",
    }  # fmt: skip
    run_ready()
    status = handle.status()
    assert (status.done, status.total, status.is_finished, status.is_successful) == (5, 5, True, False)
    assert status.counts == {"succeeded": 3, "failed": 1, "cancelled": 1}


def together(*calls: Callable[[], None]) -> None:
    threads = [threading.Thread(target=one) for one in calls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert not any(thread.is_alive() for thread in threads)


@pytest.mark.postgres
@committed
def test_two_last_parents_that_end_at_once_release_the_child_exactly_once() -> None:
    for _ in range(20):
        flow = Workflow()
        flow.add("left", jobs.plain, 1)
        flow.add("right", jobs.plain, 2)
        flow.add("child", jobs.plain, 3, deps=["left", "right"])
        handle = flow.enqueue()
        barrier = threading.Barrier(2)

        def ender(job: Any, barrier: threading.Barrier = barrier) -> Callable[[], None]:
            def run() -> None:
                try:
                    with transaction.atomic():
                        connection.ensure_connection()
                        barrier.wait()
                        storage().ack(Ack(lease=Lease.of(job), outcome=Succeeded()), now=timezone.now())
                finally:
                    connections.close_all()

            return run

        together(*(ender(job) for job in claim()))
        assert handle.job("child").state == "ready"
        assert [job.wf_name for job in claim()] == ["child"]
        assert not claim()
        handle.cancel()


# -- waiting -------------------------------------------------------------------------


def test_a_workflow_that_goes_on_times_out() -> None:
    handle = diamond().enqueue()
    with pytest.raises(ResultTimeout, match="4 of 4 members go on") as caught:
        handle.wait(timeout=0)
    assert caught.value.job_id == handle.job("a").id
    with pytest.raises(ResultTimeout):
        async_to_sync(handle.await_end)(0.001)
    with pytest.raises(InvalidInput, match="timeout"):
        handle.wait(timeout=-1)


@committed
def test_a_wait_ends_with_the_last_member() -> None:
    flow = Workflow()
    flow.add("only", jobs.plain, 1)
    handle = flow.enqueue()
    waiting = threading.Event()

    def work() -> None:
        try:
            assert waiting.wait(10)
            run_ready()
        finally:
            connections.close_all()

    async def wait() -> Any:
        waiting.set()
        return await asyncio.wait_for(handle.await_end(), 20)

    worker = threading.Thread(target=work)
    worker.start()
    try:
        assert async_to_sync(wait)().is_successful
    finally:
        worker.join(10)


@pytest.mark.postgres
def test_a_member_that_is_held_for_ever_is_waited_for() -> None:
    flow = Workflow()
    flow.add("a", jobs.plain, 1)
    flow.add("b", jobs.plain, 2, deps=["a"])
    handle = flow.enqueue()
    Job._base_manager.filter(pk=handle.job("a").id)._raw_delete(using="default")
    with pytest.raises(ResultTimeout, match="1 of 1 members"):
        handle.wait(timeout=0)


def test_a_workflow_can_be_awaited() -> None:
    flow = Workflow()
    flow.add("only", jobs.plain, 1)
    handle = flow.enqueue()
    run_ready()

    async def wait() -> Any:
        return await handle

    assert async_to_sync(wait)().is_finished


def test_a_workflow_that_is_not_there_is_said_to_be() -> None:
    for ask in (
        lambda: workflows.get("no"),
        lambda: WorkflowHandle("no").status(),
        lambda: WorkflowHandle("no").wait(timeout=0),
        lambda: WorkflowHandle("no").results(),
        lambda: WorkflowHandle("no").cancel(),
        lambda: WorkflowHandle("no").retry_failed(),
    ):
        with pytest.raises(WorkflowNotFound, match="'no' has no members"):
            ask()
    with pytest.raises(InvalidWorkflow, match="no member 'x'"):
        diamond().enqueue().job("x")


# -- changing ------------------------------------------------------------------------


def test_cancelling_reaches_every_member_and_releases_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control, "TREE_CHUNK", 1)  # a transaction each: the order decides
    flow = diamond()
    flow.add("always", jobs.plain, 9, deps=["d"], ignore=["failed", "cancelled"])
    handle = flow.enqueue()
    (running,) = claim()
    done = answers(handle.cancel("enough"))
    assert [(one.done, one.requested) for one in done].count((True, True)) == 1
    assert handle.status().counts == {"running": 1, "cancelled": 4}
    end(running, Cancelled(reason="asked to"))
    assert handle.status().counts == {"cancelled": 5}
    assert handle.job("d").job.errors == [{"reason": "enough"}]


@committed
def test_in_a_transaction_cancel_and_retry_follow_the_commit() -> None:
    handle = diamond().enqueue()
    with transaction.atomic():
        cancelled = handle.cancel()
        assert isinstance(cancelled, Deferred)
        assert handle.status().counts == {"ready": 1, "held": 3}
    assert len(cancelled.get()) == 4
    with transaction.atomic():
        retried = handle.retry_failed(cancelled=True)
        assert isinstance(retried, Deferred)
    assert len(retried.get()) == 4
    assert handle.status().counts == {"ready": 1, "held": 3}


def test_a_retry_runs_the_failed_and_the_doomed_again_in_order() -> None:
    handle = diamond().enqueue()
    run_ready({"a": FAILED})
    assert handle.status().counts == {"failed": 1, "cancelled": 3}
    done = answers(handle.retry_failed())
    assert [one.state for one in done] == ["ready", "held", "held", "held"]
    assert all(one.done for one in done)
    assert [run_ready(), run_ready(), run_ready()] == [{"a"}, {"b", "c"}, {"d"}]
    assert handle.status().is_successful


def test_a_retry_leaves_what_succeeded_and_gives_another_attempt() -> None:
    flow = Workflow()
    flow.add("a", jobs.plain, 1)
    flow.add("b", jobs.plain.using(max_attempts=1), 1, deps=["a"])
    handle = flow.enqueue()
    run_ready()
    run_ready({"b": FAILED})
    (done,) = answers(handle.retry_failed())
    b = handle.job("b").job
    assert (done.job_id, done.state) == (b.id, "ready")
    assert (b.state, b.max_attempts) == ("ready", 2)


def test_a_retry_leaves_what_somebody_cancelled_and_all_behind_it() -> None:
    handle = diamond().enqueue()
    run_ready()
    handle.job("b").cancel("not needed")
    assert [(one.done, one.reason) for one in answers(handle.retry_failed())] == [
        (False, "depends on a member that stays cancelled")
    ]
    assert handle.status().counts == {"succeeded": 1, "cancelled": 2, "ready": 1}
    retried = answers(handle.retry_failed(cancelled=True))
    assert [one.state for one in retried] == ["ready", "held"]


def test_a_retry_of_many_is_no_settlement_each(django_assert_max_num_queries: Any) -> None:
    flow = Workflow()
    flow.add("root", jobs.plain, 0)
    for n in range(600):
        flow.add(str(n), jobs.plain, n, deps=["root"])
    handle = flow.enqueue()
    run_ready({"root": FAILED})
    with django_assert_max_num_queries(70):
        assert len(answers(handle.retry_failed())) == 601
    assert handle.status().counts == {"ready": 1, "held": 600}


def test_a_retry_skips_a_member_whose_key_is_held() -> None:
    flow = Workflow()
    flow.add("a", jobs.once, order_id=1)
    flow.add("b", jobs.plain, 1)
    handle = flow.enqueue()
    run_ready({"a": FAILED, "b": FAILED})
    holder = jobs.once.enqueue(order_id=1)
    assert {one.job_id: one.reason for one in answers(handle.retry_failed())} == {
        handle.job("a").id: f"key held by {holder.id}", handle.job("b").id: None,
    }  # fmt: skip


@committed
def test_a_signal_to_the_workflow_reaches_its_members() -> None:
    flow = Workflow()
    flow.add("a", jobs.plain, 1)
    handle = flow.enqueue()
    waiting = park("go")
    assert handle.signal("go", {"by": "us"}) == [waiting.id]
    assert client.get(waiting.id).state == "ready"
    assert handle.scope == f"wf:{handle.id}"


@pytest.mark.postgres
def test_a_foreign_workflow_with_unnamed_members_can_be_read() -> None:
    handle = diamond().enqueue()
    first = handle.job("a").id
    with connection.cursor() as cursor:
        cursor.execute("UPDATE belay_jobs SET wf_name = NULL WHERE id = %s", [first])
    assert f"#{first}" in handle.status().states
    assert handle.job(f"#{first}").id == first
    assert len(answers(handle.cancel())) == 4


def test_the_async_twins_do_the_same() -> None:
    async def live() -> None:
        handle = await diamond().aenqueue()
        assert (await handle.astatus()).total == 4
        assert len(await handle.ajobs()) == 4
        assert await handle.aresults() == {}
        assert len(answers(await handle.acancel())) == 4
        assert len(answers(await handle.aretry_failed(cancelled=True))) == 4
        assert await handle.asignal("go") == []

    async_to_sync(live)()
