"""Which slots are fired now, late or not at all."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import cast

import pytest

from django_belay.contract.cron import Schedule, parse_schedule
from django_belay.contract.cron_due import MAX_CAUGHT_UP, CatchUp, due_slots

NOW = datetime(2030, 1, 10, 12, 0, 20, tzinfo=UTC)
MINUTE = timedelta(minutes=1)


def due(
    expression: str,
    *,
    since: timedelta,
    catch_up: CatchUp,
    on_time: timedelta = MINUTE,
    now: datetime = NOW,
) -> list[str]:
    slots = due_slots(
        parse_schedule(expression), since=now - since, on_time_since=now - on_time, now=now, catch_up=catch_up
    )
    return [f"{slot:%d %H:%M}" for slot in slots]


@pytest.mark.parametrize("catch_up", ["latest", "all", "none"])
def test_slots_on_time_are_fired_whatever_the_policy(catch_up: CatchUp) -> None:
    assert due("* * * * *", since=3 * MINUTE, on_time=3 * MINUTE, catch_up=catch_up) == [
        "10 11:58", "10 11:59", "10 12:00",
    ]  # fmt: skip


@pytest.mark.parametrize("catch_up", ["latest", "all", "none"])
def test_nothing_since_the_settled_slot_is_nothing_due(catch_up: CatchUp) -> None:
    assert due("* * * * *", since=timedelta(seconds=20), catch_up=catch_up) == []
    assert due("0 13 * * *", since=timedelta(hours=2), catch_up=catch_up) == []


def test_latest_takes_one_missed_slot() -> None:
    assert due("0 8 * * *", since=timedelta(days=3), catch_up="latest") == ["10 08:00"]


def test_latest_takes_no_missed_slot_beside_one_on_time() -> None:
    assert due("*/10 * * * *", since=timedelta(days=3), catch_up="latest") == ["10 12:00"]


def test_all_takes_every_missed_slot_oldest_first() -> None:
    assert due("0 */2 * * *", since=timedelta(hours=5), catch_up="all") == [
        "10 08:00",
        "10 10:00",
        "10 12:00",
    ]


def test_none_takes_no_missed_slot() -> None:
    assert due("0 8 * * *", since=timedelta(days=3), catch_up="none") == []


def test_all_is_bounded_in_number_and_keeps_the_newest() -> None:
    found = due("* * * * *", since=timedelta(days=2), catch_up="all")
    assert len(found) == MAX_CAUGHT_UP + 1
    assert found[-1] == "10 12:00"
    assert found == sorted(found)


@pytest.mark.parametrize("catch_up", ["latest", "all"])
def test_what_was_missed_long_ago_is_not_caught_up(catch_up: CatchUp) -> None:
    # The second of January is eight days ago.
    assert due("0 8 2 1 *", since=timedelta(days=30), catch_up=catch_up) == []
    assert due("0 8 4 1 *", since=timedelta(days=30), catch_up=catch_up) == ["04 08:00"]


class Counting:
    """A schedule that counts the slots it is asked for."""

    def __init__(self, expression: str) -> None:
        self.asked = 0
        self._schedule = parse_schedule(expression)

    def until(self, instant: datetime) -> Iterator[datetime]:
        for slot in self._schedule.until(instant):
            self.asked += 1
            yield slot


@pytest.mark.parametrize(("catch_up", "most"), [("latest", 3), ("none", 3), ("all", MAX_CAUGHT_UP + 3)])
def test_a_long_downtime_costs_no_walk_through_all_of_it(catch_up: CatchUp, most: int) -> None:
    schedule = Counting("* * * * *")
    due_slots(
        cast("Schedule", schedule), since=NOW - timedelta(days=3650), on_time_since=NOW - MINUTE, now=NOW,
        catch_up=catch_up,
    )  # fmt: skip
    assert schedule.asked <= most
