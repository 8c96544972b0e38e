"""Settlement as a pure function: contract §8.3, §11.5, rule 33."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from django_belay.contract.settlement import Member, Settlement, settle
from django_belay.contract.state import STATES, State

NAMES = "abcdefgh"


@st.composite
def workflows(draw: st.DrawFn) -> list[Member]:
    """Any members at all: cycles, gaps, names used twice, self-deps."""
    count = draw(st.integers(0, 8))
    return [
        Member(
            job_id=n + 1,
            name=draw(st.sampled_from(NAMES[: count + 1])),
            state=draw(st.sampled_from(STATES)),
            deps=tuple(draw(st.lists(st.sampled_from(NAMES), max_size=3))),
            ignore=tuple(draw(st.lists(st.sampled_from(["failed", "cancelled"]), max_size=2))),
        )
        for n in range(count)
    ]


def applied(members: list[Member], settlement: Settlement) -> list[Member]:
    states: dict[int, State] = dict.fromkeys(settlement.releases, "ready")
    states.update(dict.fromkeys(settlement.dooms, "cancelled"))
    return [replace(member, state=states.get(member.job_id, member.state)) for member in members]


def naive(members: list[Member]) -> Settlement:
    """The contract's sentence, iterated: doom until nothing moves, then release."""
    current = {member.job_id: member for member in sorted(members, key=lambda member: member.job_id)}
    dooms: set[int] = set()

    def state_of(dep: str) -> State | None:
        found = [member.state for member in current.values() if member.name == dep]
        return found[-1] if found else None

    def satisfied(member: Member, dep: str) -> bool:
        state = state_of(dep)
        return state == "succeeded" or (state in ("failed", "cancelled") and state in member.ignore)

    def doomed(member: Member, dep: str) -> bool:
        return state_of(dep) in ("failed", "cancelled") and not satisfied(member, dep)

    moved = True
    while moved:
        moved = False
        for member in list(current.values()):
            if member.state == "held" and any(doomed(member, dep) for dep in member.deps):
                current[member.job_id] = replace(member, state="cancelled")
                dooms.add(member.job_id)
                moved = True
    releases = [
        member.job_id
        for member in current.values()
        if member.state == "held" and member.deps and all(satisfied(member, dep) for dep in member.deps)
    ]
    return Settlement(releases=tuple(sorted(releases)), dooms=tuple(sorted(dooms)))


def with_names_once(members: list[Member]) -> list[Member]:
    return list({member.name: member for member in members}.values())


@given(workflows())
def test_8_3_settlement_is_what_the_contract_says(members: list[Member]) -> None:
    members = with_names_once(members)
    assert settle(members) == naive(members)


@given(workflows())
def test_11_5_settlement_is_a_fixpoint(members: list[Member]) -> None:
    members = with_names_once(members)
    assert settle(applied(members, settle(members))) == Settlement()


@given(workflows(), st.randoms(use_true_random=False))
def test_8_3_settlement_does_not_depend_on_order(members: list[Member], chance: random.Random) -> None:
    shuffled = list(members)
    chance.shuffle(shuffled)
    assert settle(shuffled) == settle(members)


@given(workflows())
def test_8_3_only_held_members_with_deps_move_and_each_once(members: list[Member]) -> None:
    settlement = settle(members)
    movable = {member.job_id for member in members if member.state == "held" and member.deps}
    assert set(settlement.releases) | set(settlement.dooms) <= movable
    assert not set(settlement.releases) & set(settlement.dooms)


@given(workflows(), st.data())
def test_19_fewer_ends_move_a_subset(members: list[Member], data: st.DataObject) -> None:
    """An ack that turns out stale leaves no row to settle that was not locked."""
    members = with_names_once(members)
    ended = [m for m in members if m.state in ("succeeded", "failed", "cancelled")]
    stale = (
        set(data.draw(st.lists(st.sampled_from([m.job_id for m in ended]), max_size=3))) if ended else set()
    )
    fewer = settle([replace(m, state="running") if m.job_id in stale else m for m in members])
    every = settle(members)
    assert set(fewer.releases) <= set(every.releases) | set(every.dooms)
    assert set(fewer.dooms) <= set(every.dooms)


@pytest.mark.parametrize(
    ("dep", "ignore", "moves"),
    [
        ("succeeded", (), "release"),
        ("failed", (), "doom"),
        ("cancelled", (), "doom"),
        ("failed", ("failed",), "release"),
        ("failed", ("cancelled",), "doom"),
        ("cancelled", ("cancelled",), "release"),
        ("running", ("failed", "cancelled"), None),
        ("paused", (), None),
        (None, ("failed", "cancelled"), None),
    ],
)
def test_8_3_one_dep(dep: State | None, ignore: tuple[str, ...], moves: str | None) -> None:
    members = [Member(job_id=2, name="b", state="held", deps=("a",), ignore=ignore)]
    if dep is not None:
        members.append(Member(job_id=1, name="a", state=dep))
    expected = {
        "release": Settlement(releases=(2,)), "doom": Settlement(dooms=(2,)), None: Settlement(),
    }  # fmt: skip
    assert settle(members) == expected[moves]


def test_8_3_a_held_job_without_deps_is_an_operators() -> None:
    assert settle([Member(job_id=1, name="a", state="held")]) == Settlement()


def test_8_3_a_long_chain_is_doomed_in_linear_time() -> None:
    members = [Member(job_id=0, name="n0", state="failed")]
    members += [Member(job_id=n, name=f"n{n}", state="held", deps=(f"n{n - 1}",)) for n in range(1, 20_001)]
    assert len(settle(members).dooms) == 20_000


def test_the_doom_of_an_older_row_of_a_name_speaks_for_nobody() -> None:
    members = [
        Member(job_id=0, name="x", state="failed"),
        Member(job_id=1, name="a", state="held", deps=("x",)),
        Member(job_id=2, name="a", state="succeeded"),
        Member(job_id=3, name="c", state="held", deps=("a",)),
    ]
    assert settle(members) == Settlement(releases=(3,), dooms=(1,))
