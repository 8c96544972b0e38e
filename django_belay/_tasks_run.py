"""Tasks of django.tasks as jobs: what the registry holds of them, and how they run.

A task is known once its ``@task`` has been executed. Nothing is imported by a name that a
row holds.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from traceback import format_exception
from typing import Any

from django_belay import conf
from django_belay._tasks_compat import (
    AnyResult,
    AnyTask,
    BaseTaskBackend,
    TaskContext,
    TaskError,
    normalize_json,
    task_backends,
    task_finished,
    task_started,
)
from django_belay._tasks_result import (
    ATTEMPT_STEP,
    amend,
    error_of,
    named_error,
    result_of,
    status_of,
    worker_id,
)
from django_belay.contract import envelope
from django_belay.contract.envelope import EnvelopeError
from django_belay.contract.inputs import InputCodec
from django_belay.contract.job import Job, Step
from django_belay.contract.state import State, is_terminal
from django_belay.engine.context import JobContext
from django_belay.exceptions import BudgetStop, Cancel, Fail, StorageError
from django_belay.registry import JobDefinition, JobOptions, registry
from django_belay.signals import job_finished
from django_belay.storage.base import NewStep

_tasks: dict[str, AnyTask] = {}
_thread = threading.local()


@dataclass(frozen=True, slots=True, kw_only=True)
class BelayTaskContext(TaskContext):  # type: ignore[type-arg, misc]  # stubs: generic, not frozen
    """Django's context of a task, and the job's own: ``context.job.step(…)``, ``context.job.emit(…)``."""

    job: JobContext


class UnstorableResult(EnvelopeError, TypeError):
    """A task returned what JSON cannot carry; another attempt would, too."""


def register(task: AnyTask, options: JobOptions) -> JobDefinition:
    """The definition of a task's function under its dotted path; the first task of a function makes it.

    Raises:
        ConfigurationError: The path is the kind of another job.
    """
    path = task.module_path
    known = _tasks.get(path)
    if known is None or known.func is not task.func:
        function = _function_of(task)
        registry.register(
            JobDefinition(
                kind=path, function=function, codec=InputCodec.for_function(function), options=options
            )
        )
        _tasks[path] = task
    return registry.get(path)


def find_task(kind: str) -> AnyTask | None:
    """The task that was registered under a kind."""
    return _tasks.get(kind)


def _function_of(task: AnyTask) -> Callable[..., Any]:
    def run_task(ctx, args=(), kwargs=None):  # type: ignore[no-untyped-def]  # its signature is the input's form
        return _run(task, ctx, args, kwargs or {})

    # Not functools.wraps: the input's form would be taken from the task's function.
    run_task.__module__ = task.func.__module__
    run_task.__name__ = task.func.__name__
    run_task.__qualname__ = task.func.__qualname__
    run_task.__doc__ = task.func.__doc__
    run_task.task = task  # type: ignore[attr-defined]
    return run_task


# -- in a worker -------------------------------------------------------------------


def _run(task: AnyTask, ctx: JobContext, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    result = _running_result(task, ctx)
    _thread.result = result
    task_started.send_robust(sender=type(_backend(result.backend)), task_result=result)
    leading = (BelayTaskContext(task_result=result, job=ctx),) if task.takes_context else ()
    value = task.call(*leading, *args, **kwargs)  # runs a coroutine to its end
    try:
        returned = normalize_json(value)
    except (TypeError, ValueError) as error:
        raise UnstorableResult(f"the task returned what JSON cannot carry: {error}") from error
    amend(result, _return_value=returned)
    return returned


def _running_result(task: AnyTask, ctx: JobContext) -> AnyResult:
    with ctx._run.engine():
        steps = _note_attempt(ctx)
    return result_of(ctx.job, task, steps=steps)


def _note_attempt(ctx: JobContext) -> list[Step]:
    """Journal which worker has this attempt; the journal, where there were others before."""
    storage = ctx._services.storage
    now = ctx._services.clock.now()
    name = f"{ATTEMPT_STEP}{ctx.attempt}"
    value = envelope.encode({"worker": worker_id(ctx.job.leased_by or "")})
    try:
        storage.put_step(ctx.id, NewStep(name=name, value=value), now=now)
        return storage.get_steps(ctx.id) if ctx.attempt > 1 else []
    except StorageError as error:
        ctx.log.warning("its attempt is not noted, and will have no worker id: %s", error)
        return []


# -- ends ---------------------------------------------------------------------------


def _job_finished(sender: str, *, job: Job, state: State, **_: Any) -> None:
    """Send ``task_finished`` for a job that has ended; one that will be tried again has not."""
    result: AnyResult | None = getattr(_thread, "result", None)
    _thread.result = None
    task = find_task(sender)
    if task is None or not is_terminal(state):
        return
    if result is None or result.id != str(job.id):
        result = result_of(job, task)  # its arguments never reached the task
    if error := _error_of(sys.exception()):
        result.errors.append(error)
    amend(result, status=status_of(state), finished_at=conf.clock().now())
    task_finished.send_robust(sender=type(_backend(result.backend)), task_result=result)


def _error_of(error: BaseException | None) -> TaskError | None:
    match error:
        case None:
            return None
        case Cancel(reason=reason):
            return named_error("JobCancelled", str(reason))
        case Fail(reason=reason):
            return named_error("JobFailed", str(reason))
        case BudgetStop(detail=detail):
            return named_error("BudgetExceeded", str(detail))
    kind = type(error)
    return error_of(f"{kind.__module__}.{kind.__qualname__}", "".join(format_exception(error)))


def _backend(alias: str) -> BaseTaskBackend:
    """The backend that a task was enqueued through; the worker's settings may know it no more."""
    from django_belay.tasks_backend import BelayBackend

    try:
        backend = task_backends[alias]
    except Exception:  # an alias that is gone, in each version's own exception
        return BelayBackend(alias, {})
    return backend


job_finished.connect(_job_finished, dispatch_uid="django_belay.tasks")
