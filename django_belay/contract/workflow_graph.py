"""Whether names and dependencies make a workflow, and in which order they run (§8.3)."""

from __future__ import annotations

import difflib
from collections import deque
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from typing import Final

from django_belay.contract.job import NewJob
from django_belay.contract.settlement import Member, settle
from django_belay.contract.state import State
from django_belay.exceptions import InvalidWorkflow

#: What ``wf_ignore`` may hold: ends of a dependency that its dependent lives with.
IGNORABLE: Final[tuple[str, ...]] = ("failed", "cancelled")

#: A cycle is shown with at most so many names.
SHOWN: Final = 20


def check_ignore(name: str, ignore: Collection[str]) -> tuple[str, ...]:
    """The outcomes that a member ignores, each once and in the contract's order.

    Raises:
        InvalidWorkflow: One of them is none that can be ignored.
    """
    given = (ignore,) if isinstance(ignore, str) else tuple(ignore)
    unknown = [value for value in given if value not in IGNORABLE]
    if unknown:
        raise InvalidWorkflow(f"{name!r} ignores {unknown[0]!r}; give {' or '.join(map(repr, IGNORABLE))}")
    return tuple(value for value in IGNORABLE if value in given)


def topological_order(deps: Mapping[str, Iterable[str]]) -> list[str]:
    """Names so that each comes after its dependencies, else in the order given. Linear in edges.

    Args:
        deps: Each member's name and the names that it depends on.

    Raises:
        InvalidWorkflow: A dependency is no member, or there is a cycle, which is named.
    """
    dependents: dict[str, list[str]] = {name: [] for name in deps}
    missing: dict[str, int] = {}
    for name, needed in deps.items():
        unique = set(needed)
        missing[name] = len(unique)
        for dep in unique:
            if dep not in dependents:
                raise InvalidWorkflow(_unknown(name, dep, dependents))
            dependents[dep].append(name)
    free = deque(name for name, count in missing.items() if not count)
    order = []
    while free:
        name = free.popleft()
        order.append(name)
        for dependent in dependents[name]:
            missing[dependent] -= 1
            if not missing[dependent]:
                free.append(dependent)
    if len(order) < len(deps):
        raise InvalidWorkflow(_cycle(deps, {name for name, count in missing.items() if count}))
    return order


def _unknown(name: str, dep: str, known: Collection[str]) -> str:
    near = difflib.get_close_matches(dep, known, n=1)
    hint = f"did you mean {near[0]!r}?" if near else "add it, or remove the dependency"
    return f"{name!r} depends on {dep!r}, which is no member of the workflow; {hint}"


def _cycle(deps: Mapping[str, Iterable[str]], stuck: Collection[str]) -> str:
    """Every stuck member waits for a stuck one: follow them until a name comes again."""
    path: dict[str, int] = {}
    name = next(iter(sorted(stuck)))
    while name not in path:
        path[name] = len(path)
        name = next(dep for dep in deps[name] if dep in stuck)
    cycle = [*list(path)[path[name] :], name]
    shown = cycle if len(cycle) <= SHOWN else [*cycle[:SHOWN], f"… {len(cycle) - SHOWN} more"]
    return f"the dependencies go in a circle: {' → '.join(shown)}; remove one of them"


def id_taken(workflow_id: str) -> InvalidWorkflow:
    """The refusal of a workflow whose id another one has."""
    return InvalidWorkflow(
        f"there is a workflow {workflow_id!r} already; give another id, or none to have one made"
    )


def duplicate_member(member: NewJob, holder_id: int, state: State) -> InvalidWorkflow:
    """The refusal of a workflow that would lack a member: it would never end, or run beside that job."""
    return InvalidWorkflow(
        f"member {member.wf_name!r} is a duplicate: its unique key {member.unique_key!r} is held by job "
        f"{holder_id} ({state}), which is no member; nothing was inserted. Wait for that "
        "job, or take unique from the member"
    )


def retriable(members: Iterable[Member], wanted: Collection[int]) -> list[int]:
    """Of ended members, those that can run once all of ``wanted`` are retried, dependencies first.

    A member that stays out would be doomed again at once, by a dependency that ended
    badly and is not retried itself.

    Contract: §8.3, §8.6.
    """
    after = [
        replace(member, state="held" if member.deps else "ready") if member.job_id in wanted else member
        for member in members
    ]
    dooms = set(settle(after).dooms)
    chosen = [member for member in after if member.job_id in wanted and member.job_id not in dooms]
    return dependencies_first(chosen)


def dependencies_first(members: Collection[Member]) -> list[int]:
    """Job ids so that each comes after those it depends on."""
    rank = _ranks(members)
    return [one.job_id for one in sorted(members, key=lambda one: (rank.get(one.name, 0), one.job_id))]


def _ranks(members: Collection[Member]) -> dict[str, int]:
    names = {member.name for member in members}
    try:
        order = topological_order({one.name: [dep for dep in one.deps if dep in names] for one in members})
    except InvalidWorkflow:  # a foreign workflow may hold a circle, which can only have been cancelled
        return {}
    return {name: position for position, name in enumerate(order)}
