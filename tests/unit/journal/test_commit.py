"""Group commit: one write for many, the next batch gathers meanwhile, nobody is forgotten."""

from __future__ import annotations

import ctypes
import errno
import os
import queue
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from django_belay.exceptions import JournalError
from django_belay.storage.journal.files import fail
from django_belay.storage.journal.files.initialise import initialise
from django_belay.storage.journal.files.journal import Journal, JournalOptions, open_journal
from django_belay.storage.journal.format.event_v1 import Inserted
from django_belay.storage.journal.format.manifest import INFINITY
from tests.crash.power_cut import Recorder

from .history import History, definition


@pytest.fixture
def root(tmp_path: Path) -> str:
    path = os.path.join(os.path.realpath(tmp_path), "store")
    initialise(path, now_ms=1_000, retention=INFINITY, durability="write")
    return path


def own(path: str, **changes: Any) -> Journal:
    options: dict[str, Any] = {"durability": "write", "writer": "inline", "reserve_bytes": 0}
    return open_journal(path, JournalOptions(**{**options, **changes}))


def insertion(number: int) -> Inserted:
    return Inserted(
        job_id=number.to_bytes(16), at=5, definition=definition(), eligible_at=5, availability_order=number
    )


class Gate(Recorder):
    """Stops each write until it is let through."""

    def __init__(self) -> None:
        super().__init__()
        self.entered: queue.Queue[str] = queue.Queue()
        self.let = threading.Semaphore(0)
        self.fails = False

    def before(self, name: str) -> None:
        self.entered.put(name)
        self.let.acquire()
        if self.fails:
            raise OSError(errno.EIO, "injected")


@contextmanager
def gated() -> Iterator[Gate]:
    gate = Gate()
    with fail.arm(gate):
        try:
            yield gate
        finally:
            gate.let.release(1_000)


def started(target: Any, *args: Any) -> threading.Thread:
    thread = threading.Thread(target=target, args=args)
    thread.start()
    return thread


def until_waiting(journal: Journal, count: int) -> None:
    while len(journal._commit._waiters) < count:
        continue


def test_who_follows_is_told_once_a_batch_without_waiting(root: str) -> None:
    told: queue.Queue[tuple[int, BaseException | None]] = queue.Queue()
    with own(root) as journal, gated() as gate:
        journal.follow(lambda through, error: told.put((through, error)))
        journal.submit([insertion(1)])
        gate.entered.get()
        for number in range(2, 6):
            journal.submit([insertion(number)])
        assert told.empty()
        gate.let.release()
        assert told.get() == (1, None)
        gate.let.release()
        assert told.get() == (5, None)
    with own(root) as journal:
        assert journal.recovered.records == 5


def test_what_was_submitted_before_is_written_when_somebody_follows(root: str) -> None:
    told: queue.Queue[int] = queue.Queue()
    with own(root) as journal:
        journal.submit([insertion(1)])
        leave = journal.follow(lambda through, error: told.put(through))
        assert told.get() == 1
        leave()
        journal.append([insertion(2)])
        assert told.empty()


def test_who_follows_learns_why_nothing_more_becomes_durable(root: str) -> None:
    told: queue.Queue[tuple[int, BaseException | None]] = queue.Queue()
    journal = own(root)
    with gated() as gate:
        journal.follow(lambda through, error: told.put((through, error)))
        sequence = journal.submit([insertion(1)])
        gate.fails = True
        gate.let.release()
        through, error = told.get()
        assert through < sequence
        assert isinstance(error, JournalError)
        assert error.refusal == "eio"
        for call in (lambda: journal.submit([insertion(2)]), lambda: journal.wait(sequence)):
            with pytest.raises(JournalError) as caught:
                call()
            assert caught.value.refusal == "poisoned"
    journal.close()


def test_a_follower_that_raises_stops_neither_the_writing_nor_the_others(
    root: str, caplog: pytest.LogCaptureFixture
) -> None:
    told: queue.Queue[int] = queue.Queue()

    def broken(through: int, error: BaseException | None) -> None:
        raise ValueError(through)

    with own(root) as journal:
        journal.follow(broken)
        journal.follow(lambda through, error: told.put(through))
        journal.append([insertion(1)])
        journal.append([insertion(2)])
        assert (told.get(), told.get()) == (1, 2)
    assert "may miss what is durable" in caplog.text


@pytest.mark.parametrize("followed", [False, True])
def test_who_holds_the_lock_may_wait_while_another_writes(root: str, followed: bool) -> None:
    with own(root) as journal, gated() as gate:
        if followed:
            journal.follow(lambda through, error: None)
        first = started(journal.append, [insertion(1)])
        gate.entered.get()

        def append_under_lock() -> None:
            with journal.lock:
                journal.append([insertion(2)])

        second = started(append_under_lock)
        until_waiting(journal, 2 if followed else 1)
        gate.let.release(2)
        first.join()
        second.join()
    with own(root) as journal:
        assert journal.recovered.records == 2


@pytest.mark.parametrize("interrupted", [2, 3], ids=["called to write", "served"])
def test_a_waiting_thread_that_is_interrupted_leaves_nobody_asleep(root: str, interrupted: int) -> None:
    ends: list[str] = []

    def append(number: int) -> None:
        try:
            journal.append([insertion(number)])
            ends.append(f"{number} done")
        except KeyboardInterrupt:
            ends.append(f"{number} interrupted")

    with own(root) as journal, gated() as gate:
        threads = {1: started(append, 1)}
        gate.entered.get()
        for number in (2, 3, 4, 5):
            threads[number] = started(append, number)
            until_waiting(journal, number - 1)
        # It arrives when the thread wakes: the second is to write then, the third wakes the fourth.
        ctypes.pythonapi.PyThreadState_SetAsyncExc(
            ctypes.c_ulong(threads[interrupted].ident or 0), ctypes.py_object(KeyboardInterrupt)
        )
        gate.let.release(2)
        for thread in threads.values():
            thread.join()
    others = [number for number in threads if number != interrupted]
    assert sorted(ends) == sorted([f"{interrupted} interrupted", *(f"{number} done" for number in others)])
    with own(root) as journal:
        assert journal.recovered.records == 5


def test_finished_jobs_leave_memory_though_the_lock_is_held_when_they_are_written(root: str) -> None:
    history = History(seed=3)
    with own(root) as journal:
        with journal.lock:
            for _ in range(200):
                sequence = journal.submit([history.draw(journal.state)])
            started(journal.wait, sequence).join()
            journal.submit([history.draw(journal.state)])
            jobs = list(journal.state.jobs.values())
        assert any(isinstance(job, bytes) for job in jobs)
        assert sum(getattr(job, "terminal_at", None) is not None for job in jobs) <= 1
