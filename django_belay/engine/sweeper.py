"""The sweeper: takes back expired leases, mends lost wake-ups, prunes (§§6, 8.4, 8.7).

Every operation is idempotent and bounded, so any number of sweepers may run.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import timedelta

from django_belay.engine.clock import Clock
from django_belay.engine.options import WorkerOptions
from django_belay.engine.runner import follow_up
from django_belay.engine.services import Services
from django_belay.engine.telemetry import sweeper_log
from django_belay.engine.verdict import default_delay
from django_belay.exceptions import BelayError, Unavailable
from django_belay.storage.base import Reclaimed, Storage

RECLAIM_BATCH = 200
PRUNE_BATCH = 500
MAX_BATCHES = 20
PRUNE_INTERVAL_S = 60.0
CLOCK_INTERVAL_S = 60.0
RATE_TTL = timedelta(days=1)
NODE_TTL = timedelta(hours=1)


class Sweeper:
    """One pass after another; ``turn`` is one pass."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._storage: Storage = services.storage
        self._clock: Clock = services.clock
        self._options: WorkerOptions = services.options
        self._prune_at = 0.0
        self._check_clock_at = 0.0
        self._is_skewed = False

    def turn(self) -> int:
        """One pass, unless this node's clock is off; how many rows it changed.

        Raises:
            Unavailable: The storage is away; what was done stays.
        """
        if self._clock_is_off():
            return 0
        changed = self.reconcile()
        if time.monotonic() >= self._prune_at:
            self._prune_at = time.monotonic() + PRUNE_INTERVAL_S
            changed += self._prune()
        return changed

    def reconcile(self) -> int:
        """Take back expired leases and mend lost wake-ups; how many rows it changed."""
        changed = self._try("reclaim", self._reclaim)
        changed += self._try(
            "resettle parents", lambda: self._storage.resettle_parents(now=self._clock.now())
        )
        changed += self._try(
            "resettle signals", lambda: self._storage.resettle_signals(now=self._clock.now())
        )
        changed += self._try(
            "resettle workflows", lambda: self._storage.resettle_workflows(now=self._clock.now())
        )
        return changed

    def _try(self, name: str, operation: Callable[[], int]) -> int:
        """One part must not keep the others from running."""
        try:
            return operation()
        except Unavailable:
            raise
        except Exception:
            sweeper_log.exception("the sweeper's %s failed; the other parts go on", name)
            return 0

    # -- clock (rule 18) -----------------------------------------------------------

    def _clock_is_off(self) -> bool:
        if time.monotonic() < self._check_clock_at:
            return self._is_skewed
        skew = self._clock.now() - self._storage.read_clock()
        was_skewed, self._is_skewed = self._is_skewed, abs(skew) > self._options.lease_ttl / 3
        self._check_clock_at = time.monotonic() + CLOCK_INTERVAL_S
        if self._is_skewed:
            sweeper_log.warning(
                "this node's clock is %.1f s off the storage's, more than a third of a lease; it does not "
                "sweep. Set it by NTP",
                skew.total_seconds(),
            )
        elif was_skewed:
            sweeper_log.info("this node's clock is right again; it sweeps")
        return self._is_skewed

    # -- expired leases ---------------------------------------------------------------

    def _reclaim(self) -> int:
        changed = 0
        for _ in range(MAX_BATCHES):
            batch = self._storage.reclaim_expired(
                now=self._clock.now(), backoff=default_delay, limit=RECLAIM_BATCH
            )
            for reclaimed in batch:
                self._report(reclaimed)
            changed += len(batch)
            if len(batch) < RECLAIM_BATCH:
                break
        return changed

    def _report(self, reclaimed: Reclaimed) -> None:
        sweeper_log.warning(
            "job %s (%s): the lease of %s ran out; the job is %s",
            reclaimed.job_id,
            reclaimed.kind,
            reclaimed.leased_by or "nobody",
            reclaimed.state,
            extra={"belay_job_id": reclaimed.job_id, "belay_kind": reclaimed.kind},
        )
        if reclaimed.state == "failed":
            self._follow_up(reclaimed)

    def _follow_up(self, reclaimed: Reclaimed) -> None:
        """The ``on_failure`` job of a job whose last attempt died with its process."""
        definition = self._services.registry.find(reclaimed.kind)
        on_failure = definition.options.on_failure if definition else None
        if on_failure is None:
            return
        try:
            job = follow_up(
                self._services, reclaimed.job_id, reclaimed.kind, on_failure, {"error": "lease_expired"}
            )
            self._storage.insert_jobs([job], now=self._clock.now())
        except BelayError:
            sweeper_log.exception("job %s failed and its on_failure job was not enqueued", reclaimed.job_id)

    # -- retention ---------------------------------------------------------------------

    def _prune(self) -> int:
        storage, clock, options = self._storage, self._clock, self._options
        return (
            self._try("pruning of jobs", self._prune_jobs)
            + self._try(
                "pruning of signals",
                lambda: storage.prune_signals(older_than=clock.now() - options.signal_ttl),
            )
            + self._try("pruning of rates", lambda: storage.prune_rate(older_than=clock.now() - RATE_TTL))
            + self._try("pruning of nodes", lambda: storage.prune_nodes(older_than=clock.now() - NODE_TTL))
        )

    def _prune_jobs(self) -> int:
        pruned = 0
        for _ in range(MAX_BATCHES):
            batch = self._storage.prune_jobs(
                self._options.retention, now=self._clock.now(), limit=PRUNE_BATCH
            )
            pruned += batch
            if batch < PRUNE_BATCH:
                break
        return pruned
