"""What an owner does beside serving: compaction by policy, room, whether it still owns."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from django_belay.contract.state import State
from django_belay.exceptions import JournalError
from django_belay.storage.journal.format.manifest import INFINITY, Retention
from django_belay.storage.journal.serving import upkeep
from django_belay.storage.journal.serving.upkeep import Figures, Policy, Upkeep, find_reason, measure, recheck
from django_belay.storage.journal.store.instants import floor_ms
from django_belay.storage.journal.store.store import JournalStore
from django_belay.testing.clock import SimClock
from tests.behaviour.driving import add, end, running

HOUR = timedelta(hours=1)
RETENTION: dict[State, timedelta | None] = {"succeeded": HOUR}
SOON = Policy(check_every_s=0.0, min_interval_s=0.0, min_bytes=1, growth=0.0, share=1.0)
QUIET = Figures(base_bytes=100 * 2**20, tail_bytes=99 * 2**20, sealed=255, jobs=40_000, expired=9_999)


@pytest.fixture(autouse=True)
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upkeep, "_LOOK_EVERY_S", 0.01)


def make(store: JournalStore, clock: SimClock, **options: Any) -> Upkeep:
    options = {"retention": INFINITY, "policy": SOON, "look": lambda: None, "failed": print} | options
    return Upkeep(store, clock=clock.now, **options)


def until(is_so: Callable[[], bool]) -> None:
    """Wait for a thread of the upkeep; it takes milliseconds."""
    waited = threading.Event()
    for _ in range(1000):
        if is_so():
            return
        waited.wait(0.01)
    pytest.fail("it never became so")


def test_no_bound_passed_is_no_reason() -> None:
    assert find_reason(Policy(), QUIET) is None


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"tail_bytes": 100 * 2**20}, "bytes were written"),
        ({"base_bytes": 0, "tail_bytes": 64 * 2**20}, "bytes were written"),
        ({"sealed": 256}, "segments were sealed"),
        ({"expired": 10_000}, "past their retention"),
    ],
)
def test_each_bound_is_a_reason(change: dict[str, int], words: str) -> None:
    reason = find_reason(Policy(), replace(QUIET, **change))
    assert reason is not None
    assert words in reason


def test_small_store_is_let_be() -> None:
    small = Figures(base_bytes=0, tail_bytes=64 * 2**20 - 1, sealed=0, jobs=100, expired=100)
    assert find_reason(Policy(), small) is None


def test_expired_jobs_are_counted_among_the_pruned(journal_store: JournalStore, clock: SimClock) -> None:
    store = journal_store
    jobs = running(store, clock, 30)
    for job in jobs[:20]:
        end(store, clock, job)
    clock.advance(HOUR)
    store.prune_jobs(RETENTION, now=clock.now())

    def expired(hours: int) -> int:
        retention = Retention(unit="hours", amount=hours)
        return measure(store, retention=retention, now_ms=floor_ms(clock.now())).expired

    assert (expired(1), expired(2)) == (20, 0)  # pruned, but kept on disk for another hour
    assert measure(store, retention=INFINITY, now_ms=0).expired == 0
    figures = measure(store, retention=INFINITY, now_ms=0)
    assert (figures.jobs, figures.base_bytes, figures.sealed) == (30, 0, 0)
    assert figures.tail_bytes > 0


def test_store_is_compacted_when_a_bound_is_passed(
    journal_store: JournalStore, clock: SimClock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "django_belay.journal")
    generation, _ = journal_store.durable_sequence()
    [job_id] = add(journal_store, clock)
    looking = make(journal_store, clock)
    looking.start()
    until(lambda: journal_store.durable_sequence()[0] != generation)
    until(lambda: looking.facts() != {})
    looking.stop()
    assert journal_store.get_job(job_id).state == "ready"
    assert looking.facts()["kept_records"] == 1
    assert "bytes were written since the last one" in caplog.text


def test_nothing_is_compacted_before_its_time(journal_store: JournalStore, clock: SimClock) -> None:
    generation, _ = journal_store.durable_sequence()
    asked: list[int] = []
    looking = make(
        journal_store, clock, policy=replace(SOON, min_interval_s=600.0), look=lambda: asked.append(1)
    )
    looking.start()
    until(lambda: len(asked) > 20)
    looking.stop()
    assert journal_store.durable_sequence()[0] == generation


def test_failed_compaction_is_told_and_tried_again_later(
    journal_store: JournalStore,
    clock: SimClock,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    failures: list[BaseException] = []
    monkeypatch.setattr(upkeep, "free_bytes", lambda journal: 1_000)
    looking = make(journal_store, clock, failed=failures.append)
    add(journal_store, clock)
    looking.start()
    until(lambda: "failure" in looking.facts())
    assert failures == []
    assert "free space" in looking.facts()["failure"]
    assert "the store is as it was" in caplog.text
    monkeypatch.setattr(upkeep, "free_bytes", lambda journal: 10**12)
    until(lambda: looking.facts().get("kept_records") == 1)
    looking.stop()


def test_stopping_gives_a_compaction_up(journal_store: JournalStore, clock: SimClock) -> None:
    store = journal_store
    add(store, clock, 2000)
    generation, _ = store.durable_sequence()
    looking = make(store, clock, policy=replace(SOON, share=0.01))
    looking.start()
    until(store.journal.compacting.locked)
    looking.stop()
    assert not store.journal.compacting.locked()
    assert store.durable_sequence()[0] == generation
    assert len(add(store, clock)) == 1


def test_lost_store_is_told_once(journal_store: JournalStore, clock: SimClock, tmp_path: Path) -> None:
    failures: list[BaseException] = []
    looking = make(journal_store, clock, look=lambda: recheck(journal_store.journal), failed=failures.append)
    os.rename(tmp_path / "store", tmp_path / "elsewhere")
    looking.start()
    until(lambda: failures != [])
    looking.stop()
    [failure] = failures
    assert isinstance(failure, JournalError)
    assert failure.refusal == "path_or_extent_changed"


def test_little_room_is_told_once_and_so_is_its_end(
    journal_store: JournalStore,
    clock: SimClock,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "django_belay.journal")
    room = 5
    asked = 0

    def free(journal: object) -> int:
        nonlocal asked
        asked += 1
        return room

    monkeypatch.setattr(upkeep, "free_bytes", free)
    looking = make(journal_store, clock, policy=Policy(enabled=False))
    looking.start()
    until(lambda: asked > 5)
    assert caplog.text.count("5 bytes left beyond the reserve") == 1
    room = 10**12
    until(lambda: "has room again" in caplog.text)
    looking.stop()
