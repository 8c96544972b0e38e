"""Workflow settlement as a pure function that every writer shares (§8.3)."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from django_belay.contract.state import State

#: The reason in the ``errors`` of a doomed member.
DOOMED: Final = "dependency_failed"


@dataclass(slots=True, kw_only=True, frozen=True)
class Member:
    """What settlement reads of a workflow's job."""

    job_id: int
    name: str
    state: State
    deps: tuple[str, ...] = ()
    ignore: tuple[str, ...] = ()


@dataclass(slots=True, kw_only=True, frozen=True)
class Settlement:
    """Job ids to release to ``ready`` and to doom to ``cancelled``, each sorted."""

    releases: tuple[int, ...] = ()
    dooms: tuple[int, ...] = ()


def settle(members: Iterable[Member]) -> Settlement:
    """Which held jobs a workflow's states release or doom, to the fixpoint.

    A held job with deps releases when every dep succeeded, or ended with a
    matching ``ignore`` flag; it is doomed when a dep ended without one. Doomed jobs count as
    cancelled for their own dependents. A dep whose row is gone neither releases nor
    dooms (rule 33). Where a foreign workflow uses a name twice, the newest row speaks
    for it. Independent of the order of ``members``; linear in edges.

    Contract: §8.3.
    """
    ordered = sorted(members, key=lambda member: member.job_id)
    state: dict[str, State] = {member.name: member.state for member in ordered}
    held = [member for member in ordered if member.state == "held" and member.deps]
    dooms = _doomed(ordered, held, state)
    releases = [
        member.job_id
        for member in held
        if member.job_id not in dooms and all(_satisfies(state.get(dep), member) for dep in member.deps)
    ]
    return Settlement(releases=tuple(sorted(releases)), dooms=tuple(sorted(dooms)))


def _doomed(ordered: list[Member], held: list[Member], state: dict[str, State]) -> set[int]:
    """Job ids of held members that cannot run any more; marks them cancelled in ``state``.

    Of a name that stands twice the newest row speaks: the doom of an older one tells nobody.
    """
    newest = {member.name: member.job_id for member in ordered}
    dependents: defaultdict[str, list[Member]] = defaultdict(list)
    for member in held:
        for dep in member.deps:
            dependents[dep].append(member)
    dooms: set[int] = set()
    waiting = deque(name for name, value in state.items() if value in ("failed", "cancelled"))
    while waiting:
        ended = waiting.popleft()
        for member in dependents[ended]:
            if member.job_id not in dooms and not _satisfies(state[ended], member):
                dooms.add(member.job_id)
                if newest[member.name] == member.job_id:
                    state[member.name] = "cancelled"
                    waiting.append(member.name)
    return dooms


def _satisfies(dep_state: State | None, member: Member) -> bool:
    if dep_state == "succeeded":
        return True
    return dep_state in ("failed", "cancelled") and dep_state in member.ignore
