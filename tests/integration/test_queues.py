"""Queues at run time: rows over the settings, pauses in a table of our own (rule 2)."""

from __future__ import annotations

import json
from io import StringIO
from typing import Any

import pytest
from asgiref.sync import async_to_sync
from django.core.management import CommandError, call_command
from django.db import connection

from django_belay import queues
from django_belay.contract import queue_opts
from django_belay.exceptions import InvalidQueue
from django_belay.models import Queue
from django_belay.testing import override_belay
from tests.integration.worker import storage

pytestmark = pytest.mark.django_db


def command(*args: Any) -> str:
    """What belay_queue prints."""
    out = StringIO()
    call_command("belay_queue", *map(str, args), stdout=out)
    return out.getvalue()


def effective(name: str) -> dict[str, Any]:
    return queue_opts.to_json(queues.get(name).effective)


# -- rows --------------------------------------------------------------------------------


def test_the_row_holds_the_contracts_json_and_nothing_else() -> None:
    info = queues.put("ai", limit={"min": 2, "max": 20}, partition=("input", "tenant"), rate=None)
    assert Queue.objects.get(name="ai").opts == {
        "limit": {"min": 2, "max": 20}, "partition": ["input", "tenant"],
    }  # fmt: skip
    assert info.updated_at is not None
    queues.put("ai", global_limit=3)
    assert Queue.objects.get(name="ai").opts == {"global_limit": 3}


@override_belay(QUEUES={"ai": {"limit": 5, "global_limit": 9}, "other": 2})
def test_a_row_goes_over_the_settings_until_it_is_deleted() -> None:
    assert effective("ai") == {"limit": 5, "global_limit": 9}
    queues.put("ai", limit=7)
    assert effective("ai") == {"limit": 7, "global_limit": 9}
    assert [info.name for info in queues.list()] == ["ai", "other"]
    assert queues.delete("ai")
    assert not queues.delete("ai")
    assert effective("ai") == {"limit": 5, "global_limit": 9}


@pytest.mark.parametrize(
    ("name", "opts", "said"),
    [
        ("ai", {"limit": -1}, r"limit is -1\. Give a whole number from 1 to 10,000"),
        ("ai", {"limits": 1}, r"limits is no known key\. Known here: limit, global_limit, rate, partition"),
        ("ai", {"paused": True}, "paused is no known key"),
        ("ai", {"rate": {"allowed": 1}}, r"rate\.period is missing"),
        ("", {}, "1 to 255 characters"),
        ("a\0b", {}, "1 to 255 characters"),
        (7, {}, "1 to 255 characters"),
    ],
)
def test_what_does_not_fit_is_refused_and_nothing_written(name: Any, opts: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidQueue, match=said):
        queues.put(name, **opts)
    assert not Queue.objects.exists()


@pytest.mark.postgres
@pytest.mark.parametrize(
    "opts",
    [
        '{"limit": "many", "global_limit": 4, "colour": 1}',
        "[1]",
        "null",
        '"x"',
        '{"rate": {"allowed": 1e400}}',
    ],
)
def test_a_foreign_row_that_does_not_fit_is_listed_with_what_is_wrong(opts: str) -> None:
    with connection.cursor() as cursor:
        cursor.execute("INSERT INTO belay_queues (name, opts) VALUES ('foreign', %s::jsonb)", [opts])
    info = queues.get("foreign")
    assert info.problems
    assert effective("foreign").get("global_limit") == (4 if "colour" in opts else None)
    assert len(queues.list()) == 4
    assert "foreign" in command("list")


# -- pauses ------------------------------------------------------------------------------


def test_a_pause_is_for_every_node_and_stands_apart_from_the_options() -> None:
    assert queues.pause("mail").is_paused
    assert not Queue.objects.exists()
    assert [row.name for row in storage().list_queues() if row.paused] == ["mail"]
    queues.put("mail", limit=1)
    assert queues.get("mail").is_paused
    assert not queues.resume("mail").is_paused


def test_a_pause_on_one_node_is_set_and_taken_back_alone() -> None:
    assert queues.pause("mail", node="mars").paused_nodes == ("mars",)
    assert not queues.get("mail").is_paused
    assert "mars" in command("list")
    command("pause", "mail", "--node", "venus")
    assert queues.get("mail").paused_nodes == ("mars", "venus")
    command("resume", "mail", "--node", "mars")
    assert queues.resume("mail", node="venus").paused_nodes == ()
    with pytest.raises(InvalidQueue, match="node"):
        queues.pause("mail", node="")


@override_belay(QUEUES={"mail": {"paused": True}})
def test_a_pause_in_the_settings_stays() -> None:
    assert queues.resume("mail").is_paused
    with pytest.raises(CommandError, match="paused in the settings"):
        command("resume", "mail")


def test_deleting_forgets_a_pause() -> None:
    queues.pause("mail")
    assert queues.delete("mail")
    assert not queues.get("mail").is_paused


def test_the_async_twins_do_the_same() -> None:
    async def live() -> None:
        assert (await queues.aput("ai", limit=2)).opts == {"limit": 2}
        assert (await queues.apause("ai")).is_paused
        assert not (await queues.aresume("ai")).is_paused
        assert len(await queues.alist()) == 3
        assert await queues.adelete("ai")

    async_to_sync(live)()


# -- the command -------------------------------------------------------------------------


def test_the_command_sets_what_its_flags_say() -> None:
    said = command(
        "put", "ai", "--limit", "2-20", "--global-limit", 40, "--rate", "100/60", "--resource", "llm",
        "--estimate", 3, "--partition", "meta:tenant",
    )  # fmt: skip
    assert said.startswith("queue ai set: {")
    assert Queue.objects.get(name="ai").opts == {
        "limit": {"min": 2, "max": 20},
        "global_limit": 40,
        "rate": {"allowed": 100, "period": 60, "resource": "llm", "estimate": 3},
        "partition": ["meta", "tenant"],
    }
    command("put", "ai", "--opts", '{"limit": 3}')
    assert Queue.objects.get(name="ai").opts == {"limit": 3}


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["--limit=-1"], "limit is -1"),
        (["--limit", "few"], "no whole number"),
        (["--rate", "100"], "--rate: ''"),
        (["--resource", "llm"], "belong to --rate"),
        (["--partition", "tenant"], r"partition is \['tenant', ''\]"),
        (["--opts", "{"], "no JSON"),
        (["--opts", "[]"], "give a JSON object"),
        (["--opts", "{}", "--limit", "1"], "not both"),
        (["--opts", '{"colour": 1}'], "colour is no known key"),
    ],
)
def test_the_command_refuses_what_does_not_fit(args: list[str], said: str) -> None:
    with pytest.raises(CommandError, match=said):
        command("put", "ai", *args)
    assert not Queue.objects.exists()


def test_a_dry_run_changes_nothing() -> None:
    assert command("put", "ai", "--limit", 3, "--dry-run") == 'queue ai would be set: {"limit": 3}\n'
    assert command("pause", "ai", "--dry-run") == "queue ai would be paused\n"
    assert storage().list_queues() == []
    queues.pause("ai")
    command("resume", "ai", "--dry-run")
    command("delete", "ai", "--dry-run")
    assert queues.get("ai").is_paused
    with pytest.raises(CommandError, match="limit is 0"):
        command("put", "ai", "--limit", 0, "--dry-run")


def test_the_command_pauses_resumes_and_deletes() -> None:
    command("pause", "ai")
    assert queues.get("ai").is_paused
    command("resume", "ai")
    assert not queues.get("ai").is_paused
    command("put", "ai", "--limit", 3)
    command("delete", "ai")
    assert queues.get("ai").opts is None
    with pytest.raises(CommandError, match="nothing was set"):
        command("delete", "ai")


def test_a_listing_has_a_machine_readable_form() -> None:
    command("put", "ai", "--limit", 3, "--format", "json")
    found = json.loads(command("list", "--format", "json"))["queues"]
    assert [queue["name"] for queue in found] == ["ai", "default", "mail"]
    assert found[0]["opts"] == {"limit": 3}
    assert found[0]["effective"] == {"limit": 3}
    lines = command("list", "--format", "jsonl").splitlines()
    assert json.loads(lines[2])["in_settings"] is True
    heading, ai, *_ = command("list").splitlines()
    assert heading.split()[:3] == ["queue", "paused", "limit"]
    assert ai.split()[:3] == ["ai", "no", "3"]
