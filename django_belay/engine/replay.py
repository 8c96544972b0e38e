"""Today's code against the recorded journal of a job, with nothing written.

The run reads what stands in the storage and stops where it would go on into something that is not
there: a step to execute, a signal to wait for, a child to end.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal, NoReturn, TypeAlias, cast

from django_belay.contract import envelope
from django_belay.contract.envelope import Opaque
from django_belay.contract.job import JSON, Job, Lease, Standing, Step
from django_belay.contract.names import CHILDREN_SIGNAL, await_step, is_reserved, sleep_step
from django_belay.contract.state import State, is_terminal
from django_belay.engine.context import JobContext
from django_belay.engine.run import Run
from django_belay.engine.runner import Runner
from django_belay.engine.services import Services
from django_belay.engine.steps import Journaled, Steps, check_step_name, refuse_foreign
from django_belay.exceptions import (
    BudgetStop,
    Cancel,
    Fail,
    Interrupt,
    NotReplayable,
    Park,
    Snooze,
)
from django_belay.storage.base import Storage

Ending: TypeAlias = Literal["done", "blocked", "raised", "cancelled", "failed", "snoozed"]

_HOLDER: Final = "replay"
_FRAMES: Final = 20
_FOR_CHILDREN: Final = await_step(CHILDREN_SIGNAL, 0)[:-1]
# What a replay may ask of the storage; everything else writes.
_READS: Final = frozenset(
    {
        "child_ends", "children", "find_signal", "find_spawned", "find_step", "get_job", "get_steps",
        "has_incomplete_child", "list_events", "list_signals", "workflow_jobs", "workflow_states",
    }
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Blocked:
    """Where a replay could not go on.

    Attributes:
        on: ``step``, ``signal``, ``children``, ``sleep``, ``spawn``, ``clear`` (of a signal), or ``write``
            for any other change.
        name: Of the step, signal, spawn or sleep; of ``children`` the ids that have not ended.
    """

    on: str
    name: str
    detail: str = ""

    def __str__(self) -> str:
        detail = f": {self.detail}" if self.detail else ""
        return f"{self.on} {self.name!r}{detail}"


@dataclass(slots=True, kw_only=True)
class Replay:
    """What came of a replay.

    Attributes:
        ending: ``done``, ``blocked``, ``raised``, or how the code itself ended the run:
            ``cancelled``, ``failed``, ``snoozed``.
        value: Of a job that is done, in its JSON form.
        matches: Whether ``value`` is the recorded result; ``None`` where there is none to compare with.
        blocked: Where it could not go on.
        error: The exception's type and message, or the reason that the code gave.
        trace: The end of the exception's traceback.
        read: Steps that were read from the journal, in that order.
        unread: Steps of the journal that today's code did not ask for, in the journal's order; spawns,
            sleeps, clearings and waits under the names they have there, such as ``$spawn:pages``.
        out_of_order: The first step read that is not the one the journal has there: what the journal
            has, and what was read.
        repeated: Step names that were asked for more than once.
        misfit: What the job is, where the code's end does not fit it.
        is_ordered: Whether the steps of the code end in one order only; those of an async job need not.
    """

    job_id: int
    kind: str
    state: State
    ending: Ending
    value: JSON = None
    matches: bool | None = None
    blocked: Blocked | None = None
    error: str | None = None
    trace: str | None = None
    read: list[str] = field(default_factory=list)
    unread: list[str] = field(default_factory=list)
    out_of_order: tuple[str, str] | None = None
    repeated: list[str] = field(default_factory=list)
    misfit: str | None = None
    is_ordered: bool = True

    @property
    def agrees(self) -> bool:
        """Whether code and journal agree: nothing unread, in order, and an end that fits the job."""
        if self.unread or self.repeated or self.misfit is not None or self.matches is False:
            return False
        return self.out_of_order is None or not self.is_ordered


def replay(job: Job, services: Services) -> Replay:
    """Run the job's code over its journal in the calling thread.

    What the code does between its steps it does here, too: the caller keeps that from lasting.

    Raises:
        UnknownKind: No job of that kind is registered.
        NotReplayable: A chunk job: it has no journal.
        ForeignReservedStep: Another SDK has begun the job.
    """
    definition = services.registry.get(job.kind)
    if definition.options.chunk is not None:
        raise NotReplayable(
            f"job {job.id} ({job.kind}) is a chunk job: its items have no steps, so there is no journal to replay"
        )
    edge = _Edge()
    storage = _ReadOnly(services.storage, edge)
    reading = replace(services, storage=cast(Storage, storage))
    # The definition alone says whether it is async; isolation is a matter of real runs.
    claimed = replace(job, state="running", leased_by=_HOLDER, cancel_requested=False)
    run = Run(claimed, definition, claimed_at=job.inserted_at)
    steps = ReplaySteps(run, reading, edge)
    context = JobContext(run, reading, steps=steps)
    found = Replay(
        job_id=job.id, kind=job.kind, state=job.state, ending="done", is_ordered=not definition.is_async
    )
    _perform(found, lambda: Runner(reading).perform(run, context), steps, storage)
    if edge.blocked is not None:
        _block(found, edge.blocked)
    _compare(found, job, steps)
    return found


def _perform(found: Replay, code: Callable[[], Any], steps: ReplaySteps, storage: _ReadOnly) -> None:
    try:
        found.value = envelope.decode(envelope.encode(code()))
    except Park as park:
        _block(found, _parked(park, storage))
    except Snooze as snooze:
        if (name := steps.sleeping) is not None:
            _block(found, Blocked(on="sleep", name=name, detail=f"until {snooze.until.isoformat()}"))
        else:
            found.ending, found.error = "snoozed", f"until {snooze.until.isoformat()}"
    except Cancel as cancel:
        found.ending, found.error = "cancelled", cancel.reason
    except Fail as fail:
        found.ending, found.error = "failed", fail.reason
    except BudgetStop as stop:
        found.ending, found.error = "failed", f"budget_exceeded: {stop.detail}"
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        found.ending, found.error = "raised", f"{type(error).__name__}: {error}"
        found.trace = "".join(traceback.format_exception(error, limit=-_FRAMES))


def _block(found: Replay, blocked: Blocked) -> None:
    """Where the record ended is how the replay ended, whatever the code made of the interrupt."""
    found.ending, found.blocked = "blocked", blocked
    found.value = found.error = found.trace = None


def _parked(park: Park, storage: _ReadOnly) -> Blocked:
    if park.name != CHILDREN_SIGNAL:
        until = "" if park.deadline is None else f"until {park.deadline.isoformat()}"
        return Blocked(on="signal", name=park.name, detail=until)
    open_ = storage.open_children(park.scope)
    return Blocked(on="children", name=", ".join(map(str, open_[:20])), detail=f"{len(open_)} have not ended")


def _compare(found: Replay, job: Job, steps: ReplaySteps) -> None:
    found.read, found.repeated = list(steps.read), sorted(steps.repeated)
    found.unread = list(steps.unread())
    expected = [name for name in steps.recorded if name in steps.read]
    differing = (pair for pair in zip(expected, found.read, strict=False) if pair[0] != pair[1])
    found.out_of_order = next(differing, None)
    if found.ending == "done" and job.state == "succeeded":
        found.matches = envelope.decode_or_opaque(job.result) == found.value
    found.misfit = _misfit(found.ending, job)


def _misfit(ending: Ending, job: Job) -> str | None:
    """What the job is, where an end does not fit it.

    A job that failed or was cancelled may come further with today's code than it did, and one that
    runs or will run has its end before it.
    """
    if job.state == "succeeded" and ending != "done":
        return "the job has succeeded"
    if job.state == "awaiting" and ending != "blocked":
        return "the job waits"
    if ending == "raised" and not job.errors:
        return "the job has recorded no error"
    return None


class ReplaySteps(Steps):
    """A step journal that is only read.

    Attributes:
        recorded: Names of the job's own steps, in the journal's order.
        read: Those that were asked for and found, in that order.
        sleeping: The sleep that was read last and whose time may not have come.
    """

    blocks = False

    def __init__(self, run: Run, services: Services, edge: _Edge) -> None:
        super().__init__(run, services)
        found = services.storage.get_steps(run.job.id)
        for step in found:
            refuse_foreign(step)
        self._journal = {step.name: step for step in found}
        self._edge = edge
        self._asked: set[str] = set()
        self.recorded = [step.name for step in found if not is_reserved(step.name)]
        self.read: dict[str, None] = {}
        self.repeated: set[str] = set()
        self.sleeping: str | None = None

    def unread(self) -> Iterator[str]:
        """What the journal has and the code did not ask for."""
        for name in self._load():
            asked = self._asked if is_reserved(name) else self.read
            # A wait is asked for its end first; that for children is not asked for once they have ended.
            if name.removesuffix(":until") not in asked and not name.startswith(_FOR_CHILDREN):
                yield name

    def look_up(self, name: str) -> Journaled | None:
        """The value of a recorded step; one that is not stops the replay before its body."""
        check_step_name(name)
        step = self._load().get(name)
        if step is None:
            self._edge.stop(Blocked(on="step", name=name, detail="it is not in the journal"))
        if name in self.read:
            self.repeated.add(name)
        self.read[name] = None
        value = envelope.decode(step.value)
        if isinstance(value, Opaque):
            self._edge.stop(Blocked(on="step", name=name, detail=str(value)))
        return Journaled(value)

    def find(self, name: str) -> Step | None:
        """A reserved step; where a spawn or a clearing is not recorded, the replay ends before it."""
        kind, _, rest = name.partition(":")
        self.sleeping = rest if name == sleep_step(rest) else None
        self._asked.add(name)
        found = super().find(name)
        if found is None and kind in ("$spawn", "$clear"):
            self._edge.stop(_unrecorded(name))
        return found

    def record(self, name: str, value: Any) -> Any:
        """What a run would journal now is where the record ends."""
        self._edge.stop(_unrecorded(name))

    def note_use(self, name: str) -> None:
        """Nothing to warn of."""

    def check_standing(self) -> None:
        """A replay holds no lease and spends nothing."""


def _unrecorded(name: str) -> Blocked:
    kind, _, rest = name.removeprefix("$").partition(":")
    if kind == "await":
        signal, _, _ = rest.removesuffix(":until").rpartition(":")
        detail = (
            "the job has not begun this wait" if name.endswith(":until") else "the job has not seen its end"
        )
        return Blocked(on="signal", name=signal or rest, detail=detail)
    if kind == "clear":
        rest, _, _ = rest.rpartition(":")
    return Blocked(on=kind, name=rest, detail="it is not in the journal")


class _Stop(Interrupt):
    """Ends a replay from inside the job's code."""

    def __init__(self, blocked: Blocked) -> None:
        super().__init__(str(blocked))


class _Edge:
    """The end of the record.

    Attributes:
        blocked: Where the code came to it first; it may have gone on in spite of the interrupt.
    """

    def __init__(self) -> None:
        self.blocked: Blocked | None = None

    def stop(self, blocked: Blocked) -> NoReturn:
        """End the replay here."""
        if self.blocked is None:
            self.blocked = blocked
        raise _Stop(blocked)


class _ReadOnly:
    """A storage that answers reads, takes what a run may repeat at will, and stops at every other write."""

    def __init__(self, storage: Storage, edge: _Edge) -> None:
        self._storage = storage
        self._edge = edge

    @property
    def capabilities(self) -> Any:
        """Those of the storage beneath."""
        return self._storage.capabilities

    def get_standing(self, job_id: int) -> Standing:
        """As one that holds its lease and is within its budget: neither matters here."""
        standing = self._storage.get_standing(job_id)
        return replace(
            standing,
            state="running",
            leased_by=_HOLDER,
            cancel_requested=False,
            budget_usd_micros=None,
            budget_tokens=None,
        )

    def append_event(self, job_id: int, payload: JSON, *, now: object) -> int:
        """An event is emitted by every run: here it is dropped."""
        return 0

    def debit_rate(self, bucket: str, **_: object) -> None:
        """What was used was debited when it was used."""

    def clear_signal_in_run(self, lease: Lease, scope: str, name: str, **_: object) -> bool | None:
        """A wait for children clears their signal before it looks; here it only looks."""
        if name != CHILDREN_SIGNAL:
            self._edge.stop(Blocked(on="clear", name=name, detail="it is not in the journal"))
        return False

    def open_children(self, scope: str) -> Sequence[int]:
        """Children that a park waits for."""
        parent_id = int(scope.partition(":")[2])
        return [child.id for child in self._storage.children(parent_id) if not is_terminal(child.state)]

    def __getattr__(self, name: str) -> Any:
        if name in _READS:
            return getattr(self._storage, name)

        def refuse(*_: object, **__: object) -> Any:
            self._edge.stop(Blocked(on="write", name=name, detail="the code would change the storage here"))

        return refuse


def as_facts(found: Replay) -> Mapping[str, JSON]:
    """A replay as JSON."""
    blocked = found.blocked
    return {
        "job_id": found.job_id,
        "kind": found.kind,
        "state": found.state,
        "ending": found.ending,
        "agrees": found.agrees,
        "value": found.value,
        "matches": found.matches,
        "blocked": None
        if blocked is None
        else {"on": blocked.on, "name": blocked.name, "detail": blocked.detail},
        "error": found.error,
        "trace": found.trace,
        "read": found.read,
        "unread": found.unread,
        "out_of_order": found.out_of_order,
        "repeated": found.repeated,
        "misfit": found.misfit,
    }
