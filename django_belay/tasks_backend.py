"""The backend of ``django.tasks``: tasks are jobs.

``TASKS = {"default": {"BACKEND": "django_belay.tasks_backend.BelayBackend"}}``. Imports no
model: ``@task`` builds the backend when the decorated module is imported.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from functools import cache
from typing import Any

from django.conf import settings
from django.core import checks
from django.utils import timezone

from django_belay import _enqueue, client, conf
from django_belay._options import merge
from django_belay._tasks_compat import (
    AnyResult,
    AnyTask,
    BaseTaskBackend,
    InvalidTask,
    Task,
    TaskResult,
    TaskResultDoesNotExist,
    TaskResultStatus,
    normalize_json,
    task_enqueued,
)
from django_belay._tasks_result import META_BACKEND, flip_priority, result_of
from django_belay._tasks_run import BelayTaskContext, UnstorableResult, find_task, register
from django_belay.contract.job import JSON
from django_belay.contract.money import Budget
from django_belay.db import storage_for_client
from django_belay.exceptions import ConfigurationError, JobNotFound
from django_belay.registry import BackoffOption, JobOptions, Unique, registry
from django_belay.storage.base import Inserted

__all__ = ["BelayBackend", "BelayTask", "BelayTaskContext", "UnstorableResult"]

#: Options of ``@task`` and ``.using()`` that travel with each job.
ROW_OPTIONS = ("max_attempts", "unique", "budget", "meta", "partition_key", "encrypted")

#: Options of ``@task`` that are read from the code when the job runs.
CODE_OPTIONS = ("backoff", "retry_on", "give_up_on", "timeout", "expires", "on_failure")

#: What ``TASKS[alias]["OPTIONS"]`` may hold: defaults for every task of the backend.
BACKEND_OPTIONS = ("max_attempts", "backoff", "timeout", "expires", "encrypted")

_OF_DJANGO = ("priority", "queue_name", "run_after", "backend")
_ID = re.compile(r"[1-9][0-9]{0,18}")


@dataclass(frozen=True, slots=True, kw_only=True)
class BelayTask(Task):  # type: ignore[type-arg]  # generic in stubs alone
    """A task with the options of a job; ``None`` is "as the backend's options or ``BELAY`` say"."""

    # Left out of the hash, since some of them have none; still compared.
    max_attempts: int | None = field(default=None, hash=False)
    unique: str | Unique | None = field(default=None, hash=False)
    budget: Budget | None = field(default=None, hash=False)
    meta: Mapping[str, JSON] | None = field(default=None, hash=False)
    partition_key: str | None = field(default=None, hash=False)
    encrypted: bool | None = field(default=None, hash=False)
    backoff: BackoffOption | None = field(default=None, hash=False)
    retry_on: type[BaseException] | Sequence[type[BaseException]] | None = field(default=None, hash=False)
    give_up_on: type[BaseException] | Sequence[type[BaseException]] | None = field(default=None, hash=False)
    timeout: float | timedelta | None = field(default=None, hash=False)
    expires: float | timedelta | None = field(default=None, hash=False)
    on_failure: str | None = field(default=None, hash=False)

    def using(self, **options: Any) -> BelayTask:
        """The same task with other options: Django's, and those that travel with the job."""
        for name in options:
            if name not in (*_OF_DJANGO, *ROW_OPTIONS):
                why = "is read from the code: set it in @task" if name in CODE_OPTIONS else "is not known"
                raise TypeError(f"{self.module_path}.using(): {name!r} {why}")
        return replace(self, **{name: value for name, value in options.items() if value is not None})


class BelayBackend(BaseTaskBackend):
    """Tasks of ``django.tasks`` as jobs in the storage of ``BELAY``.

    Enqueueing joins the caller's transaction. A task's dotted path is its job's kind; its
    arguments are ``{"args": […], "kwargs": {…}}``.
    """

    task_class = BelayTask
    supports_defer = True
    supports_async_task = True
    supports_get_result = True
    supports_priority = True

    def validate_task(self, task: AnyTask) -> None:
        """Refuse a task that could not run, and make its function known to workers.

        Raises:
            InvalidTask: Says what does not fit.
        """
        super().validate_task(task)
        try:
            register(task, self._options(task))
        except ConfigurationError as error:
            raise InvalidTask(str(error)) from error

    def enqueue(  # type: ignore[override]  # the stub has parameters that no call of it can bind
        self, task: AnyTask, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> AnyResult:
        """Enqueue in the caller's transaction: a rollback removes it, workers see it after commit.

        Returns:
            The result; of the job that is there already where ``unique`` has found one.

        Raises:
            InvalidTask: The task does not fit this backend.
            TypeError, InvalidInput, PayloadTooLarge: The arguments cannot be stored.
        """
        self.validate_task(task)
        given: dict[str, Any] = {"args": normalize_json(list(args)), "kwargs": normalize_json(dict(kwargs))}
        now = conf.clock().now()
        options = self._options(task)
        options = replace(options, meta={**options.meta, META_BACKEND: self.alias})
        job = _enqueue.CallMaker(registry.get(task.module_path), options, now).make((), given)

        @cache  # the one that the signal has is the one returned
        def result(job_id: int) -> AnyResult:
            return TaskResult(
                task=task,
                id=str(job_id),
                status=TaskResultStatus.READY,
                enqueued_at=now,
                started_at=None,
                finished_at=None,
                last_attempted_at=None,
                **given,
                backend=self.alias,
                errors=[],
                worker_ids=[],
            )

        def announce(inserted: Sequence[Inserted]) -> None:
            if not inserted[0].duplicate:
                task_enqueued.send(sender=type(self), task_result=result(inserted[0].job_id))
            _enqueue.announce([job], inserted)

        (answer,) = storage_for_client().insert([job], now=now, then=announce).answers
        return self.get_result(str(answer.job_id)) if answer.duplicate else result(answer.job_id)

    def get_result(self, result_id: str) -> AnyResult:
        """The result of a task as it stands now.

        Raises:
            TaskResultDoesNotExist: No job has this id, or it is no task that this process knows.
        """
        row = _find_row(result_id)
        task = find_task(row.kind)
        if task is None:
            raise TaskResultDoesNotExist(
                f"job {row.id} is of the kind {row.kind!r}, which is no task of this process"
            )
        return result_of(row, task, steps=client.get_steps(row.id) if row.attempt else ())

    def check(self, **kwargs: Any) -> list[checks.CheckMessage]:
        """What is wrong with ``TASKS[alias]``."""
        return [*super().check(**kwargs), *self._check_options(), *self._check_queues()]

    # -- options ---------------------------------------------------------------------

    def _options(self, task: AnyTask) -> JobOptions:
        """A task's options over the backend's, as a job's."""
        given = {name: getattr(task, name, None) for name in (*ROW_OPTIONS, *CODE_OPTIONS)}
        given = {name: value for name, value in given.items() if value is not None}
        run_after = task.run_after
        if run_after is not None and timezone.is_naive(run_after):
            run_after = timezone.make_aware(run_after)  # USE_TZ is off
        given |= {
            "queue": task.queue_name,
            "priority": flip_priority(int(task.priority)),
            "run_after": run_after,
        }
        return merge(
            self._defaults(), given, where=f"task {task.module_path}", allowed=(*given, *ROW_OPTIONS)
        )

    def _defaults(self) -> JobOptions:
        return merge(
            JobOptions(), self.options, where=f'TASKS["{self.alias}"]["OPTIONS"]', allowed=BACKEND_OPTIONS
        )

    def _check_options(self) -> Iterator[checks.CheckMessage]:
        try:
            self._defaults()
        except ConfigurationError as error:
            yield checks.Error(
                f"{error}.", hint=f"Known options are {', '.join(BACKEND_OPTIONS)}.", id="belay.E019"
            )

    def _check_queues(self) -> Iterator[checks.CheckMessage]:
        found, _ = conf.read(getattr(settings, "BELAY", {}))
        for queue in sorted(self.queues - set(found.queues)):
            yield checks.Warning(
                f'TASKS["{self.alias}"]["QUEUES"] has {queue!r}, which BELAY["QUEUES"] does not have.',
                hint=f'Add it to BELAY["QUEUES"], or see that a worker runs with --queue {queue}.',
                id="belay.W005",
            )


def _find_row(result_id: str) -> Any:
    if not _ID.fullmatch(str(result_id)) or int(result_id) >= 2**63:
        raise TaskResultDoesNotExist(result_id)
    try:
        return client.get_row(int(result_id))
    except JobNotFound:
        raise TaskResultDoesNotExist(result_id) from None
