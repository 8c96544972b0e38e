"""What workflows and batches share: the insert, the status, the handle (§8.3)."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

from asgiref.sync import sync_to_async

from django_belay import _control as control
from django_belay import _enqueue, conf
from django_belay._options import check_name
from django_belay._polling import pauses
from django_belay.contract import envelope
from django_belay.contract.job import JSON, Job, NewJob
from django_belay.contract.names import workflow_scope
from django_belay.contract.settlement import DOOMED, Member
from django_belay.contract.state import INCOMPLETE, State, is_terminal
from django_belay.contract.workflow_graph import dependencies_first, retriable
from django_belay.db import Insertion, storage_for_client
from django_belay.deferred import Deferred
from django_belay.exceptions import ConfigurationError, InvalidWorkflow, ResultTimeout, WorkflowNotFound
from django_belay.handles import JobHandle
from django_belay.storage.base import Controlled, MemberState

FIRST_POLL_S = 0.01
LAST_POLL_S = 0.5


def check_text(what: str, value: object) -> str:
    """A name of a workflow or of a member.

    Raises:
        InvalidWorkflow: It is empty, too long, or holds control characters.
    """
    try:
        return check_name(f"{what}={value!r:.60}", value)
    except ConfigurationError as error:
        raise InvalidWorkflow(str(error)) from None


def new_id(name: str | None) -> str:
    """An id that no other workflow has; it starts with the name, for people to read."""
    unique = uuid4().hex
    return unique if name is None else f"{name}-{unique}"


# -- the insert --------------------------------------------------------------------


def insert_members(rows: Sequence[NewJob], *, workflow_id: str) -> Insertion:
    """All rows in one statement, with the caller's transaction; or none.

    Raises:
        InvalidWorkflow: The id is taken, or a member's unique key or slot is held: a workflow
            without that member would never end, or run beside it. Nothing was written,
            and the caller's transaction can go on.

    Contract: §5.1, §8.3.
    """
    return storage_for_client().insert_workflow(
        rows,
        workflow_id=workflow_id,
        now=conf.clock().now(),
        then=lambda inserted: _enqueue.announce(rows, inserted),
    )


# -- reading -----------------------------------------------------------------------


def member_name(job_id: int, name: str | None) -> str:
    """A foreign member may have no name: then its id stands for it."""
    return f"#{job_id}" if name is None else name


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkflowStatus:
    """How a workflow stands: the state of each member by its name."""

    workflow_id: str
    states: Mapping[str, State]

    @property
    def counts(self) -> dict[State, int]:
        """How many members are in each state; states of none are left out."""
        return dict(Counter(self.states.values()))

    @property
    def total(self) -> int:
        """How many members there are."""
        return len(self.states)

    @property
    def done(self) -> int:
        """How many have ended, in whatever way."""
        return sum(is_terminal(state) for state in self.states.values())

    @property
    def is_finished(self) -> bool:
        """Whether every member has ended."""
        return self.done == self.total

    @property
    def is_successful(self) -> bool:
        """Whether every member succeeded."""
        return all(state == "succeeded" for state in self.states.values())


class WorkflowHandle:
    """A workflow by its id: what became of it, and what can be done to it.

    Attributes:
        id: The workflow's id; ``wf:<id>`` is a signal scope that all members read.
    """

    __slots__ = ("id",)

    def __init__(self, workflow_id: str) -> None:
        self.id = workflow_id

    @property
    def scope(self) -> str:
        """The signal scope of the workflow (§8.1)."""
        return workflow_scope(self.id)

    def status(self) -> WorkflowStatus:
        """The state of each member now.

        Raises:
            WorkflowNotFound: No job belongs to this id.
        """
        states = {member_name(one.job_id, one.name): one.state for one in self._states()}
        return WorkflowStatus(workflow_id=self.id, states=states)

    def wait(self, timeout: float | None = None) -> WorkflowStatus:
        """Wait until every member has ended.

        Args:
            timeout: Seconds to wait at most; ``None`` waits for as long as it takes.

        Raises:
            ResultTimeout: Some have not ended in time; they go on.
            WorkflowNotFound: No job belongs to this id.
        """
        for pause in pauses(timeout, first_s=FIRST_POLL_S, last_s=LAST_POLL_S):
            if not self._is_open():
                return self.status()
            time.sleep(pause)
        raise self._too_late(timeout)

    async def await_end(self, timeout: float | None = None) -> WorkflowStatus:
        """As :meth:`wait`, without holding a thread; ``await handle`` is the same without a timeout."""
        for pause in pauses(timeout, first_s=FIRST_POLL_S, last_s=LAST_POLL_S):
            if not await sync_to_async(self._is_open)():
                return await self.astatus()
            await asyncio.sleep(pause)
        raise await sync_to_async(self._too_late)(timeout)

    def __await__(self) -> Any:
        return self.await_end().__await__()

    def jobs(self) -> list[JobHandle]:
        """The members' handles, by id; ``handle.job.wf_name`` is a member's name."""
        return [JobHandle.of_job(row) for row in self._rows()]

    def job(self, name: str) -> JobHandle:
        """The handle of the member of a name.

        Raises:
            WorkflowNotFound: No job belongs to this id.
            InvalidWorkflow: It has no member of this name.
        """
        found = [one for one in self._states() if member_name(one.job_id, one.name) == name]
        if not found:
            raise InvalidWorkflow(f"workflow {self.id!r} has no member {name!r}")
        return JobHandle(found[-1].job_id, state=found[-1].state)

    def results(self) -> dict[str, JSON]:
        """The decoded result of each member that has succeeded so far, by its name."""
        return {
            member_name(row.id, row.wf_name): envelope.decode(row.result)
            for row in self._rows()
            if row.state == "succeeded"
        }

    # -- changing ------------------------------------------------------------------

    def cancel(
        self, reason: str = "", *, join: bool = False
    ) -> list[Controlled] | Deferred[list[Controlled]]:
        """Cancel every member that has not ended; those that run stop at their next step.

        Inside ``atomic()`` it happens after the commit, as cancelling a job does.

        Contract: §8.6; rules 10, 19.
        """
        control.check_text("reason", reason)
        return control.after_commit(
            lambda: self._cancel(reason), what=f"cancelling workflow {self.id!r}", join=join
        )

    def retry_failed(
        self, *, cancelled: bool = False, join: bool = False
    ) -> list[Controlled] | Deferred[list[Controlled]]:
        """Run again what failed, and what settlement cancelled because of it.

        Members with dependencies wait for them again. What somebody cancelled stays so, and
        what depends on it, too.

        Args:
            cancelled: Also run again what somebody cancelled.

        Returns:
            An answer for each member that failed or was cancelled with it, dependencies
            first; ``reason`` says why one was left alone. Inside ``atomic()`` a ``Deferred``.

        Contract: §8.6; rules 9, 10, 34.
        """
        return control.after_commit(
            lambda: self._retry_failed(cancelled), what=f"retrying workflow {self.id!r}", join=join
        )

    def signal(
        self, name: str, payload: JSON = None, *, join: bool = False
    ) -> list[int] | Deferred[list[int]]:
        """Put a signal into the workflow's inbox, which all members read; see ``client.signal``."""
        return control.signal(self.scope, name, payload, join=join)

    # -- async twins ---------------------------------------------------------------

    async def astatus(self) -> WorkflowStatus:
        """As :meth:`status`."""
        return await sync_to_async(self.status)()

    async def aresults(self) -> dict[str, JSON]:
        """As :meth:`results`."""
        return await sync_to_async(self.results)()

    async def ajobs(self) -> list[JobHandle]:
        """As :meth:`jobs`."""
        return await sync_to_async(self.jobs)()

    async def ajob(self, name: str) -> JobHandle:
        """As :meth:`job`."""
        return await sync_to_async(self.job)(name)

    async def acancel(
        self, reason: str = "", *, join: bool = False
    ) -> list[Controlled] | Deferred[list[Controlled]]:
        """As :meth:`cancel`."""
        return await sync_to_async(self.cancel)(reason, join=join)

    async def aretry_failed(
        self, *, cancelled: bool = False, join: bool = False
    ) -> list[Controlled] | Deferred[list[Controlled]]:
        """As :meth:`retry_failed`."""
        return await sync_to_async(self.retry_failed)(cancelled=cancelled, join=join)

    async def asignal(
        self, name: str, payload: JSON = None, *, join: bool = False
    ) -> list[int] | Deferred[list[int]]:
        """As :meth:`signal`."""
        return await sync_to_async(self.signal)(name, payload, join=join)

    # -- plumbing --------------------------------------------------------------------

    def _states(self) -> list[MemberState]:
        states = storage_for_client().storage.workflow_states(self.id)
        if not states:
            raise WorkflowNotFound(self.id)
        return states

    def _rows(self) -> list[Job]:
        rows = storage_for_client().storage.workflow_jobs(self.id)
        if not rows:
            raise WorkflowNotFound(self.id)
        return rows

    def _is_open(self) -> bool:
        return storage_for_client().storage.has_open_member(self.id)

    def _cancel(self, reason: str, *, keep: Collection[str] = ()) -> list[Controlled]:
        members = [
            _member(row) for row in self._rows() if row.state in INCOMPLETE and row.wf_name not in keep
        ]
        # Dependents first: the end of what they wait for would release or doom them otherwise.
        ids = dependencies_first(members)[::-1]
        return storage_for_client().storage.cancel_many(
            ids, reason=reason or "cancelled", now=conf.clock().now()
        )

    def _retry_failed(self, cancelled: bool) -> list[Controlled]:
        rows = self._rows()
        wanted = [row for row in rows if _is_to_retry(row, cancelled)]
        order = retriable([_member(row) for row in rows], {row.id for row in wanted})
        retried = storage_for_client().storage.retry_many(order, now=conf.clock().now())
        left = [
            Controlled(job_id=row.id, state=row.state, reason="depends on a member that stays cancelled")
            for row in wanted
            if row.id not in set(order)
        ]
        return [*retried, *left]

    def _too_late(self, timeout: float | None) -> ResultTimeout:
        states = self._states()
        open_ids = [one.job_id for one in states if one.state in INCOMPLETE]
        return ResultTimeout(
            f"workflow {self.id!r} had not ended after {timeout:g} s: {len(open_ids)} of {len(states)} members "
            "go on. Ask again, or see that a worker serves their queues",
            job_id=open_ids[0] if open_ids else states[0].job_id,
        )

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.id}>"

    def __eq__(self, other: object) -> bool:
        return self.id == other.id if isinstance(other, WorkflowHandle) else NotImplemented

    def __hash__(self) -> int:
        return hash(self.id)


def _member(row: Job) -> Member:
    return Member(
        job_id=row.id,
        name=member_name(row.id, row.wf_name),
        state=row.state,
        deps=tuple(row.wf_deps),
        ignore=tuple(row.wf_ignore),
    )


def _is_to_retry(row: Job, cancelled: bool) -> bool:
    if row.state == "failed":
        return True
    return row.state == "cancelled" and (cancelled or _is_doomed(row))


def _is_doomed(row: Job) -> bool:
    """Whether settlement cancelled it: a cancellation by somebody gives another reason."""
    last = row.errors[-1] if isinstance(row.errors, list) and row.errors else None
    return isinstance(last, dict) and last.get("reason") == DOOMED
