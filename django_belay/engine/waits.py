"""Waits of one run: for signals, and for instants (§7, §8.1; rules 3, 23, 26-28).

A wait parks: the run ends, and with it its thread, slot and connection. When the job is
woken its code runs from the start and comes to the same wait again, so everything that
decides a wait is journaled: its deadline before the first park, its outcome when it is
first observed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, TypeVar

from django_belay.contract import envelope, names
from django_belay.contract.job import JSON, Signal, Step
from django_belay.contract.json_value import dump_jsonb
from django_belay.contract.outcome import iso
from django_belay.contract.wait_record import instant_of, wait_record
from django_belay.engine.run import Run
from django_belay.engine.services import Services, persist
from django_belay.engine.steps import Steps
from django_belay.exceptions import ForeignReservedStep, LeaseLost, Park, SignalTimeout, Snooze

T = TypeVar("T")

#: As of a delivery.
MAX_TEXT = 1_000
MAX_WAIT = timedelta(days=100 * 366)


@dataclass(slots=True, kw_only=True, frozen=True)
class Wait:
    """The n-th wait on a name in a run."""

    name: str
    occurrence: int
    scope: str | None
    read_scopes: tuple[str, ...]
    timeout: timedelta | None
    newer: bool


@dataclass(slots=True, kw_only=True, frozen=True)
class WaitEnd:
    """How a wait ended: with a payload, and when it was sent; or with neither at its deadline."""

    payload: JSON = None
    inserted_at: datetime | None = None

    @property
    def is_timeout(self) -> bool:
        return self.inserted_at is None


@dataclass(slots=True, kw_only=True, frozen=True)
class Record:
    """What was journaled before the first park of a wait."""

    until: datetime | None
    newer_than: datetime | None
    attempt: int | None


class Waits:
    """The waits of one run."""

    def __init__(self, run: Run, services: Services, steps: Steps) -> None:
        self._run = run
        self._services = services
        self._steps = steps
        self._counts: Counter[str] = Counter()
        self._clears: Counter[str] = Counter()

    # -- signals -------------------------------------------------------------------

    def signal(self, name: str, *, timeout: timedelta | None, scope: str | None, newer: bool) -> JSON:
        """The payload of a signal, or a park until there is one; see ``JobContext.wait_signal``."""
        job = self._run.job
        self._counts[name] += 1
        wait = Wait(
            name=name,
            occurrence=self._counts[name],
            scope=scope,
            read_scopes=names.read_scopes(job.id, job.workflow_id, scope),
            timeout=timeout,
            newer=newer,
        )
        # The park is raised within the block: an interrupt that waits at its border must not
        # come between the journaled deadline and the park.
        with self._run.engine():
            outcome = self._journaled(wait) or self._observe(wait)
        if outcome.is_timeout:
            raise SignalTimeout(
                f"job {job.id}: no signal {name!r} came to {', '.join(wait.read_scopes)} in time"
            )
        return outcome.payload

    def clear(self, name: str, scope: str | None) -> bool:
        """Clear a signal once in the life of the job; see ``JobContext.clear_signal``."""
        self._clears[name] += 1
        step = names.clear_step(name, self._clears[name])
        chosen = names.job_scope(self._run.job.id) if scope is None else scope
        with self._run.engine():
            found = self._steps.find(step)
            if found is None:
                found = self._clear_once(step, chosen, name)
            return envelope.decode(found.value) is True

    def latest(self, name: str) -> JSON:
        """The payload of a signal as it stands now, ``None`` without one; nothing is journaled."""
        job = self._run.job
        with self._run.engine():
            found = self._find(names.read_scopes(job.id, job.workflow_id), name, None)
            return None if found is None else found.payload

    # -- one wait --------------------------------------------------------------------

    def _journaled(self, wait: Wait) -> WaitEnd | None:
        step = self._steps.find(names.await_step(wait.name, wait.occurrence))
        return None if step is None else _read_outcome(step)

    def _observe(self, wait: Wait) -> WaitEnd:
        """See whether the wait has ended; park where it has not."""
        record = self._record(wait)
        newer_than = record.newer_than if record is not None else self._last_seen(wait)
        signal = self._find(wait.read_scopes, wait.name, newer_than)
        if signal is not None:
            return self._conclude(wait, WaitEnd(payload=signal.payload, inserted_at=signal.inserted_at))
        now = self._services.clock.now()
        if record is None:
            until = None if wait.timeout is None else now + wait.timeout
            if until is not None and until <= now:
                return self._conclude(wait, WaitEnd())
            record = self._begin(wait, until, newer_than)
        elif (record.until is not None and record.until <= now) or self._was_timed_out(wait, record):
            return self._conclude(wait, WaitEnd())
        raise Park(
            scope=names.job_scope(self._run.job.id) if wait.scope is None else wait.scope,
            name=wait.name,
            read_scopes=wait.read_scopes,
            deadline=record.until,
            newer_than=record.newer_than,
        )

    def _record(self, wait: Wait) -> Record | None:
        step = self._steps.find(names.await_until_step(wait.name, wait.occurrence))
        return None if step is None else _read_record(step)

    def _begin(self, wait: Wait, until: datetime | None, newer_than: datetime | None) -> Record:
        value = wait_record(until=until, newer_than=newer_than, attempt=self._run.job.attempt)
        step = names.await_until_step(wait.name, wait.occurrence)
        self._steps.record(step, value)
        written = self._record(wait)
        assert written is not None
        return written

    def _conclude(self, wait: Wait, outcome: WaitEnd) -> WaitEnd:
        """Journal the outcome; another run's, where it was first."""
        step = names.await_step(wait.name, wait.occurrence)
        self._steps.record(step, _write_outcome(outcome))
        concluded = self._journaled(wait)
        assert concluded is not None
        return concluded

    def _last_seen(self, wait: Wait) -> datetime | None:
        """When the payload was sent that the run observed last, for a wait that wants a newer one (rule 27)."""
        if not wait.newer:
            return None
        for occurrence in range(wait.occurrence - 1, 0, -1):
            step = self._steps.find(names.await_step(wait.name, occurrence))
            if step is not None and not (outcome := _read_outcome(step)).is_timeout:
                return outcome.inserted_at
        return None

    def _was_timed_out(self, wait: Wait, record: Record) -> bool:
        """Whether an operator made the wait's deadline "now" (rule 38).

        A claim at the deadline leaves the await columns, a wake clears them. They may be
        those of an earlier wait on the name that timed out, when a run ended between the
        journaled deadline of this one and its park; such a run took an attempt, a park none.
        """
        job = self._run.job
        scope = names.job_scope(job.id) if wait.scope is None else wait.scope
        if (job.await_scope, job.await_name) != (scope, wait.name):
            return False
        return record.attempt == job.attempt or not self._has_timed_out_before(wait)

    def _has_timed_out_before(self, wait: Wait) -> bool:
        earlier = (names.await_step(wait.name, n) for n in range(1, wait.occurrence))
        steps = (self._steps.find(name) for name in earlier)
        return any(step is not None and _read_outcome(step).is_timeout for step in steps)

    # -- sleeping --------------------------------------------------------------------

    def sleep(self, name: str, duration: timedelta) -> None:
        """Go on once the journaled wake time is past; see ``JobContext.sleep``."""
        step_name = names.sleep_step(name)
        with self._run.engine():
            self._steps.note_use(step_name)
            step = self._steps.find(step_name)
            now = self._services.clock.now()
            if step is None:
                until = now + duration
                self._steps.record(step_name, iso(until))
                step = self._steps.find(step_name)
                assert step is not None
            until = _read_instant(step)
            if until > now:
                raise Snooze(until)

    # -- storage ---------------------------------------------------------------------

    def _find(self, scopes: tuple[str, ...], name: str, newer_than: datetime | None) -> Signal | None:
        storage = self._services.storage
        return self._persist(lambda: storage.find_signal(scopes, name, newer_than=newer_than))

    def _clear_once(self, step: str, scope: str, name: str) -> Step:
        def clear() -> Step | None:
            services = self._services
            with services.gate:
                services.storage.clear_signal_in_run(
                    self._run.lease, scope, name, step=step, now=services.clock.now()
                )
            return services.storage.find_step(self._run.job.id, step)

        found = self._persist(clear)
        if found is None:
            raise LeaseLost
        self._steps.remember(step, found.value or b"")
        return found

    def _persist(self, operation: Callable[[], T]) -> T:
        return persist(self._run, operation, for_s=self._services.options.ack_retry_s)


# -- arguments -----------------------------------------------------------------------


def check_signal_name(name: object) -> None:
    """Refuse what cannot be a signal's name.

    Raises:
        ValueError: Not text, empty, reserved, too long, or not storable.
    """
    _check_text("a signal's name", name)
    if names.is_reserved(str(name)):
        raise ValueError(
            f"the signal name {name!r} is reserved: names that start with $ belong to the engine"
        )


def check_scope(scope: str | None) -> str | None:
    """A scope to read, or ``None``.

    Raises:
        ValueError: Not text, empty, too long, or not storable.
    """
    if scope is not None:
        _check_text("a signal's scope", scope)
    return scope


def _check_text(what: str, value: object) -> None:
    if not isinstance(value, str) or not value or len(value) > MAX_TEXT:
        raise ValueError(f"{what} is a text of 1 to {MAX_TEXT:,} characters, not {value!r:.60}")
    dump_jsonb(value, path=what)


def as_timeout(value: float | timedelta | None) -> timedelta | None:
    """Seconds or a timedelta as a timedelta.

    Raises:
        ValueError: Neither, negative, or beyond what a calendar holds.
    """
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float | timedelta):
        raise ValueError(f"give seconds or a timedelta, not {value!r:.60}")
    try:
        found = value if isinstance(value, timedelta) else timedelta(seconds=value)
    except (OverflowError, ValueError):
        found = MAX_WAIT + timedelta(1)
    if not timedelta(0) <= found <= MAX_WAIT:
        raise ValueError(f"give a time from 0 to {MAX_WAIT.days:,} days, not {value!r:.60}")
    return found


# -- what the reserved steps hold ----------------------------------------------------


def _write_outcome(outcome: WaitEnd) -> dict[str, JSON]:
    if outcome.inserted_at is None:
        return {"timeout": True}
    return {"payload": outcome.payload, "inserted_at": iso(outcome.inserted_at)}


def _read_outcome(step: Step) -> WaitEnd:
    match _decoded(step):
        case {"timeout": True}:
            return WaitEnd()
        case {"payload": payload, "inserted_at": text} if (instant := instant_of(text)) is not None:
            return WaitEnd(payload=payload, inserted_at=instant)
    raise _foreign(step)


def _read_record(step: Step) -> Record:
    value = _decoded(step)
    if not isinstance(value, dict) or "until" not in value:
        raise _foreign(step)
    until, newer_than = (instant_of(value.get(key)) for key in ("until", "newer_than"))
    if until is None and value["until"] is not None:
        raise _foreign(step)
    return Record(until=until, newer_than=newer_than, attempt=value.get("attempt"))


def _read_instant(step: Step) -> datetime:
    instant = instant_of(_decoded(step))
    if instant is None:
        raise _foreign(step)
    return instant


def _decoded(step: Step) -> Any:
    try:
        return envelope.decode(step.value)
    except envelope.EnvelopeError:
        raise _foreign(step) from None


def _foreign(step: Step) -> ForeignReservedStep:
    return ForeignReservedStep(
        f"job {step.job_id} has the reserved step {step.name!r} in a form that is not this SDK's; another SDK's "
        "reserved steps are never interpreted; let that SDK finish the job"
    )
