"""Django's side of a job's run: connection hygiene and signals."""

from __future__ import annotations

from django.db import connections

from django_belay import signals
from django_belay.contract.job import Job
from django_belay.contract.outcome import Outcome, apply_outcome
from django_belay.engine.clock import Clock
from django_belay.engine.context import JobContext
from django_belay.engine.telemetry import Hooks, outcome_name


def refresh_connections() -> None:
    """What ``close_old_connections`` and ``reset_queries`` do, in one pass over this thread's connections.

    Without it a connection that the server has closed fails every later job of its
    thread, and the query log grows under ``DEBUG``.
    """
    for connection in connections.all(initialized_only=True):
        connection.queries_log.clear()
        connection.close_if_unusable_or_obsolete()


def worker_hooks(clock: Clock) -> Hooks:
    """The hooks of a process that runs jobs."""

    def started(context: JobContext) -> None:
        if signals.job_started.receivers:
            signals.job_started.send_robust(sender=context.kind, job=context.job)

    def finished(context: JobContext, outcome: Outcome | None, duration_s: float) -> None:
        if not signals.job_finished.receivers:
            return
        state = (
            "running"  # under another lease; this run writes nothing
            if outcome is None
            else apply_outcome(outcome, now=clock.now(), cancel_requested=False).state
        )
        signals.job_finished.send_robust(
            sender=context.kind,
            job=context.job,
            state=state,
            outcome=outcome_name(outcome),
            duration_s=duration_s,
        )

    return Hooks(
        before_job=refresh_connections,
        after_job=refresh_connections,
        thread_ended=connections.close_all,
        job_started=started,
        job_finished=finished,
        lease_lost=_lease_lost,
    )


def _lease_lost(job: Job) -> None:
    signals.lease_lost.send_robust(sender=job.kind, job=job)
