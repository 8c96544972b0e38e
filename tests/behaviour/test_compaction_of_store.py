"""A compaction beside the engine: what was pruned goes, what is only old stays, memory agrees with the disk."""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest

from django_belay.contract.state import State
from django_belay.exceptions import JobNotFound
from django_belay.storage.base import JobFilter, NewStep
from django_belay.storage.journal.files.compaction import CompactionReport, compact
from django_belay.storage.journal.format.manifest import Retention
from django_belay.storage.journal.store.instants import floor_ms
from django_belay.storage.journal.store.store import JournalStore
from django_belay.testing.clock import SimClock
from tests.behaviour.driving import add, claim, end, running

HOUR = timedelta(hours=1)
RETENTION: dict[State, timedelta | None] = {"succeeded": HOUR, "failed": HOUR, "cancelled": HOUR}


def compacted(
    store: JournalStore, clock: SimClock, pace: Callable[[int], None] | None = None
) -> CompactionReport:
    return compact(
        store.journal,
        now_ms=floor_ms(clock.now()),
        retention=Retention(unit="hours", amount=1),
        keeper=store.memory,
        pace=pace,
    )


def ids_of(store: JournalStore) -> list[int]:
    return sorted(job.id for job in store.list_jobs(JobFilter(), limit=100))


def test_pruned_jobs_go_with_their_steps_and_events(
    journal_store: JournalStore, clock: SimClock, own_journal: Callable[[], JournalStore]
) -> None:
    store = journal_store
    core, extended, young = running(store, clock, 3)
    for job in (extended, young):
        store.put_step(job.id, NewStep(name="s", value=b"1", tokens=3), now=clock.now())
        store.append_event(job.id, {"n": 1}, now=clock.now())
    end(store, clock, core)
    end(store, clock, extended)
    clock.advance(HOUR)
    end(store, clock, young)
    assert store.prune_jobs(RETENTION, now=clock.now()) == 2
    assert compacted(store, clock).expired_jobs == 2
    for owner in (store, None):
        if owner is None:
            store.close()
            owner = own_journal()
        assert ids_of(owner) == [young.id]
        for gone in (core, extended):
            with pytest.raises(JobNotFound):
                owner.get_job(gone.id)
            assert owner.get_steps(gone.id) == []
            assert owner.list_events(gone.id) == []
        assert [step.name for step in owner.get_steps(young.id)] == ["s"]
        assert len(owner.list_events(young.id)) == 1
        assert {table: len(rows) for table, rows in owner.memory.state.tables.items() if rows} == {
            "steps": 1,
            "events": 1,
        }
        assert owner.memory.hidden == set()
    owner.close()


def test_old_jobs_that_were_not_pruned_stay(journal_store: JournalStore, clock: SimClock) -> None:
    store = journal_store
    [parent] = running(store, clock, queue="parents")
    [child] = running(store, clock, parent_id=parent.id)
    end(store, clock, child)
    clock.advance(2 * HOUR)
    assert store.prune_jobs(RETENTION, now=clock.now()) == 0
    assert compacted(store, clock).expired_jobs == 0
    assert store.get_job(child.id).state == "succeeded"
    assert [end.job_id for end in store.child_ends(parent.id, [child.id])] == [child.id]


def test_job_pruned_while_the_base_is_written_goes_with_the_next_one(
    journal_store: JournalStore, clock: SimClock
) -> None:
    store = journal_store
    jobs = running(store, clock, 40)
    for job in jobs:
        end(store, clock, job)
    clock.advance(HOUR)
    pruned: list[int] = []

    def pace(done: int) -> None:
        if done and not pruned:
            pruned.append(store.prune_jobs(RETENTION, now=clock.now()))

    first = compacted(store, clock, pace)
    assert ids_of(store) == []
    second = compacted(store, clock)
    assert first.expired_jobs + second.expired_jobs == 40
    assert second.expired_jobs > 0
    assert store.memory.hidden == set()


def test_ids_are_found_after_some_of_them_went(journal_store: JournalStore, clock: SimClock) -> None:
    store = journal_store
    first = running(store, clock, 10)
    for job in first[::2]:
        end(store, clock, job)
    clock.advance(HOUR)
    store.prune_jobs(RETENTION, now=clock.now())
    compacted(store, clock)
    later = add(store, clock, 3)
    assert ids_of(store) == [job.id for job in first[1::2]] + later
    for job in first[1::2]:
        end(store, clock, job)
        assert store.get_job(job.id).state == "succeeded"


def test_store_is_as_it_was_when_a_compaction_is_given_up(
    journal_store: JournalStore, clock: SimClock, tmp_path: Path
) -> None:
    store = journal_store
    jobs = running(store, clock, 20)
    for job in jobs:
        end(store, clock, job)
    clock.advance(HOUR)
    store.prune_jobs(RETENTION, now=clock.now())
    hidden = set(store.memory.hidden)

    def stop(done: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        compacted(store, clock, stop)
    assert store.memory.hidden == hidden
    assert compacted(store, clock).expired_jobs == 20


def test_operations_that_write_nothing_go_on_after_a_compaction(
    journal_store: JournalStore, clock: SimClock
) -> None:
    store = journal_store
    for job in running(store, clock, 50):
        end(store, clock, job)
    clock.advance(HOUR)
    store.prune_jobs(RETENTION, now=clock.now())
    compacted(store, clock)  # what was written last has a higher number than anything in the new generation
    told: list[int] = []
    asking = threading.Thread(target=lambda: told.append(len(claim(store, clock))), daemon=True)
    asking.start()
    asking.join(timeout=10)
    assert told == [0]


def test_whoever_asks_while_a_compaction_switches_waits_for_it(
    journal_store: JournalStore, clock: SimClock
) -> None:
    store = journal_store
    store.journal.suspend_admission()
    told: list[int] = []
    asking = threading.Thread(target=lambda: told.extend(add(store, clock)), daemon=True)
    asking.start()
    asking.join(timeout=0.2)
    assert told == []
    store.journal.resume_admission()
    asking.join(timeout=10)
    assert len(told) == 1
