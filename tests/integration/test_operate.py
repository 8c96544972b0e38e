"""What operators do to jobs: one by one, and all that fit a filter."""

from __future__ import annotations

import json
from datetime import datetime, timedelta
from io import StringIO
from typing import Any

import pytest
from asgiref.sync import async_to_sync
from django.core.management import CommandError, call_command
from django.db import transaction
from django.utils import timezone

from django_belay import bulk, client, conf, job, queues
from django_belay.contract.job import NewJob
from django_belay.contract.outcome import Failed, Succeeded
from django_belay.deferred import Deferred
from django_belay.exceptions import ConfigurationError, InvalidInput, JobNotFound
from django_belay.testing import drain
from tests.app import jobs
from tests.integration.looking import is_at
from tests.integration.worker import park, run, storage

pytestmark = pytest.mark.django_db
committed = pytest.mark.django_db(transaction=True)


def waiting() -> client.JobHandle:
    handle = jobs.echo.enqueue(1)
    park("go")
    return handle.refresh()


# -- one job ----------------------------------------------------------------------


def test_a_ready_job_is_rescheduled_by_instant_or_span() -> None:
    handle = jobs.echo.enqueue(1)
    at = timezone.now() + timedelta(hours=2)
    assert handle.reschedule(at).done
    assert is_at(client.get_row(handle.id).ready_at, at)
    assert handle.reschedule(timedelta(0)).done
    assert client.get_row(handle.id).ready_at < at


def test_a_waiting_job_is_timed_out_now() -> None:
    handle = waiting()
    assert handle.reschedule(timedelta(0)).state == "awaiting"
    assert client.get_row(handle.id).ready_at <= timezone.now()


def test_a_job_is_moved_to_a_queue_and_a_priority() -> None:
    handle = jobs.echo.enqueue(1)
    assert handle.move(queue="slow", priority=7).done
    row = client.get_row(handle.id)
    assert (row.queue, row.priority) == ("slow", 7)


def test_a_frozen_job_does_not_run_until_it_is_unfrozen() -> None:
    handle = jobs.echo.enqueue(1)
    assert handle.freeze().state == "paused"
    assert not handle.freeze().done
    assert handle.unfreeze().state == "ready"


def test_an_ended_job_is_erased() -> None:
    handle = jobs.echo.enqueue({"name": "Jane"})
    assert not handle.erase_payload().done
    run(Succeeded(b'"Jane"'))
    assert handle.erase_payload().done
    assert "Jane" not in str(client.get_row(handle.id))


@pytest.mark.parametrize(
    ("change", "what"),
    [
        (lambda job: job.reschedule(datetime(2030, 1, 1)), "time zone"),
        (lambda job: job.reschedule("soon"), "time zone"),
        (lambda job: job.reschedule(timedelta.max), "time zone"),
        (lambda job: job.move(), "a queue, a priority"),
        (lambda job: job.move(queue=""), "queue"),
        (lambda job: job.move(priority=2**31), "priority"),
        (lambda job: job.move(priority="high"), "priority"),
    ],
)
def test_what_does_not_fit_is_refused_and_nothing_is_written(change: Any, what: str) -> None:
    handle = jobs.echo.enqueue(1)
    before = client.get_row(handle.id)
    with pytest.raises(InvalidInput, match=what):
        change(handle)
    assert client.get_row(handle.id) == before


def test_a_job_that_is_gone_is_named() -> None:
    for change in (client.freeze, client.unfreeze, client.erase_payload):
        with pytest.raises(JobNotFound):
            change(2**40)
    with pytest.raises(JobNotFound):
        client.move(2**40, priority=1)


@committed
def test_inside_a_transaction_it_follows_the_commit() -> None:
    handle = jobs.echo.enqueue(1)
    with transaction.atomic():
        answer = handle.freeze()
        assert isinstance(answer, Deferred)
        assert handle.refresh().state == "ready"
    assert handle.refresh().state == "paused"


@committed
def test_the_async_twins_do_the_same() -> None:
    handle = jobs.echo.enqueue(1)

    async def all_of_them() -> list[Any]:
        return [
            await handle.areschedule(timedelta(hours=1)),
            await handle.amove(priority=3),
            await handle.afreeze(),
            await handle.aunfreeze(),
            await handle.aerase_payload(),
        ]

    assert [answer.done for answer in async_to_sync(all_of_them)()] == [True, True, True, True, False]


# -- all that fit -------------------------------------------------------------------


@pytest.fixture
def small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bulk, "BATCH", 2)


@pytest.mark.usefixtures("small_batches")
def test_an_operation_goes_through_every_batch() -> None:
    ids = jobs.echo.enqueue_many([{"value": n} for n in range(5)]).ids
    kept = jobs.plain.enqueue(1)
    where = bulk.where(kind="belay_testapp.echo")
    assert {answer.job_id for answer in bulk.freeze(where)} == set(ids)
    assert {answer.state for answer in bulk.unfreeze(where)} == {"ready"}
    assert sum(answer.done for answer in bulk.move(where, queue="slow")) == 5
    assert sum(answer.done for answer in bulk.reschedule(where, timedelta(hours=1))) == 5
    assert sum(answer.done for answer in bulk.cancel(where)) == 5
    assert {answer.state for answer in bulk.retry(where)} == {"ready"}
    assert kept.refresh().state == "ready"
    assert client.get_row(kept.id).queue == "default"


@pytest.mark.usefixtures("small_batches")
def test_whoever_stops_listening_stops_the_work_and_goes_on_later() -> None:
    jobs.echo.enqueue_many([{"value": n} for n in range(6)])
    where = bulk.where(states=["ready"])
    answers = bulk.freeze(where)
    next(answers)
    answers.close()
    assert len(client.list_jobs(states=["paused"])) == 2
    assert len(list(bulk.freeze(where))) == 4


def test_a_limit_is_kept_and_a_state_of_ones_own_gets_answers() -> None:
    jobs.echo.enqueue_many([{"value": n} for n in range(5)])
    assert len(list(bulk.freeze(bulk.where(queue="default"), limit=3))) == 3
    refused = list(bulk.freeze(bulk.where(states=["paused"])))
    assert [answer.reason for answer in refused] == ["state is paused"] * 3
    assert bulk.count(bulk.where(states=["ready"])) == 2


def test_all_jobs_are_never_meant_by_accident() -> None:
    with pytest.raises(InvalidInput, match="at least one"):
        bulk.where()
    with pytest.raises(InvalidInput, match="states"):
        bulk.where(states=["broken"])


@committed
def test_many_jobs_are_not_changed_inside_a_transaction() -> None:
    with transaction.atomic(), pytest.raises(ConfigurationError, match="atomic"):
        list(bulk.freeze(bulk.where(states=["ready"])))


# -- the command --------------------------------------------------------------------


def command(*args: Any) -> Any:
    out = StringIO()
    call_command("belay_jobs", *map(str, args), "--format", "json", stdout=out)
    return json.loads(out.getvalue())


def test_the_command_changes_by_id_and_by_filter() -> None:
    first, second = jobs.echo.enqueue(1), jobs.echo.enqueue(2)
    assert command("freeze", first.id)["done"] == 1
    assert command("freeze", "--kind", "belay_testapp.echo")["jobs"] == [
        {"id": second.id, "what": "done", "reason": None, "state": "paused"}
    ]
    assert command("unfreeze", "--queue", "default")["done"] == 2
    assert command("move", first.id, "--to-queue", "slow", "--to-priority", 4)["done"] == 1
    assert command("reschedule", "--kind", "belay_testapp.echo", "--at", "+2h")["done"] == 2
    assert client.get_row(second.id).ready_at > timezone.now() + timedelta(minutes=100)


def test_a_dry_run_names_the_jobs_and_changes_none() -> None:
    handle = jobs.echo.enqueue(1)
    for args in (["freeze", "--queue", "default"], ["reschedule", handle.id, "--at", "now"]):
        assert [job["what"] for job in command(*args, "--dry-run")["jobs"]] == ["would be done"]
    assert handle.refresh().state == "ready"
    refused = {"id": handle.id, "what": "skipped", "reason": "state is ready", "state": "ready"}
    for args in (["retry", handle.id], ["erase", "--state", "ready"]):
        assert command(*args, "--dry-run")["jobs"] == [refused]


def test_erasing_by_filter() -> None:
    handle = jobs.echo.enqueue("Jane")
    run(Failed(error={"error": "Jane"}))
    assert command("erase", "--state", "failed")["done"] == 1
    assert "Jane" not in str(client.get_row(handle.id))


@pytest.mark.parametrize("at", ["soon", "+5y", "2026-13-01", "-2h"])
def test_an_instant_that_is_none_is_refused(at: str) -> None:
    handle = jobs.echo.enqueue(1)
    with pytest.raises(CommandError, match="--at"):
        command("reschedule", handle.id, f"--at={at}")


def test_ids_and_filters_exclude_each_other_and_one_is_needed() -> None:
    for args in (["freeze"], ["freeze", 1, "--queue", "q"]):
        with pytest.raises(CommandError, match="give ids"):
            command(*args)
    with pytest.raises(CommandError, match="a queue, a priority"):
        command("move", jobs.echo.enqueue(1).id)


# -- for async code ----------------------------------------------------------------


@committed
def test_async_code_operates_on_many_jobs_and_may_stop_in_between() -> None:
    ids = [jobs.echo.enqueue(n).id for n in range(3)]

    async def live() -> tuple[int, list[int]]:
        wanted = bulk.where(kind=jobs.echo.kind)
        frozen = [answer.job_id async for answer in bulk.afreeze(wanted, limit=2)]
        return await bulk.acount(wanted, frozenset({"paused"})), frozen

    count, frozen = async_to_sync(live)()
    assert count == 2
    assert sorted(frozen) == ids[1:]
    assert async_to_sync(client.acancel)(ids[0], reason="no need").done
    assert client.get(ids[0]).state == "cancelled"


# -- what breaks when it is done in parts --------------------------------------------


@job(kind="operate.two_steps", max_attempts=1)
def two_steps(ctx, **kwargs: Any) -> int:
    price = ctx.step("price", lambda: 42)
    seen.append(price)
    raise ValueError(price)


seen: list[Any] = []


def test_a_job_whose_payload_was_erased_never_runs_on_what_is_left() -> None:
    seen.clear()
    handle = two_steps.enqueue()
    drain()
    handle.erase_payload()
    handle.retry()
    drain()
    assert seen == [42]
    row = client.get_row(handle.id)
    assert row.state == "failed"
    assert "was erased" in row.errors[-1]["error"]


def test_many_are_retried_dependencies_before_dependents_wherever_they_stand() -> None:
    def member(name: str, *deps: str) -> NewJob:
        kind, state = "belay_testapp.echo", "held" if deps else "ready"
        return NewJob(kind=kind, input={"value": 1}, workflow_id="w", wf_name=name, wf_deps=deps, state=state)  # type: ignore[arg-type]

    rows = [member("last", "m598"), *(member(f"m{n}") for n in range(599))]
    ids = [one.job_id for one in storage().insert_jobs(rows, now=timezone.now())]
    list(bulk.cancel(bulk.where(workflow_id="w")))
    assert sum(answer.done for answer in bulk.retry(bulk.where(workflow_id="w"))) == 600
    assert [client.get_row(ids[0]).state, client.get_row(ids[-1]).state] == ["held", "ready"]


def test_ids_may_come_from_a_generator() -> None:
    handle = jobs.echo.enqueue(1)
    where = bulk.where(ids=(number for number in [handle.id]))
    assert [answer.job_id for answer in bulk.freeze(where)] == [handle.id]


def test_a_listing_that_is_cut_says_where_it_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "MAX_LISTED", 3)
    ids = jobs.echo.enqueue_many([{"value": n} for n in range(5)]).ids
    page = command("list", "--limit", 20_000)
    assert ([one["id"] for one in page["jobs"]], page["next"]) == (ids[:1:-1], ids[2])


def test_a_drain_holds_the_pauses_of_its_node() -> None:
    jobs.echo.enqueue(1)
    queues.pause("default", node=conf.get().node_name)
    assert len(drain()) == 0
