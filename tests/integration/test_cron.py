"""Schedules as a project uses them: the API, the settings, the command, jobs that come of them."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest
from asgiref.sync import async_to_sync
from django.core.management import CommandError, call_command
from django.db import connection, transaction

from django_belay import Unique, client, schedules
from django_belay.contract.encryption import decrypt, is_encrypted
from django_belay.contract.job import Job
from django_belay.db import storage_for_client
from django_belay.engine.scheduler import Scheduler
from django_belay.exceptions import InvalidCron, InvalidInput, PayloadTooLarge, UnknownKind
from django_belay.registry import registry
from django_belay.storage.base import CronRow
from django_belay.testing import override_belay
from django_belay.testing.clock import SimClock
from tests.app import jobs

pytestmark = pytest.mark.django_db

START = datetime(2030, 1, 1, 12, 0, 20, tzinfo=UTC)
CLOCK = SimClock(START)
KEY, NEW_KEY = b"k" * 32, b"n" * 32
ECHO = "belay_testapp.echo"


def clock_of_tests() -> SimClock:
    return CLOCK


def settings_with(**changes: Any) -> override_belay:
    given = {"CLOCK": f"{__name__}.clock_of_tests", "ENCRYPTION_KEYS": [KEY], "CRONS": {}, **changes}
    return override_belay(**given)


@pytest.fixture(autouse=True)
def clock() -> Iterator[SimClock]:
    CLOCK.set(START)
    with settings_with():
        yield CLOCK


def minute(hour: int, minute: int, day: int = 1) -> datetime:
    return datetime(2030, 1, day, hour, minute, tzinfo=UTC)


def scheduler() -> Scheduler:
    """A scheduler that has looked once already."""
    found = schedules.make_scheduler(storage_for_client().storage)
    found.fire_due()
    return found


def fire_next(one: Scheduler, clock: SimClock) -> list[Job]:
    clock.advance(60)
    return [client.get_row(fired.inserted.job_id) for fired in one.fire_due()]


def rows() -> list[CronRow]:
    return storage_for_client().storage.list_crons()


def write(statement: str, *params: Any) -> None:
    with connection.cursor() as cursor:
        cursor.execute(statement, params)


# -- from a schedule to its jobs --------------------------------------------------------


def test_a_schedule_becomes_jobs_with_the_options_of_its_kind_and_its_own(clock: SimClock) -> None:
    schedules.put("receipts", "* * * * *", jobs.send_receipt, {"order_id": 7}, priority=-2)
    [job] = fire_next(scheduler(), clock)
    assert (job.kind, job.input, job.cron_name, job.cron_slot) == (
        "belay_testapp.send_receipt", {"order_id": 7}, "receipts", minute(12, 1),
    )  # fmt: skip
    assert (job.queue, job.max_attempts, job.priority) == ("mail", 5, -2)


def test_a_schedule_of_the_settings_fires(clock: SimClock) -> None:
    entry = {"expression": "* * * * *", "kind": ECHO, "input": {"value": 1}, "options": {"queue": "night"}}
    with settings_with(CRONS={"echo": entry, "off": {**entry, "paused": True}}):
        [job] = fire_next(scheduler(), clock)
    assert (job.cron_name, job.input, job.queue) == ("echo", {"value": 1}, "night")


def test_values_for_a_job_are_stored_as_the_json_that_a_kind_takes() -> None:
    values = {"at": START, "amount": Decimal("1.50"), "reference": UUID(int=7), "every": timedelta(minutes=1)}
    by_job = schedules.put("typed", "@daily", jobs.typed, values)
    assert isinstance(by_job.input["at"], str)
    assert jobs.typed.definition.codec.decode(by_job.input) == values
    assert schedules.put("same", "@daily", jobs.typed.kind, by_job.input).input == by_job.input


def test_an_encrypted_kind_is_encrypted_in_row_and_job(clock: SimClock) -> None:
    schedule = schedules.put("secret", "* * * * *", jobs.secret, {"token": "t0ken"})
    [row] = rows()
    assert is_encrypted(row.input)
    assert "t0ken" not in repr(schedule)
    [job] = fire_next(scheduler(), clock)
    assert json.loads(decrypt(job.input, [KEY])) == {"token": "t0ken"}
    with settings_with(ENCRYPTION_KEYS=[NEW_KEY, KEY]):
        assert fire_next(scheduler(), clock)[0].input == row.input


def test_an_encrypted_kind_of_the_settings_is_encrypted_in_its_jobs(clock: SimClock) -> None:
    entry = {"expression": "* * * * *", "kind": "belay_testapp.secret", "input": {"token": "t0ken"}}
    with settings_with(CRONS={"secret": entry}):
        [job] = fire_next(scheduler(), clock)
        assert json.loads(decrypt(job.input, [KEY])) == {"token": "t0ken"}
        assert "t0ken" not in repr(schedules.list())
        schedules.pause("secret")
    assert is_encrypted(rows()[0].input)


def test_a_unique_key_of_the_kind_keeps_runs_apart(clock: SimClock) -> None:
    schedules.put("once", "* * * * *", jobs.once, {"order_id": 3})
    one = scheduler()
    [first] = fire_next(one, clock)
    assert first.unique_key == "receipt:3"
    [second] = fire_next(one, clock)
    assert second.id == first.id


@pytest.mark.parametrize("encrypted", [False, True])
def test_a_callable_key_gets_typed_arguments(
    clock: SimClock, monkeypatch: pytest.MonkeyPatch, encrypted: bool
) -> None:
    unique = Unique(lambda at, **_: f"year:{at.year}")
    definition = jobs.typed.definition
    options = replace(definition.options, unique=unique, encrypted=encrypted)
    monkeypatch.setitem(registry._by_kind, definition.kind, replace(definition, options=options))
    values = {"at": START, "amount": Decimal(1), "reference": UUID(int=7), "every": timedelta(minutes=1)}
    schedules.put("typed", "* * * * *", jobs.typed, values)
    assert is_encrypted(rows()[0].input) is encrypted
    [job] = fire_next(scheduler(), clock)
    assert job.unique_key == "year:2030"


@pytest.mark.postgres
def test_another_sdks_row_is_written_as_its_job(clock: SimClock) -> None:
    write(
        "INSERT INTO belay_crons (name, expression, worker, input, opts)"
        " VALUES ('elixir', '* * * * *', 'MyApp.Mailer', '{\"a\": 1}', '{\"queue\": \"mailers\", \"max_attempts\": 3}')"
    )
    [job] = fire_next(scheduler(), clock)
    assert (job.kind, job.queue, job.max_attempts, job.input) == ("MyApp.Mailer", "mailers", 3, {"a": 1})
    assert not schedules.get("elixir").is_registered


@pytest.mark.postgres
@pytest.mark.parametrize(
    ("column", "value", "message"),
    [
        ("opts", '{"unique": "x"}', "a cron entry takes no 'unique'"),
        ("opts", '{"queue": ""}', "queue"),
        ("opts", '{"priority": 1e40}', "priority"),
        ("opts", '{"max_attempts": -1}', "max_attempts"),
        ("opts", "[]", "the options are a list"),
        ("input", "5", "the input is a int"),
        ("input", '{"other": 1}', "other"),
        ("input", '{"value": 1e9999}', "input is a Opaque"),
        ("worker", "", "kind"),
        ("expression", "whenever", "cron expression 'whenever'"),
    ],
)
def test_a_broken_row_says_what_is_wrong_and_stops_no_other(
    clock: SimClock, caplog: pytest.LogCaptureFixture, column: str, value: str, message: str
) -> None:
    for name in ("a", "broken", "c"):
        schedules.put(name, "* * * * *", ECHO, {"value": 1})
    cast = "::jsonb" if column in ("opts", "input") else ""
    write(f"UPDATE belay_crons SET {column} = %s{cast} WHERE name = 'broken'", value)
    one = scheduler()
    fired = fire_next(one, clock) + fire_next(one, clock)
    assert [job.cron_name for job in fired] == ["a", "c", "a", "c"]
    [record] = caplog.records
    assert message in record.getMessage()
    by_name = {schedule.name: schedule for schedule in schedules.list()}
    assert message in (by_name["broken"].problem or "")
    assert by_name["broken"].next_run is None
    assert by_name["c"].problem is None


def test_a_listing_survives_a_key_that_cannot_be_made(monkeypatch: pytest.MonkeyPatch) -> None:
    schedules.put("once", "@daily", jobs.once, {"order_id": 3})
    schedules.put("echo", "@daily", ECHO, {"value": 1})

    def fail(order_id: int, **_: Any) -> str:
        raise KeyError("gone")

    definition = replace(jobs.once.definition, options=replace(jobs.once.options, unique=Unique(fail)))
    monkeypatch.setitem(registry._by_kind, definition.kind, definition)
    assert [(one.name, one.problem) for one in schedules.list()] == [
        ("echo", None),
        ("once", "KeyError: 'gone'"),
    ]


# -- put ----------------------------------------------------------------------------------------


def test_put_says_what_stands_there_now(clock: SimClock) -> None:
    found = schedules.put(
        "digest", "0 8 * * 1-5", ECHO, {"value": 1}, timezone="Europe/Berlin", catch_up="none", queue="mail"
    )
    assert found == schedules.get("digest")
    assert (found.timezone, found.catch_up, found.origin) == ("Europe/Berlin", "none", "row")
    assert (found.next_run, found.last_slot, found.paused) == (minute(7, 0, day=2), None, False)
    assert (found.options, found.input, found.problem) == ({"queue": "mail"}, {"value": 1}, None)
    [row] = rows()
    assert (row.timezone, row.catch_up, row.updated_at) == ("Europe/Berlin", "none", START)


@pytest.mark.postgres
def test_the_wire_row_holds_what_every_sdk_knows_and_no_more() -> None:
    schedules.put("digest", "@daily", ECHO, {"value": 1}, timezone="Europe/Berlin", catch_up="all", queue="q")
    with connection.cursor() as cursor:
        cursor.execute("SELECT expression, worker, input, opts::text, paused FROM belay_crons")
        assert cursor.fetchall() == [("@daily", ECHO, '{"value": 1}', '{"queue": "q"}', False)]


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"expression": "* * * * * *"}, InvalidCron, "has 6 fields"),
        ({"expression": "@reboot"}, InvalidCron, "no known nickname"),
        ({"name": ""}, InvalidCron, "name=''"),
        ({"name": "a\0b"}, InvalidCron, "control characters"),
        ({"name": "x" * 256}, InvalidCron, "255 characters"),
        ({"kind": "belay_testapp.eco"}, UnknownKind, "did you mean 'belay_testapp.echo'"),
        ({"kind": "MyApp.Mailer"}, UnknownKind, "no job is registered"),
        ({"kind": print}, InvalidCron, "give a job, or its kind"),
        ({"kind": jobs.echo.using(queue="x")}, InvalidCron, "give a schedule's options to the schedule"),
        ({"input": {}}, InvalidInput, "value"),
        ({"input": {"value": 1, "more": 2}}, InvalidInput, "more"),
        ({"input": {"value": "\0"}}, InvalidInput, "value"),
        ({"input": [1]}, InvalidInput, "arguments by name"),
        ({"input": {"value": "x" * 300_000}}, PayloadTooLarge, "MAX_INPUT_BYTES"),
        ({"timezone": "Mars/Olympus"}, InvalidCron, "Mars/Olympus"),
        ({"catch_up": "some"}, InvalidCron, "latest, all, none"),
        ({"priority": "high"}, InvalidCron, "priority"),
        ({"queue": ""}, InvalidCron, "queue"),
        ({"unique": "x"}, InvalidCron, "takes no 'unique'"),
        ({"run_after": timedelta(1)}, InvalidCron, "takes no 'run_after'"),
        ({"colour": "red"}, InvalidCron, "takes no 'colour'"),
        ({"partition_key": str}, InvalidCron, "partition_key"),
        ({"meta": {"at": object()}}, InvalidCron, "meta"),
    ],
)
@pytest.mark.parametrize("act", [schedules.put, schedules.check])
def test_what_does_not_fit_is_refused_and_nothing_written(
    act: Any, change: dict[str, Any], error: type[Exception], message: str
) -> None:
    given = {"name": "digest", "expression": "@daily", "kind": ECHO, "input": {"value": 1}, **change}
    with pytest.raises(error, match=message):
        act(**given)
    assert rows() == []


@pytest.mark.postgres
def test_put_joins_the_callers_transaction() -> None:
    with pytest.raises(ZeroDivisionError), transaction.atomic():  # noqa: PT012
        schedules.put("digest", "@daily", ECHO, {"value": 1})
        1 / 0  # noqa: B018
    assert rows() == []


def test_put_again_without_a_change_writes_nothing(clock: SimClock) -> None:
    for _ in range(2):
        schedules.put("digest", "@daily", ECHO, {"value": 1}, queue="mail")
        clock.advance(60)
    assert rows()[0].updated_at == START
    schedules.put("digest", "@daily", ECHO, {"value": 2}, queue="mail")
    assert rows()[0].updated_at == START + timedelta(seconds=120)


def test_put_leaves_a_pause_alone_unless_told(clock: SimClock) -> None:
    schedules.put("digest", "@daily", ECHO, {"value": 1})
    schedules.pause("digest")
    assert schedules.put("digest", "@hourly", ECHO, {"value": 1}).paused
    assert not schedules.put("digest", "@hourly", ECHO, {"value": 1}, paused=False).paused


def test_check_writes_nothing() -> None:
    found = schedules.check("digest", "@daily", ECHO, {"value": 1})
    assert (found.origin, found.next_run) == ("row", minute(0, 0, day=2))
    assert rows() == []


# -- pause, resume, delete ---------------------------------------------------------------------


def test_a_paused_schedule_fires_nothing_and_catches_nothing_up(clock: SimClock) -> None:
    schedules.put("echo", "* * * * *", ECHO, {"value": 1}, catch_up="all")
    one = scheduler()
    fire_next(one, clock)
    assert schedules.pause("echo").next_run is None
    assert fire_next(one, clock) == fire_next(one, clock) == []
    assert schedules.resume("echo").next_run == minute(12, 4)
    assert scheduler().fire_due() == []
    assert [job.cron_slot for job in fire_next(one, clock)] == [minute(12, 4)]


def test_pausing_twice_changes_nothing(clock: SimClock) -> None:
    schedules.put("echo", "* * * * *", ECHO, {"value": 1})
    schedules.pause("echo")
    clock.advance(60)
    schedules.pause("echo")
    assert rows()[0].updated_at == START


def test_a_schedule_of_the_settings_is_paused_by_a_row_over_it(clock: SimClock) -> None:
    entry = {"expression": "* * * * *", "kind": ECHO, "input": {"value": 1}, "timezone": "Asia/Tokyo"}
    with settings_with(CRONS={"echo": entry}):
        one = scheduler()
        assert schedules.get("echo").origin == "settings"
        found = schedules.pause("echo")
        assert (found.origin, found.timezone, found.paused) == ("row over settings", "Asia/Tokyo", True)
        assert rows()[0].timezone is None
        assert fire_next(one, clock) == []
        schedules.resume("echo")
        assert len(fire_next(one, clock)) == 1
        schedules.delete("echo")
        assert schedules.get("echo").origin == "settings"
        with pytest.raises(InvalidCron, match=r'stands in BELAY\["CRONS"\] alone'):
            schedules.delete("echo")


def test_a_deleted_schedule_is_gone_and_comes_back_without_old_slots(clock: SimClock) -> None:
    schedules.put("echo", "* * * * *", ECHO, {"value": 1}, catch_up="all")
    one = scheduler()
    fire_next(one, clock)
    schedules.delete("echo")
    assert fire_next(one, clock) == []
    schedules.put("echo", "* * * * *", ECHO, {"value": 1}, catch_up="all")
    assert schedules.get("echo").last_slot == minute(12, 1)
    assert scheduler().fire_due() == []


@pytest.mark.parametrize(
    "act",
    [
        schedules.get,
        schedules.pause,
        schedules.resume,
        schedules.delete,
        schedules.run_now,
        schedules.next_runs,
    ],
)
def test_an_unknown_name_is_refused_with_the_nearest(act: Any) -> None:
    schedules.put("digest", "@daily", ECHO, {"value": 1})
    with pytest.raises(InvalidCron, match="there is no schedule 'digst'; did you mean 'digest'"):
        act("digst")


# -- run now, next runs -------------------------------------------------------------------------


def test_run_now_enqueues_and_uses_no_slot_up(clock: SimClock) -> None:
    schedules.put("echo", "* * * * *", ECHO, {"value": 1}, queue="night", paused=True)
    handles = [schedules.run_now("echo") for _ in range(2)]
    assert handles[0].id != handles[1].id
    job = client.get_row(handles[0].id)
    assert (job.input, job.queue, job.cron_name, job.cron_slot) == ({"value": 1}, "night", "echo", None)
    schedules.resume("echo")
    assert [job.cron_slot for job in fire_next(scheduler(), clock)] == [minute(12, 1)]
    assert schedules.get("echo").last_slot == minute(12, 1)


def test_next_runs_go_on_from_where_they_are_told() -> None:
    schedules.put("echo", "0 2 * * *", ECHO, {"value": 1}, timezone="Europe/Berlin")
    assert schedules.next_runs("echo", count=2) == (minute(1, 0, day=2), minute(1, 0, day=3))
    assert schedules.next_runs("echo", count=1, after=minute(1, 0, day=9)) == (minute(1, 0, day=10),)
    assert schedules.next_runs("echo", count=0) == ()


@pytest.mark.parametrize(
    "given", [{"count": -1}, {"count": 10**9}, {"count": 1.5}, {"after": datetime(2030, 1, 1)}]
)
def test_next_runs_refuses_what_it_cannot_show(given: dict[str, Any]) -> None:
    schedules.put("echo", "@daily", ECHO, {"value": 1})
    with pytest.raises(InvalidCron):
        schedules.next_runs("echo", **given)


# -- manage.py belay_cron -------------------------------------------------------------------------


def belay_cron(*args: str) -> str:
    out = io.StringIO()
    call_command("belay_cron", *args, stdout=out)
    return out.getvalue()


def belay_cron_json(*args: str) -> Any:
    return json.loads(belay_cron(*args, "--format", "json"))


def put_echo(*more: str) -> str:
    return belay_cron("put", "echo", "0 8 * * *", ECHO, "--input", '{"value": "s3cret"}', *more)


def test_the_command_puts_and_lists() -> None:
    more = ("--timezone", "Europe/Berlin", "--catch-up", "all", "--priority", "-3", "--meta", '{"team": "a"}')
    assert put_echo(*more) == "echo put, next 2030-01-02T07:00:00Z\n"
    [found] = belay_cron_json("list")["schedules"]
    assert found == {
        "name": "echo", "expression": "0 8 * * *", "kind": ECHO, "options": {"priority": -3, "meta": {"team": "a"}},
        "timezone": "Europe/Berlin", "catch_up": "all", "paused": False, "origin": "row",
        "updated_at": "2030-01-01T12:00:20Z", "last_slot": None, "next_run": "2030-01-02T07:00:00Z",
        "problem": None, "is_registered": True,
    }  # fmt: skip
    heading, line = belay_cron("list").splitlines()
    assert heading.split()[:2] == ["name", "expression"]
    assert "echo  0 8 * * *   Europe/Berlin" in line
    assert json.loads(belay_cron("list", "--format", "jsonl")) == found


def test_the_command_shows_no_input() -> None:
    shown = put_echo() + put_echo("--format", "json") + belay_cron("list") + str(belay_cron_json("list"))
    assert "s3cret" not in shown


def test_the_command_changes_several_and_says_what_it_skipped(clock: SimClock) -> None:
    put_echo()
    schedules.put("off", "@daily", ECHO, {"value": 1}, paused=True)
    assert belay_cron("pause", "echo", "off") == "echo done\noff skipped: paused already\n1 done, 1 skipped\n"
    assert belay_cron_json("resume", "echo") == {
        "schedules": [{"name": "echo", "what": "done", "reason": None}], "done": 1, "skipped": 0,
    }  # fmt: skip
    [found] = belay_cron_json("run", "off")["schedules"]
    assert client.get_row(found["job_id"]).cron_name == "off"
    assert "1 done" in belay_cron("delete", "off")
    assert [row.name for row in rows()] == ["echo"]


@pytest.mark.parametrize("action", ["pause", "resume", "delete", "run"])
def test_a_dry_run_changes_nothing(action: str) -> None:
    schedules.put("echo", "@daily", ECHO, {"value": 1}, paused=action == "resume")
    before = rows()
    assert belay_cron(action, "echo", "--dry-run") == "echo would be done\n1 would be done, 0 skipped\n"
    assert rows() == before
    assert client.list_jobs() == []


def test_a_dry_put_changes_nothing() -> None:
    assert put_echo("--dry-run").startswith("echo would be put, next 2030-01-02")
    assert rows() == []


def test_the_command_shows_coming_slots() -> None:
    put_echo()
    assert belay_cron("next", "echo", "--limit", "2") == "2030-01-02T08:00:00Z\n2030-01-03T08:00:00Z\n"
    schedules.pause("echo")
    assert belay_cron("next", "echo", "--limit", "1").startswith("echo is paused; resumed, it runs at\n2030-")
    assert belay_cron_json("next", "echo", "--limit", "1") == {
        "name": "echo", "paused": True, "next": ["2030-01-02T08:00:00Z"],
    }  # fmt: skip


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (("put", "e", "* * * *", ECHO), "has 4 fields"),
        (("put", "e", "@daily", "nothing"), "no job is registered"),
        (("put", "e", "@daily", ECHO, "--input", "{"), "--input: no JSON"),
        (("put", "e", "@daily", ECHO, "--input", "[" * 100_000), "--input: no JSON"),
        (("put", "e", "@daily", ECHO, "--input", "[]"), "--input: give a JSON object"),
        (("put", "e", "@daily", ECHO, "--meta", "1"), "--meta: give a JSON object"),
        (("pause", "e"), "e: there is no schedule 'e'"),
        (("next", "e"), "there is no schedule 'e'"),
        (("next", "e", "--limit", "0"), "--limit"),
        (("put", "e", "@daily", ECHO, "--paused", "--active"), "not allowed with"),
        ((), "action"),
    ],
)
def test_the_command_refuses_what_does_not_fit(args: tuple[str, ...], message: str) -> None:
    with pytest.raises(CommandError, match=message):
        belay_cron(*args)
    assert rows() == []


@pytest.mark.django_db(transaction=True)
def test_async_code_sets_schedules_up() -> None:
    async def live() -> list[str]:
        await schedules.aput("nightly", "0 3 * * *", ECHO, {"value": 1})
        assert (await schedules.apause("nightly")).paused
        assert len(await schedules.anext_runs("nightly", count=2)) == 2
        handle = await schedules.arun_now("nightly")
        names = [entry.name for entry in await schedules.alist()]
        await schedules.adelete("nightly")
        return [*names, handle.state]

    assert async_to_sync(live)() == ["nightly", "ready"]
