"""The directory of a journal: what is made there, the socket's name, one starter at a time."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from django_belay.exceptions import ConfigurationError, JournalError, Unavailable
from django_belay.storage.journal.files.inspection import inspect
from django_belay.storage.journal.format.manifest import Retention
from django_belay.storage.journal.serving import place as place_module
from django_belay.storage.journal.serving.place import Place, Word

ROOT = Path(__file__).resolve().parents[3]
DAY = Retention(unit="hours", amount=24)


def make(place: Place) -> bool:
    return place.make_store(now_ms=1, retention=DAY, durability="write")


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path / "belay")


def test_store_and_run_are_for_this_user_alone(place: Place) -> None:
    assert make(place)
    assert not make(place)
    for path in (place.directory, place.store, place.run):
        assert stat.S_IMODE(path.stat().st_mode) == 0o700
    assert inspect(str(place.store)).retention == "24 hours"


def test_lax_run_directory_is_closed_to_others(place: Place) -> None:
    place.run.mkdir(parents=True)
    place.run.chmod(0o755)
    place.prepare()
    assert stat.S_IMODE(place.run.stat().st_mode) == 0o700


def test_links_in_the_path_are_resolved(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    assert make(Place(tmp_path / "link" / "belay"))
    assert inspect(str(tmp_path / "real" / "belay" / "store")).records == 0


def test_store_begun_by_a_killed_process_is_begun_anew(place: Place) -> None:
    place.prepare()
    left = place.directory / "store.77.new"
    (left / "epochs").mkdir(parents=True)
    assert make(place)
    assert not left.exists()
    assert inspect(str(place.store)).records == 0


def test_of_several_that_make_the_store_one_does(place: Place) -> None:
    barrier = threading.Barrier(8)
    made: list[bool] = []

    def race() -> None:
        barrier.wait()
        made.append(make(place))

    threads = [threading.Thread(target=race) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(made) == [False] * 7 + [True]


def test_refused_file_system_leaves_nothing(tmp_path: Path) -> None:
    place = Place(tmp_path / "belay")
    with pytest.raises(JournalError, match="validated_filesystem"):
        place.make_store(now_ms=1, retention=DAY)  # a directory for temporary files
    assert not place.directory.exists()


def test_file_in_the_place_of_the_directory_is_named(tmp_path: Path) -> None:
    (tmp_path / "belay").write_text("")
    with pytest.raises(ConfigurationError, match="cannot be made"):
        Place(tmp_path / "belay").prepare()
    with pytest.raises(ConfigurationError, match="cannot be made"):
        make(Place(tmp_path / "belay"))
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "store").write_text("")
    with pytest.raises(ConfigurationError, match="is not a directory"):
        Place(tmp_path / "other").prepare()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a directory away")
def test_directory_of_another_user_is_refused(place: Place) -> None:
    make(place)
    os.chown(place.store, 12345, 12345)
    with pytest.raises(ConfigurationError, match="belongs to user 12345"):
        place.prepare()


@pytest.fixture
def short() -> Iterator[Path]:
    """A directory whose path leaves room for a socket's address, wherever pytest keeps its own."""
    with tempfile.TemporaryDirectory(dir="/tmp") as path:
        yield Path(path)


def test_address_that_fits_nowhere_is_refused_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(place_module, "_DESCRIPTORS", "/nowhere")
    monkeypatch.setattr(place_module, "_LONGEST_ADDRESS", 10)
    with pytest.raises(Unavailable, match="XDG_RUNTIME_DIR"):
        Place(tmp_path).listen()


@pytest.mark.parametrize("by", ["descriptor", "path"])
def test_socket_is_found_however_deep_the_directory(
    tmp_path: Path, short: Path, monkeypatch: pytest.MonkeyPatch, by: str
) -> None:
    place = Place(tmp_path.joinpath(*["a-directory-with-a-long-name"] * 6))
    if by == "path":
        monkeypatch.setattr(place_module, "_DESCRIPTORS", "/nowhere")
        monkeypatch.setenv("XDG_RUNTIME_DIR", str(place.directory))  # itself too deep: another is taken
        monkeypatch.setattr(tempfile, "tempdir", str(short))
    with place.listen() as listener:
        assert stat.S_IMODE(place.socket.lstat().st_mode) == 0o600
        with place.connect(1.0) as ours, listener.accept()[0] as theirs:
            ours.sendall(b"hello")
            assert theirs.recv(5) == b"hello"
        assert place.has_owner()
    assert not place.has_owner()  # the file is there, nobody listens


def test_dead_socket_is_replaced_and_only_the_own_one_removed(place: Place) -> None:
    place.listen().close()  # as a killed owner leaves it
    assert place.socket.is_socket()
    assert not place.has_owner()
    with place.listen():
        assert place.has_owner()
        assert place.is_reachable()
        place.socket.unlink()
        assert not place.has_owner()
        assert not place.is_reachable()
        place.restore_socket()
        assert place.has_owner()
        place.socket.unlink()
        place.socket.write_text("another's")
        place.remove_socket()
        assert place.socket.exists()
    assert sorted(path.name for path in place.run.iterdir()) == ["owner.sock"]


def test_one_starts_an_owner_at_a_time(place: Place) -> None:
    with place.starting() as first, place.starting() as second:
        assert (first, second) == (True, False)
    with place.starting() as third:
        assert third


def test_word_counts_until_it_is_ended(place: Place) -> None:
    place.prepare()
    assert place.told() is None
    word = Word(place)
    word.tell("reading the store", percent=40)
    told = place.told()
    assert told == {"doing": "reading the store", "percent": 40, "pid": os.getpid()}
    word.tell("building its indexes")
    assert place.told() == {"doing": "building its indexes", "pid": os.getpid()}
    (place.run / "owner.json").write_text("{")
    assert place.told() is None
    word.end()
    word.end()
    assert place.told() is None


def test_word_of_a_killed_process_counts_for_nothing(place: Place) -> None:
    place.prepare()
    code = (
        "import sys, time; from pathlib import Path\n"
        "from django_belay.storage.journal.serving.place import Place, Word\n"
        "word = Word(Place(Path(sys.argv[1]))); word.tell('reading the store'); print(flush=True); time.sleep(60)"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, str(place.directory)], stdout=subprocess.PIPE, cwd=ROOT
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        assert place.told() is not None
        process.kill()
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)  # dead, and not yet buried by its parent
        assert place.told() is None
        assert (place.run / "owner.json").exists()


def test_grown_log_is_kept_once_and_begun_anew(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(place_module, "LOG_BYTES", 10)
    for text in (b"first, long enough\n", b"second, long enough\n", b"third\n"):
        fd = place.open_log()
        os.write(fd, text)
        os.close(fd)
    assert place.log.read_bytes() == b"third\n"
    assert place.log.with_name("owner.log.1").read_bytes() == b"second, long enough\n"
    assert place.last_words() == "third"
