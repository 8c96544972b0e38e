"""An owned store: what was appended is there again, whoever writes it and however it rotates."""

from __future__ import annotations

import errno
import os
import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from django_belay.exceptions import JournalError, JournalFull, JournalLocked
from django_belay.storage.journal.files import fail
from django_belay.storage.journal.files.initialise import initialise
from django_belay.storage.journal.files.journal import Journal, JournalOptions, open_journal
from django_belay.storage.journal.files.pen import ScribePen
from django_belay.storage.journal.format.event_v1 import Inserted, Started
from django_belay.storage.journal.format.extension import Frame, Operation, encode_body
from django_belay.storage.journal.format.manifest import INFINITY
from tests.crash.power_cut import Recorder

from .history import History, definition, view

FAST = {"durability": "write", "writer": "inline", "rotation_target_bytes": 4096, "reserve_bytes": 0}


@pytest.fixture
def root(tmp_path: Path) -> str:
    path = os.path.join(os.path.realpath(tmp_path), "store")
    initialise(path, now_ms=1_000, retention=INFINITY, durability="write")
    return path


def own(path: str, **changes: Any) -> Journal:
    return open_journal(path, JournalOptions(**{**FAST, **changes}))  # type: ignore[arg-type]


def insertion(state_order: int, number: int = 1) -> Inserted:
    return Inserted(
        job_id=number.to_bytes(16),
        at=5,
        definition=definition(),
        eligible_at=5,
        availability_order=state_order,
    )


@pytest.mark.parametrize("writer", ["inline", "scribe"])
def test_history_survives_reopening_and_rotation(root: str, writer: str) -> None:
    history = History(seed=7)
    with own(root, writer=writer) as journal:
        for _ in range(300):
            journal.append([history.draw(journal.state)])
        before, sequence = view(journal.state), journal.tail.planned
        assert sequence.segment_id > 3
    with own(root, writer=writer) as journal:
        assert view(journal.state) == before
        assert journal.tail.planned == sequence
        journal.append([history.draw(journal.state)])


def test_second_owner_is_refused_at_once(root: str) -> None:
    with own(root), pytest.raises(JournalLocked) as caught:
        own(root)
    assert caught.value.refusal == "store_busy"
    own(root).close()


def test_refused_group_changes_nothing_and_writes_nothing(root: str) -> None:
    with own(root) as journal:
        journal.append([insertion(1)])
        before, planned = view(journal.state), journal.tail.planned
        wrong = Started(job_id=bytes(15) + b"\x02", expected_revision=1, at=9, attempt=1, cycle_token=1)
        with pytest.raises(JournalError) as caught:
            journal.append([insertion(2, 2), wrong, wrong])
        assert caught.value.refusal == "revision_conflict"
        assert (view(journal.state), journal.tail.planned) == (before, planned)
        journal.append([insertion(2, 3)])
    with own(root) as journal:
        assert len(journal.state.jobs) == 2


def test_no_room_refuses_before_anything_changes(root: str) -> None:
    with own(root, reserve_bytes=1 << 60) as journal:
        with pytest.raises(JournalFull) as caught:
            journal.append([insertion(1)])
        assert caught.value.refusal == "insufficient_space"
        assert journal.state.jobs == {}
        journal._room._reserve = 0
        journal.append([insertion(1)])


def test_concurrent_appenders_share_writes_and_lose_nothing(root: str) -> None:
    with own(root, rotation_target_bytes=1 << 20) as journal:
        barrier = threading.Barrier(8)

        def work(number: int) -> None:
            barrier.wait()
            for step in range(50):
                with journal.lock:
                    item = insertion(journal.state.next_order, 1 + number * 1000 + step)
                    sequence = journal.submit([item])
                journal.wait(sequence)

        threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert journal.tail.written == journal.tail.planned
    with own(root) as journal:
        assert len(journal.state.jobs) == 400
        assert journal.recovered.records == 400


def test_killed_scribe_poisons_the_owner(root: str) -> None:
    journal = own(root, writer="scribe")
    journal.append([insertion(1)])
    assert isinstance(journal.pen, ScribePen)
    os.kill(journal.pen.pid, signal.SIGKILL)
    journal.pen._process.wait()
    with pytest.raises(JournalError):
        journal.append([insertion(2, 2)])
    with pytest.raises(JournalError) as caught:
        journal.append([insertion(2, 2)])
    assert caught.value.refusal == "poisoned"
    journal.close()
    with own(root) as journal:
        assert len(journal.state.jobs) == 1


def test_open_frame_is_aborted_before_anything_else(root: str) -> None:
    effects = encode_body({"jobs": {}, "tables": {"steps": {"1/a": {"value": 1}}}})
    operation = Operation(at=1, client="c", effects=effects, op="put_step", request=1)
    with own(root) as journal:
        journal.append([Frame(mark="begin", operation="big"), operation])
        assert journal.state.tables == {}
    with own(root) as journal:
        assert journal.state.open_frame is None
        assert journal.recovered.records == 2
        assert journal.tail.written.next_sequence == 4
        journal.append(
            [Frame(mark="begin", operation="big"), operation, Frame(mark="commit", operation="big")]
        )
        assert journal.state.tables == {"steps": {"1/a": {"value": 1}}}
    with own(root) as journal:
        assert journal.state.tables == {"steps": {"1/a": {"value": 1}}}


def test_decisions_see_the_state_nobody_else_can_change_meanwhile(root: str) -> None:
    with own(root) as journal:
        barrier = threading.Barrier(4)

        def work(number: int) -> None:
            barrier.wait()
            for step in range(40):
                job = 1 + number * 1000 + step
                journal.transact(lambda state, job=job: [insertion(state.next_order, job)])  # type: ignore[misc]

        threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    with own(root) as journal:
        assert (journal.recovered.records, journal.state.next_order) == (160, 161)


def test_failed_write_refuses_everything_afterwards_and_the_store_opens_again(root: str) -> None:
    journal = own(root)
    journal.append([insertion(1)])
    with fail.arm(Recorder(OSError(errno.EIO, "injected"), 0)):
        with pytest.raises(JournalError) as caught:
            journal.append([insertion(2, 2)])
        assert caught.value.refusal == "eio"
    for call in (lambda: journal.append([insertion(3, 3)]), lambda: journal.wait(2), journal.tail.rotate):
        with pytest.raises(JournalError) as caught:
            call()
        assert caught.value.refusal == "poisoned"
    journal.close()
    with own(root) as journal:
        assert len(journal.state.jobs) == 1


def test_waiting_threads_learn_that_the_write_failed(root: str) -> None:
    journal = own(root)
    entered, go = threading.Event(), threading.Event()

    class Hold(Recorder):
        def before(self, name: str) -> None:
            entered.set()
            go.wait()
            raise OSError(errno.EIO, "injected")

    seen: list[str] = []

    def append(order: int) -> None:
        try:
            journal.append([insertion(order, order)])
        except JournalError as error:
            seen.append(error.refusal)

    with fail.arm(Hold()):
        first = threading.Thread(target=append, args=(1,))
        first.start()
        entered.wait()
        others = []
        for order in (2, 3):
            others.append(threading.Thread(target=append, args=(order,)))
            others[-1].start()
            while len(journal._commit._waiters) < order - 1:
                continue  # until this thread waits, so that the orders come in turn
        go.set()
        for thread in (first, *others):
            thread.join()
    assert sorted(seen) == ["eio", "poisoned", "poisoned"]
    journal.close()


def test_records_of_another_thread_are_kept_out_of_an_open_frame(root: str) -> None:
    """Taken for the frame's they would be acknowledged, and gone when it is aborted."""
    with own(root) as journal:
        journal.submit([Frame(mark="begin", operation="big")])
        with ThreadPoolExecutor(1) as pool:
            with pytest.raises(JournalError) as caught:
                pool.submit(journal.append, [insertion(1)]).result()
            assert caught.value.refusal == "mutation_not_admitted"
            journal.append([Frame(mark="abort", operation="big")])
            pool.submit(journal.append, [insertion(1)]).result()
    with own(root) as journal:
        assert len(journal.state.jobs) == 1


@pytest.mark.parametrize("writer", ["inline", "scribe"])
def test_a_forked_child_does_not_hold_the_store(root: str, writer: str) -> None:
    ours, theirs = os.pipe()
    is_up, says_so = os.pipe()
    journal = own(root, writer=writer)
    child = os.fork()
    if child == 0:
        os.close(theirs)
        os.write(says_so, b"1")
        os.read(ours, 1)  # until the parent is done with it
        os._exit(0)
    try:
        os.close(ours)
        os.read(is_up, 1)
        journal.append([insertion(1)])
        journal.close()  # a scribe ends once nobody holds the other end of its pipe
        with own(root) as again:
            assert len(again.state.jobs) == 1
    finally:
        os.close(theirs)
        os.waitpid(child, 0)
        os.close(is_up)
        os.close(says_so)


def test_a_child_that_closes_the_journal_takes_nothing_from_its_owner(root: str) -> None:
    with own(root, writer="scribe") as journal:
        child = os.fork()
        if child == 0:
            try:
                journal.close()
            finally:
                os._exit(0 if journal.closed else 1)
        assert os.waitpid(child, 0)[1] == 0
        journal.append([insertion(1)])
        with pytest.raises(JournalError):
            own(root)
