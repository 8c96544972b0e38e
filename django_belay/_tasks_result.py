"""From a job's row to the ``TaskResult`` of django.tasks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from datetime import datetime
from typing import Any

from django_belay import conf
from django_belay._tasks_compat import AnyResult, AnyTask, TaskError, TaskResult, TaskResultStatus
from django_belay.contract import envelope
from django_belay.contract.encryption import plain
from django_belay.contract.job import Job, Step
from django_belay.contract.state import State

#: In ``meta``: the alias under ``TASKS`` that the task was enqueued through.
META_BACKEND = "task_backend"

#: Reserved steps that say which worker had which attempt: the row forgets it.
ATTEMPT_STEP = "$attempt:"
UNKNOWN_WORKER = "unknown"

_STATUS: Mapping[State, TaskResultStatus] = {
    "ready": TaskResultStatus.READY,
    "held": TaskResultStatus.READY,
    "awaiting": TaskResultStatus.READY,
    "paused": TaskResultStatus.READY,
    "running": TaskResultStatus.RUNNING,
    "succeeded": TaskResultStatus.SUCCESSFUL,
    "failed": TaskResultStatus.FAILED,
    "cancelled": TaskResultStatus.FAILED,
}

_ERRORS = "django_belay.exceptions"


def flip_priority(priority: int) -> int:
    """Django's priority as the contract's, and back: Django runs larger ones first, the contract smaller."""
    return -priority


def status_of(state: State) -> TaskResultStatus:
    """What Django calls a state."""
    # A state that another SDK made up has surely not ended here.
    return _STATUS.get(state, TaskResultStatus.READY)


def result_of(job: Job, task: AnyTask, *, steps: Sequence[Step] = ()) -> AnyResult:
    """The result of a row; ``steps`` are its journaled ones, for the workers it had."""
    attempts = {step.name: step for step in steps if step.name.startswith(ATTEMPT_STEP)}
    args, kwargs = arguments_of(job)
    result: AnyResult = TaskResult(
        task=_as_enqueued(task, job),
        id=str(job.id),
        status=status_of(job.state),
        enqueued_at=job.inserted_at,
        started_at=job.started_at,
        finished_at=job.finished_at,
        last_attempted_at=_last_attempt(job, attempts),
        args=args,
        kwargs=kwargs,
        backend=backend_of(job) or task.backend,
        errors=_errors(job.errors),
        worker_ids=_worker_ids(job, attempts),
    )
    if job.state == "succeeded":
        amend(result, _return_value=envelope.decode(job.result))
    return result


def amend(result: AnyResult, **changes: Any) -> None:
    """Change fields of a result, which is frozen: Django's own backends do the same."""
    for name, value in changes.items():
        object.__setattr__(result, name, value)


def arguments_of(job: Job) -> tuple[list[Any], dict[str, Any]]:
    """The task's arguments; none where the row was not written by this backend."""
    value = plain(job.input, conf.get().encryption_keys)
    if not isinstance(value, dict):
        return [], {}
    args, kwargs = value.get("args", []), value.get("kwargs", {})
    return args if isinstance(args, list) else [], kwargs if isinstance(kwargs, dict) else {}


def backend_of(job: Job) -> str | None:
    """The alias that the task was enqueued through."""
    alias = job.meta.get(META_BACKEND) if isinstance(job.meta, dict) else None
    return alias if isinstance(alias, str) else None


def worker_id(leased_by: str) -> str:
    """The process in a lease's name, without its claim round."""
    return leased_by.rpartition(":")[0] or leased_by


def error_of(path: str, text: str) -> TaskError:
    """An error in Django's form; builtins have their module in the path."""
    return TaskError(
        exception_class_path=path if "." in path else f"builtins.{path}",
        traceback=text,
    )


def named_error(name: str, text: str) -> TaskError:
    """An error that no exception of the task's stands for; ``name`` is one of this package's."""
    return error_of(f"{_ERRORS}.{name}", text)


def _as_enqueued(task: AnyTask, job: Job) -> AnyTask:
    """The task with the row's queue and priority.

    Not checked again: an operator may have moved the job to where no task may be enqueued.
    """
    changes = {
        "queue_name": job.queue,
        "priority": flip_priority(job.priority),
        "run_after": _run_after(job),
        "backend": backend_of(job) or task.backend,
    }
    copied = object.__new__(type(task))
    for one in fields(task):
        object.__setattr__(copied, one.name, changes.get(one.name, getattr(task, one.name)))
    return copied


def _run_after(job: Job) -> datetime | None:
    """What the task was enqueued with, as far as the row still tells: a retry or a snooze overwrites it."""
    is_scheduled = job.ready_at is not None and job.ready_at > job.inserted_at
    return job.ready_at if is_scheduled and job.started_at is None else None


def _last_attempt(job: Job, attempts: Mapping[str, Step]) -> datetime | None:
    step = attempts.get(f"{ATTEMPT_STEP}{job.attempt}")
    return job.started_at if step is None or step.inserted_at is None else step.inserted_at


def _worker_ids(job: Job, attempts: Mapping[str, Step]) -> list[str]:
    """One for each attempt, since Django counts attempts by them."""
    found = [_worker(attempts.get(f"{ATTEMPT_STEP}{number}")) for number in range(1, job.attempt + 1)]
    if found and job.leased_by is not None:
        found[-1] = worker_id(job.leased_by)
    return found


def _worker(step: Step | None) -> str:
    value = None if step is None else envelope.decode_or_opaque(step.value)
    worker = value.get("worker") if isinstance(value, dict) else None
    return worker if isinstance(worker, str) else UNKNOWN_WORKER


def _errors(entries: Any) -> list[TaskError]:
    return (
        list(_read_errors(entry for entry in entries if isinstance(entry, dict)))
        if isinstance(entries, list)
        else []
    )


def _read_errors(entries: Iterable[dict[str, Any]]) -> Iterable[TaskError]:
    for entry in entries:
        text = str(entry.get("error", entry.get("reason", "")))
        detail = f"{text}: {entry['detail']}" if "detail" in entry else text
        if "type" in entry:
            yield error_of(str(entry["type"]), str(entry.get("traceback", text)))
        elif "reason" in entry:
            yield named_error("JobCancelled", text)
        elif text == "lease_expired":
            yield named_error("LeaseLost", "the worker was lost: its lease expired")
        elif text == "budget_exceeded":
            yield named_error("BudgetExceeded", detail)
        elif text:
            yield named_error("JobFailed", detail)
