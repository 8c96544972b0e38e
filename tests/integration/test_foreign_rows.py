"""Rows shaped as the Elixir SDK writes them: read, shown, finished (§§2-3, rules 3, 4)."""

from __future__ import annotations

import json
from io import StringIO
from typing import Any

import pytest
from django.core.management import call_command
from django.db import connection
from django.utils import timezone

from django_belay import client
from django_belay.contract.envelope import Opaque
from django_belay.contract.outcome import Succeeded
from django_belay.models import Cron, Job, Queue
from tests.integration.worker import claim, end, storage

pytestmark = [pytest.mark.django_db, pytest.mark.postgres]

# External terms, by hand: version 131, then a tag and its parts.
OK = b"\x83w\x02ok"  # the atom ok
TEXT = b"\x83m\x00\x00\x00\x05hello"  # a binary
MAP = (
    b"\x83t\x00\x00\x00\x02"
    + b"w\x05total"
    + b"a\x2a"
    + b"m\x00\x00\x00\x04rate"
    + b"F?\xf8\x00\x00\x00\x00\x00\x00"
)
LIST = b"\x83l\x00\x00\x00\x02a\x01b\xff\xff\xff\xfe" + b"j"  # [1, -2]
PID = b"\x83Xw\x0dnonode@nohost" + b"\x00\x00\x00\x58" + b"\x00" * 8  # a process id: no JSON view
BROKEN = b"\x83t\xff\xff\xff\xff"


def insert(**columns: Any) -> int:
    """A row of belay_jobs."""
    given = {
        "kind": "MyApp.Mailer", "queue": "default", "state": "ready", "input": '{"to": "x"}',
        "inserted_at": timezone.now(), **columns,
    }  # fmt: skip
    names = ", ".join(given)
    with connection.cursor() as cursor:
        cursor.execute(
            f"INSERT INTO belay_jobs ({names}) VALUES ({', '.join(['%s'] * len(given))}) RETURNING id",
            list(given.values()),
        )
        return int(cursor.fetchone()[0])


def add_step(job_id: int, seq: int, name: str, value: bytes | None) -> None:
    """A row of belay_steps."""
    with connection.cursor() as cursor:
        cursor.execute(
            "INSERT INTO belay_steps (job_id, seq, name, value, inserted_at) VALUES (%s, %s, %s, %s, %s)",
            [job_id, seq, name, value, timezone.now()],
        )


@pytest.fixture
def finished() -> int:
    """A finished job of the Elixir SDK with its journal."""
    job_id = insert(
        state="succeeded", result=MAP, attempt=2, finished_at=timezone.now(), workflow_id="wf-1", wf_name="b",
        wf_deps=["a"], wf_ignore=["failed"], leased_by=None,
        errors='[{"error": "** (RuntimeError) boom", "attempt": 1}]',
    )  # fmt: skip
    for seq, (name, value) in enumerate(
        [("fetch", TEXT), ("$sleep:nap", LIST), ("odd", PID), ("bad", BROKEN), ("none", None)], start=1
    ):
        add_step(job_id, seq, name, value)
    return job_id


def test_results_and_steps_are_decoded(finished: int) -> None:
    job = client.get(finished)
    assert job.result(timeout=0) == {"total": 42, "rate": 1.5}
    fetch, sleep, odd, bad, none = job.steps()
    assert (fetch.value, sleep.value, none.value) == ("hello", [1, -2], None)
    assert sleep.is_reserved
    assert isinstance(odd.value, Opaque)
    assert isinstance(bad.value, Opaque)
    assert odd.value.data == PID


def test_models_show_them(finished: int) -> None:
    row = Job.objects.in_workflow("wf-1").get()
    assert (row.pk, row.decoded_result, row.wf_deps, row.wf_ignore) == (
        finished, {"total": 42, "rate": 1.5}, ["a"], ["failed"],
    )  # fmt: skip
    steps = {step.name: step.decoded_value for step in row.steps.all()}  # type: ignore[attr-defined]
    assert steps["fetch"] == "hello"
    assert isinstance(steps["bad"], Opaque)


def test_commands_show_them(finished: int) -> None:
    shown = json.loads(command("show", str(finished), "--format", "json"))
    assert shown["job"]["result"] == {"total": 42, "rate": 1.5}
    assert [step["name"] for step in shown["steps"]] == ["fetch", "$sleep:nap", "odd", "bad", "none"]
    assert shown["steps"][2]["value"]["$opaque"]["bytes"] == len(PID)
    text = command("show", str(finished))
    assert "hello" in text
    assert "MyApp.Mailer" in text
    assert (
        json.loads(command("list", "--kind", "MyApp.Mailer", "--format", "json"))["jobs"][0]["id"] == finished
    )


def test_an_opaque_result_is_given_as_it_is() -> None:
    job_id = insert(state="succeeded", result=PID, finished_at=timezone.now())
    assert client.await_result(job_id, timeout=0).data == PID
    assert client.await_result(insert(state="succeeded", result=OK), timeout=0) == "ok"


def test_a_foreign_job_is_claimed_and_finished() -> None:
    job_id = insert(max_attempts=3, meta='{"trace": "1"}')
    (job,) = claim()
    end(job, Succeeded(b"1"))
    found = client.get(job_id)
    assert (found.state, found.job.result, found.job.kind) == ("succeeded", b"1", "MyApp.Mailer")


def test_a_foreign_job_is_cancelled_and_retried() -> None:
    job = client.get(insert(state="failed", attempt=3, max_attempts=3, finished_at=timezone.now()))
    job.retry()
    assert (job.refresh().state, job.job.max_attempts) == ("ready", 4)
    job.cancel("no need")
    assert job.refresh().state == "cancelled"


def test_rows_with_odd_values_stop_no_listing() -> None:
    insert(ready_at="infinity")
    insert(errors='{"not": "a list"}', state="failed")
    insert(input="[1, 2]", kind="\x1b[31mred")
    insert(errors='["text"]', state="failed", inserted_at="294276-01-01")
    assert len(client.list_jobs()) == 4
    assert len(list(Job.objects.all())) == 4
    assert "\x1b" not in command("list")
    assert len(json.loads(command("list", "--format", "json"))["jobs"]) == 4
    for job in client.list_jobs(states=["failed"]):
        with pytest.raises(Exception, match="failed at attempt"):
            job.result(timeout=0)


def test_queue_and_cron_rows_are_read() -> None:
    with connection.cursor() as cursor:
        cursor.execute(
            "INSERT INTO belay_queues (name, opts) VALUES"
            """ ('ai', '{"limit": {"min": 2, "max": 20}, "rate": {"allowed": 5, "period": 60}}')"""
        )
        cursor.execute(
            "INSERT INTO belay_crons (name, expression, worker, opts) VALUES"
            """ ('nightly', '0 3 * * *', 'MyApp.Nightly', '{"queue": "ai", "max_attempts": 3}')"""
        )
    assert Queue.objects.get().opts["limit"] == {"min": 2, "max": 20}
    assert Cron.objects.get().worker == "MyApp.Nightly"
    assert [row.name for row in storage().list_queues()] == ["ai"]
    assert [row.kind for row in storage().list_crons()] == ["MyApp.Nightly"]


def command(*args: str) -> str:
    """What belay_jobs prints."""
    out = StringIO()
    call_command("belay_jobs", *args, stdout=out)
    return out.getvalue()
