"""Executes one claimed job in the calling thread and says how it ended.

Knows neither threads nor processes: the worker calls it from its pool, a test from
its own thread.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextvars import Context
from datetime import datetime, timedelta
from typing import Any

from asgiref.sync import async_to_sync

from django_belay.contract import envelope
from django_belay.contract.backoff import unknown_kind_delay
from django_belay.contract.encryption import is_encrypted, plain
from django_belay.contract.erasure import refuse_erased
from django_belay.contract.error_entry import clean_text, named_entry, told
from django_belay.contract.job import Job, Lease, NewJob
from django_belay.contract.outcome import (
    CANCEL_REQUESTED,
    Cancelled,
    Failed,
    Outcome,
    Retried,
    Snoozed,
    Succeeded,
)
from django_belay.engine.async_context import AsyncJobContext, call_sync
from django_belay.engine.async_run import AsyncRun
from django_belay.engine.chunk_runner import ChunkRunner
from django_belay.engine.context import JobContext
from django_belay.engine.gather import ChunkRun
from django_belay.engine.isolated_run import IsolatedRun
from django_belay.engine.middleware import with_middleware
from django_belay.engine.run import Run
from django_belay.engine.services import Services
from django_belay.engine.telemetry import call_hook, job_facts, lease_log, outcome_name, worker_log
from django_belay.engine.verdict import awaiting, describe, judge
from django_belay.exceptions import BelayError, Interrupt, Park
from django_belay.registry import JobDefinition
from django_belay.storage.base import Ack

EXPIRED = "expired"


class Runner:
    """Runs jobs with the middleware around them."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._chunks = ChunkRunner(self, services)
        self._call = with_middleware(self._call_function, services.options.middleware)

    def prepare(self, job: Job, *, claimed_at: datetime) -> Run | Ack:
        """A run of a claimed job, or its ack where no user code is to be started.

        That is: a kind this process does not know (put back, rule 4), a cancelled job
        (rule 22), one that expired before its first run.
        """
        definition = self._services.registry.find(job.kind)
        if definition is None:
            return self._put_back(job, now=claimed_at)
        if job.cancel_requested:
            return Ack(lease=Lease.of(job), outcome=Cancelled(reason=CANCEL_REQUESTED))
        run = _run_type(definition)(job, definition, claimed_at=claimed_at)
        if run.is_first and _has_expired(job, definition.options.expires, claimed_at):
            return Ack(lease=run.lease, outcome=Cancelled(reason=EXPIRED))
        return run

    def execute_all(self, run: Run) -> list[Ack]:
        """Run a job, or a call over many; the acks of those whose lease still holds."""
        if isinstance(run, ChunkRun):
            return self._chunks.execute(run)
        ack = self.execute(run)
        return [] if ack is None else [ack]

    def execute(self, run: Run) -> Ack | None:
        """Run the job; ``None`` when the run lost its lease and must write nothing."""
        if run.definition.options.chunk is not None:
            return next(iter(self._chunks.execute(ChunkRun([run]))), None)
        hooks = self._services.hooks
        context = JobContext(run, self._services)
        call_hook(hooks.before_job)
        try:
            early = self.before(run, context)
            if early is not None:
                return early
            return self.conclude(
                run,
                context,
                lambda: self.perform(run, context),
                started=time.perf_counter(),
            )
        finally:
            call_hook(hooks.after_job)

    def perform(self, run: Run, context: JobContext) -> Any:
        """Call the job's code in this thread, in a context of its own; what it returns or raises."""
        return Context().run(self._begin, run, context)

    def before(self, run: Run, context: JobContext) -> Ack | None:
        """What comes before user code; an ack where that is not to start (rule 32)."""
        if (park := self._park_again(run, context)) is not None:
            run.end()
            return Ack(lease=run.lease, outcome=awaiting(park))
        call_hook(self._services.hooks.job_started, context)
        return None

    def conclude(
        self, run: Run, context: JobContext, perform: Callable[[], Any], *, started: float
    ) -> Ack | None:
        """The ack of what ``perform`` gives or raises; ``None`` when the lease was lost."""
        outcome = self._outcome(run, context, perform, started)
        if outcome is None:
            return None
        follow_ups = self.follow_ups(run, outcome) if type(outcome) is Failed else ()
        return Ack(lease=run.lease, outcome=outcome, enqueue=follow_ups)

    def _park_again(self, run: Run, context: JobContext) -> Park | None:
        """Rule 32. What goes wrong here meets the job itself at its first step."""
        try:
            return context.park_again()
        except (BelayError, Interrupt):
            return None

    def _outcome(
        self, run: Run, context: JobContext, perform: Callable[[], Any], started: float
    ) -> Outcome | None:
        outcome: Outcome | None
        try:
            result = perform()
            run.end()
            outcome = Succeeded(None if result is None else envelope.encode(result))
            self.finished(context, outcome, started)
        except BaseException as error:
            run.end()
            outcome = self.judge(run, error)
            # Within the handler: receivers may look at the exception being handled.
            self.finished(context, outcome, started, error)
        return outcome

    def _begin(self, run: Run, context: JobContext) -> Any:
        try:
            run.begin()
            return self._call(context)
        finally:
            run.end()
            run.end_fork()

    def _call_function(self, context: JobContext) -> Any:
        definition = context._run.definition
        kwargs = definition.codec.decode(self.plain_input(context.job))
        arguments = (context,) if definition.takes_context else ()
        if definition.is_async:
            # Without a loop of the process, as in a project's tests: ORM calls come back to this thread.
            awaited = (AsyncJobContext(context, call_sync), *arguments[1:])[: len(arguments)]
            return async_to_sync(definition.function)(*awaited, **kwargs)
        return definition.function(*arguments, **kwargs)

    def plain_input(self, job: Job) -> Any:
        """The input in the clear: it exists in this process alone, and only while the job runs."""
        refuse_erased(job.id, job.input)
        return plain(job.input, self._services.options.encryption_keys)

    # -- ends ------------------------------------------------------------------------

    def judge(self, run: Run, error: BaseException) -> Outcome | None:
        now = self._services.clock.now()
        try:
            return judge(
                error,
                run.job,
                run.definition.options,
                now=now,
                default_backoff=self._services.options.backoff,
            )
        except BaseException as failure:
            worker_log.exception("job %s: its failure could not be judged", run.job.id)
            return Failed(error=describe(failure, run.job, now=now))

    def finished(
        self,
        context: JobContext,
        outcome: Outcome | None,
        started: float,
        error: BaseException | None = None,
    ) -> None:
        duration_s = time.perf_counter() - started
        _log_end(context.job, outcome, duration_s, error)
        hooks = self._services.hooks
        call_hook(hooks.job_finished, context, outcome, duration_s)
        if outcome is None:
            call_hook(hooks.lease_lost, context.job)

    def _put_back(self, job: Job, *, now: datetime) -> Ack:
        delay = unknown_kind_delay(now - job.inserted_at)
        worker_log.warning(
            "job %s has the kind %r, which this worker does not know; put back for %.0f s",
            job.id,
            job.kind,
            delay.total_seconds(),
            extra=job_facts(job),
        )
        return Ack(lease=Lease.of(job), outcome=Snoozed(until=now + delay))

    def follow_ups(self, run: Run, outcome: Failed) -> tuple[NewJob, ...]:
        kind = run.definition.options.on_failure
        if kind is None:
            return ()
        try:
            return (follow_up(self._services, run.job.id, run.job.kind, kind, outcome.error),)
        except BelayError as error:
            worker_log.error(
                "job %s failed and its on_failure job cannot be made: %s",
                run.job.id,
                error,
                extra=job_facts(run.job),
            )
            return ()


def follow_up(services: Services, job_id: int, kind: str, on_failure: str, error: Any) -> NewJob:
    """The ``on_failure`` job of a failed one; its key makes it one however often it is asked for.

    It gets as input as many of ``job_id``, ``kind`` and ``error`` as its signature takes.
    """
    definition = services.registry.get(on_failure)
    facts = {"job_id": job_id, "kind": kind, "error": str(error.get("error", ""))}
    parameters = definition.codec.parameters
    options = definition.options
    return NewJob(
        kind=definition.kind,
        queue=options.queue,
        input={name: value for name, value in facts.items() if name in parameters},
        meta=dict(options.meta),
        priority=options.priority,
        max_attempts=options.max_attempts or services.options.max_attempts,
        unique_key=f"$on_failure:{job_id}:{definition.kind}",
        unique_mode="incomplete",
    )


def unreadable(job: Job, error: BaseException, *, now: datetime) -> Ack:
    """The ack of a claimed row that could not even be prepared."""
    entry = named_entry(f"the job could not be started: {type(error).__name__}", attempt=job.attempt, at=now)
    return Ack(lease=Lease.of(job), outcome=Failed(error={**entry, **describe(error, job, now=now)}))


def _run_type(definition: JobDefinition) -> type[Run]:
    if definition.options.is_isolated:
        return IsolatedRun
    return AsyncRun if definition.is_async else Run


def _has_expired(job: Job, expires_s: float | None, now: datetime) -> bool:
    if expires_s is None:
        return False
    due = job.ready_at or job.inserted_at
    return now - max(due, job.inserted_at) > timedelta(seconds=expires_s)


def _log_end(job: Job, outcome: Outcome | None, duration_s: float, error: BaseException | None) -> None:
    if outcome is None:
        lease_log.warning(
            "job %s (%s) lost its lease after %.3f s; another process has it",
            job.id,
            job.kind,
            duration_s,
            extra=job_facts(job, outcome, duration_s),
        )
    elif type(outcome) is Failed:
        is_secret = is_encrypted(job.input)
        worker_log.error(
            "job %s (%s) failed on attempt %s after %.3f s%s",
            job.id,
            job.kind,
            job.attempt,
            duration_s,
            f": {_first_line(job, outcome)}; its input is encrypted, so its errors say more"
            if is_secret
            else "",
            exc_info=None if is_secret else error,
            extra=job_facts(job, outcome, duration_s),
        )
    elif type(outcome) is Retried:
        worker_log.warning(
            "job %s (%s) failed on attempt %s of %s and runs again at %s: %s",
            job.id,
            job.kind,
            job.attempt,
            job.max_attempts,
            f"{outcome.ready_at:%Y-%m-%d %H:%M:%S}Z",
            _first_line(job, outcome),
            extra=job_facts(job, outcome, duration_s),
        )
    elif worker_log.isEnabledFor(10):
        worker_log.debug(
            "job %s (%s) ended: %s after %.3f s",
            job.id,
            job.kind,
            outcome_name(outcome),
            duration_s,
            extra=job_facts(job, outcome, duration_s),
        )


def _first_line(job: Job, outcome: Retried | Failed) -> str:
    """What an attempt died of, in one short line; of an encrypted job the type alone."""
    if is_encrypted(job.input):
        return str(outcome.error.get("type", "an error"))
    first, *_ = told(outcome.error).splitlines() or ["an error"]
    return clean_text(first, max_bytes=300)
