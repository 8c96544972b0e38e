"""A job's handle: what ``enqueue`` returns and ``client.get`` finds."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from decimal import Decimal

from asgiref.sync import sync_to_async

from django_belay import _control as control
from django_belay import _operate as operate
from django_belay import _replay as replaying
from django_belay import _waiting as waiting
from django_belay.contract import envelope
from django_belay.contract.job import JSON, Event, Job, Signal, Step
from django_belay.contract.money import to_dollars
from django_belay.contract.names import is_reserved
from django_belay.contract.state import State, is_terminal
from django_belay.db import Insertion, storage_for_client
from django_belay.deferred import Deferred
from django_belay.engine.replay import Replay
from django_belay.storage.base import Controlled, Inserted


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRecord:
    """A journaled step, its value decoded; ``Opaque`` where it has no JSON view."""

    seq: int
    name: str
    value: JSON
    usd: Decimal
    tokens: int
    inserted_at: datetime | None

    @classmethod
    def of(cls, step: Step) -> StepRecord:
        """The record of a step as stored."""
        return cls(
            seq=step.seq,
            name=step.name,
            value=envelope.decode_or_opaque(step.value),
            usd=to_dollars(step.usd_micros),
            tokens=step.tokens,
            inserted_at=step.inserted_at,
        )

    @property
    def is_reserved(self) -> bool:
        """Whether the step is an SDK's own; a foreign one's value means nothing here (§2)."""
        return is_reserved(self.name)


class JobHandle:
    """A job by its id: what was last read of it, and what can be done to it.

    On the journal, a job that is enqueued inside ``atomic()`` is inserted after the commit. Until then
    ``id`` is the one reserved for it and ``duplicate`` is ``None``; where the commit finds another job
    holding the unique key, ``id`` becomes that job's.
    """

    __slots__ = ("_duplicate", "_id", "_index", "_insertion", "_job", "_state")

    def __init__(
        self, job_id: int, *, state: State, duplicate: bool | None = False, job: Job | None = None
    ) -> None:
        self._id = job_id
        self._duplicate = duplicate
        self._state: State = state
        self._job = job
        self._insertion: Insertion | None = None
        self._index = 0

    @classmethod
    def of_inserted(cls, inserted: Inserted) -> JobHandle:
        """The handle of what a storage answered."""
        return cls(inserted.job_id, state=inserted.state, duplicate=inserted.duplicate)

    @classmethod
    def of_insertion(cls, insertion: Insertion, index: int = 0) -> JobHandle:
        """The handle of one row of an insert, which may be waiting for the caller's commit."""
        handle = cls.of_inserted(insertion.answers[index])
        if insertion.deferred is not None:
            handle._insertion, handle._index = insertion, index
        return handle

    @classmethod
    def of_job(cls, job: Job) -> JobHandle:
        """The handle of a row that was read."""
        return cls(job.id, state=job.state, job=job)

    @property
    def id(self) -> int:
        """The job's id."""
        self._take_answer()
        return self._id

    @property
    def duplicate(self) -> bool | None:
        """Whether the job was there before, holding the unique key; ``None`` before the commit tells."""
        self._take_answer()
        return self._duplicate

    @property
    def state(self) -> State:
        """The state as last read; ``refresh()`` reads it again."""
        self._take_answer()
        return self._state

    @property
    def is_finished(self) -> bool:
        """Whether the job had ended when it was last read."""
        return is_terminal(self.state)

    @property
    def job(self) -> Job:
        """The row as last read; reads it the first time."""
        if self._job is None:
            self.refresh()
        assert self._job is not None
        return self._job

    def refresh(self) -> JobHandle:
        """Read the job again.

        Raises:
            JobNotFound: It was pruned, or its transaction rolled back.
            StillDeferred: On the journal: its transaction has not committed, or was rolled back.
        """
        self._require_insert()
        self._job = control.get_row(self.id)
        self._state = self._job.state
        return self

    def result(self, timeout: float | None = None) -> JSON:
        """Wait until the job has ended and return its result.

        Args:
            timeout: Seconds to wait at most; ``None`` waits for as long as it takes.

        Raises:
            JobFailed, JobCancelled, BudgetExceeded: How the job ended instead.
            ResultTimeout: It has not ended in time; it goes on.
            JobNotFound: It is gone.
        """
        return waiting.await_result(self.id, timeout=timeout)

    def cancel(
        self, reason: str = "", *, tree: bool = False, join: bool = False
    ) -> Controlled | Deferred[Controlled]:
        """Cancel the job, with ``tree`` its descendants too; see :func:`django_belay.client.cancel`."""
        return control.cancel(self.id, reason=reason, tree=tree, join=join)

    def retry(self, *, join: bool = False) -> Controlled | Deferred[Controlled]:
        """Run a failed or cancelled job again; see :func:`django_belay.client.retry`."""
        return control.retry(self.id, join=join)

    def replay(self) -> Replay:
        """Run today's code against the job's journal, and write nothing; see :func:`django_belay.client.replay`."""
        return replaying.replay(self.id)

    def reschedule(
        self, at: datetime | timedelta, *, join: bool = False
    ) -> Controlled | Deferred[Controlled]:
        """Let the job run, or time out, at another instant; see :func:`django_belay.client.reschedule`."""
        return operate.reschedule(self.id, at, join=join)

    def move(
        self, *, queue: str | None = None, priority: int | None = None, join: bool = False
    ) -> Controlled | Deferred[Controlled]:
        """Give the job another queue or priority; see :func:`django_belay.client.move`."""
        return operate.move(self.id, queue=queue, priority=priority, join=join)

    def freeze(self, *, join: bool = False) -> Controlled | Deferred[Controlled]:
        """Keep the job from running until :meth:`unfreeze`."""
        return operate.freeze(self.id, join=join)

    def unfreeze(self, *, join: bool = False) -> Controlled | Deferred[Controlled]:
        """Let the frozen job go on."""
        return operate.unfreeze(self.id, join=join)

    def erase_payload(self, *, join: bool = False) -> Controlled | Deferred[Controlled]:
        """Overwrite what the ended job holds of its user; see :func:`django_belay.client.erase_payload`."""
        return operate.erase_payload(self.id, join=join)

    def signal(
        self, name: str, payload: JSON = None, *, join: bool = False
    ) -> list[int] | Deferred[list[int]]:
        """Put a signal into the job's inbox; see :func:`django_belay.client.signal`."""
        return control.signal(self.id, name, payload, join=join)

    def steer(self, payload: JSON, *, join: bool = False) -> list[int] | Deferred[list[int]]:
        """Give the running job guidance that ``ctx.steering()`` reads."""
        return control.steer(self.id, payload, join=join)

    def clear_signal(self, name: str) -> bool | Deferred[bool]:
        """Remove a signal from the job's inbox; whether there was one."""
        return control.clear_signal(self.id, name)

    def signals(self) -> list[Signal]:
        """What is in the job's inbox, by name."""
        return control.signals(self.id)

    def steps(self) -> list[StepRecord]:
        """The journaled steps in their order, values decoded."""
        return [StepRecord.of(step) for step in control.get_steps(self.id)]

    def events(self, *, after: int = 0, limit: int = 1000) -> list[Event]:
        """The event stream from the entry after ``after`` on."""
        return control.get_events(self.id, after=after, limit=limit)

    # -- async twins ---------------------------------------------------------------

    async def arefresh(self) -> JobHandle:
        """As :meth:`refresh`."""
        return await sync_to_async(self.refresh)()

    async def aresult(self, timeout: float | None = None) -> JSON:
        """As :meth:`result`, without holding a thread."""
        return await waiting.aawait_result(self.id, timeout=timeout)

    async def acancel(
        self, reason: str = "", *, tree: bool = False, join: bool = False
    ) -> Controlled | Deferred[Controlled]:
        """As :meth:`cancel`."""
        return await sync_to_async(self.cancel)(reason, tree=tree, join=join)

    async def aretry(self, *, join: bool = False) -> Controlled | Deferred[Controlled]:
        """As :meth:`retry`."""
        return await sync_to_async(self.retry)(join=join)

    async def areplay(self) -> Replay:
        """As :meth:`replay`."""
        return await sync_to_async(self.replay)()

    async def areschedule(
        self, at: datetime | timedelta, *, join: bool = False
    ) -> Controlled | Deferred[Controlled]:
        """As :meth:`reschedule`."""
        return await sync_to_async(self.reschedule)(at, join=join)

    async def amove(
        self, *, queue: str | None = None, priority: int | None = None, join: bool = False
    ) -> Controlled | Deferred[Controlled]:
        """As :meth:`move`."""
        return await sync_to_async(self.move)(queue=queue, priority=priority, join=join)

    async def afreeze(self, *, join: bool = False) -> Controlled | Deferred[Controlled]:
        """As :meth:`freeze`."""
        return await sync_to_async(self.freeze)(join=join)

    async def aunfreeze(self, *, join: bool = False) -> Controlled | Deferred[Controlled]:
        """As :meth:`unfreeze`."""
        return await sync_to_async(self.unfreeze)(join=join)

    async def aerase_payload(self, *, join: bool = False) -> Controlled | Deferred[Controlled]:
        """As :meth:`erase_payload`."""
        return await sync_to_async(self.erase_payload)(join=join)

    async def asignal(
        self, name: str, payload: JSON = None, *, join: bool = False
    ) -> list[int] | Deferred[list[int]]:
        """As :meth:`signal`."""
        return await sync_to_async(self.signal)(name, payload, join=join)

    async def asteer(self, payload: JSON, *, join: bool = False) -> list[int] | Deferred[list[int]]:
        """As :meth:`steer`."""
        return await sync_to_async(self.steer)(payload, join=join)

    async def aclear_signal(self, name: str) -> bool | Deferred[bool]:
        """As :meth:`clear_signal`."""
        return await sync_to_async(self.clear_signal)(name)

    async def asignals(self) -> list[Signal]:
        """As :meth:`signals`."""
        return await sync_to_async(self.signals)()

    async def asteps(self) -> list[StepRecord]:
        """As :meth:`steps`."""
        return await sync_to_async(self.steps)()

    async def aevents(self, *, after: int = 0, limit: int = 1000) -> list[Event]:
        """As :meth:`events`."""
        return await sync_to_async(self.events)(after=after, limit=limit)

    # -- plumbing --------------------------------------------------------------------

    def _take_answer(self) -> None:
        """Take over what the commit answered, once it has."""
        if self._insertion is None:
            return
        answer = self._insertion.answers[self._index]
        if answer.duplicate is not None:
            self._insertion = None
            self._id, self._state, self._duplicate = answer.job_id, answer.state, answer.duplicate

    def _require_insert(self) -> None:
        """Raise what keeps the row from being there: no commit yet, or a failed insert after it."""
        if self._insertion is not None and self._insertion.deferred is not None:
            storage_for_client()  # in a TestCase, what would have committed is inserted by now
            self._insertion.deferred.get()

    def __repr__(self) -> str:
        duplicate = ", duplicate" if self.duplicate else ""
        return f"<JobHandle {self.id}: {self.state}{duplicate}>"

    def __eq__(self, other: object) -> bool:
        return self.id == other.id if isinstance(other, JobHandle) else NotImplemented

    def __hash__(self) -> int:
        return hash(self.id)


@dataclass(frozen=True, slots=True)
class Duplicate:
    """An input of ``enqueue_many`` whose key another job holds."""

    index: int
    job_id: int
    state: State


@dataclass(frozen=True, slots=True)
class EnqueueReport:
    """What ``enqueue_many`` did: ``inserted`` by index of the inputs, holders for duplicates.

    On the journal, inside ``atomic()``, duplicates are known after the commit.
    """

    insertion: Insertion

    @property
    def inserted(self) -> list[Inserted]:
        """An answer for each input."""
        return self.insertion.answers

    def __len__(self) -> int:
        return len(self.inserted)

    @property
    def ids(self) -> list[int]:
        """A job's id for each input, the holder's for a duplicate."""
        return [answer.job_id for answer in self.inserted]

    @property
    def new_ids(self) -> list[int]:
        """Ids of the jobs that this call inserted."""
        return [answer.job_id for answer in self.inserted if not answer.duplicate]

    @property
    def duplicates(self) -> list[Duplicate]:
        """The inputs that inserted nothing, and who holds their key."""
        return [
            Duplicate(index, answer.job_id, answer.state)
            for index, answer in enumerate(self.inserted)
            if answer.duplicate
        ]

    def handles(self) -> list[JobHandle]:
        """A handle for each input."""
        return [JobHandle.of_insertion(self.insertion, index) for index in range(len(self))]

    def __repr__(self) -> str:
        duplicates = len(self.duplicates)
        return f"<EnqueueReport: {len(self) - duplicates} inserted, {duplicates} duplicates>"
