"""Timeouts: interrupts runs that take too long, and counts those that do not stop."""

from __future__ import annotations

import heapq
import itertools
import threading
import time

from django_belay.engine.run import Run
from django_belay.engine.telemetry import job_facts, worker_log
from django_belay.exceptions import Timeout

RESEND_S = 1.0
IDLE_WAIT_S = 5.0


class Watch:
    """Looks after the deadlines of runs that have one.

    A run past its deadline gets ``Timeout`` every second until the grace is over, for a
    job may swallow one. After the grace it is stuck: its thread cannot be ended, its
    slot stays used, nothing is acknowledged for it, and its lease is not renewed.
    """

    def __init__(self, *, grace_s: float) -> None:
        self._grace_s = grace_s
        self._changed = threading.Condition()
        self._due: list[tuple[float, int, float, Run]] = []
        self._order = itertools.count()
        self._stuck: list[Run] = []

    def add(self, run: Run, timeout_s: float) -> None:
        """Watch a run that starts now."""
        deadline = time.monotonic() + timeout_s
        with self._changed:
            heapq.heappush(self._due, (deadline, next(self._order), deadline, run))
            if self._due[0][3] is run:
                self._changed.notify()

    def renew_for_s(self, timeout_s: float | None) -> float | None:
        """How long a run's lease may be renewed: its timeout plus the grace (rule 16)."""
        return None if timeout_s is None else timeout_s + self._grace_s

    @property
    def stuck(self) -> int:
        """How many threads run on past timeout and grace."""
        return len(self.stuck_runs())

    def stuck_runs(self) -> list[Run]:
        """Those runs."""
        with self._changed:
            self._stuck = [run for run in self._stuck if not run.has_ended]
            return list(self._stuck)

    def wake(self) -> None:
        with self._changed:
            self._changed.notify()

    def turn(self) -> None:
        """Handle what is due, or wait for it."""
        with self._changed:
            wait_s = self._due[0][0] - time.monotonic() if self._due else IDLE_WAIT_S
            if wait_s > 0:
                self._changed.wait(min(wait_s, IDLE_WAIT_S))
                return
            _, _, deadline, run = heapq.heappop(self._due)
        self._overdue(run, deadline)

    def _overdue(self, run: Run, deadline: float) -> None:
        now = time.monotonic()
        if now > deadline + self._grace_s:
            self._give_up(run)
        elif run.interrupt(Timeout):
            again = min(now + RESEND_S, deadline + self._grace_s + 0.001)
            with self._changed:
                heapq.heappush(self._due, (again, next(self._order), deadline, run))

    def _give_up(self, run: Run) -> None:
        if run.has_ended:
            return
        with self._changed:
            self._stuck.append(run)
        worker_log.error(
            "job %s (%s) does not stop after its timeout; its thread is lost and its lease runs out",
            run.job.id,
            run.job.kind,
            extra=job_facts(run.job),
        )
