"""Owners of one directory: who owns it, how it is handed over, and what ends an owner by itself."""

from __future__ import annotations

import os
import shutil
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from django_belay.contract.job import NewJob
from django_belay.exceptions import JournalLocked, StorageError
from django_belay.storage.base import JobFilter
from django_belay.storage.journal.files.initialise import initialise
from django_belay.storage.journal.files.journal import JournalOptions, open_journal
from django_belay.storage.journal.format.definition import define_job
from django_belay.storage.journal.format.event_v1 import Inserted
from django_belay.storage.journal.format.manifest import INFINITY
from django_belay.storage.journal.serving.owner import Owner, OwnerOptions
from django_belay.storage.journal.serving.place import Place
from django_belay.storage.journal.serving.remote import RemoteStore

from .owners import Owners, owners_of

OPTIONS = OwnerOptions(durability="write", validated_filesystem=True)
NOW = datetime(2026, 6, 1, tzinfo=UTC)


@pytest.fixture
def owners(tmp_path: Path) -> Iterator[Owners]:
    with owners_of(tmp_path / "belay") as owners:
        yield owners


def until(is_so: Callable[[], bool], *, within_s: float = 30.0) -> None:
    """Look until it is so: other processes decide when."""
    deadline = time.monotonic() + within_s
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def add(store: RemoteStore, count: int = 1) -> list[int]:
    jobs = [NewJob(kind="k") for _ in range(count)]
    return [one.job_id for one in store.insert_jobs(jobs, now=datetime.now(UTC))]


def ids(store: RemoteStore) -> list[int]:
    return sorted(job.id for job in store.list_jobs(JobFilter(), limit=10**6))


# -- one owner ------------------------------------------------------------------------


def test_of_processes_that_race_one_owns_and_the_others_end(owners: Owners) -> None:
    for _ in range(4):
        owners.start()
    with closing(owners.dial()) as store:
        add(store)
        pid = owners.pid()
        losers = [process for process in owners.processes if process.pid != pid]
        assert {process.wait(timeout=30) for process in losers} == {
            0
        }  # the dialler started one more, perhaps
        assert owners.pid() == pid
        assert len(ids(store)) == 1
    assert owners.log().count("owns the journal") == 1
    assert owners.log().count("another owner lives") == len(losers)


def test_living_owner_is_not_waited_for(tmp_path: Path) -> None:
    place = Place(tmp_path / "belay")
    with Owner.open(place, OPTIONS, now=datetime.now(UTC)) as owner:
        owner.start()
        began = time.monotonic()
        with pytest.raises(JournalLocked):
            Owner.open(place, OPTIONS, now=datetime.now(UTC), wait_s=60.0)
        assert time.monotonic() - began < 10


def test_owner_that_closes_is_waited_for(tmp_path: Path) -> None:
    place = Place(tmp_path / "belay")
    first = Owner.open(place, OPTIONS, now=datetime.now(UTC))  # for its own operation: it serves nobody
    with pytest.raises(JournalLocked):
        Owner.open(place, OPTIONS, now=datetime.now(UTC), wait_s=0.01)
    closing_soon = threading.Timer(0.1, first.close)
    closing_soon.start()
    with Owner.open(place, OPTIONS, now=datetime.now(UTC), wait_s=60.0) as second:
        assert second.storage.queue_stats(now=datetime.now(UTC)) == []
    closing_soon.join()


def test_store_of_another_writer_is_owned(tmp_path: Path) -> None:
    place = Place(tmp_path / "belay")
    place.prepare()
    initialise(
        str(place.store), now_ms=1, retention=INFINITY, durability="write", store_id=b"another's store!"
    )
    options = JournalOptions(durability="write", writer="inline")
    with open_journal(str(place.store), options) as journal:
        definition = define_job(worker_key="theirs", args={"n": 1})
        job_id = b"\xff" * 16
        journal.append(
            [Inserted(job_id=job_id, at=5, definition=definition, eligible_at=5, availability_order=1)]
        )
    with Owner.open(place, OPTIONS, now=datetime.now(UTC)) as owner:
        [job] = owner.storage.list_jobs(JobFilter(), limit=10)
        assert (job.kind, job.input) == ("theirs", {"n": 1})
        [inserted] = owner.storage.insert_jobs([NewJob(kind="ours")], now=datetime.now(UTC))
        assert inserted.job_id < job.id == 2**53 - 1  # exact in JavaScript: theirs does not lead ours


@pytest.mark.parametrize("step_s", [0.0, 0.3, -3600.0])
def test_ids_that_an_owner_gave_out_are_not_given_out_by_the_next(tmp_path: Path, step_s: float) -> None:
    given: list[int] = []
    for number in range(20):
        now = NOW + number * timedelta(seconds=step_s)
        with Owner.open(Place(tmp_path / "belay"), OPTIONS, now=now) as owner:
            given += owner.storage.reserve_ids(5000 if number % 2 else 2, now=now)
    assert given == sorted(set(given))


def test_owner_whose_run_directory_was_lost_draws_a_second_ahead(tmp_path: Path) -> None:
    place = Place(tmp_path / "belay")
    given: list[int] = []
    for _ in range(3):
        with Owner.open(place, OPTIONS, now=NOW) as owner:
            given += owner.storage.reserve_ids(20, now=NOW)
        shutil.rmtree(place.run)
    assert len(set(given)) == len(given)


def test_ids_stay_near_the_clock_however_often_the_owner_changes(tmp_path: Path) -> None:
    for number in range(20):
        with Owner.open(Place(tmp_path / "belay"), OPTIONS, now=NOW) as owner:
            [job_id] = owner.storage.reserve_ids(1, now=NOW)
        if not number:
            first = job_id
    assert job_id - first < 1000 << 12  # milliseconds


# -- handing over --------------------------------------------------------------------


def test_fifty_threads_notice_nothing_when_the_owner_is_replaced(owners: Owners) -> None:
    told: list[int] = []
    errors: list[BaseException] = []
    stop = threading.Event()

    def work(store: RemoteStore) -> None:
        try:
            while not stop.is_set():
                told.extend(add(store))
        except BaseException as error:
            errors.append(error)

    with closing(owners.dial(connections=50)) as store:
        add(store)
        threads = [threading.Thread(target=work, args=(store,)) for _ in range(50)]
        for thread in threads:
            thread.start()
        for _ in range(3):
            many = len(told) + 100
            until(lambda many=many: len(told) >= many or bool(errors))  # type: ignore[misc]
            pid = owners.kill(signal.SIGTERM)
            assert owners.wait_for_end(pid) == 0
        many = len(told) + 100
        until(lambda: len(told) >= many or bool(errors))
        stop.set()
        for thread in threads:
            thread.join()
        assert errors == []
        assert len(ids(store)) == len(told) + 1
        assert set(told) < set(ids(store))


def test_owner_that_nobody_asks_ends(tmp_path: Path) -> None:
    with owners_of(tmp_path / "belay", idle_exit_s=0.3) as owners:
        with closing(owners.dial()) as store:
            [job_id] = add(store)
            pid = owners.pid()
            assert owners.pid() == pid  # not while somebody is connected
        assert owners.wait_for_end(pid) == 0
        assert not owners.place.socket.exists()
        assert not owners.place.has_owner()
        with closing(owners.dial()) as store:
            assert store.get_job(job_id).state == "ready"
            assert owners.pid() != pid


def test_only_the_files_of_the_layout_are_left(owners: Owners) -> None:
    with closing(owners.dial()) as store:
        add(store)
        pid = owners.kill(signal.SIGTERM)
        assert owners.wait_for_end(pid) == 0
    assert sorted(path.name for path in owners.place.directory.iterdir()) == ["run", "store"]
    left = {path.name for path in owners.place.run.iterdir()}
    assert left == {"make.lock", "start.lock", "owner.lock", "owner.log", "ids"}


# -- faults ---------------------------------------------------------------------------


def test_deleted_socket_is_put_back(owners: Owners) -> None:
    with closing(owners.dial()) as store:
        add(store)
        pid = owners.pid()
        owners.place.socket.unlink()
        until(owners.place.has_owner)
        assert owners.pid() == pid
    with closing(owners.dial()) as store:
        assert len(ids(store)) == 1
    assert owners.started == 1


def test_owner_without_its_run_directory_gives_up_and_another_follows(owners: Owners) -> None:
    with closing(owners.dial()) as store:
        [job_id] = add(store)
        pid = owners.pid()
        shutil.rmtree(owners.place.run)
        assert owners.wait_for_end(pid) == 1
        assert store.get_job(job_id).state == "ready"
        assert owners.pid() != pid


def test_moved_directory_ends_its_owner(owners: Owners, tmp_path: Path) -> None:
    with closing(owners.dial(patience_s=60.0)) as store:
        [job_id] = add(store)
        pid = owners.pid()
        owners.place.directory.rename(tmp_path / "moved")
        assert owners.wait_for_end(pid) == 1
        with pytest.raises(StorageError, match="start it anew"):  # what lies there now is another store
            add(store)
    with Owner.open(Place(tmp_path / "moved"), OPTIONS, now=datetime.now(UTC), wait_s=10.0) as owner:
        assert owner.storage.get_job(job_id).state == "ready"


def test_dead_scribe_ends_its_owner_and_another_follows(owners: Owners) -> None:
    with closing(owners.dial()) as store:
        [first] = add(store)
        pid = owners.pid()
        os.kill(scribe_of(pid), signal.SIGKILL)
        [second] = add(store)  # refused by the first, done by the next
        assert owners.wait_for_end(pid) == 1
        assert ids(store) == [first, second]
        assert owners.pid() != pid
    assert "gives the journal" in owners.log()


def scribe_of(pid: int) -> int:
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
            words = (path.parent / "cmdline").read_bytes()
        except OSError:
            continue
        if int(fields[1]) == pid and b"scribe.py" in words:
            return int(path.parent.name)
    raise AssertionError("the owner has no scribe")
