"""What a run really took of a rate, in place of the estimate that its claim debited (§6)."""

from __future__ import annotations

from django_belay.contract.admission import MAX_COUNT, Rate
from django_belay.contract.names import resource_bucket
from django_belay.engine.run import Run
from django_belay.engine.services import Services, persist
from django_belay.engine.telemetry import job_facts, worker_log


class Debits:
    """The debits of one execution; the first on the bucket of its claim gives the estimate back.

    The estimate is credited to the window that it was debited in: the claim's. A debit
    whose answer was lost in an outage may count twice, which slows claims, never speeds
    them up.
    """

    def __init__(self, run: Run, services: Services, *, jobs: int = 1) -> None:
        self._run = run
        self._services = services
        self._jobs = jobs
        self._is_credited = False

    def debit(self, amount: int, *, resource: str | None) -> bool:
        """See ``JobContext.debit``."""
        _check(amount, resource)
        found = self._find(resource)
        if found is None:
            self._warn(resource)
            return False
        bucket, rate = found
        with self._run.engine():
            if not self._is_credited and bucket == self._claimed_bucket():
                self._is_credited = True
                self._true_up(bucket, rate, amount)
            else:
                self._add(bucket, rate, amount)
        return True

    def _find(self, resource: str | None) -> tuple[str, Rate] | None:
        """Bucket and rate: the queue's own, or the first queue's that shares the resource."""
        queue = self._run.job.queue
        for name, rate in self._services.queues.rates(queue):
            if name == queue if resource is None else rate.resource == resource:
                return rate.bucket(name), rate
        return None

    def _claimed_bucket(self) -> str | None:
        own = self._find(None)
        return None if own is None else own[0]

    def _true_up(self, bucket: str, rate: Rate, amount: int) -> None:
        claimed_at, now = self._run.claimed_at, self._services.clock.now()
        estimate = rate.estimate * self._jobs
        if claimed_at.timestamp() // rate.period_s == now.timestamp() // rate.period_s:
            self._add(bucket, rate, amount - estimate)
            return
        persist(
            self._run,
            lambda: self._services.storage.debit_rate(
                bucket, amount=-estimate, period_s=rate.period_s, now=claimed_at
            ),
            for_s=self._services.options.ack_retry_s,
        )
        self._add(bucket, rate, amount)

    def _add(self, bucket: str, rate: Rate, amount: int) -> None:
        if not amount:
            return
        now = self._services.clock.now()
        persist(
            self._run,
            lambda: self._services.storage.debit_rate(bucket, amount=amount, period_s=rate.period_s, now=now),
            for_s=self._services.options.ack_retry_s,
        )

    def _warn(self, resource: str | None) -> None:
        # Rates come and go at run time: a debit must not fail a job whose work is paid for.
        if resource is not None:
            worker_log.warning(
                "job %s debits %r, and no queue that this worker serves has a rate over it",
                self._run.job.id,
                resource_bucket(resource),
                extra=job_facts(self._run.job),
            )


def _check(amount: object, resource: object) -> None:
    if type(amount) is not int or not 0 <= amount <= MAX_COUNT:
        raise ValueError(f"debit({amount!r:.60}): give what was used, a whole number from 0 to {MAX_COUNT:,}")
    if resource is not None and not (isinstance(resource, str) and resource):
        raise ValueError(f"debit(resource={resource!r:.60}): give the name of a resource")
