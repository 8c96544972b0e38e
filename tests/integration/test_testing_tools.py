"""Assertions, inline mode, simulated time, cron entries, the pytest plugin and the mixin."""

from __future__ import annotations

import os
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any
from unittest import mock
from uuid import uuid4

import pytest
from django.conf import settings
from django.contrib.auth.models import Group
from django.db import connection, transaction
from django.test import SimpleTestCase, TestCase

import django_belay.testing
from django_belay import Workflow, client, conf, schedules
from django_belay.exceptions import ConfigurationError, InvalidInput
from django_belay.jobs import job
from django_belay.registry import Unique
from django_belay.signals import job_enqueued
from django_belay.testing import (
    BelayTestMixin,
    Crons,
    SimClock,
    assert_enqueued,
    assert_not_enqueued,
    drain,
    override_belay,
    run_inline,
    simulated_time,
)
from tests.app import jobs

pytestmark = pytest.mark.django_db
committed = pytest.mark.django_db(transaction=True)
ROOT = Path(__file__).resolve().parents[2]
PLUGIN = "django_belay.testing.plugin"

ran: list[Any] = []


@pytest.fixture(autouse=True)
def forget_runs() -> None:
    ran.clear()


@job(kind="tools.records")
def records(ctx, value: Any) -> None:
    ran.append(value)


@job(kind="tools.new_name", aliases=["tools.before"])
def renamed(ctx, count: int, queue: str = "q") -> None:
    pass


@job(kind="tools.chain")
def chain(ctx, left: int) -> None:
    ran.append(("start", left))
    if left:
        chain.enqueue(left - 1)
    ran.append(("end", left))


@job(kind="tools.fails", max_attempts=2, backoff=[60])
def fails(ctx) -> None:
    raise ValueError("as it was")


# -- assertions -----------------------------------------------------------------------


def test_enqueued_jobs_are_found_oldest_first() -> None:
    first, second = jobs.echo.enqueue(1), jobs.echo.enqueue(2)
    jobs.plain.enqueue(1)
    assert assert_enqueued(jobs.echo) == [first, second]
    assert assert_enqueued("belay_testapp.echo", value=2) == [second]


def test_a_finished_job_was_enqueued() -> None:
    jobs.echo.enqueue(1)
    drain()
    assert assert_enqueued(jobs.echo)[0].state == "succeeded"


def test_counts_are_exact() -> None:
    jobs.echo.enqueue(1)
    assert_enqueued(jobs.echo, count=1)
    assert_enqueued(jobs.plain, count=0)
    with pytest.raises(AssertionError, match=r"1 jobs, not 2, were enqueued as belay_testapp\.echo"):
        assert_enqueued(jobs.echo, count=2)


def test_a_queue_is_matched() -> None:
    jobs.send_receipt.enqueue(1)
    assert_enqueued(jobs.send_receipt, queue="mail")
    with pytest.raises(AssertionError, match="in queue 'default'"):
        assert_enqueued(jobs.send_receipt, queue="default")


def test_defaults_of_the_code_are_matched() -> None:
    jobs.send_receipt.enqueue(1)
    assert_enqueued(jobs.send_receipt, order_id=1, copy=False)
    with pytest.raises(AssertionError):
        assert_enqueued(jobs.send_receipt, copy=True)


def test_arguments_are_matched_with_their_types() -> None:
    at = datetime(2030, 1, 1, tzinfo=UTC)
    jobs.typed.enqueue(at, Decimal("1.50"), uuid4(), timedelta(hours=1))
    assert_enqueued(jobs.typed, at=at, every=timedelta(hours=1), amount=mock.ANY)
    with pytest.raises(AssertionError):
        assert_enqueued(jobs.typed, at=at + timedelta(seconds=1))


def test_arguments_named_as_the_assertions_own_go_into_a_dictionary() -> None:
    renamed.enqueue(count=3)
    assert_enqueued(renamed, {"count": 3, "queue": "q"}, count=1)
    assert_not_enqueued(renamed, {"count": 4})


def set_kind(handle: client.JobHandle, kind: str) -> None:
    """As if other code, or older code, had enqueued the job."""
    with connection.cursor() as cursor:
        cursor.execute("UPDATE belay_jobs SET kind = %s WHERE id = %s", [kind, handle.id])


@pytest.mark.postgres
def test_jobs_of_an_alias_are_found() -> None:
    set_kind(renamed.enqueue(count=1), "tools.before")
    assert_enqueued(renamed, count=1)
    assert_enqueued("tools.before", count=1)


def test_encrypted_arguments_are_matched_and_not_shown() -> None:
    jobs.secret.enqueue("hush")
    assert_enqueued(jobs.secret, token="hush")
    with pytest.raises(AssertionError) as told:
        assert_enqueued(jobs.echo)
    assert "secret(encrypted)" in str(told.value)
    assert "hush" not in str(told.value)


def test_a_foreign_kind_is_matched_by_its_json() -> None:
    client.enqueue_job("Elsewhere.Mailer", {"to": "a"})
    assert_enqueued("Elsewhere.Mailer", to="a")
    assert_not_enqueued("Elsewhere.Mailer", to="b")


def test_a_failing_assertion_says_what_was_enqueued_instead() -> None:
    jobs.echo.using(queue="mail").enqueue("hello")
    with pytest.raises(AssertionError) as told:
        assert_enqueued(jobs.echo, value="bye")
    message = str(told.value)
    assert "no job was enqueued as belay_testapp.echo(value='bye')" in message
    assert "belay_testapp.echo(value='hello') in queue 'mail', ready" in message


def test_without_any_job_it_says_so() -> None:
    with pytest.raises(AssertionError, match="nothing was enqueued"):
        assert_enqueued(jobs.echo)


def test_what_should_not_be_there_is_listed() -> None:
    assert_not_enqueued()
    jobs.echo.enqueue(1)
    assert_not_enqueued(jobs.plain)
    with pytest.raises(AssertionError, match=r"1 jobs were enqueued as belay_testapp\.echo"):
        assert_not_enqueued(jobs.echo)
    with pytest.raises(AssertionError, match="jobs were enqueued"):
        assert_not_enqueued()


def test_what_is_no_job_is_refused() -> None:
    with pytest.raises(TypeError, match="is no job"):
        assert_enqueued(7)


@pytest.mark.postgres
def test_a_row_that_does_not_fit_the_code_matches_nothing() -> None:
    set_kind(client.enqueue_job("tools.unknown", {"value": 1}), "tools.new_name")
    assert_not_enqueued(renamed, {"count": 1})


# -- inline mode ------------------------------------------------------------------------


def test_inline_an_enqueued_job_has_run() -> None:
    with run_inline():
        handle = records.enqueue((1, "a"))
        assert handle.result(timeout=0) is None
    assert ran == [[1, "a"]]  # JSON has no tuples
    records.enqueue(2)
    assert len(ran) == 1


def test_inline_the_signal_of_the_enqueueing_is_sent() -> None:
    heard: list[str] = []

    def hear(sender: str, **_: Any) -> None:
        heard.append(f"{sender} before its run" if not ran else sender)

    job_enqueued.connect(hear)
    try:
        with run_inline():
            records.enqueue(1)
    finally:
        job_enqueued.disconnect(hear)
    assert heard == ["tools.records before its run"]


def test_inline_inputs_are_checked_as_in_production() -> None:
    with run_inline(), pytest.raises(InvalidInput):
        records.enqueue(object())


def test_inline_jobs_of_jobs_run_after_them() -> None:
    with run_inline():
        chain.enqueue(1)
    assert ran == [("start", 1), ("end", 1), ("start", 0), ("end", 0)]


def test_inline_failures_are_raised() -> None:
    with run_inline(), pytest.raises(ValueError, match="as it was"):
        fails.enqueue()


def test_inline_failures_may_be_left_to_the_retry() -> None:
    with run_inline(raise_failures=False):
        handle = fails.enqueue()
    assert handle.refresh().state == "ready"
    assert len(handle.job.errors) == 1


def test_inline_a_scheduled_job_waits() -> None:
    with run_inline():
        handle = records.using(run_after=timedelta(hours=1)).enqueue(1)
    assert handle.refresh().state == "ready"


def test_inline_bulk_and_workflows_run() -> None:
    with run_inline():
        records.enqueue_many([{"value": 1}, {"value": 2}])
        workflow = Workflow()
        workflow.add("a", records, 3)
        workflow.add("b", records, 4, deps=["a"])
        workflow.insert()
    assert ran == [1, 2, 3, 4]


@pytest.mark.postgres
@committed
def test_inline_the_callers_connection_stays_open_in_its_transaction() -> None:
    with run_inline(), transaction.atomic():
        before = connection.connection
        Group.objects.create(name="of the caller")
        records.enqueue(1)
        assert connection.connection is before
        assert not before.closed
        transaction.set_rollback(True)
    assert ran == [1]
    assert not Group.objects.exists()
    assert_not_enqueued()


# -- time ---------------------------------------------------------------------------------


def test_time_stands_still_for_client_and_engine() -> None:
    start = datetime(2031, 2, 3, 4, 5, tzinfo=UTC)
    with simulated_time(start) as clock:
        handle = jobs.echo.enqueue(1)
        clock.advance(7)
        drain()
        row = handle.refresh().job
    assert (row.inserted_at, row.started_at) == (start, start + timedelta(seconds=7))


def test_time_starts_at_the_real_one_and_ends_with_the_block() -> None:
    before = conf.clock().now()
    with simulated_time() as clock:
        assert timedelta(0) <= clock.now() - before < timedelta(minutes=1)
        assert conf.clock() is clock
    assert conf.clock() is not clock
    assert "CLOCK" not in settings.BELAY


def test_the_innermost_clock_counts() -> None:
    with simulated_time() as outer:
        with simulated_time() as inner:
            assert conf.clock() is inner
        assert conf.clock() is outer


def test_a_setting_overridden_meanwhile_keeps_the_clock(belay_clock: SimClock) -> None:
    with override_belay(MAX_ATTEMPTS=3):
        assert conf.clock() is belay_clock
        assert jobs.echo.enqueue(1).job.max_attempts == 3
    assert jobs.echo.enqueue(1).job.max_attempts == 20


def test_the_simulated_clock_outside_of_its_block_is_told() -> None:
    outside = override_belay(CLOCK="django_belay.testing._time.current_clock")
    with outside, pytest.raises(ConfigurationError, match="simulated_time"):
        conf.clock()


def test_a_unique_window_follows_the_clock(belay_clock: SimClock) -> None:
    belay_clock.set(datetime(2031, 1, 1, tzinfo=UTC))
    once = jobs.echo.using(unique=Unique("k", within=timedelta(minutes=1)))
    first = once.enqueue(1)
    assert once.enqueue(1).id == first.id
    belay_clock.advance(60)
    assert once.enqueue(1).id != first.id


@override_belay(MAX_ATTEMPTS=4)
class WithAnOverriddenClass(SimpleTestCase):
    def test_the_class_has_it(self) -> None:
        assert conf.get().max_attempts == 4
        assert "default" in conf.get().queues


@override_belay(MAX_ATTEMPTS=4)
def test_an_overridden_function_has_it() -> None:
    assert conf.get().max_attempts == 4
    assert settings.BELAY["QUEUES"]["mail"] == 5


def test_cron_entries_follow_the_clock(belay_clock: SimClock) -> None:
    belay_clock.set(datetime(2031, 1, 1, 7, 59, tzinfo=UTC))
    with override_belay(
        CRONS={"digest": {"expression": "0 8 * * *", "kind": "tools.records", "input": {"value": 8}}}
    ):
        crons = Crons()
        assert crons.fire() == []
        belay_clock.advance(60)
        [handle] = crons.fire()
        assert crons.fire() == []
        assert [handle] == assert_enqueued(records, value=8)
        drain()
        assert ran == [8]


def test_cron_rows_are_fired_too(belay_crons: Crons, belay_clock: SimClock) -> None:
    schedules.put("often", "* * * * *", records, {"value": 1})
    belay_clock.advance(60)
    assert len(belay_crons.fire()) == 1


# -- plugin and mixin -------------------------------------------------------------------


def test_the_plugins_fixtures(
    belay_drain: Any, belay_clock: SimClock, belay_assert_enqueued: Any, belay_assert_not_enqueued: Any
) -> None:
    belay_assert_not_enqueued()
    records.enqueue(1)
    belay_assert_enqueued(records, count=1)
    assert len(belay_drain()) == 1


def test_the_inline_fixture(belay_inline: None) -> None:
    records.enqueue(1)
    assert ran == [1]


def test_the_plugin_needs_no_settings(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text("def test_it(): pass")
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        PLUGIN,
        "-p",
        "no:django",
        "-p",
        "no:cacheprovider",
    ]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    environment.pop("DJANGO_SETTINGS_MODULE", None)
    done = subprocess.run(
        [*command, "--fixtures", "test_it.py"],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    for name in ("belay_drain", "belay_clock", "belay_inline", "belay_crons", "belay_assert_enqueued"):
        assert name in done.stdout


def test_everything_public_is_there() -> None:
    for name in django_belay.testing.__all__:
        assert getattr(django_belay.testing, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'fake'"):
        django_belay.testing.fake  # noqa: B018


class WithTheMixin(BelayTestMixin, TestCase):
    def test_its_methods(self) -> None:
        clock = self.stop_clock()
        self.assertNotEnqueued()
        records.using(run_after=timedelta(hours=1)).enqueue(1)
        self.assertEnqueued(records, value=1)
        assert len(self.drain()) == 0
        clock.advance(3600)
        assert len(self.drain("default", raise_failures=True)) == 1
        assert self.watch_crons().fire() == []
        self.run_inline()
        records.enqueue(2)
        assert ran == [1, 2]

    def test_nothing_is_left_of_another_test(self) -> None:
        assert "CLOCK" not in settings.BELAY
        records.enqueue(1)
        assert ran == []
