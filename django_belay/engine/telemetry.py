"""What the engine tells others: log records with facts, and hooks for the edge.

The engine knows no Django, so connection hygiene and Django's signals come in as
:class:`Hooks`. A hook that raises is logged and changes nothing else.
"""

from __future__ import annotations

import contextlib
import logging
import traceback
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from django_belay.contract.job import Job, NewJob
from django_belay.contract.outcome import (
    Awaiting,
    Cancelled,
    Failed,
    Outcome,
    Retried,
    Snoozed,
    Succeeded,
)

if TYPE_CHECKING:
    from django_belay.engine.context import JobContext
    from django_belay.storage.base import Inserted


def _engine_logger(name: str) -> logging.Logger:
    """A logger that no broken filter or handler of a project can make raise into a loop or a job's end."""
    logger = logging.getLogger(name)
    logger.handle = partial(_handle, logger.handle)  # type: ignore[method-assign]
    return logger


def _handle(handle: Callable[[logging.LogRecord], None], record: logging.LogRecord) -> None:
    try:
        handle(record)
    except Exception:
        with contextlib.suppress(Exception):  # standard error may be closed or gone
            traceback.print_exc()


worker_log = _engine_logger("django_belay.worker")
lease_log = _engine_logger("django_belay.lease")
sweeper_log = _engine_logger("django_belay.sweeper")
cron_log = _engine_logger("django_belay.cron")
notify_log = _engine_logger("django_belay.notify")
job_log = _engine_logger("django_belay.job")

_OUTCOME_NAMES: dict[type[Any], str] = {
    Succeeded: "succeeded",
    Retried: "retry",
    Failed: "failed",
    Cancelled: "cancelled",
    Snoozed: "snooze",
    Awaiting: "await",
}


@dataclass(slots=True, kw_only=True, frozen=True)
class Hooks:
    """What happens around a job outside the engine.

    ``before_job`` and ``after_job`` run in the thread of the job, also after it raised;
    ``thread_ended`` runs as the last thing of a thread that ran jobs. ``job_finished``
    gets ``None`` as outcome when the run lost its lease. ``around_async`` is entered in the
    task of an async job, around its code. ``jobs_enqueued`` is told of the rows of a spawn and
    the answers for them.
    """

    before_job: Callable[[], None] | None = None
    after_job: Callable[[], None] | None = None
    thread_ended: Callable[[], None] | None = None
    job_started: Callable[[JobContext], None] | None = None
    job_finished: Callable[[JobContext, Outcome | None, float], None] | None = None
    lease_lost: Callable[[Job], None] | None = None
    jobs_enqueued: Callable[[Sequence[NewJob], Sequence[Inserted]], None] | None = None
    around_async: Callable[[], AbstractAsyncContextManager[None]] | None = None


def call_hook(hook: Callable[..., None] | None, *args: Any) -> None:
    """Run a hook; what it raises is logged once and goes no further."""
    if hook is None:
        return
    try:
        hook(*args)
    except BaseException:  # a receiver may exit; the job it looked at has its own end
        worker_log.exception("a hook failed: %r", hook)


def outcome_name(outcome: Outcome | None) -> str:
    """The contract's word for an outcome (§7), ``lost`` for a run that writes none."""
    return "lost" if outcome is None else _OUTCOME_NAMES[type(outcome)]


def job_facts(job: Job, outcome: Outcome | None = None, duration_s: float | None = None) -> dict[str, Any]:
    """The ``extra`` of a job's log records."""
    facts: dict[str, Any] = {
        "belay_job_id": job.id,
        "belay_kind": job.kind,
        "belay_queue": job.queue,
        "belay_attempt": job.attempt,
    }
    if duration_s is not None:
        facts["belay_outcome"] = outcome_name(outcome)
        facts["belay_duration_s"] = duration_s
    return facts
