"""What may befall an owner and its clients: each is told what is wrong, and nobody's work is lost."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace

import pytest

from django_belay.contract.job import NewJob
from django_belay.exceptions import JournalError, JournalFull, StorageError, Unavailable
from django_belay.storage.base import ClaimRound, Demand, JobFilter, Storage
from django_belay.storage.journal.files import filesystem
from django_belay.storage.journal.files.salvage import salvage
from django_belay.storage.journal.serving.dialing import Dialer
from django_belay.storage.journal.serving.owner import Owner, OwnerOptions
from django_belay.storage.journal.serving.place import Place
from django_belay.storage.journal.serving.remote import RemoteStore

from .owners import ROOT, Owners, owners_of
from .test_owners import add, ids, scribe_of, until

OPTIONS = OwnerOptions(durability="write", validated_filesystem=True)
NOBODY = 65534
NOW = datetime(2026, 6, 1, tzinfo=UTC)

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")


@pytest.fixture
def owners(tmp_path: Path) -> Iterator[Owners]:
    with owners_of(tmp_path / "belay") as owners:
        yield owners


@contextlib.contextmanager
def mounted(path: Path, size: str) -> Iterator[Path]:
    """A file system of its own."""
    if os.geteuid() != 0 or shutil.which("mount") is None:
        pytest.skip("only root can mount a file system")
    path.mkdir()
    made = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={size},mode=0700", "tmpfs", str(path)], capture_output=True
    )
    if made.returncode:
        pytest.skip(f"no file system can be mounted here: {made.stderr.decode().strip()}")
    try:
        yield path
    finally:
        subprocess.run(["umount", "-l", str(path)], check=True)


def fill(path: Path) -> None:
    """Write until nothing more goes."""
    with contextlib.suppress(OSError), path.open("wb", buffering=0) as file:
        while True:
            file.write(bytes(2**20))
    with contextlib.suppress(OSError), path.open("ab", buffering=0) as file:
        while True:
            file.write(bytes(4096))


# -- disks ------------------------------------------------------------------------------


def test_full_disk_refuses_writes_and_work_resumes_when_there_is_room(tmp_path: Path) -> None:
    with (
        mounted(tmp_path / "disk", "96m") as disk,
        owners_of(disk / "belay") as owners,
        closing(owners.dial()) as store,
    ):
        [first] = add(store)
        (disk / "filler").write_bytes(bytes(40 * 2**20))
        with pytest.raises(JournalFull, match="free space"):
            add(store)
        assert store.get_job(first).state == "ready"
        pid = owners.pid()
        until(lambda: "bytes left beyond the reserve" in owners.log())
        (disk / "filler").unlink()
        [second] = add(store)
        assert ids(store) == [first, second]
        assert owners.pid() == pid


def test_room_that_others_take_is_noticed_before_the_next_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = Place(tmp_path / "belay")
    with Owner.open(place, OPTIONS, now=NOW) as owner:
        owner.start()
        with closing(RemoteStore(Dialer(place, start=None))) as store:
            [first] = add(store)
            monkeypatch.setattr(filesystem, "_LOOK_AGAIN_S", 0.0)
            with monkeypatch.context() as full:
                full.setattr(filesystem.os, "fstatvfs", lambda fd: SimpleNamespace(f_bavail=9, f_frsize=4096))
                with pytest.raises(JournalFull, match="free space"):
                    add(store)
                assert ids(store) == [first]
            [second] = add(store)
            assert ids(store) == [first, second]


def test_disk_without_a_free_byte_keeps_nobody_from_reading(tmp_path: Path) -> None:
    with (
        mounted(tmp_path / "disk", "96m") as disk,
        owners_of(disk / "belay") as owners,
        closing(owners.dial()) as store,
    ):
        [first] = add(store)
        fill(disk / "filler")
        with pytest.raises(JournalFull, match="free space"):
            add(store)
        there = ids(store)
        for number in (signal.SIGKILL, signal.SIGTERM):  # the next owner has no byte for its log either
            owners.wait_for_end(owners.kill(number))
            assert ids(store) == there
            with pytest.raises(JournalFull, match="free space"):
                add(store)
        (disk / "filler").unlink()
        [last] = add(store)
        assert there == [first]
        assert ids(store) == [first, last]
        assert owners.started == 3


def test_write_that_is_cut_short_unforeseen_is_named_and_salvaged(tmp_path: Path) -> None:
    told: list[int] = []

    def add_for_ever(store: RemoteStore) -> None:
        while True:
            told.extend(add(store, 10))

    with (
        owners_of(tmp_path / "belay", file_bytes=100_000) as owners,
        closing(owners.dial(patience_s=3.0)) as store,
        pytest.raises(
            Unavailable, match=r"incomplete_record.* last good sequence \d+: .*belay_journal salvage"
        ),
    ):
        add_for_ever(store)
    salvaged = Place(tmp_path / "salvaged")
    salvaged.prepare()
    salvage(str(owners.place.store), str(salvaged.store), durability="write", validated_filesystem=True)
    with Owner.open(salvaged, OPTIONS, now=datetime.now(UTC)) as owner:
        there = {job.id for job in owner.storage.list_jobs(JobFilter(), limit=10**6)}
    assert len(told) > 50
    assert set(told) <= there


def test_read_only_file_system_is_named_to_owners_and_clients(tmp_path: Path) -> None:
    with mounted(tmp_path / "disk", "96m") as disk:
        place = Place(disk / "belay")
        with Owner.open(place, OPTIONS, now=NOW) as owner:
            owner.storage.insert_jobs([NewJob(kind="k")], now=NOW)
        subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
        with pytest.raises(JournalError, match=os.strerror(errno.EROFS)):
            Owner.open(place, OPTIONS, now=NOW)
        with (
            closing(RemoteStore(Dialer(place, start=lambda: None), patience_s=1.0)) as store,
            pytest.raises(Unavailable, match=os.strerror(errno.EROFS)),
        ):
            ids(store)


# -- directories ------------------------------------------------------------------------


def test_removed_directory_ends_its_owner(owners: Owners) -> None:
    with closing(owners.dial()) as store:
        add(store)
        pid = owners.pid()
        shutil.rmtree(owners.place.directory)
        assert owners.wait_for_end(pid) == 1
        with pytest.raises(StorageError, match="start it anew"):  # another store is made there
            add(store)
    with closing(owners.dial()) as store:
        assert ids(store) == []


@pytest.fixture
def open_directory() -> Iterator[Path]:
    """A directory that everybody can reach: pytest's own are closed to other users."""
    with tempfile.TemporaryDirectory(dir="/tmp") as path:
        os.chmod(path, 0o755)
        yield Path(path)


_AS_NOBODY = """
import os, sys
from datetime import UTC, datetime
from pathlib import Path
from django_belay.storage.base import JobFilter
from django_belay.storage.journal.files import filesystem
from django_belay.storage.journal.files.salvage import salvage
from django_belay.storage.journal.serving.dialing import Dialer
from django_belay.storage.journal.serving.owner import Owner, OwnerOptions
from django_belay.storage.journal.serving.place import Place
from django_belay.storage.journal.serving.remote import RemoteStore

os.setgid(65534), os.setuid(65534)
place = Place(Path(sys.argv[1]))

def client():
    RemoteStore(Dialer(place, start=lambda: None), patience_s=1.0).list_jobs(JobFilter(), limit=1)

def owner():
    Owner.open(place, OwnerOptions(durability="write", validated_filesystem=True), now=datetime.now(UTC))

for work in (client, owner):
    try:
        work()
    except Exception as error:
        print(type(error).__name__, error)
    else:
        print("it worked")
"""


def as_nobody(directory: Path) -> list[str]:
    """What another user's client, then its owner, is told."""
    ran = subprocess.run(
        [sys.executable, "-c", _AS_NOBODY, str(directory)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert ran.returncode == 0, ran.stderr
    return ran.stdout.splitlines()


@needs_root
def test_another_user_is_refused_by_the_directory(open_directory: Path) -> None:
    with owners_of(open_directory / "belay") as owners, closing(owners.dial()) as store:
        add(store)
        client, owner = as_nobody(owners.place.directory)
        assert client.startswith("Unavailable")
        assert f"(now {NOBODY})" in client
        assert owner.startswith("ConfigurationError")
        assert f"closed to user {NOBODY}" in owner
        assert len(ids(store)) == 1


@needs_root
def test_another_user_is_refused_by_the_owner_where_the_modes_let_it_through(open_directory: Path) -> None:
    with owners_of(open_directory / "belay") as owners, closing(owners.dial()) as store:
        add(store)
        for path, mode in (
            (owners.place.directory, 0o755), (owners.place.run, 0o777), (owners.place.socket, 0o666),
        ):  # fmt: skip
            path.chmod(mode)
        client, owner = as_nobody(owners.place.directory)
        assert client.startswith("Unavailable")
        assert f"user {NOBODY} may not use a journal of user 0" in client
        assert owner.startswith("ConfigurationError")
        assert "belongs to user 0" in owner
        assert len(ids(store)) == 1


def test_whatever_lies_in_the_place_of_the_socket_is_replaced(owners: Owners) -> None:
    owners.place.prepare()
    owners.place.socket.write_text("no socket")
    with closing(owners.dial()) as store:
        add(store)
        assert owners.place.socket.is_socket()


# -- owners that do not answer -----------------------------------------------------------


def is_stopped(pid: int) -> bool:
    """Whether the signal has reached every thread of a process."""
    states = [
        path.read_text().rpartition(")")[2].split()[0] for path in Path(f"/proc/{pid}/task").glob("*/stat")
    ]
    return set(states) == {"T"}


def test_stopped_owner_is_not_followed_and_goes_on(owners: Owners) -> None:
    with closing(owners.dial()) as store, closing(owners.dial(patience_s=0.5)) as hasty:
        [first] = add(store)
        pid = owners.kill(signal.SIGSTOP)
        until(lambda: is_stopped(pid))
        try:
            with pytest.raises(Unavailable, match="does not answer"):
                add(hasty)
            owners.start()  # by hand: the first lives, so this one ends at once
            second = owners.processes[-1]
            assert second.wait(timeout=30) == 0
            waiting = threading.Timer(0.0, lambda: added.extend(add(store)))
            added: list[int] = []
            waiting.start()
        finally:
            os.kill(pid, signal.SIGCONT)
        waiting.join(timeout=30)
        assert owners.pid() == pid
        assert ids(store) == [first, *added]
        assert len(added) == 1


def test_store_that_a_stopped_scribe_holds_is_waited_for(owners: Owners) -> None:
    with closing(owners.dial()) as store, closing(owners.dial(patience_s=4.0)) as hasty:
        [first] = add(store)
        pid = owners.pid()
        scribe = scribe_of(pid)
        os.kill(scribe, signal.SIGSTOP)
        until(lambda: is_stopped(scribe))
        try:
            owners.kill()
            with pytest.raises(Unavailable, match=r"a process holds its store.*scribe"):
                ids(hasty)
        finally:
            os.kill(scribe, signal.SIGCONT)
        assert ids(store) == [first]


def test_long_opening_is_told_to_clients_and_then_they_are_served(tmp_path: Path) -> None:
    hold = tmp_path / "hold"
    with owners_of(tmp_path / "belay", hold=str(hold)) as owners, closing(owners.dial()) as store:
        [first] = add(store)
        hold.touch()
        owners.kill()
        with (
            closing(owners.dial(patience_s=2.0)) as hasty,
            pytest.raises(Unavailable, match=r"not served yet: process \d+ is reading the store"),
        ):
            ids(hasty)
        started = owners.started
        served: list[list[int]] = []
        waiting = [threading.Thread(target=lambda: served.append(add(store))) for _ in range(4)]
        for thread in waiting:
            thread.start()
        with (
            closing(RemoteStore(Dialer(owners.place, start=None), patience_s=0.3)) as hasty,
            pytest.raises(Unavailable, match="try again later"),
        ):
            ids(hasty)
        hold.unlink()
        for thread in waiting:
            thread.join(timeout=60)
        assert ids(store) == [first, *sorted(job_id for [job_id] in served)]
        assert owners.started == started  # nobody started another meanwhile


# -- clients ----------------------------------------------------------------------------


_FORKING = """
import json, os, sys
from datetime import UTC, datetime
from pathlib import Path
from django_belay.contract.job import NewJob
from django_belay.storage.journal.files import filesystem
from django_belay.storage.journal.files.salvage import salvage
from django_belay.storage.journal.serving.dialing import Dialer
from django_belay.storage.journal.serving.place import Place
from django_belay.storage.journal.serving.remote import RemoteStore

dialer = Dialer(Place(Path(sys.argv[1])), start=None)
dialled = []

def dial(patience_s):
    dialled.append(os.getpid())
    return dialer(patience_s)

store = RemoteStore(dial, connections=2, patience_s=10.0)

def add():
    return [one.job_id for one in store.insert_jobs([NewJob(kind="k")], now=datetime.now(UTC))]

told = add()
reading, writing = os.pipe()
children = []
for number in range(4):
    pid = os.fork()
    if not pid:
        try:
            if number:  # the first only closes what it got
                mine = [job_id for _ in range(20) for job_id in add()]
                os.write(writing, (json.dumps(mine) + "\\n").encode())
            store.close()
            os._exit(0)
        finally:
            os._exit(1)
    children.append(pid)
for _ in range(20):
    told += add()
codes = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in children]
told += add()
os.close(writing)
with os.fdopen(reading) as lines:
    for line in lines:
        told += json.loads(line)
print(json.dumps({"codes": codes, "told": told, "dialled": dialled}))
"""


def test_forked_clients_have_connections_of_their_own(owners: Owners) -> None:
    with closing(owners.dial()) as store:
        [first] = add(store)
        ran = subprocess.run(
            [sys.executable, "-W", "ignore::DeprecationWarning", "-c", _FORKING, str(owners.place.directory)],
            cwd=ROOT, capture_output=True, text=True, timeout=120,
        )  # fmt: skip
        assert ran.returncode == 0, ran.stderr
        said = json.loads(ran.stdout)
        assert said["codes"] == [0, 0, 0, 0]
        assert len(said["dialled"]) == 1  # no child has hung up on its parent
        assert len(set(said["told"])) == 82
        assert ids(store) == sorted([first, *said["told"]])


def claim_all(store: Storage, now: datetime) -> list[int]:
    round_ = ClaimRound(leased_by="node:1:1", lease_until=now + timedelta(seconds=30))
    return [job.id for job in store.claim(round_, demands=[Demand(queue="default", take=100)], now=now).jobs]


def test_ids_ascend_and_jobs_run_when_the_clock_goes_back_between_owners(tmp_path: Path) -> None:
    place = Place(tmp_path / "belay")
    given: list[int] = []
    for day in (3, 2, 1):
        now = NOW + timedelta(days=day)
        with Owner.open(place, OPTIONS, now=now) as owner:
            owner.start()
            with closing(RemoteStore(Dialer(place, start=None))) as store:
                given += [one.job_id for one in store.insert_jobs([NewJob(kind="k")] * 3, now=now)]
                assert claim_all(store, now) == given[-3:]
    assert given == sorted(set(given))


def test_clock_that_goes_back_under_an_owner_loses_no_job_and_no_lease(tmp_path: Path) -> None:
    place = Place(tmp_path / "belay")
    with Owner.open(place, OPTIONS, now=NOW) as owner:
        owner.start()
        with closing(RemoteStore(Dialer(place, start=None))) as store:
            earlier, later = NOW - timedelta(hours=1), NOW + timedelta(minutes=1)
            [first] = [one.job_id for one in store.insert_jobs([NewJob(kind="k")], now=NOW)]
            [second] = [one.job_id for one in store.insert_jobs([NewJob(kind="k")], now=earlier)]
            assert first < second
            assert sorted(claim_all(store, NOW)) == [first, second]
            for now, expired in ((earlier, []), (later, [first, second])):
                reclaimed = store.reclaim_expired(now=now, backoff=lambda attempt: timedelta(0))
                assert sorted(one.job_id for one in reclaimed) == expired
            assert sorted(claim_all(store, later)) == [first, second]
