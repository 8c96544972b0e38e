"""The wire tables as models: read-only, querysets, odd values."""

from __future__ import annotations

from datetime import datetime, timedelta
from decimal import Decimal
from io import StringIO
from typing import Any

import pytest
from django.contrib.auth.models import Permission
from django.core.management import call_command
from django.db import connection, connections
from django.db.models import Max
from django.template import Context, Template
from django.utils import timezone

from django_belay import models
from django_belay.contract.envelope import Opaque
from django_belay.contract.outcome import Cancelled, Failed, Succeeded
from django_belay.exceptions import ReadOnly
from django_belay.models import Job
from tests.app import jobs
from tests.integration.worker import claim, park, run

pytestmark = pytest.mark.django_db

MODELS = [
    models.Job, models.Step, models.Event, models.Signal, models.RateWindow, models.Queue, models.Cron,
    models.SchemaVersion,
]  # fmt: skip


def sql(statement: str, *params: Any) -> None:
    """Write a row as nobody of ours would."""
    with connection.cursor() as cursor:
        cursor.execute(statement, params)


@pytest.mark.parametrize("model", MODELS)
def test_every_table_is_read_and_none_is_written(model: Any) -> None:
    list(model.objects.all())
    instance = model()
    for call in (instance.save, instance.delete, model.objects.create, model.objects.all().delete):
        with pytest.raises(ReadOnly, match="read-only"):
            call()
    with pytest.raises(ReadOnly):
        model.objects.update(**{model._meta.concrete_fields[-1].name: None})
    with pytest.raises(ReadOnly):
        model.objects.bulk_create([instance])
    with pytest.raises(ReadOnly):
        model.objects.get_or_create()


def test_a_refusal_names_the_clients_call() -> None:
    with pytest.raises(ReadOnly, match=r"retry\(\), cancel\(\)"):
        Job.objects.filter(state="failed").update(state="ready")
    with pytest.raises(ReadOnly, match=r"client\.signal"):
        models.Signal().save()


def test_the_models_have_every_column_of_the_tables() -> None:
    database = connections[Job.objects.db]
    with database.cursor() as cursor:
        for model in MODELS:
            found = {
                column.name
                for column in database.introspection.get_table_description(cursor, model._meta.db_table)
            }
            assert {field.column for field in model._meta.concrete_fields if field.column} == found


def test_makemigrations_has_nothing_to_do() -> None:
    call_command("makemigrations", "belay", "--check", "--dry-run", stdout=StringIO())


def test_querysets_narrow_to_what_an_operator_asks() -> None:
    parked = jobs.echo.enqueue(0)
    park("go")
    failed = jobs.echo.enqueue(0)
    run(Failed(error={"error": "x"}))
    cancelled = jobs.echo.enqueue(0)
    run(Cancelled(reason="x"))
    succeeded = jobs.echo.enqueue(0)
    run(Succeeded())
    running = jobs.echo.enqueue(0)
    claim()
    running.cancel()
    ready = jobs.echo.enqueue(0)
    later = jobs.send_receipt.using(run_after=timedelta(hours=1)).enqueue(1)
    found = {
        "ready": ready, "scheduled": later, "running": running, "awaiting": parked, "failed": failed,
        "cancelled": cancelled, "succeeded": succeeded, "cancel_requested": running,
    }  # fmt: skip
    for name, job in found.items():
        assert [row.pk for row in getattr(Job.objects, name)()] == [job.id], name
    assert not Job.objects.held().exists()
    assert not Job.objects.paused().exists()
    assert Job.objects.incomplete().count() == 4
    assert Job.objects.finished().count() == 3
    assert Job.objects.for_kind(jobs.send_receipt).for_queue("mail").get().pk == later.id
    assert Job.objects.scheduled(timezone.now() + timedelta(hours=2)).count() == 0
    assert Job.objects.in_workflow("w").count() == 0
    assert Job.objects.children_of(ready.id).count() == 0


def test_a_row_acts_through_the_client() -> None:
    jobs.echo.enqueue(0)
    row = Job.objects.get()
    assert row.cancel("no need").done  # type: ignore[union-attr]
    assert row.retry().done  # type: ignore[union-attr]
    assert row.signal("go", 1) == []
    assert row.steer("left") == []
    assert {signal.name for signal in models.Signal.objects.filter(scope=f"job:{row.pk}")} == {"go", "$steer"}
    assert row.handle.refresh().state == "ready"


def test_values_are_decoded() -> None:
    jobs.costly.using(queue="default").enqueue("x")
    run(Succeeded(b'{"a":[1]}'))
    row = Job.objects.get()
    assert (row.decoded_result, row.is_finished, row.budget_usd, row.spent_usd) == (
        {"a": [1]}, True, Decimal("0.5"), Decimal(0),
    )  # fmt: skip
    assert row.wf_deps == []


def test_a_template_changes_nothing() -> None:
    jobs.echo.enqueue(0)
    context = Context({"job": Job.objects.get(), "jobs": Job.objects.all()})
    Template("{{ job.cancel }}{{ job.signal }}{{ job.steer }}{{ jobs.delete }}").render(context)
    assert Job.objects.get().state == "ready"
    Job.objects.get().cancel()
    Template("{{ job.retry }}").render(context)
    assert Job.objects.get().state == "cancelled"


@pytest.mark.postgres
@pytest.mark.parametrize(
    ("text", "year"),
    [("infinity", 9999), ("294276-12-31 23:59:59+00", 9999), ("-infinity", 1), ("0044-03-15 BC", 1)],
)
def test_an_absurd_instant_is_clamped(text: str, year: int) -> None:
    job = jobs.echo.enqueue(0)
    sql("UPDATE belay_jobs SET ready_at = %s::timestamptz, finished_at = NULL WHERE id = %s", text, job.id)
    row = Job.objects.get()
    assert isinstance(row.ready_at, datetime)
    assert row.ready_at.year == year
    assert row.finished_at is None
    assert Job.objects.aggregate(last=Max("ready_at"))["last"].year == year
    assert Job.objects.values_list("ready_at", flat=True).get().year == year
    assert job.refresh().job.ready_at is not None


@pytest.mark.postgres
def test_json_beyond_python_is_shown_as_opaque() -> None:
    job = jobs.echo.enqueue(0)
    sql(
        "UPDATE belay_jobs SET input = jsonb_build_object('n', repeat('9', 5000)::numeric) WHERE id = %s",
        job.id,
    )
    sql(
        "UPDATE belay_jobs SET meta = (repeat('[', 2000) || repeat(']', 2000))::jsonb, errors = '\"odd\"' WHERE id = %s",
        job.id,
    )
    row = Job.objects.get()
    assert isinstance(row.input, Opaque)
    assert isinstance(row.meta, Opaque)
    assert row.errors == "odd"


def test_json_is_queried_by_key() -> None:
    jobs.echo.enqueue({"tenant": "a", "n": 5})
    assert Job.objects.filter(input__value__tenant="a").count() == 1
    assert list(Job.objects.values_list("input__value__n", flat=True)) == [5]


def test_the_permissions_are_there() -> None:
    names = set(Permission.objects.filter(content_type__app_label="belay").values_list("codename", flat=True))
    assert names == {
        "view_job", "view_job_payload", "retry_job", "cancel_job", "signal_job", "steer_job", "reschedule_job",
        "move_job", "freeze_job", "replay_job", "view_queue", "change_queue", "view_cron", "change_cron",
        "run_cron", "erase_payload",
    }  # fmt: skip
