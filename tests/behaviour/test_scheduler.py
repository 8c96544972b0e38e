"""Firing cron entries: every slot once, from however many schedulers, past broken rows."""

from __future__ import annotations

import logging
import random
import threading
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest

from django_belay.contract.job import NewJob
from django_belay.engine.scheduler import Fired, Scheduler, merge_entries
from django_belay.exceptions import InvalidCron, Unavailable
from django_belay.storage.base import CronRow, JobFilter, Storage
from django_belay.storage.postgres.store import PostgresStore
from django_belay.testing.clock import SimClock

MINUTE = timedelta(minutes=1)
NOON = datetime(2030, 1, 1, 12, 0, tzinfo=UTC)


@pytest.fixture
def clock() -> SimClock:
    return SimClock(NOON + timedelta(seconds=20))


def entry(name: str = "tick", expression: str = "* * * * *", **fields: Any) -> CronRow:
    return CronRow(**{"name": name, "expression": expression, "kind": "k", "input": {}, "opts": {}, **fields})


def build(row: CronRow, now: datetime) -> NewJob:
    if not isinstance(row.opts, dict) or row.opts.get("queue") == 1:
        raise InvalidCron("the options do not fit")
    return NewJob(kind=row.kind, input=row.input, queue=row.opts.get("queue", "default"))


def scheduler(store: Storage, clock: SimClock, *entries: CronRow, interval_s: float = 20.0) -> Scheduler:
    settings = {row.name: row for row in entries}
    return Scheduler(storage=store, clock=clock, build=build, settings=settings, interval_s=interval_s)


def times(fired: list[Fired]) -> list[str]:
    return [f"{one.slot:%H:%M}" for one in fired]


def slots_of(store: Storage, name: str = "tick") -> list[str]:
    jobs = store.list_jobs(JobFilter(), limit=10_000)
    return sorted(f"{job.cron_slot:%H:%M}" for job in jobs if job.cron_name == name and job.cron_slot)


def run(one: Scheduler, clock: SimClock, *, for_: timedelta, every: float = 20.0) -> list[str]:
    """Tick through a stretch of time."""
    fired = []
    for _ in range(int(for_.total_seconds() / every)):
        clock.advance(every)
        fired += times(one.fire_due())
    return fired


# -- slots -----------------------------------------------------------------------------


def test_every_slot_becomes_one_job_with_its_provenance(store: Storage, clock: SimClock) -> None:
    one = scheduler(store, clock, entry(input={"a": 1}, opts={"queue": "mail"}, kind="shop.digest"))
    one.fire_due()
    assert run(one, clock, for_=3 * MINUTE) == ["12:01", "12:02", "12:03"]
    newest, *_ = store.list_jobs(JobFilter(), limit=10)
    assert (newest.kind, newest.queue, newest.input) == ("shop.digest", "mail", {"a": 1})
    assert (newest.cron_name, newest.cron_slot) == ("tick", NOON + 3 * MINUTE)
    assert newest.state == "ready"
    assert slots_of(store) == ["12:01", "12:02", "12:03"]


def test_the_first_start_catches_nothing_up(store: Storage, clock: SimClock) -> None:
    one = scheduler(store, clock, entry(catch_up="all"), entry("hourly", "@hourly"))
    assert one.fire_due() == []
    assert run(one, clock, for_=MINUTE) == ["12:01"]


def test_a_slot_is_not_missed_however_ticks_fall(store: Storage, clock: SimClock) -> None:
    one = scheduler(store, clock, entry(), interval_s=90)
    one.fire_due()
    assert run(one, clock, for_=9 * MINUTE, every=90) == [f"12:0{n}" for n in range(1, 10)]


def test_an_entry_put_between_two_ticks_counts_from_when_it_was_put(store: Storage, clock: SimClock) -> None:
    one = scheduler(store, clock)
    one.fire_due()
    clock.advance(30)  # 12:00:50
    store.put_cron(entry(), now=clock.now())
    clock.advance(15)
    assert times(one.fire_due()) == ["12:01"]


def test_a_row_that_is_changed_is_not_fired_for_the_time_before(store: Storage, clock: SimClock) -> None:
    store.put_cron(entry(expression="@yearly", catch_up="all"), now=clock.now())
    one = scheduler(store, clock)
    store.fire_cron(NewJob(kind="k", cron_name="tick", cron_slot=NOON - timedelta(hours=2)), now=clock.now())
    store.put_cron(entry(catch_up="all"), now=clock.now())
    assert one.fire_due() == []
    clock.advance(60)
    assert times(one.fire_due()) == ["12:01"]


@pytest.mark.parametrize("updated_at", ["infinity", "-infinity", None, "2999-01-01"])
def test_an_odd_instant_in_a_row_does_not_keep_it_from_firing(
    store: Storage, clock: SimClock, connection: psycopg.Connection[Any], updated_at: str | None
) -> None:
    one = scheduler(store, clock)
    store.put_cron(entry(), now=clock.now())
    connection.execute("UPDATE belay_crons SET updated_at = %s", (updated_at,))
    one.fire_due()
    clock.advance(60)
    assert times(one.fire_due()) == ["12:01"]


def test_a_fixed_time_in_a_zone_runs_once_a_local_day(store: Storage, clock: SimClock) -> None:
    clock.set(datetime(2030, 3, 30, 0, 0, tzinfo=UTC))
    one = scheduler(store, clock, entry(expression="30 2 * * *", timezone="Europe/Berlin"), interval_s=1200)
    one.fire_due()
    assert run(one, clock, for_=timedelta(days=3), every=1200) == ["01:30", "01:00", "00:30"]
    clock.set(datetime(2030, 10, 26, 12, 0, tzinfo=UTC))
    one = scheduler(
        store, clock, entry("autumn", expression="30 2 * * *", timezone="Europe/Berlin"), interval_s=1200
    )
    one.fire_due()
    assert run(one, clock, for_=timedelta(days=2), every=1200) == ["00:30", "01:30"]


def test_a_slot_is_offered_to_the_storage_once(store: Storage, clock: SimClock) -> None:
    spies = [Spy(store), Spy(store)]
    both = [scheduler(spy, clock, entry()) for spy in spies]  # type: ignore[arg-type]
    for _ in range(9):  # from 12:00:20 to 12:03:00
        for one in both:
            one.fire_due()
        clock.advance(20)
    # Also who lost the slot asks no more.
    assert [spy.offered for spy in spies] == [3, 3]


# -- catching up --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("catch_up", "expected"),
    [
        (None, ["12:05"]),
        ("latest", ["12:05"]),
        ("all", ["12:02", "12:03", "12:04", "12:05"]),
        ("none", ["12:05"]),
    ],
)
def test_after_a_downtime_each_entry_follows_its_policy(
    store: Storage, clock: SimClock, catch_up: Any, expected: list[str]
) -> None:
    run(first := scheduler(store, clock, entry(catch_up=catch_up)), clock, for_=MINUTE)
    assert slots_of(store) == ["12:01"]
    del first
    clock.advance(4 * MINUTE)  # 12:05:20
    one = scheduler(store, clock, entry(catch_up=catch_up))
    assert times(one.fire_due()) == expected
    assert one.fire_due() == []
    assert run(one, clock, for_=MINUTE) == ["12:06"]


@pytest.mark.parametrize(("catch_up", "expected"), [("latest", ["12:00"]), ("none", []), ("all", ["12:00"])])
def test_a_single_slot_missed_by_hours(
    store: Storage, clock: SimClock, catch_up: Any, expected: list[str]
) -> None:
    noon = entry(expression="0 12 * * *", catch_up=catch_up)
    clock.set(NOON - timedelta(days=1, minutes=1))
    run(scheduler(store, clock, noon), clock, for_=2 * MINUTE)
    clock.set(NOON + timedelta(hours=3))
    assert times(scheduler(store, clock, noon).fire_due()) == expected


@pytest.mark.parametrize(
    ("catch_up", "expected"),
    [("all", ["12:01", "12:02", "12:03", "12:04", "12:05"]), ("latest", ["12:05"]), ("none", ["12:05"])],
)
def test_an_outage_of_the_storage_is_a_downtime_too(
    store: Storage, clock: SimClock, catch_up: Any, expected: list[str]
) -> None:
    one = scheduler(store, clock, entry(catch_up=catch_up))
    one.fire_due()
    clock.advance(5 * MINUTE)
    assert times(one.fire_due()) == expected


# -- clocks ---------------------------------------------------------------------------------


def test_a_clock_set_back_fires_nothing_twice(store: Storage, clock: SimClock) -> None:
    one = scheduler(store, clock, entry())
    one.fire_due()
    run(one, clock, for_=3 * MINUTE)
    clock.advance(-3 * MINUTE)
    assert run(one, clock, for_=3 * MINUTE) == []
    fresh = scheduler(store, clock, entry())
    assert fresh.fire_due() == []
    clock.advance(-2 * MINUTE)
    assert run(scheduler(store, clock, entry()), clock, for_=2 * MINUTE) == []
    assert slots_of(store) == ["12:01", "12:02", "12:03"]
    assert run(one, clock, for_=MINUTE) == ["12:04"]


def test_an_entry_put_after_the_clock_was_set_back_need_not_wait(store: Storage, clock: SimClock) -> None:
    one = scheduler(store, clock)
    one.fire_due()
    clock.advance(-30 * MINUTE)  # 11:30:20
    store.put_cron(entry(), now=clock.now())
    assert run(one, clock, for_=MINUTE) == ["11:31"]


def test_a_slot_far_ahead_is_said_once(
    store: Storage, clock: SimClock, caplog: pytest.LogCaptureFixture
) -> None:
    store.fire_cron(NewJob(kind="k", cron_name="tick", cron_slot=NOON + timedelta(days=9)), now=clock.now())
    one = scheduler(store, clock, entry(), entry("other"))
    one.fire_due()
    assert run(one, clock, for_=2 * MINUTE) == ["12:01", "12:02"]  # the other one
    assert [record.getMessage() for record in caplog.records] == [
        "cron entry 'tick' waits until 2030-01-10 12:00:00+00:00: its newest slot was fired by a clock that "
        "was ahead of this one"
    ]


def test_no_slot_is_fired_after_a_newer_one(
    store: Storage, clock: SimClock, connection: psycopg.Connection[Any]
) -> None:
    def fire(minute: int) -> bool:
        job = NewJob(kind="k", cron_name="tick", cron_slot=NOON + MINUTE * minute)
        return store.fire_cron(job, now=clock.now()) is not None

    assert [fire(5), fire(4), fire(5)] == [True, False, False]
    connection.execute("DELETE FROM belay_jobs")
    assert [fire(5), fire(4), fire(6)] == [False, False, True]
    assert slots_of(store) == ["12:06"]


# -- many schedulers --------------------------------------------------------------------------


def test_many_schedulers_fire_each_slot_once(
    make_postgres_store: Callable[..., PostgresStore], clock: SimClock
) -> None:
    stores = [make_postgres_store(size=2) for _ in range(4)]
    entries = [entry(f"e{n}") for n in range(10)]
    all_of = [scheduler(store, clock, *entries) for store in stores for _ in range(2)]
    for one in all_of:
        one.fire_due()
    rounds, fired = 5, []
    lock = threading.Lock()
    move = threading.Barrier(len(all_of), action=lambda: clock.advance(MINUTE))

    def work(one: Scheduler) -> None:
        for _ in range(rounds):
            move.wait(30)
            found = one.fire_due()
            with lock:
                fired.extend((each.name, each.slot) for each in found)

    threads = [threading.Thread(target=work, args=(one,)) for one in all_of]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    expected = {(f"e{n}", NOON + MINUTE * (minute + 1)) for n in range(10) for minute in range(rounds)}
    assert sorted(fired) == sorted(expected)
    assert len(stores[0].list_jobs(JobFilter(), limit=1000)) == len(expected)


def test_schedulers_with_clocks_of_their_own_fire_no_slot_twice(store: Storage) -> None:
    seed = random.randrange(2**32)
    print("seed", seed)
    rng = random.Random(seed)
    clocks = [SimClock(NOON + timedelta(seconds=rng.uniform(-90, 90))) for _ in range(3)]
    all_of = [scheduler(store, each, entry()) for each in clocks]
    fired: list[str] = []
    for _ in range(100):
        each = rng.randrange(3)
        clocks[each].advance(rng.choice([-30.0, 5.0, 20.0, 40.0, 70.0]))
        fired += times(all_of[each].fire_due())
    assert fired == sorted(set(fired))
    assert slots_of(store) == fired


def test_a_slot_that_another_sdk_fired_is_not_fired_again(
    store: Storage, clock: SimClock, connection: psycopg.Connection[Any]
) -> None:
    one = scheduler(store, clock, entry())
    run(one, clock, for_=MINUTE)
    clock.advance(60)
    foreign = NewJob(kind="My.Worker", cron_name="tick", cron_slot=NOON + 2 * MINUTE)
    store.insert_jobs([foreign], now=clock.now())
    assert one.fire_due() == []
    assert slots_of(store) == ["12:01", "12:02"]
    # Also when its job is gone and all schedulers are new: the memory of slots is our own.
    connection.execute("DELETE FROM belay_jobs")
    assert scheduler(store, clock, entry(catch_up="all")).fire_due() == []


def test_pruning_does_not_touch_the_memory_of_slots(
    store: Storage, clock: SimClock, connection: psycopg.Connection[Any]
) -> None:
    run(scheduler(store, clock, entry()), clock, for_=2 * MINUTE)
    connection.execute("DELETE FROM belay_jobs")
    assert scheduler(store, clock, entry(catch_up="all")).fire_due() == []
    clock.advance(-MINUTE)
    assert scheduler(store, clock, entry(catch_up="all")).fire_due() == []


# -- rows over settings ---------------------------------------------------------------------------


def test_rows_go_over_the_settings_by_name_and_paused_ones_are_skipped_then() -> None:
    settings = {name: entry(name, timezone="Europe/Berlin", catch_up="all") for name in ("a", "b", "c")}
    rows = [entry("b", "@daily"), entry("c", paused=True, timezone="UTC", catch_up="none"), entry("d")]
    merged = merge_entries(settings, rows)
    assert merged["a"] == settings["a"]
    assert merged["b"] == replace(rows[0], timezone="Europe/Berlin", catch_up="all")
    assert merged["c"] == rows[1]
    assert merged["d"] == rows[2]


def test_a_paused_row_stops_the_entry_of_the_settings(store: Storage, clock: SimClock) -> None:
    one = scheduler(store, clock, entry())
    one.fire_due()
    store.put_cron(entry(paused=True), now=clock.now())
    assert run(one, clock, for_=2 * MINUTE) == []


def test_a_broken_row_stops_the_entry_of_the_settings(store: Storage, clock: SimClock) -> None:
    one = scheduler(store, clock, entry())
    one.fire_due()
    store.put_cron(entry(expression="sometimes"), now=clock.now())
    assert run(one, clock, for_=2 * MINUTE) == []


@pytest.mark.parametrize("is_new", [False, True])
def test_what_came_while_paused_is_not_caught_up(store: Storage, clock: SimClock, is_new: bool) -> None:
    store.put_cron(entry(catch_up="all"), now=clock.now())
    one = scheduler(store, clock)
    run(one, clock, for_=MINUTE)
    store.pause_cron("tick", now=clock.now())
    run(one, clock, for_=5 * MINUTE)
    clock.advance(1)
    store.resume_cron("tick", now=clock.now())
    one = scheduler(store, clock) if is_new else one
    assert one.fire_due() == []
    assert run(one, clock, for_=MINUTE) == ["12:07"]


def test_an_entry_paused_by_hand_is_not_caught_up_by_who_saw_it(
    store: Storage, clock: SimClock, connection: psycopg.Connection[Any]
) -> None:
    store.put_cron(entry(catch_up="all"), now=clock.now())
    one = scheduler(store, clock)
    run(one, clock, for_=MINUTE)
    connection.execute("UPDATE belay_crons SET paused = true")
    run(one, clock, for_=5 * MINUTE)
    connection.execute("UPDATE belay_crons SET paused = false")
    assert one.fire_due() == []


def test_an_entry_deleted_and_put_again_fires_no_slot_twice(store: Storage, clock: SimClock) -> None:
    store.put_cron(entry(), now=clock.now())
    one = scheduler(store, clock)
    run(one, clock, for_=MINUTE)
    store.delete_cron("tick")
    assert one.fire_due() == []
    clock.advance(-50)
    store.put_cron(entry(), now=clock.now())
    clock.advance(50)
    assert one.fire_due() == []
    assert run(one, clock, for_=MINUTE) == ["12:02"]


# -- broken entries ----------------------------------------------------------------------------------

BROKEN = {
    "expression": (
        "UPDATE belay_crons SET expression = repeat('*', 100000) WHERE name = 'broken'",
        "characters",
    ),
    "grammar": ("UPDATE belay_crons SET expression = '* * * * * * *' WHERE name = 'broken'", "7 fields"),
    "zone": ("UPDATE belay_x_crons SET timezone = 'Mars/Olympus' WHERE name = 'broken'", "Mars/Olympus"),
    "policy": ("UPDATE belay_x_crons SET catch_up = 'some' WHERE name = 'broken'", "catch_up is 'some'"),
    "options": ("""UPDATE belay_crons SET opts = '[1]' WHERE name = 'broken'""", "options"),
    "queue": ("""UPDATE belay_crons SET opts = '{"queue": 1}' WHERE name = 'broken'""", "options"),
    "input": ("""UPDATE belay_crons SET input = '1e9999' WHERE name = 'broken'""", "is skipped"),
}


@pytest.mark.parametrize("what", BROKEN)
def test_a_broken_row_is_logged_once_and_stops_nothing_else(
    store: Storage,
    clock: SimClock,
    connection: psycopg.Connection[Any],
    caplog: pytest.LogCaptureFixture,
    what: str,
) -> None:
    for name in ("a", "broken", "c"):
        store.put_cron(entry(name), now=clock.now())
    statement, message = BROKEN[what]
    connection.execute(statement)
    one = scheduler(store, clock)
    one.fire_due()
    assert run(one, clock, for_=2 * MINUTE) == ["12:01", "12:01", "12:02", "12:02"]
    [record] = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert record.name == "django_belay.cron"
    assert record.belay_cron == "broken"
    assert message in record.getMessage()
    assert len(record.getMessage()) < 1000


def test_a_mended_row_fires_and_its_next_fault_is_logged_again(
    store: Storage, clock: SimClock, caplog: pytest.LogCaptureFixture
) -> None:
    one = scheduler(store, clock)
    for expression in ("never", "* * * * *", "never"):
        store.put_cron(entry(expression=expression), now=clock.now())
        run(one, clock, for_=MINUTE)
    assert slots_of(store) == ["12:02"]
    assert [record.levelname for record in caplog.records] == ["ERROR", "ERROR"]


class Spy:
    """A storage that counts what is offered to it, and can be away when it should fire an entry."""

    def __init__(self, store: Storage, *, away_for: str | None = None) -> None:
        self.store = store
        self.away_for = away_for
        self.offered = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self.store, name)

    def fire_cron(self, job: NewJob, *, now: datetime) -> Any:
        self.offered += 1
        if job.cron_name == self.away_for:
            raise Unavailable("gone")
        return self.store.fire_cron(job, now=now)


def test_an_outage_in_the_middle_of_a_tick_leaves_the_slots_due(store: Storage, clock: SimClock) -> None:
    spy = Spy(store, away_for="b")
    one = scheduler(spy, clock, *(entry(name) for name in "abc"))  # type: ignore[arg-type]
    one.fire_due()
    clock.advance(60)
    with pytest.raises(Unavailable):
        one.fire_due()
    spy.away_for = None
    assert [each.name for each in one.fire_due()] == ["b", "c"]
    assert [slots_of(store, name) for name in "abc"] == [["12:01"]] * 3


def test_a_held_unique_key_counts_as_fired(store: Storage, clock: SimClock) -> None:
    def with_key(row: CronRow, now: datetime) -> NewJob:
        return NewJob(kind="k", unique_key="one", unique_mode="incomplete")

    one = Scheduler(storage=store, clock=clock, build=with_key, settings={"tick": entry()})
    one.fire_due()
    clock.advance(60)
    [first] = one.fire_due()
    clock.advance(60)
    [second] = one.fire_due()
    assert second.inserted.duplicate
    assert second.inserted.job_id == first.inserted.job_id
    assert one.fire_due() == []
    assert len(store.list_jobs(JobFilter(), limit=10)) == 1
