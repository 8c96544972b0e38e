"""One poison row stops nothing: not its queue, a sweep, the admin, a command, a handle (§§3-8, rule 4)."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from io import StringIO
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.db import IntegrityError, transaction
from django.db.models import Max, Min
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from django_belay import batches, client, conf, queues, schedules, workflows
from django_belay.db import storage_for_client
from django_belay.engine.clock import SystemClock
from django_belay.engine.services import Services
from django_belay.engine.sweeper import Sweeper
from django_belay.exceptions import BelayError
from django_belay.models import Cron, Event, Job, Queue, RateWindow, Signal, Step
from django_belay.registry import registry
from django_belay.testing import drain
from django_belay.testing.clock import SimClock
from tests.app import jobs
from tests.integration.poison import LONG_AGO, POISONS, execute, plant_job
from tests.integration.workers import StartWorker, eventually

pytestmark = [pytest.mark.django_db, pytest.mark.postgres]

Plant = Callable[[], Any]


@pytest.fixture
def poison(request: pytest.FixtureRequest) -> Plant:
    return POISONS[request.param]


each_poison = pytest.mark.parametrize("poison", list(POISONS), indirect=True)


@pytest.fixture
def all_poisons() -> list[int]:
    """One of each, all in the same tables; the ids of all jobs."""
    for plant in POISONS.values():
        with suppress(IntegrityError), transaction.atomic():  # two may want one key or name
            plant()
    return list(Job.objects.values_list("pk", flat=True))


# -- queues -----------------------------------------------------------------------------


@each_poison
def test_the_other_jobs_of_its_queue_are_finished(poison: Plant) -> None:
    before = jobs.echo.enqueue("before")
    poison()
    after = [jobs.echo.enqueue("after"), jobs.send_receipt.enqueue(1)]
    drain()
    assert before.result(timeout=0) == "before"
    assert [handle.refresh().state for handle in after] == ["succeeded", "succeeded"]


# -- sweeps -----------------------------------------------------------------------------


def plant_work_for_every_sweep() -> dict[int, str]:
    """Rows that a pass of the sweeper changes; ids and the states they come to."""
    expired = plant_job(state="running", attempt=1, lease_until=LONG_AGO, leased_by="n:1:1", workflow_id="s")
    parent = plant_job(state="awaiting", await_scope="", await_name="$children")
    plant_job(state="succeeded", parent_id=parent, finished_at=timezone.now())
    parked = plant_job(state="awaiting", await_scope="zz:last", await_name="zzz")
    execute("INSERT INTO belay_signals VALUES ('zz:last', 'zzz', '1', %s)", timezone.now())
    plant_job(state="succeeded", workflow_id="zzz", wf_name="a", finished_at=timezone.now())
    held = plant_job(state="held", workflow_id="zzz", wf_name="b", wf_deps=["a"])
    return {expired: "ready", parent: "ready", parked: "ready", held: "ready"}


def sweeper() -> Sweeper:
    return Sweeper(
        Services(
            storage=storage_for_client().storage,
            clock=SystemClock(),
            registry=registry,
            options=conf.worker_options(),
        )
    )


@each_poison
def test_every_sweep_does_its_work_beside_it(poison: Plant, caplog: pytest.LogCaptureFixture) -> None:
    poison()
    expected = plant_work_for_every_sweep()
    prunable = plant_job(state="succeeded", finished_at=LONG_AGO, attempt=1)
    execute("INSERT INTO belay_signals VALUES ('old', 'old', '1', %s)", LONG_AGO)
    execute("INSERT INTO belay_rate VALUES ('old', 0, 1)")
    execute("INSERT INTO belay_x_nodes VALUES ('old', 'old', %s, %s, %s)", LONG_AGO, LONG_AGO, LONG_AGO)
    with caplog.at_level(logging.ERROR):
        sweeper().turn()
        sweeper().turn()
    assert caplog.records == []
    found = dict(Job.objects.filter(pk__in=expected).values_list("pk", "state"))
    assert found == expected
    assert not Job.objects.filter(pk=prunable).exists()
    assert not Signal.objects.filter(scope="old").exists()
    assert not RateWindow.objects.filter(bucket="old").exists()
    assert [node.node for node in storage_for_client().storage.list_nodes() if node.node == "old"] == []


def test_a_row_that_runs_under_no_lease_is_taken_back() -> None:
    """It is held by nobody: a live lease has an instant, and what ends a run clears lease and state together."""
    handle = client.get(plant_job(state="running", attempt=1, lease_until=None, leased_by=None))
    last = client.get(plant_job(state="running", attempt=20, lease_until=None, leased_by="n:1:1"))
    sweeper().turn()
    assert (handle.refresh().state, handle.job.attempt) == ("ready", 1)
    assert handle.job.errors[0]["error"] == "lease_expired"
    assert last.refresh().state == "failed"


# -- schedules and queues at run time -----------------------------------------------------


@each_poison
def test_queues_and_schedules_are_listed_and_fired_beside_it(poison: Plant, belay_clock: SimClock) -> None:
    poison()
    queues.put("good", limit=3)
    schedules.put("good", "* * * * *", jobs.summarise, input={"batch_id": "x"})
    assert "good" in [queue.name for queue in queues.list()]
    assert "good" in [schedule.name for schedule in schedules.list()]
    scheduler = schedules.make_scheduler(storage_for_client().storage)
    scheduler.tick()
    belay_clock.advance(timedelta(minutes=2))
    scheduler.tick()
    assert Job.objects.filter(cron_name="good").exists()


# -- reading: models, admin, commands -------------------------------------------------------


def test_models_read_them_all(all_poisons: list[int]) -> None:
    for model in (Job, Step, Event, Signal, RateWindow, Queue, Cron):
        rows = list(model.objects.all())
        assert rows
        assert [str(row) for row in rows]
        assert len(list(model.objects.values())) == len(rows)
    for row in Job.objects.all():
        assert row.decoded_result is not NotImplemented
        assert row.spent_usd >= 0
        assert row.handle.id == row.pk
    for step in Step.objects.all():
        assert step.decoded_value is not NotImplemented
    for field in ("ready_at", "inserted_at", "finished_at", "lease_until"):
        assert Job.objects.aggregate(first=Min(field), last=Max(field))["last"]
        assert list(Job.objects.dates(field, "year"))
        assert list(Job.objects.datetimes(field, "day"))
    for narrowed in (Job.objects.ready(), Job.objects.scheduled(), Job.objects.incomplete()):  # type: ignore[attr-defined]
        assert list(narrowed)


def test_the_admin_shows_them_all(all_poisons: list[int], admin_client: Client) -> None:
    listing = reverse("admin:belay_job_changelist")
    for query in ("", "?p=2", "?o=1", "?state__exact=running", "?q=belay_testapp.echo", "?all="):
        assert admin_client.get(listing + query).status_code == 200, query
    for job_id in all_poisons:
        assert admin_client.get(reverse("admin:belay_job_change", args=[job_id])).status_code == 200
    for name, model in (("queue", Queue), ("cron", Cron)):
        assert admin_client.get(reverse(f"admin:belay_{name}_changelist")).status_code == 200
        for row in model.objects.exclude(pk=""):
            page = reverse(f"admin:belay_{name}_change", args=[row.pk])
            assert admin_client.get(page).status_code == 200


@pytest.mark.parametrize("format_", ["text", "json", "jsonl"])
def test_reporting_commands_show_them_all(all_poisons: list[int], format_: str) -> None:
    reports = [
        ["belay_jobs", "list", "--limit", "1000"],
        ["belay_jobs", "list", "--state", "running"],
        ["belay_stats"],
        ["belay_queue", "list"],
        ["belay_cron", "list"],
        ["belay_cron", "next", "odd-own"],
        ["belay_signal", "list", "odd"],
        ["belay_signal", "list", "job:99999999999999999999"],
        *(["belay_jobs", "show", str(job_id)] for job_id in all_poisons),
    ]
    for arguments in reports:
        printed = command(*arguments, "--format", format_)
        assert "\x1b" not in printed
        if format_ == "json" and "{" in printed:
            json.loads(printed)


CHANGES = [
    ["belay_jobs", "freeze"],
    ["belay_jobs", "unfreeze"],
    ["belay_jobs", "reschedule", "--at", "+1h"],
    ["belay_jobs", "move", "--to-priority", "3"],
    ["belay_jobs", "retry"],
    ["belay_jobs", "cancel", "--tree"],
    ["belay_jobs", "erase"],
]


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change[1])
def test_changing_commands_answer_for_each(all_poisons: list[int], change: list[str]) -> None:
    """By id, each has an answer of its own, and the good job beside them is changed with them."""
    for job_id in all_poisons:
        command(*change[:2], str(job_id), *change[2:], "--format", "json")


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change[1])
def test_changing_commands_by_filter_get_past_them(all_poisons: list[int], change: list[str]) -> None:
    answers = json.loads(command(*change, "--since", "2000-01-01", "--format", "json"))["jobs"]
    assert len(answers) >= 3
    assert any(answer["what"] != "skipped" for answer in answers)


def test_other_commands_answer_for_each(all_poisons: list[int]) -> None:
    for job_id in all_poisons:
        for arguments in (["belay_replay", str(job_id)], ["belay_steer", str(job_id), '"on"'],
                          ["belay_signal", "send", str(job_id), "go", "1"]):  # fmt: skip
            command(*arguments)
    for name in Queue.objects.values_list("pk", flat=True):
        for action in ("pause", "resume", "delete"):
            command("belay_queue", action, name)
    for name in Cron.objects.values_list("pk", flat=True):
        for action in ("next", "pause", "resume", "run", "delete"):
            command("belay_cron", action, name)
    command("belay_sweeper")


def command(*arguments: str) -> str:
    """What a command prints; only ``CommandError`` or an exit code of its own may leave it."""
    out = StringIO()
    with suppress(CommandError, SystemExit):
        call_command(*arguments, stdout=out)
    return out.getvalue()


# -- handles -----------------------------------------------------------------------------------


def test_handles_answer_for_each(all_poisons: list[int]) -> None:
    calls: list[Callable[[Any], Any]] = [
        repr,
        lambda job: job.refresh(),
        lambda job: job.result(timeout=0),
        lambda job: job.steps(),
        lambda job: job.events(),
        lambda job: job.signals(),
        lambda job: job.signal("go", 1),
        lambda job: job.clear_signal("go"),
        lambda job: job.steer("on"),
        lambda job: client.replay(job.id),
        lambda job: workflows.get(job.job.workflow_id or "none").status(),
        lambda job: workflows.get(job.job.workflow_id or "none").retry_failed(),
        lambda job: batches.get(job.job.workflow_id or "none").progress(),
        lambda job: job.reschedule(timezone.now()),
        lambda job: job.move(priority=1),
        lambda job: job.freeze(),
        lambda job: job.unfreeze(),
        lambda job: job.cancel("no more", tree=True),
        lambda job: job.retry(),
        lambda job: job.erase_payload(),
    ]
    for job_id in all_poisons:
        for call in calls:
            with suppress(BelayError):
                call(client.get(job_id))


# -- real workers ----------------------------------------------------------------------------------


@pytest.mark.django_db(transaction=True)
def test_a_worker_works_through_all_of_them(
    start_worker: StartWorker, request: pytest.FixtureRequest
) -> None:
    before = [jobs.echo.enqueue(number) for number in range(5)]
    request.getfixturevalue("all_poisons")
    after = [jobs.echo.enqueue(number) for number in range(5)]
    schedules.put("good", "* * * * *", jobs.plain, input={"number": 1})
    schedules.run_now("good")
    expected = plant_work_for_every_sweep()
    worker = start_worker(QUEUES={"default": 10})
    good = [handle.id for handle in (*before, *after)]
    eventually(
        lambda: not Job.objects.filter(pk__in=[*good, *expected]).exclude(state="succeeded").exists(),
        what=lambda: worker.log[-3000:],
    )
    assert "other parts go on" not in worker.log
    # What is left over is parked, scheduled, or of a kind that nobody knows.
    worker.terminate()
    assert worker.wait() == 0, worker.log[-3000:]
