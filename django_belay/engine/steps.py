"""Durable steps of one run: what is journaled is not executed again (§8.2)."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, TypeAlias

from django_belay.contract import envelope
from django_belay.contract.job import Standing, Step
from django_belay.contract.money import Cost, to_dollars
from django_belay.contract.names import is_reserved
from django_belay.contract.outcome import CANCEL_REQUESTED
from django_belay.engine.run import Run
from django_belay.engine.services import Services, persist
from django_belay.engine.telemetry import job_facts, worker_log
from django_belay.exceptions import (
    BudgetStop,
    Cancel,
    ForeignReservedStep,
    JobNotFound,
    LeaseLost,
    StepReused,
)
from django_belay.storage.base import NewStep, StepWritten, Storage

CostOption: TypeAlias = Cost | Callable[[Any], Cost] | None

MAX_NAME = 255

# In place of a name's use: that it was used again is in the log already.
_TOLD = object()


@dataclass(frozen=True, slots=True)
class Journaled:
    """A value that stands in the journal; ``None`` is one, too."""

    value: Any


class Steps:
    """The step journal of one run.

    The journal is read in one query before the first step of a resumed job; a first
    run asks nothing but the contract's re-read before each step (rule 17).

    Attributes:
        blocks: Whether a look-up may wait for the storage, and so must not be made on an event loop.
    """

    blocks = True

    def __init__(self, run: Run, services: Services) -> None:
        self._run = run
        self._services = services
        self._journal: dict[str, Step] | None = None
        self._loading = threading.Lock()
        self._used: dict[str, object] = {}

    def perform(self, name: str, body: Callable[[], Any], *, cost: CostOption, atomic: bool) -> Any:
        """The journaled value of a step, executed at most until it is journaled.

        Called from user code; see ``JobContext.step``.
        """
        found = self.look_up(name)
        if found is not None:
            return found.value
        try:
            if atomic:
                return self._perform_atomically(name, body, cost)
            return self.conclude(name, body(), cost=cost)
        except Exception:
            self.forget_use(name)
            raise

    def look_up(self, name: str) -> Journaled | None:
        """The value of a step that needs no call; else whatever speaks against one is raised."""
        check_step_name(name)
        with self._run.engine():
            self._note_use(name)
            found = self._load().get(name)
            if found is not None:
                return Journaled(envelope.decode(found.value))
            self._check(persist(self._run, self._read_standing, for_s=self._patience_s))
            return None

    def conclude(self, name: str, value: Any, *, cost: CostOption) -> Any:
        """Journal and charge what a step's body gave; what a replay would give."""
        price = _price(cost, value)
        with self._run.engine():
            step = self._encode(name, value, price)
            written = self._write(step)
            return self._concluded(step, written)

    # -- the engine's own records ------------------------------------------------
    # Called within ``run.engine()``.

    def find(self, name: str) -> Step | None:
        """What is journaled under a reserved name."""
        return self._load().get(name)

    def names(self) -> list[str]:
        """Every journaled name."""
        return list(self._load())

    def record(self, name: str, value: Any) -> Any:
        """Journal a reserved step, and give what stands under the name then.

        Raises:
            Interrupt: The run must stop, as at every step boundary.
        """
        data = envelope.encode(value, limit=envelope.MAX_STEP_BYTES)
        step = NewStep(name=name, value=data)
        written = self._write(step)
        self._remember(step, written.value)
        refuse_foreign(self._load()[name])
        self._check(written.standing)
        return envelope.decode(written.value)

    def check_standing(self) -> None:
        """Stop the run here if it must, as before a step's body (§8.2, §8.6)."""
        self._check(persist(self._run, self._read_standing, for_s=self._patience_s))

    def note_use(self, name: str) -> None:
        """Warn where a name is used again in one run."""
        self._note_use(name)

    def forget_use(self, name: str) -> None:
        """A step that failed left nothing behind: the code may try it again."""
        self._used.pop(name, None)

    def remember(self, name: str, value: bytes) -> None:
        """Take over what another operation has journaled for this run."""
        self._remember(NewStep(name=name, value=value), value)

    # -- before the body ---------------------------------------------------------

    @property
    def _patience_s(self) -> float:
        return self._services.options.ack_retry_s

    def _note_use(self, name: str) -> None:
        mine = object()
        # One operation, so that of two steps side by side one sees the other.
        earlier = self._used.setdefault(name, mine)
        if earlier is mine or earlier is _TOLD:
            return
        if self._services.options.strict_steps:
            raise StepReused(
                f"job {self._run.job.id} uses the step name {name!r} again in one run: the second step would "
                'get the first one\'s value. Give each step a name of its own; BELAY["STRICT_STEPS"] = False '
                "makes this a warning"
            )
        self._used[name] = _TOLD
        worker_log.warning(
            "job %s uses the step name %r again in one run; it gets the first value",
            self._run.job.id,
            name,
            extra=job_facts(self._run.job),
        )

    def _load(self) -> dict[str, Step]:
        if self._journal is None:
            with self._loading:  # steps of an async job may run side by side
                if self._journal is None:
                    self._journal = {} if self._run.is_first else self._read_journal()
        return self._journal

    def _read_journal(self) -> dict[str, Step]:
        job_id = self._run.job.id
        steps = self._run.journal
        if steps is None:
            steps = persist(
                self._run, lambda: self._services.storage.get_steps(job_id), for_s=self._patience_s
            )
        self._run.journal = None
        for step in steps:
            refuse_foreign(step)
        return {step.name: step for step in steps}

    def _read_standing(self) -> Standing:
        try:
            return self._services.storage.get_standing(self._run.job.id)
        except JobNotFound:
            raise LeaseLost from None

    def _check(self, standing: Standing) -> None:
        """Stop the run at a step boundary if it must."""
        if not standing.is_held_by(self._run.lease):
            raise LeaseLost
        if standing.over_budget:
            raise BudgetStop(_spent(standing))
        if standing.cancel_requested:
            raise Cancel(CANCEL_REQUESTED)

    # -- after the body ------------------------------------------------------------

    def _encode(self, name: str, value: Any, price: Cost) -> NewStep:
        data = envelope.encode(value, limit=self._services.options.max_step_bytes)
        return NewStep(name=name, value=data, usd_micros=price.usd_micros, tokens=price.tokens)

    def _write(self, step: NewStep) -> StepWritten:
        tries = 0

        def write() -> StepWritten:
            nonlocal tries
            tries += 1
            with self._services.gate:
                resent = self._find_own(step) if tries > 1 else None
                return resent or self._put(self._services.storage, step)

        return persist(self._run, write, for_s=self._patience_s)

    def _put(self, storage: Storage, step: NewStep) -> StepWritten:
        try:
            return storage.put_step(self._run.job.id, step, now=self._services.clock.now())
        except JobNotFound:
            raise LeaseLost from None

    def _find_own(self, step: NewStep) -> StepWritten | None:
        """The step as an earlier try wrote it whose answer was lost: it was charged then (rule 29)."""
        found = self._services.storage.find_step(self._run.job.id, step.name)
        if found is None or (found.value, found.usd_micros, found.tokens) != (
            step.value,
            step.usd_micros,
            step.tokens,
        ):
            return None
        return StepWritten(value=found.value, inserted=True, standing=self._read_standing())

    def _concluded(self, step: NewStep, written: StepWritten) -> Any:
        """Remember the step, stop the run if it must, and give what a replay would give."""
        self._remember(step, written.value)
        self._check(written.standing)
        return envelope.decode(written.value)

    def _remember(self, step: NewStep, value: bytes | None) -> None:
        self._load()[step.name] = Step(
            job_id=self._run.job.id,
            seq=0,
            name=step.name,
            value=value,
            usd_micros=step.usd_micros,
            tokens=step.tokens,
            inserted_at=None,
        )

    # -- atomic ----------------------------------------------------------------------

    def _perform_atomically(self, name: str, body: Callable[[], Any], cost: CostOption) -> Any:
        """Commit the body's own database work and the step's row together (rule 31)."""
        try:
            step, written = self._commit_together(name, body, cost)
        except _JournaledBefore as before:
            with self._run.engine():
                return self._concluded(before.step, before.written)
        with self._run.engine():
            return self._concluded(step, written)

    def _commit_together(
        self, name: str, body: Callable[[], Any], cost: CostOption
    ) -> tuple[NewStep, StepWritten]:
        run, services = self._run, self._services
        with run.uninterrupted(), ExitStack() as after_commit, services.storage.atomic_step() as storage:
            with run.user_code():
                value = body()
                price = _price(cost, value)
            run.check()
            # Left after the commit: once the gate is closed, nothing is written any more.
            after_commit.enter_context(services.gate)
            step = self._encode(name, value, price)
            written = self._put(storage, step)
            if not written.inserted:
                raise _JournaledBefore(step, written)
        return step, written


class _JournaledBefore(Exception):
    """Another run journaled the step first: roll the body back and use its value."""

    def __init__(self, step: NewStep, written: StepWritten) -> None:
        super().__init__(step.name)
        self.step = step
        self.written = written


def check_step_name(name: object) -> None:
    """Refuse what cannot be a step's name.

    Raises:
        ValueError: Not text, empty, reserved, too long, or not storable.
    """
    if not isinstance(name, str) or not name:
        raise ValueError(f"a step's name is a non-empty text, not {name!r}")
    if is_reserved(name):
        raise ValueError(f"the step name {name!r} is reserved: names that start with $ belong to the engine")
    if len(name) > MAX_NAME or "\x00" in name or not _is_encodable(name):
        raise ValueError(
            f"a step's name has at most {MAX_NAME} characters, no NUL and no lone surrogate: {name[:40]!r}"
        )


def _is_encodable(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def refuse_foreign(step: Step) -> None:
    """Refuse a reserved step that another SDK wrote.

    Raises:
        ForeignReservedStep: It is one.
    """
    if is_reserved(step.name) and step.value is not None and envelope.is_etf(step.value):
        raise ForeignReservedStep(
            f"job {step.job_id} has the reserved step {step.name!r} in Erlang's format: it was begun by the "
            "Elixir SDK, and another SDK's reserved steps are never interpreted; let that SDK finish it"
        )


def _price(cost: CostOption, value: Any) -> Cost:
    price = cost(value) if callable(cost) else cost
    if price is None:
        return _FREE
    if not isinstance(price, Cost):
        raise TypeError(f"cost={price!r}: give Cost(usd=…, tokens=…), or a function of the value that does")
    return price


_FREE = Cost()


def _spent(standing: Standing) -> str:
    parts = []
    if standing.budget_usd_micros is not None:
        parts.append(
            f"spent ${to_dollars(standing.spent_usd_micros)} of ${to_dollars(standing.budget_usd_micros)}"
        )
    if standing.budget_tokens is not None:
        parts.append(f"spent {standing.spent_tokens} of {standing.budget_tokens} tokens")
    return "; ".join(parts)
