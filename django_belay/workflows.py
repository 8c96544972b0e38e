"""Workflows: jobs that wait for each other, inserted together (§8.3).

Members with dependencies are inserted as ``held``; the ack that ends the last dependency
releases them in its own transaction. The batch is in :mod:`django_belay.batches`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from typing import Any

from asgiref.sync import sync_to_async

from django_belay import conf
from django_belay._calls import AnyCall, Call, ForeignCall, as_call, call, call_kind
from django_belay._twins import twin
from django_belay._workflow import WorkflowHandle, WorkflowStatus, check_text, insert_members, new_id
from django_belay.contract.job import NewJob
from django_belay.contract.workflow_graph import check_ignore, topological_order
from django_belay.db import storage_for_client
from django_belay.exceptions import InvalidWorkflow, WorkflowNotFound
from django_belay.jobs import JobFunction

__all__ = [
    "Call",
    "ForeignCall",
    "Node",
    "Workflow",
    "WorkflowHandle",
    "WorkflowStatus",
    "aget",
    "call",
    "call_kind",
    "get",
]


@dataclass(frozen=True, slots=True, eq=False)
class Node:
    """A member of a workflow that is being built: give it to ``deps`` of others."""

    workflow: Workflow
    name: str
    deps: tuple[str, ...]
    ignore: tuple[str, ...]

    def __repr__(self) -> str:
        return f"<Node {self.name}>"


class Workflow:
    """Jobs and what each of them waits for; nothing is written before :meth:`enqueue`.

    Args:
        name: For people: the id starts with it.
        id: The workflow's id where it should be one of yours; no other workflow may have it.

    Relative ``run_after`` and windows of ``unique`` count from the moment this is made.
    """

    def __init__(self, name: str | None = None, *, id: str | None = None) -> None:
        self.name = None if name is None else check_text("name", name)
        self.id = new_id(self.name) if id is None else check_text("id", id)
        self._now = conf.clock().now()
        self._nodes: dict[str, Node] = {}
        self._rows: list[NewJob] = []

    def add(
        self,
        name: str,
        job: JobFunction[..., Any] | AnyCall,
        /,
        *args: Any,
        deps: Collection[Node | str] | Node | str = (),
        ignore: Collection[str] | str = (),
        **kwargs: Any,
    ) -> Node:
        """Add a member.

        Args:
            name: Unique in the workflow.
            job: A job, with ``.using()`` for its options, and its arguments after it; or a
                ``call()`` or ``call_kind()``, which have theirs.
            deps: Members that must succeed first, as nodes or names; names may come later.
            ignore: ``"failed"`` and ``"cancelled"``: ends of a dependency that do not stop
                this member. Without it a dependency that fails or is cancelled cancels it.

        Returns:
            The member, to be another's dependency.

        Raises:
            InvalidWorkflow: The name is taken, the member depends on itself, or ``ignore``
                holds something else.
            InvalidInput: The arguments do not fit the job.
        """
        check_text("member", name)
        if name in self._nodes:
            raise InvalidWorkflow(f"there are two members {name!r}; names are unique in a workflow")
        node = Node(self, name, self._dep_names(name, deps), check_ignore(name, ignore))
        row = as_call(job, args, kwargs).row(self._now, path=f"{name}.input")
        self._rows.append(
            replace(
                row,
                workflow_id=self.id,
                wf_name=name,
                wf_deps=node.deps,
                wf_ignore=node.ignore,
                state="held" if node.deps else "ready",
            )
        )
        self._nodes[name] = node
        return node

    def check(self) -> list[str]:
        """Names in the order in which they can run.

        Raises:
            InvalidWorkflow: There is no member, a dependency is none, or they go in a circle.
        """
        if not self._nodes:
            raise InvalidWorkflow("the workflow has no members; add() some")
        return topological_order({name: node.deps for name, node in self._nodes.items()})

    def enqueue(self) -> WorkflowHandle:
        """Insert all members in one statement, in the caller's transaction.

        Raises:
            InvalidWorkflow: As :meth:`check` says; the id is taken; or the unique key of a
                member is held by a job elsewhere. Nothing was written.

        Contract: §5.1, §8.3.
        """
        self.check()
        insert_members(self._rows, workflow_id=self.id)
        return WorkflowHandle(self.id)

    async def aenqueue(self) -> WorkflowHandle:
        """As :meth:`enqueue`."""
        return await sync_to_async(self.enqueue)()

    insert, ainsert = enqueue, aenqueue

    def _dep_names(self, name: str, deps: Collection[Node | str] | Node | str) -> tuple[str, ...]:
        given = (deps,) if isinstance(deps, Node | str) else deps
        names = dict.fromkeys(self._dep_name(name, dep) for dep in given)
        if name in names:
            raise InvalidWorkflow(f"{name!r} depends on itself")
        return tuple(names)

    def _dep_name(self, name: str, dep: Node | str) -> str:
        if isinstance(dep, str):
            return dep
        if not isinstance(dep, Node):
            raise InvalidWorkflow(f"{name!r} depends on {dep!r:.60}; give members or their names")
        if dep.workflow is not self:
            raise InvalidWorkflow(f"{name!r} depends on {dep.name!r}, a member of another workflow")
        return dep.name

    def __iter__(self) -> Iterator[Node]:
        return iter(self._nodes.values())

    def __len__(self) -> int:
        return len(self._nodes)

    def __repr__(self) -> str:
        return f"<Workflow {self.id}: {len(self)} members>"


def get(workflow_id: str) -> WorkflowHandle:
    """The handle of a workflow that is there, this SDK's or another's.

    Raises:
        WorkflowNotFound: No job belongs to this id.
    """
    if not storage_for_client().storage.workflow_states(check_text("id", workflow_id)):
        raise WorkflowNotFound(workflow_id)
    return WorkflowHandle(workflow_id)


aget = twin(get)
