"""``drain()``: do in the calling process what a worker would do now."""

from __future__ import annotations

import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any

from asgiref.sync import sync_to_async

from django_belay import conf, queues
from django_belay._run_signals import signal_hooks
from django_belay.contract.job import Job
from django_belay.contract.outcome import Failed, Outcome
from django_belay.contract.state import State
from django_belay.db import storage_for_client
from django_belay.engine.child import new_incarnation
from django_belay.engine.clock import Clock
from django_belay.engine.context import JobContext
from django_belay.engine.run import Run
from django_belay.engine.runner import Runner, unreadable
from django_belay.engine.services import Services
from django_belay.engine.sweeper import Sweeper
from django_belay.engine.telemetry import call_hook, outcome_name
from django_belay.exceptions import ConfigurationError, Interrupt, JobFailed
from django_belay.queues import QueueInfo
from django_belay.registry import registry
from django_belay.storage.base import Ack, Applied, ClaimRound, Demand, JobFilter
from django_belay.testing._isolation import job_on_a_tests_connection
from django_belay.testing.clock import SimClock

#: Jobs that enqueue themselves would go on for ever.
MAX_RUNS = 10_000
_MAX_LISTED = 10_000
_READY: tuple[State, ...] = ("ready",)


@dataclass(frozen=True, slots=True, kw_only=True)
class DrainedRun:
    """One run of one job.

    Attributes:
        outcome: The contract's word: ``succeeded``, ``retry``, ``failed``, ``cancelled``,
            ``snooze``, ``await``; ``lost`` for a run that had lost its lease and wrote nothing.
        state: What the job became; ``None`` for a lost run.
        error: What the job raised, where it failed or will be tried again.
    """

    job_id: int
    kind: str
    queue: str
    attempt: int
    outcome: str
    state: State | None
    error: BaseException | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class DrainReport:
    """What ``drain()`` did: its runs, one after the other."""

    runs: tuple[DrainedRun, ...] = ()

    def __len__(self) -> int:
        return len(self.runs)

    @property
    def counts(self) -> Counter[str]:
        """Runs by outcome; an outcome that did not come counts 0."""
        return Counter(run.outcome for run in self.runs)

    @property
    def job_ids(self) -> list[int]:
        """The jobs that ran, each once, in the order of their first runs."""
        return list(dict.fromkeys(run.job_id for run in self.runs))

    @property
    def failures(self) -> list[DrainedRun]:
        """Runs that failed for good, or will be tried again."""
        return [run for run in self.runs if run.outcome in ("failed", "retry")]

    def __repr__(self) -> str:
        counted = ", ".join(f"{count} {outcome}" for outcome, count in sorted(self.counts.items()))
        failed = "; ".join(f"job {run.job_id} ({run.kind}): {run.error!r:.200}" for run in self.failures[:5])
        return f"<DrainReport: {counted or 'nothing to run'}{'; ' if failed else ''}{failed}>"


def drain(
    queue: str | None = None,
    *,
    limit: int | None = None,
    with_scheduled: bool = False,
    raise_failures: bool = False,
) -> DrainReport:
    """Run the jobs that are due, one at a time, on the caller's own connection, until none is left.

    Jobs see what the calling test has not committed, and the test sees what they did. What
    they enqueue runs too, if it is due. Expired leases are taken back and lost wake-ups
    mended, as a worker's sweeper does. Priorities, limits, rates and pauses hold; each
    queue in turn gives one job. Timeouts are not enforced: the calling thread runs the job.

    Args:
        queue: This one only; by default every queue.
        limit: Runs at most.
        with_scheduled: When nothing is due, go on to the instant at which the next scheduled
            or retried job is. A simulated clock is moved there, the real one seems to be
            for jobs in this call. The deadlines of waits move nothing.
        raise_failures: Raise what the first failing job raised, once its end is written.

    Raises:
        ConfigurationError: Called by a job.
        RuntimeError: More than 10,000 runs without a ``limit``.
    """
    with _only_once():
        return _Drain(queue, limit=limit, raise_failures=raise_failures).run(with_scheduled=with_scheduled)


async def adrain(
    queue: str | None = None,
    *,
    limit: int | None = None,
    with_scheduled: bool = False,
    raise_failures: bool = False,
) -> DrainReport:
    """As :func:`drain`."""
    return await sync_to_async(drain)(
        queue, limit=limit, with_scheduled=with_scheduled, raise_failures=raise_failures
    )


_thread = threading.local()


def is_draining() -> bool:
    """Whether this thread is inside a ``drain()``."""
    return getattr(_thread, "is_draining", False)


@contextmanager
def _only_once() -> Iterator[None]:
    if is_draining():
        raise ConfigurationError("drain() was called by a job that drain() runs; call it from the test")
    _thread.is_draining = True
    try:
        yield
    finally:
        _thread.is_draining = False


class _Drain:
    """One call of ``drain()``."""

    def __init__(self, queue: str | None, *, limit: int | None, raise_failures: bool) -> None:
        self._queue = queue
        self._limit = limit
        self._raise_failures = raise_failures
        self._clock = _ClockAhead(conf.clock())
        self._storage = storage_for_client().storage
        self._runs: list[DrainedRun] = []
        self._rounds = 0
        self._error: BaseException | None = None
        options = conf.worker_options()
        self._incarnation = new_incarnation(options.node_name)
        self._services = Services(
            storage=self._storage,
            clock=self._clock,
            registry=registry,
            # Middleware sees what it sees in a worker; the connection's guard is around it.
            options=replace(options, middleware=(_guarded, *options.middleware)),
            hooks=replace(signal_hooks(self._clock), job_finished=self._finished),
        )
        self._signals = signal_hooks(self._clock)
        self._runner = Runner(self._services)
        self._sweeper = Sweeper(self._services)

    def run(self, *, with_scheduled: bool) -> DrainReport:
        while self._has_room():
            self._sweeper.reconcile()
            if not self._run_due() and not (with_scheduled and self._go_to_next()):
                break
        return DrainReport(runs=tuple(self._runs))

    def _has_room(self) -> bool:
        if self._limit is not None:
            return len(self._runs) < self._limit
        if len(self._runs) >= MAX_RUNS:
            raise RuntimeError(
                f"drain() has run {MAX_RUNS:,} jobs and is not done; jobs that enqueue each other never are. "
                "Give limit="
            )
        return True

    # -- claiming ------------------------------------------------------------------

    def _run_due(self) -> bool:
        """Run what is due until nothing is; whether anything was."""
        runs_before = len(self._runs)
        while self._has_room():
            before = len(self._runs)
            for queue in self._served():
                if self._has_room() and (job := self._claim(queue)) is not None:
                    self._run(job)
            if len(self._runs) == before:
                break
        return len(self._runs) > runs_before

    def _served(self) -> list[QueueInfo]:
        """The queues that have jobs, as a worker would take them."""
        if self._queue is not None:
            names = {self._queue}
        else:
            names = {stats.queue for stats in self._storage.queue_stats(now=self._clock.now())}
        known = {info.name: info for info in queues.list()}
        found = [known.get(name) or QueueInfo(name=name) for name in sorted(names)]
        return [info for info in found if not _is_paused_here(info)]

    def _claim(self, queue: QueueInfo) -> Job | None:
        now = self._clock.now()
        self._rounds += 1
        round_ = ClaimRound(
            leased_by=f"{self._incarnation}:{self._rounds}",
            lease_until=now + self._services.options.lease_ttl,
        )
        demand = Demand(queue=queue.name, take=1)
        if not queue.effective.limits.is_limited:
            jobs = self._storage.claim(round_, demands=[demand], now=now).jobs
        else:
            _, most = queue.effective.limit or conf.DEFAULT_LIMIT
            jobs = self._storage.claim_limited(
                round_, demand=demand, limits=queue.effective.limits, local_limit=most, now=now
            )
        return jobs[0] if jobs else None

    # -- running -------------------------------------------------------------------

    def _run(self, job: Job) -> None:
        self._error = None
        ack = self._execute(job, self._clock.now())
        answer = None if ack is None else self._storage.ack(ack, now=self._clock.now())
        outcome = None if ack is None else ack.outcome
        self._runs.append(
            DrainedRun(
                job_id=job.id,
                kind=job.kind,
                queue=job.queue,
                attempt=job.attempt,
                outcome=outcome_name(outcome),
                state=answer.state if isinstance(answer, Applied) else None,
                error=self._error,
            )
        )
        self._raise(self._runs[-1], outcome)

    def _execute(self, job: Job, now: datetime) -> Ack | None:
        try:
            prepared = self._runner.prepare(job, claimed_at=now)
        except Exception as error:
            self._error = error
            return unreadable(job, error, now=now)
        return self._runner.execute(prepared) if isinstance(prepared, Run) else prepared

    def _finished(self, context: JobContext, outcome: Outcome | None, duration_s: float) -> None:
        error = sys.exception()
        if not isinstance(error, Interrupt):
            self._error = error
        call_hook(self._signals.job_finished, context, outcome, duration_s)

    def _raise(self, run: DrainedRun, outcome: Outcome | None) -> None:
        if run.error is not None and not isinstance(run.error, Exception):
            raise run.error  # Ctrl-C, or the end of a test such as pytest.fail()
        if not self._raise_failures or run.outcome not in ("failed", "retry"):
            return
        if run.error is not None:
            raise run.error
        entry: Any = outcome.error if isinstance(outcome, Failed) else {}
        raise JobFailed(
            f"job {run.job_id} ({run.kind}) failed: {entry.get('error')}", job_id=run.job_id, errors=[entry]
        )

    # -- time ------------------------------------------------------------------------

    def _go_to_next(self) -> bool:
        """Move to the instant at which the next job is due; whether there is one."""
        now = self._clock.now()
        scheduled = JobFilter(states=_READY, queue=self._queue)
        ready = self._storage.list_jobs(scheduled, limit=_MAX_LISTED)
        paused = {info.name for info in queues.list() if _is_paused_here(info)}
        instants = [
            job.ready_at
            for job in ready
            # One that nobody here can run is put back for ever.
            if job.ready_at is not None
            and job.ready_at > now
            and job.kind in registry
            and job.queue not in paused
        ]
        if not instants:
            return False
        self._clock.go_to(min(instants))
        return True


class _ClockAhead:
    """A clock that may run ahead of another one."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._ahead = timedelta(0)

    def now(self) -> datetime:
        return self._clock.now() + self._ahead

    def go_to(self, instant: datetime) -> None:
        if isinstance(self._clock, SimClock):
            self._clock.set(instant)
        else:
            self._ahead = instant - self._clock.now()


def _guarded(context: JobContext, call_next: Callable[[JobContext], Any]) -> Any:
    with job_on_a_tests_connection():
        return call_next(context)


def _is_paused_here(info: QueueInfo) -> bool:
    """Whether the queue is paused for every node, or for this one."""
    return info.is_paused or conf.get().node_name in info.paused_nodes
