from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from django_belay.engine.fairness import rooms_of, rotate, share_slots


def test_free_slots_are_shared_equally() -> None:
    assert share_slots(9, [("a", 100), ("b", 100), ("c", 100)]) == {"a": 3, "b": 3, "c": 3}


def test_what_a_queue_cannot_use_goes_to_the_others() -> None:
    assert share_slots(10, [("a", 2), ("b", 100)]) == {"a": 2, "b": 8}


def test_too_few_slots_go_to_the_first_queues() -> None:
    assert share_slots(2, [("b", 5), ("c", 5), ("a", 5)]) == {"b": 1, "c": 1}


def test_quiet_queues_are_asked_for_one_row() -> None:
    assert share_slots(10, [("a", 9), ("busy", 20)], quiet={"a"}) == {"a": 1, "busy": 9}


def test_when_all_are_quiet_none_gives_way() -> None:
    assert share_slots(10, [("a", 9), ("b", 9)], quiet={"a", "b"}) == {"a": 5, "b": 5}


@given(
    st.integers(0, 50),
    st.lists(st.integers(-3, 30), max_size=8).map(lambda rooms: [(f"q{n}", r) for n, r in enumerate(rooms)]),
)
def test_shares_fit_slots_and_rooms_and_leave_none_unused(free: int, rooms: list[tuple[str, int]]) -> None:
    shares = share_slots(free, rooms)
    room = dict(rooms)
    assert all(0 < take <= room[queue] for queue, take in shares.items())
    assert sum(shares.values()) == min(free, sum(max(r, 0) for r in room.values()))


def test_each_turn_starts_at_another_queue() -> None:
    assert [rotate(["a", "b", "c"], turn)[0] for turn in range(4)] == ["a", "b", "c", "a"]
    assert rotate([], 3) == []


def test_rooms_are_limits_less_running() -> None:
    assert rooms_of({"a": 5, "b": 1}, {"a": 3}, ["b", "a"]) == [("b", 1), ("a", 2)]
