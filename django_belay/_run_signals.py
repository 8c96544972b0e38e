"""Django's signals of a run, as hooks of the engine: the worker and ``drain()`` send the same ones."""

from __future__ import annotations

from django_belay import signals
from django_belay._enqueue import announce
from django_belay.contract.job import Job
from django_belay.contract.outcome import Outcome, apply_outcome
from django_belay.engine.clock import Clock
from django_belay.engine.context import JobContext
from django_belay.engine.telemetry import Hooks, outcome_name


def signal_hooks(clock: Clock) -> Hooks:
    """Hooks that send ``job_started``, ``job_finished``, ``lease_lost``, and ``job_enqueued`` of children."""

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

    return Hooks(job_started=_started, job_finished=finished, lease_lost=_lease_lost, jobs_enqueued=announce)


def _started(context: JobContext) -> None:
    if signals.job_started.receivers:
        signals.job_started.send_robust(sender=context.kind, job=context.job)


def _lease_lost(job: Job) -> None:
    signals.lease_lost.send_robust(sender=job.kind, job=job)
