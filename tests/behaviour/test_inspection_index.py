"""The inspection index follows its store, whatever happens to either."""

from __future__ import annotations

import logging
import os
import random
import shutil
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from django_belay.contract.outcome import Failed, Succeeded
from django_belay.storage.base import CronRow, NewStep
from django_belay.storage.journal.files.compaction import compact
from django_belay.storage.journal.format.manifest import Retention
from django_belay.storage.journal.index import Indexer, IndexOptions, start_index
from django_belay.storage.journal.index import indexer as module
from django_belay.storage.journal.index.direct import DirectIndex
from django_belay.storage.journal.index.file import Changes, IndexFile
from django_belay.storage.journal.index.pending import REREAD, Pending
from django_belay.storage.journal.store.store import JournalStore
from django_belay.testing.clock import SimClock
from tests.behaviour.driving import ack_of, add, claim, claim_one, end, running
from tests.behaviour.indexed import held, mark_of, shown, wait_until_shown

DAY = timedelta(days=1)
QUICK = IndexOptions(interval_s=0.01, retry_s=0.02, most_retry_s=0.05)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "index.sqlite3"


@contextmanager
def indexed(store: JournalStore, path: Path, **options: Any) -> Iterator[Indexer]:
    """The index of a store, written in the background; at the end it has seen everything."""
    quick = {"interval_s": 0.01, "retry_s": 0.02, "most_retry_s": 0.05, **options}
    indexer = start_index(store, path, IndexOptions(**quick))
    try:
        yield indexer
        wait_until_shown(store, path)
    finally:
        indexer.close()


def work(store: JournalStore, clock: SimClock, rounds: int = 3) -> None:
    """Some of everything."""
    for number in range(rounds):
        add(store, clock, 3, input={"n": number, "text": "ä" * 50})
        add(store, clock, priority=2, meta={"m": [number]}, workflow_id="w", wf_name=f"n{number}")
        done, failed, *_ = claim(store, clock, 3)
        store.put_step(done.id, NewStep(name="s", value=b'"v"', usd_micros=1), now=clock.now())
        store.append_event(done.id, {"at": number}, now=clock.now())
        end(store, clock, done, Succeeded(b'{"a": 1}'))
        end(store, clock, failed, Failed(error={"error": "x"}))
        store.put_signal(f"job:{done.id}", "go", {"n": number}, now=clock.now())
        store.put_queue(f"q{number}", {"limit": number}, now=clock.now())
        store.put_cron(
            CronRow(name=f"c{number}", expression="@daily", kind="k", input={}, opts={}), now=clock.now()
        )
        clock.advance(1)


def is_built(caplog: pytest.LogCaptureFixture) -> bool:
    return any("was built" in record.message for record in caplog.records)


# -- following ------------------------------------------------------------------


def test_the_index_shows_what_the_store_holds(
    journal_store: JournalStore, clock: SimClock, path: Path
) -> None:
    work(journal_store, clock)
    with indexed(journal_store, path):
        wait_until_shown(journal_store, path)
        assert shown(path) == held(journal_store)
        work(journal_store, clock)
        journal_store.delete_queue("q1")
        journal_store.delete_cron("c1")
    assert shown(path) == held(journal_store)
    assert len(shown(path)["jobs"]) == 24


def test_a_renewed_lease_is_shown(journal_store: JournalStore, clock: SimClock, path: Path) -> None:
    with indexed(journal_store, path):
        [job] = running(journal_store, clock)
        journal_store.renew_leases([ack_of(job).lease], until=clock.now() + DAY)
    assert shown(path) == held(journal_store)


def test_what_is_past_its_retention_goes_with_steps_and_events(
    journal_store: JournalStore, clock: SimClock, path: Path
) -> None:
    with indexed(journal_store, path):
        work(journal_store, clock)
        wait_until_shown(journal_store, path)
        assert shown(path)["steps"]
        clock.advance(DAY * 2)
        assert journal_store.prune_jobs({"succeeded": DAY}, now=clock.now())
    assert shown(path)["steps"] == []
    assert shown(path)["events"] == []
    assert shown(path) == held(journal_store)


def test_the_lag_is_that_of_the_oldest_change_not_shown(
    journal_store: JournalStore, clock: SimClock, path: Path, full_disk: SimpleNamespace
) -> None:
    assert journal_store.index_lag() is None
    with indexed(journal_store, path):
        wait_until_shown(journal_store, path)
        assert journal_store.index_lag() == 0
        full_disk.is_full = True
        add(journal_store, clock)
        before = journal_store.index_lag()
        assert before is not None
        add(journal_store, clock)
        later = journal_store.index_lag()
        assert later is not None
        assert later > before
        full_disk.is_full = False
    assert journal_store.index_lag() == 0


def test_operations_write_a_direct_index_before_they_answer(
    journal_store: JournalStore, clock: SimClock, path: Path
) -> None:
    work(journal_store, clock)
    index = DirectIndex(journal_store, path)
    assert shown(path) == held(journal_store)
    work(journal_store, clock)
    assert shown(path) == held(journal_store)
    index.close()


# -- opening --------------------------------------------------------------------


def test_an_index_that_is_current_is_kept(
    own_journal: Callable[[], JournalStore], clock: SimClock, path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with closing(own_journal()) as store, indexed(store, path):
        work(store, clock)
        running(store, clock)
    caplog.set_level(logging.INFO)
    with closing(own_journal()) as store, indexed(store, path):
        wait_until_shown(store, path)
        assert not is_built(caplog)
        assert shown(path) == held(store)  # the lease that the new owner grants, too


def set_mark(path: Path, assignment: str) -> None:
    with closing(sqlite3.connect(path)) as connection:
        connection.execute(f"UPDATE belay_index SET {assignment}")
        connection.execute("DELETE FROM belay_jobs WHERE id % 2 = 0")
        connection.commit()


@pytest.mark.parametrize(
    "spoil",
    [
        pytest.param(lambda path: path.unlink(), id="missing"),
        pytest.param(lambda path: path.write_bytes(b""), id="empty"),
        pytest.param(lambda path: path.write_bytes(b"no database at all" * 500), id="no database"),
        pytest.param(lambda path: os.truncate(path, path.stat().st_size // 2), id="cut off"),
        pytest.param(lambda path: set_mark(path, "through = through + 7"), id="ahead"),
        pytest.param(lambda path: set_mark(path, "through = through - 1"), id="behind"),
        pytest.param(lambda path: set_mark(path, "store = 'another'"), id="of another store"),
        pytest.param(lambda path: set_mark(path, "generation = 'another'"), id="of another generation"),
        pytest.param(lambda path: set_mark(path, "format = 99"), id="of another format"),
    ],
)
def test_any_other_index_is_built_anew(
    own_journal: Callable[[], JournalStore], clock: SimClock, path: Path, spoil: Callable[[Path], None]
) -> None:
    with closing(own_journal()) as store, indexed(store, path):
        work(store, clock)
    spoil(path)
    with closing(own_journal()) as store, indexed(store, path):
        wait_until_shown(store, path)
        assert shown(path) == held(store)
        work(store, clock)
        wait_until_shown(store, path)
        assert shown(path) == held(store)


@pytest.mark.parametrize("seed", range(12))
def test_a_damaged_page_is_noticed(
    own_journal: Callable[[], JournalStore], clock: SimClock, path: Path, seed: int
) -> None:
    with closing(own_journal()) as store, indexed(store, path):
        work(store, clock, rounds=20)
    dice = random.Random(seed)
    with path.open("r+b") as file:
        pages = path.stat().st_size // 4096
        file.seek(4096 * dice.randrange(pages))
        file.write(dice.randbytes(4096))
    with closing(own_journal()) as store, indexed(store, path):
        wait_until_shown(store, path)
        assert shown(path) == held(store)


def test_a_left_wal_is_never_applied_to_another_file(
    own_journal: Callable[[], JournalStore], clock: SimClock, path: Path, tmp_path: Path
) -> None:
    copy = tmp_path / "copy-wal"
    with closing(own_journal()) as store, indexed(store, path):
        work(store, clock)
        wait_until_shown(store, path)
        shutil.copy(f"{path}-wal", copy)
    path.unlink()
    copy.rename(f"{path}-wal")
    with closing(own_journal()) as store, indexed(store, path):
        work(store, clock)
        wait_until_shown(store, path)
        assert shown(path) == held(store)


def test_what_changes_while_the_index_is_built_is_shown(
    journal_store: JournalStore, clock: SimClock, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    work(journal_store, clock, rounds=10)
    fill = module.fill

    def fill_between(file: Any, store: JournalStore, *, pace: Callable[[], None]) -> None:
        def work_between() -> None:
            work(store, clock, rounds=1)
            pace()

        fill(file, store, pace=work_between)

    monkeypatch.setattr(module, "fill", fill_between)
    with indexed(journal_store, path):
        wait_until_shown(journal_store, path)
        assert shown(path) == held(journal_store)


# -- while it is written ----------------------------------------------------------


def test_a_file_that_was_removed_is_made_anew(
    journal_store: JournalStore, clock: SimClock, path: Path
) -> None:
    with indexed(journal_store, path):
        work(journal_store, clock)
        wait_until_shown(journal_store, path)
        path.unlink()
        work(journal_store, clock)
        wait_until_shown(journal_store, path)
        assert shown(path) == held(journal_store)


def test_a_file_that_is_damaged_meanwhile_is_made_anew(
    journal_store: JournalStore, clock: SimClock, path: Path
) -> None:
    with indexed(journal_store, path) as indexer:
        work(journal_store, clock, rounds=10)
        wait_until_shown(journal_store, path)
        assert indexer._file is not None
        with journal_store.journal.lock:
            assert indexer._file.checkpoint()
            path.write_bytes(os.urandom(path.stat().st_size))
        work(journal_store, clock)
        wait_until_shown(journal_store, path)
        assert shown(path) == held(journal_store)


@pytest.fixture
def full_disk(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """A disk that is as full as its ``is_full`` says."""
    disk = SimpleNamespace(is_full=False)
    found = os.statvfs

    def statvfs(path: Path) -> Any:
        return SimpleNamespace(f_bavail=1, f_frsize=4096) if disk.is_full else found(path)

    monkeypatch.setattr(module.os, "statvfs", statvfs)
    return disk


def test_a_full_disk_stops_the_index_and_nothing_else(
    journal_store: JournalStore, clock: SimClock, path: Path, full_disk: SimpleNamespace
) -> None:
    with indexed(journal_store, path, most_values=20) as indexer:
        work(journal_store, clock)
        wait_until_shown(journal_store, path)
        before = shown(path)
        full_disk.is_full = True
        add(journal_store, clock, 500)
        work(journal_store, clock, rounds=20)
        assert shown(path) == before
        # Only ids are held of what waits.
        with journal_store.journal.lock:
            assert sum(row is not REREAD for row in indexer._pending.jobs.values()) <= 520
        full_disk.is_full = False
        wait_until_shown(journal_store, path)
        assert shown(path) == held(journal_store)


def test_a_transaction_that_finds_no_room_is_written_later(
    journal_store: JournalStore, clock: SimClock, path: Path
) -> None:
    with indexed(journal_store, path) as indexer:
        work(journal_store, clock)
        wait_until_shown(journal_store, path)
        assert indexer._file is not None
        connection = indexer._file._connection
        with journal_store.journal.lock:
            connection.execute("PRAGMA max_page_count = 1").fetchone()
        add(journal_store, clock, 200, input={"fill": "x" * 2000})
        assert journal_store.index_lag() != 0
        with journal_store.journal.lock:
            connection.execute("PRAGMA max_page_count = 1000000").fetchone()
        wait_until_shown(journal_store, path)
        assert shown(path) == held(journal_store)


def test_a_fault_of_ours_is_tried_again(
    journal_store: JournalStore, clock: SimClock, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = IndexFile.write
    faults = iter([ValueError("a fault")])

    def write_later(file: IndexFile, changes: Changes) -> None:
        for fault in faults:
            raise fault
        write(file, changes)

    with indexed(journal_store, path):
        wait_until_shown(journal_store, path)
        monkeypatch.setattr(IndexFile, "write", write_later)
        work(journal_store, clock)
        wait_until_shown(journal_store, path)
        assert next(faults, None) is None
        assert shown(path) == held(journal_store)


# -- readers ----------------------------------------------------------------------


@contextmanager
def reading(path: Path) -> Iterator[sqlite3.Connection]:
    """A reader that holds its transaction open."""
    with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True, isolation_level=None)) as reader:
        reader.execute("BEGIN")
        reader.execute("SELECT count(*) FROM belay_jobs").fetchone()
        yield reader


def test_a_reader_that_stays_holds_up_so_much_and_no_more(
    journal_store: JournalStore, clock: SimClock, path: Path
) -> None:
    most = 200_000
    with indexed(journal_store, path, wal_bytes=most):
        work(journal_store, clock)
        wait_until_shown(journal_store, path)
        with reading(path) as reader:
            for _ in range(40):
                add(journal_store, clock, 50, input={"fill": "x" * 500})
            while not (Path(f"{path}-wal").stat().st_size > most and journal_store.index_lag()):
                add(journal_store, clock)
            size = Path(f"{path}-wal").stat().st_size
            add(journal_store, clock, 1000, input={"fill": "x" * 500})
            assert Path(f"{path}-wal").stat().st_size == size
            assert reader.execute("SELECT count(*) FROM belay_jobs").fetchone() == (12,)
        wait_until_shown(journal_store, path)
        assert shown(path) == held(journal_store)


def test_after_some_patience_other_readers_get_a_new_file(
    journal_store: JournalStore, clock: SimClock, path: Path
) -> None:
    with indexed(journal_store, path, wal_bytes=100_000, reader_patience_s=0.0):
        work(journal_store, clock)
        wait_until_shown(journal_store, path)
        inode = path.stat().st_ino
        with reading(path) as reader:
            while not path.exists() or path.stat().st_ino == inode:
                add(journal_store, clock, 50, input={"fill": "x" * 500})
            assert reader.execute("SELECT count(*) FROM belay_jobs").fetchone() == (12,)
            wait_until_shown(journal_store, path)
            assert shown(path) == held(journal_store)


# -- compaction -------------------------------------------------------------------


def test_the_index_goes_on_in_another_generation(
    journal_store: JournalStore, clock: SimClock, path: Path
) -> None:
    with indexed(journal_store, path):
        work(journal_store, clock)
        wait_until_shown(journal_store, path)
        before = mark_of(path)
        compact(journal_store.journal, now_ms=int(clock.now().timestamp() * 1000), retention=Retention())
        wait_until_shown(journal_store, path)
        after = mark_of(path)
        assert before is not None
        assert after is not None
        assert after[0] != before[0]
        job = claim_one(journal_store, clock)
        end(journal_store, clock, job)
        wait_until_shown(journal_store, path)
        assert shown(path) == held(journal_store)


# -- what is pending --------------------------------------------------------------


def test_only_the_newest_state_of_a_row_waits() -> None:
    pending = Pending()
    row: Any = {"id": 1}
    pending.note(1, {1: {**row, "state": "ready"}}, {})
    pending.note(2, {1: {**row, "state": "running"}}, {"steps": {"1/1": {"seq": 1}}, "answers": {"a": {}}})
    pending.note(3, {1: {**row, "state": "succeeded"}}, {"steps": {"1/1": None}})
    assert pending.jobs == {1: {"id": 1, "state": "succeeded"}}
    assert {table: rows for table, rows in pending.tables.items() if rows} == {"steps": {"1/1": None}}


def test_many_values_are_forgotten_and_their_ids_kept() -> None:
    pending = Pending(most_values=3)
    for number in range(4):
        pending.note(number, {number: {"id": number}}, {})  # type: ignore[dict-item]
    assert pending.jobs == dict.fromkeys(range(4), REREAD)
    pending.note(9, {2: None}, {})
    assert pending.jobs[2] is None
