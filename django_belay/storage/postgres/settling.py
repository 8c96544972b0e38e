"""Workflow settlement inside a transition: foreseen before its locks, decided under them (§8.3)."""

from __future__ import annotations

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
    members: Mapping[str, Mapping[int, Member]] = field(default_factory=dict)
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
    """Read what settlement needs: no more than what these changes may move (rule 33).

    Args:
        workflows: Read these as a whole, whatever the changes are.
    """
    written = _written(rows, changes)
    reheld = [job_id for job_id, state in written.items() if state == "held"]
    whole = {_workflow(rows[job_id]) for job_id in reheld} | set(workflows)
    ended = [row for job_id in written if _workflow(row := rows[job_id]) not in whole]
    read = _read_affected(transaction.run, ended, written)
    if read is None:
        whole |= {_workflow(row) for row in ended}
        read = _Read()
    if whole:
        read.add(_members(transaction.run, sorted(whole), reheld))
    settlement = _settle(read.members, written)
    moved = frozenset(settlement.releases + settlement.dooms)
    return Foreseen(written=written, members=read.members, parents=read.parents, moved=moved)


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
    settlement = _settle(foreseen.members, written)
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
    members = _members(run, workflow_ids, ()).members
    return [workflow_id for workflow_id, of_it in members.items() if settle(of_it.values()) != Settlement()]


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


def _workflow(row: JobRow) -> str:
    """The workflow of a member; what is written to other rows settles nothing."""
    assert row.workflow_id is not None
    return row.workflow_id


# -- reading ---------------------------------------------------------------------------------

# More ends than these, and the whole workflow is read at once: a cancelled one, for instance.
MAX_ENDS = 500
# How far members that are doomed are followed one by one before the whole workflow is read.
MAX_DEPTH = 3


# No text in PostgreSQL holds a NUL: a member without a name is nobody's dep.
_NAMELESS = "\0"


@dataclass(slots=True)
class _Read:
    """Members by their workflow and id, and the parents of those that have one."""

    members: dict[str, dict[int, Member]] = field(default_factory=dict)
    parents: dict[int, int] = field(default_factory=dict)

    def add(self, other: _Read) -> None:
        """Take over what another query found; what is known of a member's deps stays."""
        self.parents |= other.parents
        for workflow_id, members in other.members.items():
            mine = self.members.setdefault(workflow_id, {})
            for job_id, member in members.items():
                if job_id not in mine or not mine[job_id].deps:
                    mine[job_id] = member


def _read_affected(run: Run, ended: Sequence[JobRow], written: Mapping[int, State]) -> _Read | None:
    """Only the held members that these ends move, with their deps; ``None`` where it is too much.

    A member that is doomed ends for those that wait for it, so these are read next.
    """
    read = _Read()
    ends = {
        row.id: (_workflow(row), row.wf_name, written[row.id]) for row in ended if row.wf_name is not None
    }
    for _ in range(MAX_DEPTH):
        if not ends:
            return read
        if len(ends) > MAX_ENDS:
            return None
        workflow_ids, member_names, states = zip(*ends.values(), strict=True)
        read.add(
            _parsed(
                run(
                    "affected_members",
                    {
                        "workflow_ids": list(workflow_ids),
                        "names": list(member_names),
                        "states": list(states),
                        "ids": list(ends),
                    },
                )
            )
        )
        doomed = _doomed(read, written)
        if doomed.keys() <= ends.keys():
            return read
        ends |= doomed
    return None


def _doomed(read: _Read, written: Mapping[int, State]) -> dict[int, tuple[str, str, State]]:
    """What is doomed and may be a dep of others; a member without a name is nobody's."""
    dooms = set(_settle(read.members, written).dooms)
    return {
        job_id: (workflow_id, member.name, "cancelled")
        for workflow_id, members in read.members.items()
        for job_id, member in members.items()
        if job_id in dooms and not member.name.startswith(_NAMELESS)
    }


def _members(run: Run, workflow_ids: Sequence[str], reheld: Sequence[int]) -> _Read:
    return _parsed(run("workflow_members", {"workflow_ids": list(workflow_ids), "reheld": list(reheld)}))


def _parsed(rows: Rows) -> _Read:
    read = _Read()
    for workflow_id, job_id, name, state, deps, ignore, parent_id in rows:
        name = f"{_NAMELESS}{job_id}" if name is None else name
        member = Member(job_id=job_id, name=name, state=state, deps=_flat(deps), ignore=_flat(ignore))
        known = read.members.setdefault(workflow_id, {})
        if job_id not in known or not known[job_id].deps:
            known[job_id] = member
        if parent_id is not None:
            read.parents[job_id] = parent_id
    return read


def _flat(texts: Iterable[Any]) -> tuple[str, ...]:
    """The items of a ``text[]``: a column of that type may hold an array of any dimensions (rule 4)."""
    flat: list[str] = []
    for item in texts:
        flat.extend(_flat(item) if isinstance(item, list) else (item,))
    return tuple(flat)


def _settle(workflows: Mapping[str, Mapping[int, Member]], written: Mapping[int, State]) -> Settlement:
    releases: list[int] = []
    dooms: list[int] = []
    for members in workflows.values():
        found = settle(
            replace(member, state=written[job_id]) if job_id in written else member
            for job_id, member in members.items()
        )
        releases.extend(found.releases)
        dooms.extend(found.dooms)
    return Settlement(releases=tuple(releases), dooms=tuple(dooms))
