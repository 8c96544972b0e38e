"""What a job sees of its run: the ``ctx`` it gets as its first argument."""

from __future__ import annotations

import logging
from collections.abc import Callable, MutableMapping
from datetime import timedelta
from typing import Any, NoReturn, TypeVar

import orjson

from django_belay.contract.job import JSON, Job
from django_belay.contract.json_value import dump_jsonb
from django_belay.engine.debits import Debits
from django_belay.engine.run import Run
from django_belay.engine.services import Services, persist
from django_belay.engine.steps import CostOption, Steps
from django_belay.engine.telemetry import job_facts
from django_belay.exceptions import Cancel, Fail, JobNotFound, LeaseLost, PayloadTooLarge, Snooze

T = TypeVar("T")


class JobContext:
    """The run of a job, from inside it.

    Attributes:
        job: The row as it was claimed.
        id: The job's id.
        kind: The name it is registered under.
        attempt: 1 for the first attempt; snoozes and waits do not count.
    """

    __slots__ = ("_debits", "_log", "_run", "_services", "_steps", "attempt", "id", "job", "kind")

    def __init__(self, run: Run, services: Services) -> None:
        self.job: Job = run.job
        self.id = run.job.id
        self.kind = run.job.kind
        self.attempt = run.job.attempt
        self._run = run
        self._services = services
        self._steps: Steps | None = None
        self._debits: Debits | None = None
        self._log: logging.LoggerAdapter[logging.Logger] | None = None

    @property
    def meta(self) -> JSON:
        """The free-form data the job was enqueued with."""
        return self.job.meta

    @property
    def log(self) -> logging.LoggerAdapter[logging.Logger]:
        """The logger of the job's module; every line carries the job's id."""
        if self._log is None:
            logger = logging.getLogger(self._run.definition.function.__module__)
            self._log = JobLog(logger, job_facts(self.job))
        return self._log

    # -- steps ---------------------------------------------------------------------

    def step(
        self,
        name: str,
        function: Callable[..., T],
        /,
        *args: Any,
        cost: CostOption = None,
        atomic: bool = False,
        **kwargs: Any,
    ) -> T:
        """Call ``function`` once for the life of the job and remember what it returned.

        On a later run the remembered value comes back without a call. The value is what
        a replay would see: JSON forms, so a tuple comes back as a list. A function that
        raises leaves nothing behind and is called again.

        Args:
            name: Unique in the job; ``$`` at the start is reserved.
            cost: What the call cost, or a function of its value that says so; counted
                against the job's budget with the step.
            atomic: Commit what the function does with Django's ORM and the step
                together: exactly once. Needs to be outside of any ``atomic()`` block.

        Raises:
            ValueError: The name does not fit.
            StepTooLarge: The value is over ``MAX_STEP_BYTES`` once encoded.
            EnvelopeError: The value is nothing that JSON can carry.
            Interrupt: The job is cancelled, over its budget, or no longer this
                process's; it passes through the job and ends it.

        Contract: §8.2; rules 17, 25, 29–31.
        """
        if self._steps is None:
            self._steps = Steps(self._run, self._services)
        return self._steps.perform(name, lambda: function(*args, **kwargs), cost=cost, atomic=atomic)  # type: ignore[no-any-return]

    # -- events --------------------------------------------------------------------

    def emit(self, payload: JSON) -> int:
        """Append to the job's event stream; returns the event's number.

        After an outage an event may stand twice: the stream is at-least-once.

        Raises:
            InvalidInput: The payload is nothing that ``jsonb`` can hold.
            PayloadTooLarge: It is over ``MAX_SIGNAL_BYTES``.
        """
        with self._run.engine():
            stored = orjson.loads(self._check_event(payload))
            return persist(self._run, lambda: self._append(stored), for_s=self._services.options.ack_retry_s)

    def _check_event(self, payload: JSON) -> bytes:
        data = dump_jsonb(payload, path="payload")
        limit = self._services.options.max_signal_bytes
        if len(data) > limit:
            raise PayloadTooLarge("the event", size=len(data), limit=limit, setting="MAX_SIGNAL_BYTES")
        return data

    def _append(self, payload: JSON) -> int:
        with self._services.gate:
            try:
                return self._services.storage.append_event(self.id, payload, now=self._services.clock.now())
            except JobNotFound:
                raise LeaseLost from None

    # -- limits --------------------------------------------------------------------

    def debit(self, amount: int, *, resource: str | None = None) -> bool:
        """Count what this execution really used against a rate: tokens, calls, whatever it limits.

        The claim has debited the rate's ``estimate``; the first debit of an execution gives
        it back, so that what counts is what was used. Without a debit the estimate stays.

        Args:
            amount: Units used since the last debit; 0 just gives the estimate back.
            resource: Another rate than the queue's own, by the name of its resource.

        Returns:
            Whether there was such a rate to count against.

        Raises:
            ValueError: The amount is no whole number of at least 0.

        Contract: §6, rate.
        """
        if self._debits is None:
            self._debits = Debits(self._run, self._services)
        return self._debits.debit(amount, resource=resource)

    # -- ends ------------------------------------------------------------------------

    def cancel(self, reason: str) -> NoReturn:
        """End the job as cancelled."""
        raise Cancel(reason)

    def fail(self, reason: str) -> NoReturn:
        """End the job as failed, whatever attempts are left."""
        raise Fail(reason)

    def snooze(self, delay: float | timedelta) -> NoReturn:
        """Run the job again after ``delay`` (seconds or a timedelta); the attempt does not count."""
        wait = delay if isinstance(delay, timedelta) else timedelta(seconds=delay)
        raise Snooze(self._services.clock.now() + max(wait, timedelta(0)))

    def __repr__(self) -> str:
        return f"<JobContext of {self.kind} {self.id}, attempt {self.attempt}>"


class JobLog(logging.LoggerAdapter[logging.Logger]):
    """Puts the job's id before each message and its facts into each record."""

    def process(self, msg: Any, kwargs: MutableMapping[str, Any]) -> tuple[Any, MutableMapping[str, Any]]:
        facts = dict(self.extra or {})
        kwargs["extra"] = {**facts, **(kwargs.get("extra") or {})}
        return f"job {facts.get('belay_job_id')}: {msg}", kwargs
