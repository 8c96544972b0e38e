"""Replay: today's code against a recorded journal, with nothing written."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from contextlib import suppress
from io import StringIO
from typing import Any

import pytest
from django.contrib.auth.models import Group
from django.core.management import CommandError, call_command
from django.db import connection

import django_belay
from django_belay import Chunk, client
from django_belay.engine.replay import Replay
from django_belay.exceptions import (
    ForeignReservedStep,
    JobNotFound,
    NotReplayable,
    PayloadErased,
    UnknownKind,
)
from django_belay.jobs import job
from django_belay.testing import drain, override_belay

pytestmark = pytest.mark.django_db

called: list[str] = []
# What "today's code" is: tests change it between the recording and the replay.
script: list[Any] = []


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    called.clear()
    script.clear()
    yield
    called.clear()
    script.clear()


def body(name: str) -> str:
    called.append(name)
    return name.upper()


@job(kind="replay.child", queue="elsewhere")
def child(ctx, n: int) -> int:
    return n * 2


@job(kind="replay.scripted", max_attempts=1)
def scripted(ctx, **_: Any) -> list:
    return [act(ctx) for act in script]


@job(kind="replay.awaits")
async def awaits(ctx) -> str:
    first = await ctx.step("a", body, "a")
    return first + await ctx.step("b", body, "b")


@job(kind="replay.gathers")
async def gathers(ctx) -> list:
    return await asyncio.gather(*(act(ctx) for act in script))


@job(kind="replay.isolated", isolation="process")
def isolated(ctx) -> str:
    called.append("isolated")
    return ctx.step("a", body, "a")


@job(kind="replay.secret", encrypted=True)
def secret(ctx, token: str) -> str:
    return ctx.step("hash", body, token)


@job(kind="replay.chunk", queue="replay-chunks", chunk=Chunk(size=2))
def chunked(ctx, items) -> None: ...


def step(name: str) -> Any:
    return lambda ctx: ctx.step(name, body, name)


def record(*acts: Any) -> int:
    """Run a job of these acts for as long as it goes; its id."""
    script[:] = acts
    job_id = scripted.enqueue().id
    drain("default")
    called.clear()
    return job_id


def everything() -> dict[str, Any]:
    """Every row of every table that this project writes."""
    tables = [name for name in connection.introspection.table_names() if name.startswith("belay_")]
    found = {}
    with connection.cursor() as cursor:
        for table in [*tables, Group._meta.db_table]:
            cursor.execute(f"SELECT * FROM {table}")
            found[table] = sorted(map(repr, cursor.fetchall()))
    return found


def replay(job_id: int) -> Replay:
    """A replay that is seen to write nothing."""
    before = everything()
    found = client.replay(job_id)
    assert everything() == before
    return found


def test_a_finished_job_is_done_with_its_recorded_value_and_no_body_runs() -> None:
    job_id = record(step("a"), step("b"))
    found = replay(job_id)
    assert (found.ending, found.value, found.matches) == ("done", ["A", "B"], True)
    assert (found.read, found.unread, found.agrees) == (["a", "b"], [], True)
    assert called == []


def test_an_async_job_replays() -> None:
    job_id = awaits.enqueue().id
    drain()
    called.clear()
    found = replay(job_id)
    assert (found.ending, found.value, found.read, called) == ("done", "AB", ["a", "b"], [])


def test_steps_of_an_async_job_may_have_ended_in_any_order() -> None:
    first_may_end = asyncio.Event()

    async def slow() -> str:
        await first_may_end.wait()
        return "slow"

    async def quick() -> str:
        first_may_end.set()
        return "quick"

    script[:] = [lambda ctx: ctx.step("slow", slow), lambda ctx: ctx.step("quick", quick)]
    job_id = gathers.enqueue().id
    drain()
    found = replay(job_id)
    assert (found.ending, found.value) == ("done", ["slow", "quick"])
    assert (found.out_of_order, found.agrees) == (("quick", "slow"), True)


def test_steps_side_by_side_with_one_that_is_not_recorded_are_read() -> None:
    script[:] = [step("a"), step("b")]
    job_id = gathers.enqueue().id
    drain()
    called.clear()
    script.insert(1, step("new"))
    found = replay(job_id)
    assert found.blocked is not None
    assert (found.blocked.name, found.unread, called) == ("new", [], [])


@pytest.mark.postgres
def test_a_job_with_a_process_of_its_own_runs_in_this_one() -> None:
    job_id = isolated.enqueue().id
    with connection.cursor() as cursor:
        cursor.execute(
            "INSERT INTO belay_steps (job_id, seq, name, value, usd_micros, tokens, inserted_at)"
            " VALUES (%s, 1, 'a', %s, 0, 0, now())",
            [job_id, b'"A"'],
        )
    found = replay(job_id)
    assert (found.ending, found.value, called) == ("done", "A", ["isolated"])


def test_code_that_swallows_its_end_is_still_blocked_there() -> None:
    job_id = record(step("a"))

    def swallows(ctx: Any) -> None:
        with suppress(BaseException):
            ctx.step("new", body, "new")

    script.append(swallows)
    found = replay(job_id)
    assert found.blocked is not None
    assert (found.ending, found.blocked.name) == ("blocked", "new")


@pytest.mark.parametrize(
    ("act", "ending"),
    [(lambda ctx: 1 / 0, "raised"), (lambda ctx: "no wait", "done")],
    ids=["raises", "returns"],
)
def test_a_waiting_job_whose_code_gets_not_to_its_wait_parts_ways(act: Any, ending: str) -> None:
    job_id = record(step("a"), lambda ctx: ctx.wait_signal("go"))
    script[1] = act
    found = replay(job_id)
    assert (found.ending, found.agrees) == (ending, False)
    assert found.misfit == "the job waits"
    text, code = run(job_id)
    assert code == 3
    assert "the job waits" in text


def test_an_exception_that_the_job_has_not_recorded_parts_ways() -> None:
    def fails(ctx: Any) -> None:
        raise LookupError("no such thing")

    job_id = record(step("a"), fails)
    assert replay(job_id).agrees
    script[1] = step("b")
    unstarted = scripted.enqueue().id
    script.insert(0, fails)
    found = replay(unstarted)
    assert (found.ending, found.misfit) == ("raised", "the job has recorded no error")


def test_spawns_sleeps_and_waits_that_code_forgot_are_named() -> None:
    job_id = record(
        lambda ctx: ctx.spawn("extra", child, {"n": 1}),
        lambda ctx: ctx.sleep("nap", 0),
        lambda ctx: ctx.clear_signal("go"),
        step("a"),
        lambda ctx: ctx.wait_signal("go"),
    )
    found = replay(job_id)
    assert (found.unread, found.agrees) == ([], True)
    script[:] = [step("a"), step("new")]
    assert replay(job_id).unread == [
        "$spawn:extra",
        "$sleep:nap",
        "$clear:go:1",
        "$await:go:1:until",
    ]


def test_a_step_that_is_not_recorded_stops_before_its_body() -> None:
    job_id = record(step("a"), step("b"))
    script.insert(1, step("new"))
    found = replay(job_id)
    assert found.ending == "blocked"
    assert found.blocked is not None
    assert (found.blocked.on, found.blocked.name) == ("step", "new")
    assert (found.read, found.unread, found.agrees, called) == (["a"], ["b"], False, [])


def test_steps_that_code_forgot_reordered_or_repeats_are_named() -> None:
    job_id = record(step("a"), step("b"), step("c"))
    script[:] = [step("b"), step("a"), step("a")]
    found = replay(job_id)
    assert (found.ending, found.matches, found.agrees) == ("done", False, False)
    assert (found.unread, found.out_of_order, found.repeated) == (["c"], ("a", "b"), ["a"])


def test_another_value_is_not_the_recorded_one() -> None:
    job_id = record(step("a"))
    script.append(lambda ctx: "more")
    found = replay(job_id)
    assert (found.value, found.matches, found.agrees) == (["A", "more"], False, False)


def test_an_exception_is_told_with_its_trace() -> None:
    job_id = record(step("a"))

    def fails(ctx: Any) -> None:
        raise LookupError("no such thing")

    script.append(fails)
    found = replay(job_id)
    assert (found.ending, found.error, found.agrees) == ("raised", "LookupError: no such thing", False)
    assert found.trace is not None
    assert "in fails" in found.trace


@pytest.mark.parametrize(
    ("act", "ending", "error"),
    [
        (lambda ctx: ctx.cancel("enough"), "cancelled", "enough"),
        (lambda ctx: ctx.fail("broken"), "failed", "broken"),
    ],
)
def test_how_the_code_ends_its_run_is_told(act: Any, ending: str, error: str) -> None:
    job_id = record(step("a"), act)
    found = replay(job_id)
    assert (found.ending, found.error, found.read, found.agrees) == (ending, error, ["a"], True)


def test_a_job_that_waits_is_blocked_at_its_signal() -> None:
    job_id = record(step("a"), lambda ctx: ctx.wait_signal("go", timeout=60), step("b"))
    found = replay(job_id)
    assert found.blocked is not None
    assert (found.ending, found.blocked.on, found.blocked.name) == ("blocked", "signal", "go")
    assert (found.read, found.agrees) == (["a"], True)


def test_a_signal_that_is_there_but_not_seen_by_the_job_is_not_used() -> None:
    job_id = record(lambda ctx: ctx.wait_signal("go"))
    client.signal(job_id, "go", 1)
    found = replay(job_id)
    assert found.blocked is not None
    assert (found.blocked.on, found.blocked.name) == ("signal", "go")


def test_a_wait_that_ended_gives_what_the_job_saw() -> None:
    job_id = record(lambda ctx: ctx.wait_signal("go"), step("a"))
    client.signal(job_id, "go", {"by": "me"})
    drain()
    client.signal(job_id, "go", "another")
    called.clear()
    assert replay(job_id).value == [{"by": "me"}, "A"]


def test_a_sleep_is_blocked_until_its_instant_and_a_snooze_is_no_sleep() -> None:
    job_id = record(step("a"), lambda ctx: ctx.sleep("nap", 3600))
    found = replay(job_id)
    assert found.blocked is not None
    assert (found.ending, found.blocked.on, found.blocked.name) == ("blocked", "sleep", "nap")
    script[:] = [step("a"), lambda ctx: ctx.snooze(60)]
    assert replay(job_id).ending == "snoozed"


def test_children_that_have_not_ended_block_and_ended_ones_give_their_results() -> None:
    job_id = record(lambda ctx: ctx.map_children("double", child, [{"n": 1}, {"n": 2}]))
    found = replay(job_id)
    assert found.blocked is not None
    assert (found.ending, found.blocked.on, found.blocked.detail) == (
        "blocked",
        "children",
        "2 have not ended",
    )
    drain()
    assert replay(job_id).value == [[2, 4]]


def test_a_spawn_that_is_not_recorded_spawns_nothing() -> None:
    job_id = record(step("a"))
    script.append(lambda ctx: ctx.spawn("extra", child, {"n": 1}))
    found = replay(job_id)
    assert found.blocked is not None
    assert (found.blocked.on, found.blocked.name) == ("spawn", "extra")


def test_events_debits_clears_and_database_work_leave_nothing_behind() -> None:
    job_id = record(step("a"))
    script[1:] = [
        lambda ctx: ctx.emit({"n": 1}),
        lambda ctx: ctx.debit(5),
        lambda ctx: Group.objects.create(name="of the replay").name,
        lambda ctx: child.enqueue(n=1).id > 0,
        lambda ctx: ctx.clear_signal("go"),
    ]
    found = replay(job_id)
    assert found.blocked is not None
    assert (found.ending, found.blocked.on, found.blocked.name) == ("blocked", "clear", "go")


def test_an_encrypted_input_is_decrypted_for_the_code_alone() -> None:
    with override_belay(ENCRYPTION_KEYS=[b"k" * 32]):
        job_id = secret.enqueue(token="t").id
        drain()
        found = replay(job_id)
    assert (found.ending, found.value) == ("done", "T")


@pytest.mark.postgres
def test_a_foreign_step_value_without_json_view_is_named_and_not_used() -> None:
    job_id = record(step("a"))
    with connection.cursor() as cursor:
        # 131, NEW_PID_EXT: a process id of Erlang.
        pid = bytes([131, 88, 119, 1]) + b"n" + bytes(12)
        cursor.execute("UPDATE belay_steps SET value = %s WHERE job_id = %s", [pid, job_id])
    found = replay(job_id)
    assert found.blocked is not None
    assert (found.blocked.on, found.blocked.name) == ("step", "a")
    assert "opaque" in found.blocked.detail


@pytest.mark.postgres
def test_a_job_that_another_sdk_has_begun_is_refused() -> None:
    job_id = record(lambda ctx: ctx.spawn("extra", child, {"n": 1}))
    with connection.cursor() as cursor:
        etf = bytes([131, 106])  # an empty list
        cursor.execute("UPDATE belay_steps SET value = %s WHERE job_id = %s", [etf, job_id])
    with pytest.raises(ForeignReservedStep, match="let that SDK finish it"):
        client.replay(job_id)


def test_what_cannot_be_replayed_is_a_named_error() -> None:
    with pytest.raises(JobNotFound):
        client.replay(2**40)
    job_id = client.enqueue_job("nobody.knows", {}).id
    with pytest.raises(UnknownKind):
        client.replay(job_id)
    with pytest.raises(NotReplayable, match="chunk"):
        client.replay(chunked.enqueue().id)
    assert django_belay.replay is client.replay


@pytest.mark.django_db(transaction=True)
def test_nothing_is_committed_where_every_statement_would_commit_alone() -> None:
    job_id = record(step("a"))
    script[:] = [
        lambda ctx: Group.objects.create(name="of the replay").name,
        lambda ctx: child.enqueue(n=1).id > 0,
        step("a"),
        step("new"),
    ]
    found = replay(job_id)
    assert found.blocked is not None
    assert (found.blocked.name, found.read) == ("new", ["a"])


# -- the command ----------------------------------------------------------------


def run(job_id: int, *options: str) -> tuple[str, int]:
    out = StringIO()
    try:
        call_command("belay_replay", str(job_id), *options, stdout=out)
    except SystemExit as end:
        return out.getvalue(), int(end.code or 0)
    return out.getvalue(), 0


def test_the_command_tells_the_end_at_a_glance() -> None:
    job_id = record(step("a"))
    text, code = run(job_id)
    assert code == 0
    assert "done" in text
    assert "code and journal agree" in text
    script.insert(0, step("new"))
    text, code = run(job_id)
    assert code == 3
    assert "blocked  at step 'new'" in text
    assert "code and journal part ways" in text


def test_the_commands_json_is_one_object() -> None:
    job_id = record(step("a"))
    text, _ = run(job_id, "--format", "json")
    facts = json.loads(text)
    assert (facts["ending"], facts["agrees"], facts["value"]) == ("done", True, ["A"])


def test_the_command_refuses_a_job_that_is_gone() -> None:
    with pytest.raises(CommandError, match="was not found"):
        call_command("belay_replay", str(2**40))


# -- names used twice -------------------------------------------------------------


def test_a_step_name_used_twice_is_a_warning_and_an_error_in_strict_mode(caplog: Any) -> None:
    job_id = record(step("a"), step("a"))
    assert client.get(job_id).result(timeout=0) == ["A", "A"]
    assert "uses the step name 'a' again" in caplog.text
    with override_belay(STRICT_STEPS=True):
        job_id = record(step("a"), step("b"), step("a"))
    entry = client.get_row(job_id).errors[0]
    assert client.get(job_id).state == "failed"
    assert entry["type"].endswith("StepReused")
    assert "give each step a name of its own" in entry["error"].lower()


def test_a_step_that_failed_and_is_tried_again_is_not_used_twice(caplog: Any) -> None:
    failures = iter([ConnectionError("once")])

    def flaky() -> str:
        for failure in failures:
            raise failure
        return "fetched"

    def tries(ctx: Any) -> str:
        with suppress(ConnectionError):
            ctx.step("fetch", flaky)
        return ctx.step("fetch", flaky)

    with override_belay(STRICT_STEPS=True):
        job_id = record(tries)
    assert client.get(job_id).result(timeout=0) == ["fetched"]
    assert "again" not in caplog.text


def test_an_async_step_that_failed_may_be_tried_again() -> None:
    failures = iter([ConnectionError("once")])

    async def flaky() -> str:
        for failure in failures:
            raise failure
        return "fetched"

    async def tries(ctx: Any) -> str:
        with suppress(ConnectionError):
            await ctx.step("fetch", flaky)
        return await ctx.step("fetch", flaky)

    script[:] = [tries]
    with override_belay(STRICT_STEPS=True):
        job_id = gathers.enqueue().id
        drain()
    assert client.get(job_id).result(timeout=0) == ["fetched"]


def test_one_name_for_steps_side_by_side_is_an_error_in_strict_mode() -> None:
    script[:] = [step("a"), step("a")]
    with override_belay(STRICT_STEPS=True):
        job_id = gathers.enqueue().id
        drain()
    assert client.get_row(job_id).errors[0]["type"].endswith("StepReused")


def test_a_name_used_many_times_is_told_once(caplog: Any) -> None:
    record(*[step("a")] * 50, *[step("b")] * 2)
    assert caplog.text.count("uses the step name 'a' again") == 1
    assert caplog.text.count("uses the step name 'b' again") == 1


def test_a_handle_replays_its_job() -> None:
    script[:] = [lambda ctx: ctx.step("a", body, "a")]
    handle = scripted.enqueue()
    drain()
    called.clear()
    assert handle.replay() == client.replay(handle.id)
    assert called == []


def test_a_job_whose_payload_was_erased_is_not_replayed() -> None:
    script[:] = [lambda ctx: ctx.step("a", body, "a")]
    handle = scripted.enqueue()
    drain()
    handle.erase_payload()
    with pytest.raises(PayloadErased, match=f"job {handle.id} was erased"):
        handle.replay()
