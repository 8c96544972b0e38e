"""belay_jobs, belay_stats, belay_enqueue."""

from __future__ import annotations

import dataclasses
import json
import os
from datetime import timedelta
from io import StringIO
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.utils import timezone

from django_belay import client
from django_belay.contract.job import Job
from django_belay.contract.outcome import Failed, Succeeded
from django_belay.storage.base import NodeRow
from tests.app import jobs
from tests.integration.looking import is_at
from tests.integration.worker import claim, run, storage

pytestmark = pytest.mark.django_db


def command(name: str, *args: Any) -> str:
    """What a command prints."""
    out = StringIO()
    call_command(name, *map(str, args), stdout=out)
    return out.getvalue()


def as_json(name: str, *args: Any) -> Any:
    """What a command prints as JSON."""
    return json.loads(command(name, *args, "--format", "json"))


# -- list and show -----------------------------------------------------------------


def test_a_listing_has_every_wire_column_and_a_cursor() -> None:
    ids = jobs.echo.enqueue_many([{"value": n} for n in range(3)]).ids
    page = as_json("belay_jobs", "list", "--limit", 2)
    assert [job["id"] for job in page["jobs"]] == ids[:0:-1]
    assert set(page["jobs"][0]) == {field.name for field in dataclasses.fields(Job)}
    rest = as_json("belay_jobs", "list", "--limit", 2, "--before", page["next"])
    assert [job["id"] for job in rest["jobs"]] == ids[:1]
    assert rest["next"] is None
    lines = command("belay_jobs", "list", "--format", "jsonl").splitlines()
    assert [json.loads(line)["id"] for line in lines] == ids[::-1]


def test_a_text_listing_is_a_table() -> None:
    jobs.echo.enqueue(1)
    run(Failed(error={"error": "boom"}))
    heading, row = command("belay_jobs", "list").splitlines()
    assert heading.split()[:4] == ["id", "state", "kind", "queue"]
    assert "belay_testapp.echo" in row
    assert row.endswith("boom")


def test_filters_narrow() -> None:
    jobs.send_receipt.enqueue(1)
    jobs.echo.enqueue(1)
    run(Succeeded())
    for filters, kinds in [
        (["--queue", "mail"], ["belay_testapp.send_receipt"]),
        (["--state", "succeeded", "--state", "failed"], ["belay_testapp.echo"]),
        (["--kind", "belay_testapp.echo"], ["belay_testapp.echo"]),
        (["--workflow", "w"], []),
        (["--since", "1h", "--queue", "mail"], ["belay_testapp.send_receipt"]),
        (["--since", "2200-01-01"], []),
        (["--since", "2200-01-01T00:00:00Z"], []),
    ]:
        found = as_json("belay_jobs", "list", *filters)["jobs"]
        assert [job["kind"] for job in found] == kinds, filters


@pytest.mark.parametrize(
    "since",
    ["yesterday", "2026-13-01", "5y", "999999w", "9999-12-31T23:59:59-12:00", "0001-01-01T00:00:00+14:00"],
)
def test_a_since_that_is_none_is_refused(since: str) -> None:
    with pytest.raises(CommandError, match="--since"):
        command("belay_jobs", "list", "--since", since)


def test_showing_decodes_result_and_journal() -> None:
    job = jobs.echo.enqueue(1)
    (claimed,) = claim()
    storage().append_event(job.id, {"n": 1}, now=timezone.now())
    shown = as_json("belay_jobs", "show", job.id)
    assert shown["job"]["leased_by"] == claimed.leased_by
    assert shown["events"][0]["payload"] == {"n": 1}
    text = command("belay_jobs", "show", job.id)
    assert "events" in text
    assert '{"n": 1}' in text
    with pytest.raises(CommandError, match="not found"):
        command("belay_jobs", "show", 2**40)


# -- retry and cancel ----------------------------------------------------------------


def test_retry_by_id_says_what_was_done_and_why_not() -> None:
    failed = jobs.echo.enqueue(1)
    run(Failed(error={"error": "x"}))
    ready = jobs.echo.enqueue(1)
    answer = as_json("belay_jobs", "retry", failed.id, ready.id)
    assert (answer["done"], answer["skipped"]) == (1, 1)
    assert [(job["id"], job["what"]) for job in answer["jobs"]] == [
        (failed.id, "done"),
        (ready.id, "skipped"),
    ]
    assert "ready" in answer["jobs"][1]["reason"]


def test_retry_by_filter_takes_all_that_can_be() -> None:
    jobs.echo.enqueue_many([{"value": n} for n in range(5)])
    for _ in range(4):
        run(Failed(error={"error": "x"}))
    assert "4 would be done, 0 skipped" in command(
        "belay_jobs", "retry", "--kind", "belay_testapp.echo", "--dry-run"
    )
    assert len(client.list_jobs(states=["failed"])) == 4
    assert "3 done, 0 skipped" in command("belay_jobs", "retry", "--state", "failed", "--limit", 3)
    assert len(client.list_jobs(states=["failed"])) == 1


def test_filters_go_over_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("django_belay.management.commands.belay_jobs.PAGE", 2)
    jobs.echo.enqueue_many([{"value": n} for n in range(5)])
    assert as_json("belay_jobs", "cancel", "--queue", "default", "--limit", 3)["done"] == 3
    assert as_json("belay_jobs", "cancel", "--queue", "default")["done"] == 2
    running = jobs.echo.enqueue_many([{"value": n} for n in range(3)]).ids
    claim()  # stays running when it is asked to stop
    answer = as_json("belay_jobs", "cancel", "--state", "running", "--limit", 5)
    assert [job["id"] for job in answer["jobs"]] == running[::-1]


def test_cancel_gives_its_reason_and_asks_running_jobs() -> None:
    running = jobs.echo.enqueue(1)
    claim()
    waiting = jobs.echo.enqueue(1)
    lines = command("belay_jobs", "cancel", running.id, waiting.id, "--reason", "no need").splitlines()
    assert lines == [f"{running.id} requested", f"{waiting.id} done", "2 done, 0 skipped"]
    assert waiting.refresh().job.errors[-1]["reason"] == "no need"


def test_what_is_meant_must_be_said() -> None:
    with pytest.raises(CommandError, match="ids, or filters"):
        command("belay_jobs", "cancel")
    with pytest.raises(CommandError, match="not both"):
        command("belay_jobs", "cancel", 1, "--queue", "x")


@pytest.mark.parametrize("more", [[], ["--dry-run"]])
def test_an_id_of_no_job_is_an_error_after_the_others(more: list[str]) -> None:
    job = jobs.echo.enqueue(1)
    with pytest.raises(CommandError, match=f"no such job: {2**40}"):
        command("belay_jobs", "cancel", 2**40, job.id, *more)
    assert job.refresh().state == ("ready" if more else "cancelled")


# -- stats ---------------------------------------------------------------------------


def test_stats_count_queues_and_workers() -> None:
    jobs.echo.enqueue(1)
    now = timezone.now()
    storage().beat(
        NodeRow(incarnation="host:1", node="host", started_at=now, beat_at=now, claimed_at=None, facts={})
    )
    found = as_json("belay_stats")
    assert [(queue["queue"], queue["ready"]) for queue in found["queues"]] == [("default", 1)]
    assert found["nodes"][0]["incarnation"] == "host:1"
    assert as_json("belay_stats", "--queue", "mail")["queues"] == []
    text = command("belay_stats")
    assert "oldest ready at" in text
    assert "1 worker process was seen lately" in text
    assert "no jobs that wait" in command("belay_stats", "--queue", "mail")


@pytest.mark.skipif(os.environ.get("BELAY_TEST_STORAGE") != "journal", reason="of the journal alone")
def test_stats_say_how_a_journal_stands() -> None:
    jobs.echo.enqueue(1)
    facts = as_json("belay_stats")["journal"]
    assert (facts["jobs_open"], facts["jobs_finished"], facts["durability"]) == (1, 0, "write")
    assert facts["bytes"] > 0
    assert facts["segments"] >= 1
    assert facts["last_write_s"] > 0
    text = command("belay_stats")
    for said in (facts["store_id"], facts["generation"], "1 open, 0 finished", "ms, fsync included"):
        assert said in text


@pytest.mark.postgres
def test_stats_say_of_no_journal_where_there_is_none() -> None:
    assert as_json("belay_stats")["journal"] is None
    assert "journal" not in command("belay_stats")


# -- enqueue -------------------------------------------------------------------------


def test_enqueue_checks_the_input_and_prints_the_id() -> None:
    answer = as_json(
        "belay_enqueue", "belay_testapp.send_receipt", "--input", '{"order_id": 5}', "--priority", -3,
        "--run-after", 3600, "--unique", "k", "--meta", '{"by": "me"}', "--queue", "slow", "--max-attempts", 2,
    )  # fmt: skip
    row = client.get(answer["id"]).job
    assert (row.input, row.priority, row.unique_key, row.meta) == ({"order_id": 5}, -3, "k", {"by": "me"})
    assert (row.queue, row.max_attempts) == ("slow", 2)
    assert is_at(row.ready_at, row.inserted_at + timedelta(hours=1))
    again = command("belay_enqueue", "belay_testapp.echo", "--input", '{"value": 1}', "--unique", "k")
    assert again.split() == [str(row.id), "ready", "duplicate"]


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["no.such"], "no job is registered"),
        (["belay_testapp.echo", "--input", "{"], "--input"),
        (["belay_testapp.echo", "--input", "[1]"], "JSON object"),
        (["belay_testapp.echo"], "value"),
        (["belay_testapp.echo", "--input", '{"value": "\\u0000"}'], r"input\.value"),
        (["belay_testapp.echo", "--input", '{"value": 1}', "--run-after", "soon"], "--run-after"),
        (["belay_testapp.echo", "--input", '{"value": 1}', "--max-attempts", "0"], "max_attempts"),
        (["a\0b", "--foreign"], "kind"),
    ],
)
def test_bad_input_is_a_command_error(args: list[str], said: str) -> None:
    with pytest.raises(CommandError, match=said):
        command("belay_enqueue", *args)
    assert client.list_jobs() == []


def test_a_foreign_kind_is_taken_when_asked() -> None:
    answer = as_json("belay_enqueue", "MyApp.Mailer", "--foreign", "--input", '{"to": "x"}')
    assert client.get(answer["id"]).job.kind == "MyApp.Mailer"


def test_an_instant_is_taken_for_run_after() -> None:
    at = timezone.now() + timedelta(days=1)
    answer = as_json(
        "belay_enqueue", "belay_testapp.echo", "--input", '{"value": 1}', "--run-after", at.isoformat()
    )
    assert is_at(client.get(answer["id"]).job.ready_at, at)


@pytest.mark.django_db(transaction=True)
def test_the_sweeper_tells_what_one_pass_changed() -> None:
    handle = jobs.echo.using(run_after=timezone.now() - timedelta(hours=2)).enqueue(1)
    assert claim(now=timezone.now() - timedelta(hours=1))
    out = StringIO()
    call_command("belay_sweeper", "--format", "json", stdout=out)
    assert json.loads(out.getvalue())["changed"] >= 1
    assert handle.refresh().state == "ready"
