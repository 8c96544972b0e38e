"""Batches: many independent jobs, and one that runs when all of them have ended (§8.3).

A batch is a workflow: its jobs are members without dependencies, and the job on completion
is held until each of them has ended, whatever became of it. Any SDK can run them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from asgiref.sync import sync_to_async

from django_belay import _control as control
from django_belay import conf
from django_belay._calls import AnyCall, as_call
from django_belay._enqueue import CallMaker
from django_belay._twins import twin
from django_belay._workflow import (
    WorkflowHandle,
    WorkflowStatus,
    check_text,
    insert_members,
    member_name,
    new_id,
)
from django_belay.contract import envelope
from django_belay.contract.job import JSON, NewJob
from django_belay.contract.state import State, is_terminal
from django_belay.contract.workflow_graph import IGNORABLE
from django_belay.db import storage_for_client
from django_belay.deferred import Deferred
from django_belay.exceptions import InvalidInput, InvalidWorkflow, WorkflowNotFound
from django_belay.handles import JobHandle
from django_belay.jobs import JobFunction
from django_belay.storage.base import Controlled

__all__ = ["ON_COMPLETE", "Batch", "BatchHandle", "BatchProgress", "aget", "get"]

#: The member's name of the job that runs at the end; the others are "0", "1", …
ON_COMPLETE: Final = "on_complete"

#: The argument that the job on completion gets where it takes one of this name.
BATCH_ID: Final = "batch_id"


class Batch:
    """Jobs to insert together; nothing is written before :meth:`enqueue`.

    Args:
        on_complete: A job, or a ``call()`` of one, that runs once when every other job has
            succeeded, failed or been cancelled. It gets the batch's id where it takes an
            argument called ``batch_id``, and finds out through ``batches.get(batch_id)``.
        name: For people: the id starts with it.
        id: The batch's id where it should be one of yours; no other may have it.
    """

    def __init__(
        self,
        on_complete: JobFunction[..., Any] | AnyCall | None = None,
        *,
        name: str | None = None,
        id: str | None = None,
    ) -> None:
        self.id = (
            new_id(None if name is None else check_text("name", name)) if id is None else check_text("id", id)
        )
        self._now = conf.clock().now()
        self._rows: list[NewJob] = []
        self._last = None if on_complete is None else self._on_complete(as_call(on_complete, (), {}))

    def add(self, job: JobFunction[..., Any] | AnyCall, /, *args: Any, **kwargs: Any) -> int:
        """Add one job; its index in the batch, which is its member's name too.

        Raises:
            InvalidInput: The arguments do not fit the job.
        """
        index = len(self._rows)
        self._append(as_call(job, args, kwargs).row(self._now, path=f"jobs[{index}].input"))
        return index

    def add_many(self, job: JobFunction[..., Any], inputs: Iterable[Mapping[str, Any]]) -> None:
        """Add a job for each dictionary of arguments.

        Raises:
            InvalidInput: The path starts with the input's index; the batch keeps those before it.
        """
        maker = CallMaker(job.definition, job.options, self._now)
        for index, values in enumerate(inputs):
            if not isinstance(values, Mapping):
                raise InvalidInput(
                    f"is a {type(values).__name__}; give a dictionary of the job's arguments",
                    path=f"inputs[{index}]",
                )
            self._append(maker.make((), values, f"inputs[{index}]"))

    def enqueue(self) -> BatchHandle:
        """Insert everything in one statement, in the caller's transaction.

        A batch without jobs runs its job on completion at once.

        Raises:
            InvalidWorkflow: There is nothing to insert, the id is taken, or the unique key
                of a job is held by one elsewhere. Nothing was written.

        Contract: §5.1, §8.3.
        """
        rows = [*self._rows, *([] if self._last is None else [self._held(self._last)])]
        if not rows:
            raise InvalidWorkflow("the batch has no jobs; add() some")
        insert_members(rows, workflow_id=self.id)
        return BatchHandle(self.id)

    async def aenqueue(self) -> BatchHandle:
        """As :meth:`enqueue`."""
        return await sync_to_async(self.enqueue)()

    def _append(self, row: NewJob) -> None:
        self._rows.append(replace(row, workflow_id=self.id, wf_name=str(len(self._rows))))

    def _on_complete(self, call: AnyCall) -> NewJob:
        row = call.with_argument(BATCH_ID, self.id).row(self._now, path="on_complete.input")
        return replace(row, workflow_id=self.id, wf_name=ON_COMPLETE)

    def _held(self, last: NewJob) -> NewJob:
        # One array of all names on one row. Joins of a few dozen each would make every ack
        # find a dependent and read the whole workflow; see docs/how-to/workflows.md.
        names = tuple(str(row.wf_name) for row in self._rows)
        return replace(last, wf_deps=names, wf_ignore=IGNORABLE, state="held" if names else "ready")

    def __len__(self) -> int:
        return len(self._rows)

    def __repr__(self) -> str:
        return f"<Batch {self.id}: {len(self)} jobs>"


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchProgress:
    """How a batch stands, in numbers; the job on completion is counted apart.

    ``on_complete`` is its state, ``None`` where there is none.
    """

    batch_id: str
    total: int
    succeeded: int
    failed: int
    cancelled: int
    on_complete: State | None

    @property
    def done(self) -> int:
        """How many jobs have ended, in whatever way."""
        return self.succeeded + self.failed + self.cancelled

    @property
    def pending(self) -> int:
        """How many have not."""
        return self.total - self.done

    @property
    def progress(self) -> float:
        """The share that has ended, from 0 to 1."""
        return self.done / self.total if self.total else 1.0

    @property
    def is_complete(self) -> bool:
        """Whether every job has ended; the job on completion may still be to run."""
        return not self.pending

    @property
    def is_finished(self) -> bool:
        """Whether the job on completion has ended, too."""
        return self.is_complete and (self.on_complete is None or is_terminal(self.on_complete))


class BatchHandle(WorkflowHandle):
    """A batch by its id; what a :class:`~django_belay.workflows.WorkflowHandle` does, in a batch's words."""

    __slots__ = ()

    def progress(self) -> BatchProgress:
        """The numbers now; :meth:`status` gives the state of each job.

        Raises:
            WorkflowNotFound: No job belongs to this id.
        """
        return _summary(self.status())

    async def aprogress(self) -> BatchProgress:
        """As :meth:`progress`."""
        return await sync_to_async(self.progress)()

    @property
    def on_complete(self) -> JobHandle:
        """The handle of the job on completion.

        Raises:
            InvalidWorkflow: The batch has none.
        """
        return self.job(ON_COMPLETE)

    async def aon_complete(self) -> JobHandle:
        """As :attr:`on_complete`."""
        return await self.ajob(ON_COMPLETE)

    def results(self) -> dict[str, JSON]:
        """The decoded result of each job that has succeeded so far, by its index as text."""
        return {
            member_name(row.id, row.wf_name): envelope.decode(row.result)
            for row in self._rows()
            if row.state == "succeeded" and row.wf_name != ON_COMPLETE
        }

    def cancel(
        self, reason: str = "", *, on_complete: bool = False, join: bool = False
    ) -> list[Controlled] | Deferred[list[Controlled]]:
        """Cancel every job that has not ended; the job on completion then runs.

        Args:
            on_complete: Cancel that one, too.
        """
        control.check_text("reason", reason)
        keep = () if on_complete else (ON_COMPLETE,)
        return control.after_commit(
            lambda: self._cancel(reason, keep=keep), what=f"cancelling batch {self.id!r}", join=join
        )

    async def acancel(
        self, reason: str = "", *, on_complete: bool = False, join: bool = False
    ) -> list[Controlled] | Deferred[list[Controlled]]:
        """As :meth:`cancel`."""
        return await sync_to_async(self.cancel)(reason, on_complete=on_complete, join=join)


def _summary(status: WorkflowStatus) -> BatchProgress:
    states = dict(status.states)
    last = states.pop(ON_COMPLETE, None)
    ended = list(states.values())
    return BatchProgress(
        batch_id=status.workflow_id,
        total=len(ended),
        succeeded=ended.count("succeeded"),
        failed=ended.count("failed"),
        cancelled=ended.count("cancelled"),
        on_complete=last,
    )


def get(batch_id: str) -> BatchHandle:
    """The handle of a batch that is there.

    Raises:
        WorkflowNotFound: No job belongs to this id.
    """
    if not storage_for_client().storage.workflow_states(check_text("id", batch_id)):
        raise WorkflowNotFound(batch_id)
    return BatchHandle(batch_id)


aget = twin(get)
