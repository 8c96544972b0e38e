"""``belay_signal`` and ``belay_steer``."""

from __future__ import annotations

import io
import json
from typing import Any

import pytest
from django.core.management import CommandError, call_command

from django_belay import client
from tests.app import jobs
from tests.integration.worker import park

pytestmark = pytest.mark.django_db


def run(*arguments: str) -> str:
    out = io.StringIO()
    call_command(*arguments, stdout=out)
    return out.getvalue()


def inbox(target: int | str) -> dict[str, Any]:
    return {signal.name: signal.payload for signal in client.signals(target)}


def test_a_signal_is_sent_to_a_job_and_wakes_it() -> None:
    job = jobs.echo.enqueue(1)
    park("go")
    assert run("belay_signal", "send", str(job.id), "go", '{"by": "ann"}') == f"woke {job.id}\n"
    assert inbox(job.id) == {"go": {"by": "ann"}}
    assert job.refresh().state == "ready"


def test_a_signal_is_sent_to_any_scope() -> None:
    assert run("belay_signal", "send", "wf:w", "go") == "stored; nobody waits for it now\n"
    assert json.loads(run("belay_signal", "send", "orders", "go", "1", "--format", "json")) == {"woken": []}
    assert (inbox("wf:w"), inbox("orders")) == ({"go": None}, {"go": 1})


def test_the_payload_comes_from_standard_input(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("[1]"))
    run("belay_signal", "send", "orders", "go", "-")
    assert inbox("orders") == {"go": [1]}


def test_an_inbox_is_listed() -> None:
    client.signal("orders", "go", {"n": 1})
    assert '{"n": 1}' in run("belay_signal", "list", "orders")
    [found] = json.loads(run("belay_signal", "list", "orders", "--format", "json"))["signals"]
    assert (found["scope"], found["name"], found["payload"]) == ("orders", "go", {"n": 1})
    [line] = run("belay_signal", "list", "orders", "--format", "jsonl").splitlines()
    assert json.loads(line) == found


def test_a_signal_is_cleared() -> None:
    job = jobs.echo.enqueue(1)
    job.signal("go", 1)
    assert "would be cleared" in run("belay_signal", "clear", str(job.id), "go", "--dry-run")
    assert inbox(job.id) == {"go": 1}
    run("belay_signal", "clear", str(job.id), "go")
    assert inbox(job.id) == {}
    with pytest.raises(CommandError, match="no signal 'go'"):
        run("belay_signal", "clear", str(job.id), "go")


def test_a_job_is_steered() -> None:
    job = jobs.echo.enqueue(1)
    run("belay_steer", str(job.id), '"shorter"')
    assert inbox(job.id) == {"$steer": "shorter"}
    run("belay_signal", "clear", str(job.id), "$steer")
    assert job.signals() == []


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["belay_signal", "send", "987654", "go"], "987654 was not found"),
        (["belay_signal", "send", "orders", "$children"], "belong to the engine"),
        (["belay_signal", "send", "orders", "go", "yes"], "payload"),
        (["belay_signal", "send", "", "go"], "scope: is empty"),
        (["belay_signal", "list", "0"], "job id"),
        (["belay_steer", "987654", "1"], "987654 was not found"),
    ],
)
def test_what_does_not_fit_is_a_command_error(arguments: list[str], told: str) -> None:
    with pytest.raises(CommandError, match=told):
        run(*arguments)


def test_a_handle_lists_and_clears_its_inbox() -> None:
    job = jobs.echo.enqueue(1)
    job.signal("b", 2)
    job.signal("a", 1)
    assert [(signal.name, signal.payload) for signal in job.signals()] == [("a", 1), ("b", 2)]
    assert (job.clear_signal("a"), job.clear_signal("a")) == (True, False)
    assert not client.clear_signal("orders", "a")
