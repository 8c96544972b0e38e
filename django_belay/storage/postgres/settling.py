"""Workflow settlement inside a transition: foreseen before its locks, decided under them (§8.3)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

from django_belay.contract.outcome import Changes
from django_belay.contract.settlement import DOOMED, Member, Settlement, settle
from django_belay.contract.state import State, is_terminal
from django_belay.exceptions import Contended
from django_belay.storage.postgres.changes import JobRow
from django_belay.storage.postgres.session import Params, Rows, Transaction

Run = Callable[[str, Params], Rows]


@dataclass(slots=True)
class Foreseen:
    """What a transition will settle if the rows are still so once they are locked (rule 19).

    The workflows' locks are held, so among this contract's writers only this transaction
    ends, re-holds or settles their members; what moves can only be a part of ``moved``.
    """

    written: Mapping[int, State] = field(default_factory=dict)
    members: Mapping[str, list[Member]] = field(default_factory=dict)
    parents: Mapping[int, int] = field(default_factory=dict)
    moved: frozenset[int] = frozenset()

    @property
    def moved_parents(self) -> set[int]:
        """Parents of members that may end here: their scopes are locked, too (rule 24)."""
        return {self.parents[job_id] for job_id in self.moved if job_id in self.parents}


def foresee(
    transaction: Transaction,
    rows: Mapping[int, JobRow],
    changes: Mapping[int, Changes],
    *,
    workflows: Collection[str] = (),
) -> Foreseen:
    """Read what settlement needs, where a held member may move at all (rule 33).

    Args:
        workflows: Read these whatever the changes are.
    """
    written = _written(rows, changes)
    moving = _moving(transaction, rows, written) | set(workflows)
    if not moving:
        return Foreseen(written=written)
    reheld = [job_id for job_id, state in written.items() if state == "held"]
    members, parents = _members(transaction.run, sorted(moving), reheld)
    settlement = _settle(members.values(), written)
    moved = frozenset(settlement.releases + settlement.dooms)
    return Foreseen(written=written, members=members, parents=parents, moved=moved)


def settled(
    foreseen: Foreseen, rows: Mapping[int, JobRow], changes: Mapping[int, Changes], *, now: datetime
) -> dict[int, Changes]:
    """The changes of members that these changes release or doom.

    Raises:
        Contended: Somebody outside the contract's locks changed a row since it was
            looked at; the transition starts over.
    """
    written = _written(rows, changes)
    if not written.items() <= foreseen.written.items():
        raise Contended("a workflow's member changed between look and lock; the transition starts over")
    settlement = _settle(foreseen.members.values(), written)
    result: dict[int, Changes] = {}
    for job_id in settlement.releases + settlement.dooms:
        row = rows.get(job_id)
        if row is None or (job_id not in written and row.state != "held"):
            continue
        before = changes.get(job_id, _KEPT)
        doomed = job_id in settlement.dooms
        result[job_id] = _doom(before, now) if doomed else replace(before, state="ready")
    return result


def find_unsettled(run: Run, workflow_ids: Sequence[str]) -> list[str]:
    """Which of these workflows have a member to release or doom, looked at without a lock."""
    members, _ = _members(run, workflow_ids, ())
    return [workflow_id for workflow_id, of_it in members.items() if settle(of_it) != Settlement()]


# A release keeps the instant that the member was scheduled for.
_KEPT = Changes(state="held", keep_ready_at=True)


def _doom(before: Changes, now: datetime) -> Changes:
    return replace(before, state="cancelled", error={"reason": DOOMED}, finished_at=now)


def _written(rows: Mapping[int, JobRow], changes: Mapping[int, Changes]) -> dict[int, State]:
    """The states that settlement depends on: members that end here, or are held again."""
    return {
        job_id: change.state
        for job_id, change in changes.items()
        if rows[job_id].workflow_id is not None and (is_terminal(change.state) or change.state == "held")
    }


def _moving(transaction: Transaction, rows: Mapping[int, JobRow], written: Mapping[int, State]) -> set[str]:
    held = {rows[job_id].workflow_id for job_id, state in written.items() if state == "held"}
    ended = [
        row for job_id in written if (row := rows[job_id]).wf_name is not None and row.workflow_id not in held
    ]
    found: set[str | None] = held
    if ended:
        answer = transaction.run(
            "find_moving_workflows",
            {
                "workflow_ids": [row.workflow_id for row in ended],
                "names": [row.wf_name for row in ended],
                "states": [written[row.id] for row in ended],
                "ids": [row.id for row in ended],
            },
        )
        found |= {workflow_id for (workflow_id,) in answer}
    return {workflow_id for workflow_id in found if workflow_id is not None}


def _members(
    run: Run, workflow_ids: Sequence[str], reheld: Sequence[int]
) -> tuple[dict[str, list[Member]], dict[int, int]]:
    members: defaultdict[str, list[Member]] = defaultdict(list)
    parents: dict[int, int] = {}
    params = {"workflow_ids": list(workflow_ids), "reheld": list(reheld)}
    for row in run("workflow_members", params):
        workflow_id, job_id, name, state, deps, ignore, parent_id = row
        # No text in PostgreSQL holds a NUL: a member without a name is nobody's dep.
        name = f"\0{job_id}" if name is None else name
        members[workflow_id].append(
            Member(job_id=job_id, name=name, state=state, deps=_flat(deps), ignore=_flat(ignore))
        )
        if parent_id is not None:
            parents[job_id] = parent_id
    return dict(members), parents


def _flat(texts: Iterable[Any]) -> tuple[str, ...]:
    """The items of a ``text[]``: a column of that type may hold an array of any dimensions (rule 4)."""
    flat: list[str] = []
    for item in texts:
        flat.extend(_flat(item) if isinstance(item, list) else (item,))
    return tuple(flat)


def _settle(workflows: Iterable[list[Member]], written: Mapping[int, State]) -> Settlement:
    releases: list[int] = []
    dooms: list[int] = []
    for members in workflows:
        found = settle(
            replace(member, state=written[member.job_id]) if member.job_id in written else member
            for member in members
        )
        releases.extend(found.releases)
        dooms.extend(found.dooms)
    return Settlement(releases=tuple(releases), dooms=tuple(dooms))
