"""Schedulers through random histories of ticks, restarts and downtimes, on a storage in memory."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from django_belay.contract.job import NewJob
from django_belay.engine.scheduler import Scheduler
from django_belay.storage.base import CronRow, Inserted
from django_belay.testing.clock import SimClock

MINUTE = timedelta(minutes=1)
NOON = datetime(2030, 1, 1, 12, 0, tzinfo=UTC)


class Memory:
    """As much of a storage as a scheduler asks for: the newest slot of an entry only grows."""

    def __init__(self) -> None:
        self.fired: list[datetime] = []

    def list_crons(self) -> list[CronRow]:
        return []

    def last_cron_slots(self) -> dict[str, datetime]:
        return {"tick": max(self.fired)} if self.fired else {}

    def fire_cron(self, job: NewJob, *, now: datetime) -> Inserted | None:
        assert job.cron_slot is not None
        if self.fired and job.cron_slot <= max(self.fired):
            return None
        self.fired.append(job.cron_slot)
        return Inserted(job_id=len(self.fired), state="ready")


def start(memory: Memory, clock: SimClock, catch_up: Any) -> Scheduler:
    row = CronRow(name="tick", expression="* * * * *", kind="k", input={}, opts={}, catch_up=catch_up)
    return Scheduler(
        storage=memory,  # type: ignore[arg-type]
        clock=clock,
        build=lambda row, now: NewJob(kind=row.kind),
        settings={"tick": row},
    )


# Who acts, whether it starts anew, and how long after the act before.
ACTS = st.tuples(st.integers(0, 2), st.booleans(), st.sampled_from([0, 1, 7, 20, 20, 45, 61, 300]))


def play(catch_up: str, acts: list[tuple[int, bool, int]]) -> tuple[list[datetime], datetime, datetime]:
    """What was fired, and the first and last look."""
    memory, clock = Memory(), SimClock(NOON + timedelta(seconds=30))
    all_of = [start(memory, clock, catch_up) for _ in range(3)]
    for one in all_of:
        one.fire_due()
    # Once there is a memory, who comes later knows where to go on.
    clock.advance(30)
    all_of[0].fire_due()
    last = clock.now()
    for who, is_new, seconds in acts:
        last = clock.advance(seconds)
        if is_new:
            all_of[who] = start(memory, clock, catch_up)
        all_of[who].fire_due()
    return memory.fired, NOON + MINUTE, last


@given(st.lists(ACTS, max_size=25))
def test_all_fires_every_slot_in_order(acts: list[tuple[int, bool, int]]) -> None:
    fired, first, last = play("all", acts)
    assert fired == [first + MINUTE * n for n in range(int((last - first) / MINUTE) + 1)]


@given(st.lists(ACTS, max_size=25))
def test_latest_fires_no_slot_twice_and_always_the_newest(acts: list[tuple[int, bool, int]]) -> None:
    fired, _, last = play("latest", acts)
    assert fired == sorted(set(fired))
    assert fired[-1] == last.replace(second=0)


@given(
    st.lists(st.tuples(st.just(0), st.just(False), st.integers(0, 40)), max_size=40),
    st.sampled_from(["latest", "none"]),
)
def test_a_scheduler_that_keeps_looking_misses_nothing_whatever_the_policy(
    acts: list[tuple[int, bool, int]], catch_up: str
) -> None:
    fired, first, last = play(catch_up, acts)
    assert fired == [first + MINUTE * n for n in range(int((last - first) / MINUTE) + 1)]
