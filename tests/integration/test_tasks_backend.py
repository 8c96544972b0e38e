"""``BelayBackend``: what django.tasks asks of a backend, with jobs beneath."""

from __future__ import annotations

import logging
import pickle
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import django
import pytest
from asgiref.sync import async_to_sync
from django.db import connection, transaction
from django.test import override_settings
from django.utils import timezone

pytest.importorskip("django.tasks" if django.VERSION >= (6, 0) else "django_tasks")

from django_belay import client
from django_belay._tasks_compat import (
    InvalidTask,
    Task,
    TaskResult,
    TaskResultDoesNotExist,
    TaskResultStatus,
    task_backends,
    task_enqueued,
    task_finished,
    task_started,
)
from django_belay._tasks_result import result_of
from django_belay.apps import _has_tasks
from django_belay.contract.encryption import is_encrypted
from django_belay.contract.money import Budget
from django_belay.contract.outcome import Cancelled
from django_belay.exceptions import (
    BudgetExceeded,
    InvalidInput,
    JobCancelled,
    JobFailed,
    LeaseLost,
    PayloadTooLarge,
)
from django_belay.jobs import job
from django_belay.registry import registry
from django_belay.tasks_backend import BelayBackend, BelayTask, UnstorableResult
from django_belay.testing import (
    SimClock,
    assert_enqueued,
    assert_not_enqueued,
    drain,
    override_belay,
    run_inline,
)
from tests.app import jobs, tasks
from tests.integration import worker
from tests.integration.looking import is_at

if django.VERSION >= (6, 0):
    from django.tasks import task
    from django.tasks.exceptions import TaskResultMismatch
else:
    from django_tasks import task
    from django_tasks.exceptions import TaskResultMismatch

BACKEND = "django_belay.tasks_backend.BelayBackend"
takes_extras = pytest.mark.skipif(
    (6, 0) <= django.VERSION < (6, 1), reason="@task of Django 6.0 takes no keywords but its own"
)
pytestmark = pytest.mark.django_db
committed = pytest.mark.django_db(transaction=True)


def function(value: Any = None) -> Any:
    """No task until a test makes one of it."""
    return value


def replacement(value: Any = None) -> Any:
    """What a function's code becomes."""
    return "new code"


def other_function(context: Any) -> None:
    """Takes a context."""


@pytest.fixture
def once() -> Iterator[None]:
    """Failing tasks are not tried again."""
    with override_belay(MAX_ATTEMPTS=1):
        yield


@pytest.fixture
def sent() -> Iterator[list[tuple[str, type, TaskResult, TaskResultStatus]]]:
    """Signals of tasks as they are sent."""
    heard: list[tuple[str, type, TaskResult, TaskResultStatus]] = []
    receivers = []
    for name, signal in (("enqueued", task_enqueued), ("started", task_started), ("finished", task_finished)):

        def hear(sender: type, task_result: Any, name: str = name, **_: Any) -> None:
            heard.append((name, sender, task_result, task_result.status))

        signal.connect(hear)
        receivers.append((signal, hear))
    yield heard
    for signal, hear in receivers:
        signal.disconnect(hear)


def run(one: Any, *args: Any, **kwargs: Any) -> Any:
    """Enqueue a task, run it, read its result again."""
    result = one.enqueue(*args, **kwargs)
    drain()
    result.refresh()
    return result


# -- the backend ---------------------------------------------------------------------


def test_it_is_the_backend_and_can_do_everything() -> None:
    backend = task_backends["default"]
    assert type(backend) is BelayBackend
    assert backend.supports_defer
    assert backend.supports_async_task
    assert backend.supports_get_result
    assert backend.supports_priority
    assert backend.task_class is BelayTask


def test_tasks_are_found_by_autodiscovery_under_their_path() -> None:
    assert "tests.app.tasks.noop" in registry
    assert isinstance(tasks.noop, BelayTask)
    assert tasks.noop.module_path == "tests.app.tasks.noop"


class OwnBackend(BelayBackend):
    """A project's own, made from ours."""


class Unrelated:
    """No backend at all."""


@pytest.mark.parametrize(
    ("path", "is_ours"),
    [
        (BACKEND, True),
        (f"{__name__}.OwnBackend", True),
        (f"{__name__}.Unrelated", False),
        ("nowhere.to.be.Found", False),
        ("django.tasks.backends.dummy.DummyBackend", False),
    ],
)
def test_tasks_are_looked_for_where_a_backend_is_ours(path: str, is_ours: bool) -> None:
    with override_settings(TASKS={"default": {"BACKEND": path}}):
        assert _has_tasks() is is_ours


def test_without_the_setting_no_tasks_are_looked_for() -> None:
    with override_settings(TASKS={}):
        assert not _has_tasks()


def test_a_task_can_be_called() -> None:
    assert tasks.echo.call(1, twice=True) == [1, 1]
    assert tasks.echo_async.call(2) == 2
    assert async_to_sync(tasks.echo.acall)(3) == 3


# -- enqueueing ------------------------------------------------------------------------


@pytest.mark.parametrize("one", [tasks.noop, tasks.echo_async], ids=["sync", "async"])
def test_enqueueing_gives_a_ready_result(one: Any) -> None:
    result = one.enqueue(1)
    assert result.status == TaskResultStatus.READY
    assert not result.is_finished
    assert (result.started_at, result.last_attempted_at, result.finished_at) == (None, None, None)
    assert timezone.now() - result.enqueued_at < timedelta(minutes=1)
    assert (result.task, result.args, result.kwargs, result.backend) == (one, [1], {}, "default")
    assert (result.errors, result.worker_ids, result.attempts) == ([], [], 0)
    assert isinstance(result.id, str)
    with pytest.raises(ValueError, match="not finished"):
        _ = result.return_value


def test_what_is_read_is_what_was_enqueued() -> None:
    result = tasks.noop.using(priority=9, queue_name="mail").enqueue(1, (2,), key={"deep": b"bytes"})
    found = tasks.noop.get_result(result.id)
    assert is_at(found.enqueued_at, result.enqueued_at)
    assert replace(found, enqueued_at=result.enqueued_at) == result
    assert result.args == [1, [2]]
    assert result.kwargs == {"key": {"deep": "bytes"}}


def test_enqueueing_from_a_coroutine() -> None:
    async def act() -> Any:
        result = await tasks.noop.aenqueue("x")
        await result.arefresh()
        return await tasks.noop.aget_result(result.id)

    assert async_to_sync(act)().args == ["x"]


@pytest.mark.postgres
@committed
def test_a_rollback_removes_the_task() -> None:
    with transaction.atomic():
        result = tasks.noop.enqueue()
        assert tasks.noop.get_result(result.id).status == TaskResultStatus.READY
        transaction.set_rollback(True)
    with pytest.raises(TaskResultDoesNotExist):
        tasks.noop.get_result(result.id)


@pytest.mark.parametrize("value", [object(), {1, 2}, datetime(2030, 1, 1, tzinfo=UTC)])
def test_arguments_that_json_does_not_know_are_refused(value: Any) -> None:
    with pytest.raises(TypeError, match="Unsupported type"):
        tasks.noop.enqueue(value)
    with pytest.raises(TypeError, match="Unsupported type"):
        tasks.noop.enqueue(key=[value])
    assert_not_enqueued()


def test_arguments_that_the_database_does_not_take_are_refused() -> None:
    with pytest.raises(InvalidInput, match=r"input\.args"):
        tasks.noop.enqueue("\0")
    with override_belay(MAX_INPUT_BYTES=100), pytest.raises(PayloadTooLarge):
        tasks.noop.enqueue("x" * 100)
    assert_not_enqueued()


def test_priorities_are_djangos() -> None:
    order = [tasks.noop.using(priority=priority).enqueue(priority).id for priority in (0, 100, -100, 5)]
    assert [client.get_row(int(id_)).priority for id_ in order] == [0, -100, 100, -5]
    report = drain()
    assert report.job_ids == [int(order[index]) for index in (1, 3, 0, 2)]
    assert tasks.noop.get_result(order[1]).task.priority == 100


def test_the_options_of_a_task_travel_with_it() -> None:
    [handle] = _handles(tasks.prioritised.enqueue())
    assert (handle.job.queue, handle.job.priority) == ("mail", -7)


def test_a_task_waits_for_its_time(belay_clock: SimClock) -> None:
    result = tasks.noop.using(run_after=timezone.now() + timedelta(hours=1)).enqueue()
    assert is_at(tasks.noop.get_result(result.id).task.run_after, result.task.run_after)
    assert len(drain()) == 0
    belay_clock.advance(3601)
    assert len(drain()) == 1


@override_settings(USE_TZ=False)
def test_without_time_zones_a_naive_instant_is_local() -> None:
    result = tasks.noop.using(run_after=datetime(2040, 1, 1, 12)).enqueue()
    assert client.get_row(int(result.id)).ready_at == datetime(2040, 1, 1, 11, tzinfo=UTC)


def test_inline_mode_runs_tasks_at_once() -> None:
    with run_inline():
        result = tasks.echo.enqueue(5)
    result.refresh()
    assert result.return_value == 5


def test_tasks_can_be_asserted_by_their_own_arguments() -> None:
    tasks.echo.enqueue(1)
    tasks.result_id.enqueue(prefix="p")
    assert_enqueued(tasks.echo, value=1, twice=False, count=1)
    tasks.attempt.enqueue(2)
    assert_enqueued(tasks.result_id, prefix="p")
    assert_enqueued(tasks.attempt, fail_until=2)
    assert_not_enqueued(tasks.echo, value=2)


def _handles(*results: Any) -> list[client.JobHandle]:
    return [client.get(int(result.id)) for result in results]


# -- validation ------------------------------------------------------------------------


@pytest.mark.parametrize("priority", [-101, 101, 3.1])
def test_priorities_out_of_range_are_refused(priority: Any) -> None:
    with pytest.raises(InvalidTask, match="whole number between -100 and 100"):
        tasks.noop.using(priority=priority)


def test_a_queue_of_no_setting_is_refused() -> None:
    with pytest.raises(InvalidTask, match="'elsewhere' is not valid"):
        tasks.noop.using(queue_name="elsewhere")


@override_settings(TASKS={"default": {"BACKEND": BACKEND, "QUEUES": ["mail"]}})
def test_a_task_is_checked_again_at_the_call() -> None:
    with pytest.raises(InvalidTask, match="'default' is not valid"):
        tasks.noop.enqueue()


@override_settings(TASKS={"default": {"BACKEND": BACKEND, "QUEUES": []}})
def test_without_queues_every_name_is_taken() -> None:
    result = tasks.noop.using(queue_name="elsewhere").enqueue()
    assert client.get_row(int(result.id)).queue == "elsewhere"


def test_a_naive_instant_is_refused() -> None:
    with pytest.raises(InvalidTask, match="aware datetime"):
        tasks.noop.using(run_after=datetime(2040, 1, 1))


def test_a_function_within_another_is_refused() -> None:
    def inner() -> None:
        pass

    with pytest.raises(InvalidTask, match="module level"):
        task(inner)
    with pytest.raises(InvalidTask, match="module level"):
        task(lambda: None)


def test_a_context_needs_its_parameter() -> None:
    with pytest.raises(InvalidTask, match="'context'"):
        task(takes_context=True)(function)


def test_a_path_that_is_another_jobs_kind_is_refused() -> None:
    job(kind=f"{__name__}.other_function")(function)
    with pytest.raises(InvalidTask, match="registered twice"):
        task(takes_context=True)(other_function)


def test_options_of_a_job_travel_by_using() -> None:
    one = tasks.noop.using(max_attempts=3, meta={"team": "search"}, unique="k", budget=Budget(usd="0.50"))
    [handle] = _handles(one.enqueue())
    row = handle.job
    assert (row.max_attempts, row.unique_key, row.budget_usd_micros) == (3, "k", 500_000)
    assert row.meta == {"team": "search", "task_backend": "default"}
    assert hash(one) != 0


def test_a_duplicate_gives_the_result_that_is_there(sent: list[Any]) -> None:
    first = tasks.echo.using(unique="k").enqueue(1)
    second = tasks.echo.using(unique="k").enqueue(2)
    assert (second.id, second.args) == (first.id, [1])
    assert len(sent) == 1


def test_options_that_do_not_fit_are_refused() -> None:
    with pytest.raises(InvalidTask, match="max_attempts"):
        tasks.noop.using(max_attempts=0)
    with pytest.raises(TypeError, match=r"'timeout' is read from the code: set it in @task"):
        tasks.noop.using(timeout=3)
    with pytest.raises(TypeError, match="'colour' is not known"):
        tasks.noop.using(colour="red")


@takes_extras
def test_options_of_a_job_in_the_decorator() -> None:
    one = task(max_attempts=3, timeout=20, queue_name="mail")(function)
    [handle] = _handles(one.enqueue())
    assert (handle.job.max_attempts, handle.job.queue) == (3, "mail")
    assert registry.get(one.module_path).options.timeout == 20


@override_settings(TASKS={"default": {"BACKEND": BACKEND, "OPTIONS": {"max_attempts": 2, "encrypted": True}}})
def test_options_of_the_backend_are_defaults() -> None:
    [first, second] = _handles(tasks.echo.enqueue("secret"), tasks.echo.using(max_attempts=4).enqueue(1))
    assert (first.job.max_attempts, second.job.max_attempts) == (2, 4)
    assert is_encrypted(first.job.input)
    assert tasks.echo.get_result(str(first.id)).args == ["secret"]
    drain()
    assert tasks.echo.get_result(str(first.id)).return_value == "secret"


def test_checks_tell_what_is_wrong_with_the_setting() -> None:
    backend = BelayBackend("other", {"QUEUES": ["default", "attic"], "OPTIONS": {"max_attempt": 3}})
    error, warning = backend.check()
    assert error.id == "belay.E019"
    assert 'TASKS["other"]["OPTIONS"]' in error.msg
    assert "max_attempts" in error.hint
    assert warning.id == "belay.W005"
    assert "'attic'" in warning.msg
    assert BelayBackend("other", {}).check() == []


# -- results -----------------------------------------------------------------------------


@pytest.mark.parametrize("one", [tasks.echo, tasks.echo_async], ids=["sync", "async"])
@pytest.mark.parametrize("value", [None, 1, "text", [1, {"a": None}]])
def test_a_task_succeeds_with_its_value(one: Any, value: Any) -> None:
    result = run(one, value)
    assert result.status == TaskResultStatus.SUCCESSFUL
    assert result.is_finished
    assert result.return_value == value
    assert result.enqueued_at <= result.started_at <= result.last_attempted_at <= result.finished_at
    assert (result.attempts, result.errors) == (1, [])


def test_a_result_names_its_worker() -> None:
    with override_belay(NODE_NAME="kitchen"):
        result = run(tasks.noop)
    [worker_id] = result.worker_ids
    assert worker_id.startswith("kitchen:")
    assert worker_id.count(":") == 1


@pytest.mark.parametrize(
    ("one", "error"), [(tasks.fails, ValueError), (tasks.fails_async, KeyError)], ids=["sync", "async"]
)
def test_a_task_fails_with_its_error(once: None, one: Any, error: type) -> None:
    result = run(one, "bad luck")
    assert result.status == TaskResultStatus.FAILED
    with pytest.raises(ValueError, match="Task failed"):
        _ = result.return_value
    [told] = result.errors
    assert told.exception_class is error
    assert told.traceback.startswith("Traceback")
    assert "bad luck" in told.traceback
    assert "tasks.py" in told.traceback


def test_a_task_that_will_be_tried_again_is_ready(belay_clock: SimClock) -> None:
    result = run(tasks.attempt, 1)
    assert result.status == TaskResultStatus.READY
    assert (result.attempts, len(result.errors)) == (1, 1)
    assert tasks.attempt.get_result(result.id).task.run_after is None  # the backoff is no wish of the task's
    first = result.last_attempted_at
    belay_clock.advance(10)
    drain()
    result.refresh()
    assert result.return_value == 2
    assert (result.attempts, len(result.worker_ids)) == (2, 2)
    assert result.started_at == first
    assert result.last_attempted_at - first == timedelta(seconds=10)
    assert [error.exception_class for error in result.errors] == [ValueError]


def test_each_attempt_keeps_its_worker(belay_clock: SimClock) -> None:
    with override_belay(NODE_NAME="first"):
        result = run(tasks.attempt, 1)
    belay_clock.advance(10)
    with override_belay(NODE_NAME="second"):
        drain()
    result.refresh()
    assert [one.split(":")[0] for one in result.worker_ids] == ["first", "second"]


def test_a_running_task_is_running() -> None:
    result = tasks.noop.enqueue()
    worker.claim()
    result.refresh()
    assert result.status == TaskResultStatus.RUNNING
    assert result.worker_ids == ["tests:1"]
    assert result.started_at is not None


def test_an_attempt_of_which_nothing_is_known_counts(belay_clock: SimClock) -> None:
    result = tasks.noop.enqueue()
    worker.claim(now=belay_clock.now())
    belay_clock.advance(31)
    drain()
    belay_clock.advance(10)
    drain()
    result.refresh()
    assert result.worker_ids[0] == "unknown"
    assert result.attempts == 2
    [error] = result.errors
    assert error.exception_class is LeaseLost


def test_an_ended_task_by_other_hands_has_failed() -> None:
    result = tasks.noop.enqueue()
    worker.run(Cancelled(reason="not needed"))
    result.refresh()
    assert result.status == TaskResultStatus.FAILED
    [error] = result.errors
    assert error.exception_class is JobCancelled
    assert error.traceback == "not needed"


@pytest.mark.parametrize(
    ("entry", "error"),
    [
        ({"error": "budget_exceeded", "detail": "$1"}, BudgetExceeded),
        ({"error": "the end could not be stored"}, JobFailed),
        ({"reason": "asked"}, JobCancelled),
        ({"error": "x", "type": "OSError", "traceback": "t"}, OSError),
    ],
)
def test_entries_of_errors_become_djangos(entry: dict[str, Any], error: type) -> None:
    row = client.get_row(int(tasks.noop.enqueue().id))
    row.errors = [entry, {"omitted": 3}, "no entry"]
    [told] = result_of(row, tasks.noop).errors
    assert told.exception_class is error


@pytest.mark.parametrize("state", ["ready", "held", "awaiting", "paused"])
def test_states_before_the_end_are_ready(state: Any) -> None:
    row = client.get_row(int(tasks.noop.enqueue().id))
    row.state = state
    assert result_of(row, tasks.noop).status == TaskResultStatus.READY


def test_a_value_that_json_does_not_know_fails_for_good() -> None:
    result = run(tasks.complex_value)
    assert result.status == TaskResultStatus.FAILED
    [error] = result.errors
    assert error.exception_class is UnstorableResult
    assert issubclass(UnstorableResult, TypeError)
    assert "Unsupported type" in error.traceback


def test_a_moved_task_keeps_its_result() -> None:
    result = tasks.noop.enqueue()
    row = client.get_row(int(result.id))
    row.queue, row.priority = "elsewhere", 5_000
    read = result_of(row, tasks.noop)
    assert (read.task.queue_name, read.task.priority) == ("elsewhere", -5_000)
    assert read.task.func is tasks.noop.func


@pytest.mark.parametrize(
    "unknown", ["", "0", "-1", "x", "1.0", "٣", "9" * 18, "9" * 19, "9" * 40, str(UUID(int=7))]
)
def test_a_result_that_is_not_there(unknown: str) -> None:
    backend = task_backends["default"]
    with pytest.raises(TaskResultDoesNotExist):
        backend.get_result(unknown)
    with pytest.raises(TaskResultDoesNotExist):
        async_to_sync(backend.aget_result)(unknown)


def test_a_job_that_is_no_task_has_no_result() -> None:
    handle = jobs.echo.enqueue(1)
    with pytest.raises(TaskResultDoesNotExist, match="no task of this process"):
        tasks.noop.get_result(str(handle.id))


def test_the_result_of_another_task_is_refused() -> None:
    result = tasks.echo.enqueue(1)
    with pytest.raises(TaskResultMismatch):
        tasks.noop.get_result(result.id)


@pytest.mark.skipif((6, 0) <= django.VERSION < (6, 1), reason="tasks of Django 6.0 cannot be pickled")
@pytest.mark.skipif(django.VERSION < (6, 0), reason="nor those of django-tasks")
def test_results_can_be_pickled() -> None:
    result = tasks.noop.enqueue(1)
    assert pickle.loads(pickle.dumps(result)) == result


def test_another_alias_of_the_backend_is_kept() -> None:
    two = {"BACKEND": BACKEND, "QUEUES": []}
    with override_settings(TASKS={"default": two, "second": two}):
        result = tasks.noop.using(backend="second").enqueue()
        assert result.backend == "second"
        assert task_backends["default"].get_result(result.id).backend == "second"
        assert task_backends["default"].get_result(result.id).task.backend == "second"


# -- running -----------------------------------------------------------------------------


def test_a_context_knows_the_result() -> None:
    result = run(tasks.result_id, prefix="r")
    assert result.return_value == f"r{result.id}"
    assert run(tasks.attempt).return_value == 1


def test_a_context_leads_to_the_job() -> None:
    result = run(tasks.durable, 21)
    assert result.return_value == 42
    [handle] = _handles(result)
    assert [event.payload for event in handle.events()] == [{"at": 21}]
    assert [step.name for step in handle.steps() if not step.is_reserved] == ["double"]
    assert result.attempts == 1


def test_a_coroutine_can_end_its_job() -> None:
    result = run(tasks.gives_up)
    assert result.status == TaskResultStatus.FAILED
    [error] = result.errors
    assert error.exception_class is JobFailed
    assert error.traceback == "no use"


def test_arguments_that_do_not_fit_fail_the_task(once: None) -> None:
    result = run(tasks.echo, colour="red")
    [error] = result.errors
    assert error.exception_class is TypeError
    assert "colour" in error.traceback


def test_a_row_without_arguments_runs() -> None:
    handle = client.enqueue_job("tests.app.tasks.noop")
    drain(raise_failures=True)
    result = tasks.noop.get_result(str(handle.id))
    assert (result.status, result.args, result.kwargs) == (TaskResultStatus.SUCCESSFUL, [], {})


def test_a_module_that_was_imported_again_has_its_new_code_run() -> None:
    task(function)
    again = type(function)(replacement.__code__, globals())
    again.__module__, again.__qualname__ = function.__module__, function.__qualname__
    assert run(task(again), 1).return_value == "new code"


# -- signals and logs -----------------------------------------------------------------------


def test_signals_of_a_task_that_succeeds(sent: list[Any]) -> None:
    result = tasks.echo.enqueue(3)
    [(name, sender, told, status)] = sent
    assert (name, sender, status) == ("enqueued", BelayBackend, TaskResultStatus.READY)
    assert told is result
    drain()
    (_, started, finished) = sent
    assert (started[0], started[1], started[3]) == ("started", BelayBackend, TaskResultStatus.RUNNING)
    assert (finished[0], finished[1], finished[3]) == ("finished", BelayBackend, TaskResultStatus.SUCCESSFUL)
    assert finished[2].id == result.id
    assert finished[2].return_value == 3
    assert finished[2].finished_at is not None
    assert len(finished[2].worker_ids) == 1


def test_signals_of_a_task_that_fails(once: None, sent: list[Any]) -> None:
    tasks.fails.enqueue("bad luck")
    drain()
    name, _, told, status = sent[-1]
    assert (name, status) == ("finished", TaskResultStatus.FAILED)
    [error] = told.errors
    assert error.exception_class is ValueError
    assert "bad luck" in error.traceback


def test_signals_of_a_task_that_is_tried_again(sent: list[Any]) -> None:
    tasks.attempt.enqueue(1)
    drain(with_scheduled=True)
    assert [name for name, *_ in sent] == ["enqueued", "started", "started", "finished"]
    assert sent[-1][2].attempts == 2
    assert "unknown" not in sent[-1][2].worker_ids
    assert len(sent[-1][2].errors) == 1


def test_signals_of_a_task_whose_value_cannot_be_stored(sent: list[Any]) -> None:
    tasks.complex_value.enqueue()
    drain()
    name, _, told, status = sent[-1]
    assert (name, status) == ("finished", TaskResultStatus.FAILED)
    with pytest.raises(ValueError, match="Task failed"):
        _ = told.return_value


def test_no_signal_for_jobs_that_are_no_tasks(sent: list[Any]) -> None:
    tasks.noop.enqueue()
    drain()
    sent.clear()
    jobs.plain.enqueue(1)
    drain()
    assert sent == []


def test_inline_the_signals_keep_their_order(sent: list[Any]) -> None:
    with run_inline():
        tasks.noop.enqueue()
    assert [name for name, *_ in sent] == ["enqueued", "started", "finished"]


def test_djangos_log_has_the_failure_with_its_exception(once: None, caplog: pytest.LogCaptureFixture) -> None:
    name = "django.tasks" if django.VERSION >= (6, 0) else "django_tasks"
    with caplog.at_level(logging.DEBUG, logger=name):
        tasks.fails.enqueue("bad luck")
        drain()
    records = [record for record in caplog.records if record.name == name]
    assert [record.levelname for record in records] == ["DEBUG", "INFO", "ERROR"]
    assert records[-1].exc_info is not None
    assert str(records[-1].exc_info[1]) == "bad luck"


def test_an_alias_that_the_worker_does_not_know(sent: list[Any]) -> None:
    two = {"BACKEND": BACKEND, "QUEUES": []}
    with override_settings(TASKS={"default": two, "gone": two}):
        tasks.noop.using(backend="gone").enqueue()
    drain(raise_failures=True)
    assert [(name, sender) for name, sender, *_ in sent[1:]] == [
        ("started", BelayBackend),
        ("finished", BelayBackend),
    ]


def test_a_task_of_another_class_is_taken() -> None:
    dummy = "django.tasks" if django.VERSION >= (6, 0) else "django_tasks"
    dummy += ".backends.dummy.DummyBackend"
    with override_settings(TASKS={"default": {"BACKEND": dummy}, "belay": {"BACKEND": BACKEND}}):
        foreign = Task(
            func=tasks.echo.func, priority=0, backend="belay", queue_name="default", run_after=None
        )
        result = foreign.enqueue(4)
        drain()
        result.refresh()
    assert result.return_value == 4


@pytest.mark.postgres
@pytest.mark.django_db
@pytest.mark.parametrize("spoil", ["errors = '7'", "state = 'resting'"])
def test_a_result_is_read_from_a_row_that_another_sdk_spoiled(spoil: str) -> None:
    result = tasks.noop.enqueue()
    with connection.cursor() as cursor:
        cursor.execute(f"UPDATE belay_jobs SET {spoil} WHERE id = %s", [result.id])
    found = tasks.noop.get_result(result.id)
    assert (found.status, found.errors) == (TaskResultStatus.READY, [])
