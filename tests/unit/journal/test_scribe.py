"""The scribe: page-wise writes, deaf to a group's signals, gone with its owner, lock held to the end."""

from __future__ import annotations

import errno
import os
import random
import signal
import time
from pathlib import Path

import pytest

from django_belay.exceptions import JournalError
from django_belay.storage.journal.files import scribe
from django_belay.storage.journal.files.initialise import initialise
from django_belay.storage.journal.files.journal import JournalOptions, open_journal
from django_belay.storage.journal.files.pen import ScribePen
from django_belay.storage.journal.files.tail import cut_at_pages
from django_belay.storage.journal.format.manifest import INFINITY

from .history import History

OPTIONS = JournalOptions(durability="write", writer="scribe", rotation_target_bytes=4096, reserve_bytes=0)


@pytest.fixture
def root(tmp_path: Path) -> str:
    path = os.path.join(os.path.realpath(tmp_path), "store")
    initialise(path, now_ms=1, retention=INFINITY, durability="write")
    return path


def test_cuts_end_at_records_and_cross_pages_only_inside_one() -> None:
    rng = random.Random(4)
    for _ in range(300):
        offset = rng.randrange(44, 20_000)
        sizes = [rng.choice([28, 100, 333, 4096, 9000]) for _ in range(rng.randrange(1, 40))]
        cuts = cut_at_pages(offset, sizes)
        assert sum(cuts) == sum(sizes)
        ends = set()
        at = offset
        for size in sizes:
            at += size
            ends.add(at)
        at = offset
        for cut in cuts:
            start, at = at, at + cut
            assert at in ends
            crosses = start // 4096 != (at - 1) // 4096
            alone = not any(start < end < at for end in ends)
            assert alone or not crosses


def test_signals_of_the_group_do_not_stop_it(root: str) -> None:
    history = History(seed=1)
    with open_journal(root, OPTIONS) as journal:
        assert isinstance(journal.pen, ScribePen)
        assert os.getsid(journal.pen.pid) != os.getsid(0)
        journal.append([history.draw(journal.state)])
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            os.kill(journal.pen.pid, number)
        journal.append([history.draw(journal.state)])


def test_it_holds_the_lock_and_ends_with_its_pipe(root: str) -> None:
    journal = open_journal(root, OPTIONS)
    assert isinstance(journal.pen, ScribePen)
    journal.ownership.lock.close()  # what the owner's death does
    with pytest.raises(JournalError) as caught:
        open_journal(root, OPTIONS)
    assert caught.value.refusal == "store_busy"
    journal.pen._socket.close()
    started = time.monotonic()
    open_journal(root, JournalOptions(durability="write", writer="inline", lock_wait_s=20.0)).close()
    assert time.monotonic() - started < 20
    journal.pen._process.wait()
    journal.tail.close()
    journal.recovered.close()
    journal.ownership.root.close()


def test_append_refuses_another_end_and_a_short_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fd = os.open(tmp_path / "f", os.O_RDWR | os.O_CREAT)
    try:
        assert scribe.append(fd, 0, b"abcdef", [3, 3], sync=True) == 6
        with pytest.raises(scribe.WriteMismatch):
            scribe.append(fd, 5, b"x", [1], sync=False)
        monkeypatch.setattr(os, "pwrite", lambda fd, data, offset: len(data) - 1)
        with pytest.raises(OSError) as caught:  # noqa: PT011  # the errno is what is asserted
            scribe.append(fd, 6, b"xyz", [3], sync=False)
        assert caught.value.errno == errno.ENOSPC
    finally:
        os.close(fd)


def test_what_was_not_really_written_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fd = os.open(tmp_path / "f", os.O_RDWR | os.O_CREAT)
    real = os.pwrite
    try:
        monkeypatch.setattr(os, "pwrite", lambda fd, data, offset: real(fd, bytes(len(data)), offset))
        with pytest.raises(scribe.WriteMismatch):
            scribe.append(fd, 0, b"abc", [3], sync=False)
    finally:
        os.close(fd)


def test_clock_going_backwards_is_no_fault(root: str) -> None:
    history = History(seed=5)
    with open_journal(root, OPTIONS) as journal:
        for step in range(200):
            if step % 10 == 0:
                history.now -= 10_000_000
            journal.append([history.draw(journal.state)])
        count = journal.tail.written.next_sequence
    with open_journal(root, OPTIONS) as journal:
        assert journal.tail.written.next_sequence == count
