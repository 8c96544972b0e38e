"""A refused change leaves nothing behind: not in the state, not in the writer, not after reopening."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from django_belay.exceptions import JournalError, JournalFull
from django_belay.storage.journal.files.initialise import initialise
from django_belay.storage.journal.files.journal import Journal, JournalOptions, open_journal
from django_belay.storage.journal.format.event_v1 import Finished, Inserted, Started
from django_belay.storage.journal.format.extension import Frame, Operation, Row, encode_body
from django_belay.storage.journal.format.manifest import INFINITY
from django_belay.storage.journal.state.store_state import StoreState

from .history import definition

FAST = JournalOptions(durability="write", writer="inline", rotation_target_bytes=4096, reserve_bytes=0)
FIRST, SECOND = (1).to_bytes(16), (2).to_bytes(16)
BEGIN, COMMIT, ABORT = (Frame(mark=mark, operation="f") for mark in ("begin", "commit", "abort"))


@pytest.fixture
def root(tmp_path: Path) -> str:
    path = os.path.join(os.path.realpath(tmp_path), "store")
    initialise(path, now_ms=1_000, retention=INFINITY, durability="write")
    return path


def own(path: str) -> Journal:
    return open_journal(path, FAST)


def insertion(number: int, order: int) -> Inserted:
    return Inserted(
        job_id=number.to_bytes(16), at=5, definition=definition(), eligible_at=5, availability_order=order
    )


def operation(jobs: dict[bytes, Any]) -> Operation:
    effects = {"jobs": {job_id.hex(): effect for job_id, effect in jobs.items()}, "tables": {}}
    return Operation(at=1, client="c", effects=encode_body(effects), op="ack", request=1)


def rows_of(state: StoreState) -> dict[bytes, Any]:
    return {job_id: state.find_row(job_id) for job_id in state.extended}


def test_a_refused_commit_leaves_its_frame_open(root: str) -> None:
    with own(root) as journal:
        journal.append([BEGIN])
        journal.append([insertion(1, 7)])
        with pytest.raises(JournalError) as caught:
            journal.append([COMMIT])
        assert caught.value.refusal == "availability_order_conflict"
        assert journal.state.open_frame == "f"
        journal.append([ABORT])
        journal.append([insertion(2, 1)])
        assert list(journal.state.jobs) == [SECOND]
    with own(root) as journal:
        assert list(journal.state.jobs) == [SECOND]


def test_records_of_a_refused_commit_are_judged_again(root: str) -> None:
    with own(root) as journal:
        journal.append([BEGIN, insertion(2, 2)])
        with pytest.raises(JournalError):
            journal.append([COMMIT])
        with pytest.raises(JournalError) as caught:
            journal.append([COMMIT])
        assert caught.value.refusal == "availability_order_conflict"
        assert journal.recovered.records == 0


def test_an_operation_that_cannot_be_read_back_changes_nothing(
    root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with own(root) as journal:
        ready, done = {"state": "ready"}, {"state": "succeeded"}
        journal.append(
            [operation({job: {"revision": 1, "set": row}}) for job, row in ((FIRST, ready), (SECOND, done))]
        )
        before = rows_of(journal.state)
        change = operation(
            {FIRST: {"revision": 2, "set": {"note": 1}}, SECOND: {"revision": 2, "set": {"note": 1}}}
        )

        def fail(*args: Any) -> Any:
            raise OSError(5, "injected")

        with monkeypatch.context() as patch:
            patch.setattr(os, "pread", fail)
            with pytest.raises(JournalError) as caught:
                journal.append([change])
        assert caught.value.refusal == "eio"
        assert rows_of(journal.state) == before
        journal.append([operation({FIRST: {"revision": 3, "set": {"late": 1}}})])
        after = rows_of(journal.state)
    with own(root) as journal:
        assert rows_of(journal.state) == after


def test_a_job_keeps_its_place_when_its_promotion_is_refused(root: str) -> None:
    with own(root) as journal:
        journal.append([insertion(1, 1)])
        place = journal.state._places[FIRST]
        row = Row(job_id=FIRST, row=encode_body({"revision": 1, "state": "ready"}))
        with pytest.raises(JournalError):
            journal.append([row, row])
        assert journal.state._places[FIRST] == place
        journal.append(
            [
                Started(job_id=FIRST, expected_revision=1, at=6, attempt=1, cycle_token=1),
                Finished(
                    job_id=FIRST, expected_revision=2, at=7, diagnostic=None, disposition=0,
                    execution_token=2, next_attempt=None, next_due_at=None, outcome=0,
                ),
            ]
        )  # fmt: skip
        assert isinstance(journal.state.jobs[FIRST], bytes)


def test_an_interrupted_change_poisons_the_writer(root: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the state holds is unknown then: nothing that follows from it may be written."""
    journal = own(root)
    put = StoreState._put_job

    def interrupted(*args: Any) -> None:
        put(*args)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(StoreState, "_put_job", interrupted)
        with pytest.raises(KeyboardInterrupt):
            journal.append([insertion(1, 1)])
    with pytest.raises(JournalError) as caught:
        journal.append([Started(job_id=FIRST, expected_revision=1, at=6, attempt=1, cycle_token=1)])
    assert caught.value.refusal == "poisoned"
    journal.close()
    own(root).close()


def test_a_forked_child_is_no_owner(root: str) -> None:
    with own(root) as journal:
        journal.append([insertion(1, 1)])
        child = os.fork()
        if child == 0:
            refusal = ""
            try:
                journal.append([insertion(2, 2)])
            except JournalError as error:
                refusal = error.refusal
            os._exit(0 if refusal == "caller_lost" else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        journal.append([insertion(3, 2)])
    with own(root) as journal:
        assert len(journal.state.jobs) == 2


def test_room_is_not_given_twice_before_it_is_written(root: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with own(root) as journal:
        room = SimpleNamespace(f_bavail=1_000, f_frsize=1)
        with monkeypatch.context() as patch:
            patch.setattr(os, "fstatvfs", lambda fd: room)
            journal.submit([insertion(1, 1)])
            with pytest.raises(JournalFull):
                journal.submit([insertion(2, 2)])
            journal.flush()  # the patched file system has as much room as before
            journal.append([insertion(3, 2)])
        assert journal._room.promised == 0
