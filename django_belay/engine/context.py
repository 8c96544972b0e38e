"""What a job sees of its run: the ``ctx`` it gets as its first argument."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, MutableMapping
from datetime import timedelta
from typing import Any, NoReturn, TypeVar

import orjson

from django_belay.contract.job import JSON, Job
from django_belay.contract.json_value import dump_jsonb
from django_belay.contract.names import STEER_SIGNAL
from django_belay.engine.children import Children
from django_belay.engine.debits import Debits
from django_belay.engine.rows import Spawnable
from django_belay.engine.run import Run
from django_belay.engine.services import Services, persist
from django_belay.engine.steps import CostOption, Steps, check_step_name
from django_belay.engine.telemetry import job_facts
from django_belay.engine.waits import Waits, as_timeout, check_scope, check_signal_name
from django_belay.exceptions import (
    Cancel,
    Fail,
    JobNotFound,
    LeaseLost,
    Park,
    PayloadTooLarge,
    Snooze,
)

T = TypeVar("T")


class JobContext:
    """The run of a job, from inside it.

    Attributes:
        job: The row as it was claimed.
        id: The job's id.
        kind: The name it is registered under.
        attempt: 1 for the first attempt; snoozes and waits do not count.
    """

    __slots__ = (
        "_children", "_debits", "_log", "_run", "_services", "_steps", "_waits", "attempt", "id", "job", "kind",
    )  # fmt: skip

    def __init__(self, run: Run, services: Services, *, steps: Steps | None = None) -> None:
        self.job: Job = run.job
        self.id = run.job.id
        self.kind = run.job.kind
        self.attempt = run.job.attempt
        self._run = run
        self._services = services
        self._steps = Steps(run, services) if steps is None else steps
        self._waits: Waits | None = None
        self._children: Children | None = None
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
        return self._steps.perform(name, lambda: function(*args, **kwargs), cost=cost, atomic=atomic)  # type: ignore[no-any-return]

    # -- waits ---------------------------------------------------------------------

    def wait_signal(
        self,
        name: str,
        timeout: float | timedelta | None = None,
        scope: str | None = None,
        newer: bool = False,
    ) -> JSON:
        """Wait for a signal and return its payload.

        Where it is there already it comes back at once. Otherwise the job parks: this run
        ends here, holds no thread, slot or connection, and when the signal comes the job
        runs again from its start and gets the payload from this call. A wait's deadline and
        outcome are journaled: later runs see the same, whatever was sent since.

        A signal stays until it is cleared or replaced, so a second wait on the name returns
        it again. After a timeout a second wait waits again, for as long as it says itself.

        Args:
            timeout: Seconds (or a timedelta) from the first time that the job gets here;
                0 only looks. ``None`` waits without end.
            scope: An inbox to read besides the job's own and its workflow's; its signal
                wins, then the job's, then the workflow's.
            newer: Pass over the payload that an earlier wait on the name returned.

        Raises:
            SignalTimeout: None came in time. A signal that is there when the job looks counts,
                also after the deadline.

        Contract: §7, §8.1; rules 23, 26-28.
        """
        check_signal_name(name)
        return self._waiting.signal(
            name, timeout=as_timeout(timeout), scope=check_scope(scope), newer=bool(newer)
        )

    def clear_signal(self, name: str, scope: str | None = None) -> bool:
        """Remove a signal from an inbox, the job's own if no scope is given; whether there was one.

        Done once, at the first run that gets here: a later run does not take away what was
        sent since. A signal to the workflow is seen by its other members; clear it
        by its scope, or wait with ``newer=True`` and leave it.

        Contract: §8.1; rule 27.
        """
        check_signal_name(name)
        return self._waiting.clear(name, check_scope(scope))

    def steering(self) -> JSON:
        """The guidance that somebody gave the job with ``steer()`` as it stands now; ``None`` without any.

        It stays, and a newer one replaces it. It is read anew each time and not
        journaled: where later runs must see the same, make it a step:
        ``ctx.step("guidance-3", ctx.steering)``.

        Contract: §8.1, §10.
        """
        return self._waiting.latest(STEER_SIGNAL)

    def sleep(self, name: str, seconds: float | timedelta) -> None:
        """Go on after so many seconds; the job sleeps without a thread, and once under a name.

        The instant of waking is journaled when the job first gets here; the job then ends
        and runs again from its start. The attempt does not count.

        Raises:
            ValueError: The name does not fit a step, or the time is negative.
        """
        check_step_name(name)
        duration = as_timeout(seconds)
        if duration is None:
            raise ValueError("ctx.sleep() wants seconds or a timedelta, not None")
        self._waiting.sleep(name, duration)

    # -- children ------------------------------------------------------------------

    def spawn(self, name: str, job: Spawnable | str, input: Mapping[str, Any] | None = None) -> int:
        """Enqueue one child, once for the life of the job; its id.

        As :meth:`spawn_many` with one input.
        """
        [job_id] = self.spawn_many(name, job, [{} if input is None else input])
        return job_id

    def spawn_many(self, name: str, job: Spawnable | str, inputs: Iterable[Mapping[str, Any]]) -> list[int]:
        """Enqueue a child for each input, once for the life of the job; their ids in that order.

        Children begin at once and are jobs as any other: queue, priority, budget and the
        like are those of the child's own job, nothing comes from the parent. The inputs
        count at the first run that gets here, so what decides them belongs in a step.

        Args:
            name: Unique in the job.
            job: A function under ``@job``, also with ``.using()``; or a kind, which may be
                another SDK's.
            inputs: A dictionary of the job's arguments for each child; none is fine.

        Raises:
            ValueError: The name does not fit.
            InvalidInput, PayloadTooLarge: An input does not fit; none was enqueued.
            ConfigurationError: The job has a unique key of its own.
            SpawnChanged: An attempt that died had begun the spawn with more inputs.

        Contract: §8.4.
        """
        check_step_name(name)
        return self._own_children.spawn(name, job, inputs)

    def wait_children(self, name: str | None = None, *, return_exceptions: bool = False) -> list[JSON]:
        """Wait until children have ended and return their results, in the order of their spawns.

        The job parks meanwhile, as in :meth:`wait_signal`.

        Args:
            name: Of this spawn; by default of all that this run has made so far.
            return_exceptions: Put a ``JobFailed``, ``JobCancelled`` or ``BudgetExceeded`` in
                the place of each child that did not succeed, instead of raising.

        Raises:
            ChildrenFailed: Some did not succeed; it lists them and has all results.
            ChildrenGone: The row of a child was deleted.
            ValueError: No spawn of this name was made.

        Contract: §8.4; rule 32.
        """
        return self._own_children.wait(name, return_exceptions=return_exceptions)

    def map_children(
        self,
        name: str,
        job: Spawnable | str,
        inputs: Iterable[Mapping[str, Any]],
        *,
        return_exceptions: bool = False,
    ) -> list[JSON]:
        """Run a child for each input and return their results in the order of the inputs.

        :meth:`spawn_many` and :meth:`wait_children` in one.
        """
        self.spawn_many(name, job, inputs)
        return self.wait_children(name, return_exceptions=return_exceptions)

    def park_again(self) -> Park | None:
        """For the runner: whether the job was woken and still waits for its children (rule 32)."""
        return self._own_children.park_again()

    @property
    def _waiting(self) -> Waits:
        if self._waits is None:
            self._waits = Waits(self._run, self._services, self._steps)
        return self._waits

    @property
    def _own_children(self) -> Children:
        if self._children is None:
            self._children = Children(self._run, self._services, self._steps)
        return self._children

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
