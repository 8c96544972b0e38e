"""Compaction keeps what it must, drops what has expired, and never loses an append beside it."""

from __future__ import annotations

import errno
import os
import random
from pathlib import Path
from typing import Any

import pytest

from django_belay.exceptions import JournalError
from django_belay.storage.journal.files.compaction import compact
from django_belay.storage.journal.files.initialise import initialise
from django_belay.storage.journal.files.journal import Journal, JournalOptions, open_journal
from django_belay.storage.journal.files.ownership import acquire
from django_belay.storage.journal.files.recovery import recover
from django_belay.storage.journal.format.event_v1 import Finished, Inserted, Retried, Started
from django_belay.storage.journal.format.extension import Frame, Operation, encode_body
from django_belay.storage.journal.format.manifest import INFINITY, Retention
from django_belay.storage.journal.format.snapshot import TERMINAL, Job
from django_belay.storage.journal.state.rows import FinishedRow
from django_belay.storage.journal.state.store_state import StoreState

from .history import History, definition, view

HOUR = 3_600_000


@pytest.fixture
def root(tmp_path: Path) -> str:
    path = os.path.join(os.path.realpath(tmp_path), "store")
    initialise(path, now_ms=1_000, retention=INFINITY, durability="write")
    return path


def own(path: str, **changes: Any) -> Journal:
    options: dict[str, Any] = {
        "durability": "write", "writer": "inline", "rotation_target_bytes": 4096, "reserve_bytes": 0,
    }  # fmt: skip
    return open_journal(path, JournalOptions(**{**options, **changes}))


def reread(path: str) -> dict[str, object]:
    with acquire(path) as ownership:
        recovered = recover(ownership)
        seen = view(recovered.state)
        recovered.close()
    return seen


@pytest.mark.parametrize("at_rest", [True, False])
@pytest.mark.parametrize("writer", ["inline", "scribe"])
def test_compaction_keeps_everything_under_infinity(root: str, at_rest: bool, writer: str) -> None:
    history = History(seed=3)
    with own(root, writer=writer) as journal:
        for _ in range(400):
            journal.append([history.draw(journal.state)])
        before = view(journal.state)
        report = compact(journal, now_ms=history.now, retention=INFINITY, at_rest=at_rest)
        after = view(journal.state)
        assert report.reclaimed
        assert report.expired_jobs == 0
        if not at_rest:
            assert without_members(after) == without_members(before)
        for _ in range(50):
            journal.append([history.draw(journal.state)])
        last = view(journal.state)
    assert without_members(reread(root)) == without_members(last)
    assert len(os.listdir(f"{root}/epochs")) == 1


def without_members(seen: dict[str, Any]) -> dict[str, Any]:
    """A base states only the occurrence jobs that are still open."""
    schedules = {
        name: (s.revision, s.next_at, s.last_at, s.cancelled_at) for name, s in seen["schedules"].items()
    }
    return {**seen, "schedules": schedules}


def test_appends_beside_a_compaction_are_caught_up(root: str) -> None:
    history = History(seed=11)
    with own(root) as journal:
        for _ in range(600):
            journal.append([history.draw(journal.state)])

        def pace(done: int) -> None:
            for _ in range(20):
                journal.append([history.draw(journal.state)])

        report = compact(journal, now_ms=history.now, retention=INFINITY, pace=pace)
        assert report.caught_up_records > 100
        journal.append([history.draw(journal.state)])
        compact(journal, now_ms=history.now, retention=INFINITY, pace=pace)
        last = view(journal.state)
    assert without_members(reread(root)) == without_members(last)


def test_groups_appended_beside_a_compaction_are_caught_up_once(root: str) -> None:
    """The log of a group and that of the compaction may be equal; only the group's ends with it."""

    def pair(number: int) -> list[Any]:
        common: dict[str, Any] = {"job_id": number.to_bytes(16), "at": 10}
        first = Inserted(definition=definition(), eligible_at=10, availability_order=number, **common)
        return [first, Started(expected_revision=1, attempt=1, cycle_token=1, **common)]

    with own(root) as journal:
        journal.append(pair(1))
        number = iter(range(2, 100))
        compact(
            journal,
            now_ms=20,
            retention=INFINITY,
            pace=lambda done: [journal.append(pair(next(number))) for _ in "ab"] and None,
        )
        last = view(journal.state)
    assert reread(root) == last


def test_only_finished_jobs_past_their_retention_expire(root: str) -> None:
    history = History(seed=5)
    with own(root) as journal:
        for _ in range(400):
            journal.append([history.draw(journal.state)])
        jobs = {job_id: journal.state.find_job(job_id) for job_id in journal.state.jobs}
        ended = sorted(job.terminal_at for job in jobs.values() if job and job.terminal_at is not None)
        cut = ended[len(ended) // 2]
        compact(journal, now_ms=cut + HOUR, retention=Retention(unit="hours", amount=1))
        want = {job_id for job_id, job in jobs.items() if not expired(job, cut)}
        assert set(journal.state.jobs) == want
        assert set(journal.state.results) <= want
    assert set(reread(root)["jobs"]) == want  # type: ignore[call-overload]


def expired(job: Job | None, cut: int) -> bool:
    return job is not None and job.state in TERMINAL and (job.terminal_at or 0) <= cut


def test_same_state_gives_the_same_base(root: str, tmp_path: Path) -> None:
    history = History(seed=9)
    with own(root) as journal:
        for _ in range(200):
            journal.append([history.draw(journal.state)])
        bases = []
        for _ in range(2):
            compact(journal, now_ms=history.now, retention=INFINITY, at_rest=True)
            segments = journal.recovered.authority.segments.path
            bases.append([Path(segments, name).read_bytes() for name in sorted(os.listdir(segments))])
    assert bases[0] == bases[1]


def test_waking_an_expired_job_gives_the_compaction_up(root: str) -> None:
    job_id = bytes(15) + b"\x01"
    common: dict[str, Any] = {"job_id": job_id, "at": 10}
    work = definition(max_attempts=1)
    with own(root) as journal:
        journal.append(
            [
                Inserted(definition=work, eligible_at=10, availability_order=1, **common),
                Started(expected_revision=1, attempt=1, cycle_token=1, **common),
                Finished(
                    expected_revision=2,
                    diagnostic=1,
                    disposition=2,
                    execution_token=2,
                    next_attempt=None,
                    next_due_at=None,
                    outcome=1,
                    **common,
                ),
            ]
        )
        woken = Retried(
            job_id=job_id, expected_revision=3, at=99, mode=1, new_due_at=99, availability_order=2
        )

        def pace(done: int) -> None:
            if journal.state.next_order == 2:
                journal.append([woken])

        with pytest.raises(JournalError) as caught:
            compact(journal, now_ms=10 * HOUR, retention=Retention(unit="hours", amount=1), pace=pace)
        assert caught.value.refusal == "candidate_mismatch"
        before = view(journal.state)
        journal.append([Started(job_id=job_id, expected_revision=4, at=100, attempt=1, cycle_token=4)])
        assert len(os.listdir(f"{root}/epochs")) == 1
    assert before["next_order"] == 3
    assert reread(root)["next_order"] == 3


def test_no_descriptor_is_left_open_whatever_becomes_of_it(root: str) -> None:
    history = History(seed=2)
    with own(root) as journal:
        for _ in range(60):
            journal.append([history.draw(journal.state)])
        compact(journal, now_ms=history.now, retention=INFINITY)

        def held() -> int:
            return len(os.listdir("/proc/self/fd")) - len(journal.recovered.reader._files)

        before = held()
        compact(journal, now_ms=history.now, retention=INFINITY)
        for limit in (0, 500):
            with pytest.raises(JournalError):
                compact(journal, now_ms=history.now, retention=INFINITY, candidate_limit=limit)
        assert held() == before


def test_candidate_limit_gives_up_and_leaves_the_old_generation(root: str) -> None:
    history = History(seed=2)
    with own(root) as journal:
        for _ in range(100):
            journal.append([history.draw(journal.state)])
        epochs = os.listdir(f"{root}/epochs")
        with pytest.raises(JournalError) as caught:
            compact(journal, now_ms=history.now, retention=INFINITY, candidate_limit=2_000)
        assert caught.value.refusal == "candidate_limit"
        assert os.listdir(f"{root}/epochs") == epochs
        journal.append([history.draw(journal.state)])
        last = view(journal.state)
    assert reread(root) == last


def test_extended_jobs_and_tables_are_carried_over(root: str) -> None:
    row = {"id": 1, "state": "ready", "order": 1, "queue": "default"}
    done = {"id": 2, "state": "succeeded", "finished_at": 5, "parent_id": 1}
    gone = {"id": 3, "state": "succeeded", "finished_at": 5}
    effects = {
        "jobs": {bytes([number] * 16).hex(): {"revision": 1, "set": item} for number, item in enumerate((row, done, gone), 1)},
        "tables": {"steps": {f"1/{number:03}": {"value": "x" * 50} for number in range(40)}},
    }  # fmt: skip
    with own(root) as journal:
        journal.append([Operation(at=1, client="c", effects=encode_body(effects), op="insert", request=1)])
        assert journal.state.next_order == 2
        compact(journal, now_ms=10 * HOUR, retention=Retention(unit="hours", amount=1), at_rest=True)
        last = view(journal.state)
        assert set(journal.state.extended) == {bytes([1] * 16), bytes([2] * 16)}
    assert reread(root) == last


class Rows:
    """Random legal operations on extended jobs, some of them in frames."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.ids: list[bytes] = []
        self.number = 0

    def draw(self, state: StoreState) -> list[Any]:
        self.number += 1
        effects: dict[str, Any] = {"jobs": {}, "tables": {}}
        for _ in range(self.rng.randrange(1, 4)):
            if len(self.ids) < 4 or self.rng.random() < 0.3:
                job_id = self.rng.randbytes(16)
                self.ids.append(job_id)
                columns = {
                    "id": len(self.ids),
                    "state": "ready",
                    "order": state.next_order,
                    "input": "x" * 40,
                }
                effects["jobs"][job_id.hex()] = {"revision": 1, "set": columns}
                break
            job_id = self.rng.choice(self.ids)
            entry = state.extended.get(job_id)
            if entry is None:
                continue
            name = self.rng.choice(["ready", "running", "succeeded", "failed"])
            ended = self.number * HOUR if name in ("succeeded", "failed") else None
            columns = {"state": name, "finished_at": ended, "note": self.number}
            effects["jobs"][job_id.hex()] = {"revision": entry.revision + 1, "set": columns}
        effects["tables"] = {"steps": {f"{self.number % 50}/a": {"n": self.number}}}
        item = Operation(at=1, client="c", effects=encode_body(effects), op="ack", request=self.number)
        pick = self.rng.random()
        if pick < 0.8:
            return [item]
        mark = "commit" if pick < 0.9 else "abort"
        return [Frame(mark="begin", operation="f"), item, Frame(mark=mark, operation="f")]


@pytest.mark.parametrize("seed", range(3))
def test_extended_rows_survive_compactions_beside_operations(root: str, seed: int) -> None:
    rows = Rows(seed)
    with own(root) as journal:
        for _ in range(150):
            journal.append(rows.draw(journal.state))

        def pace(done: int) -> None:
            for _ in range(15):
                journal.append(rows.draw(journal.state))

        for _ in range(2):
            compact(journal, now_ms=1, retention=INFINITY, pace=pace)
            for _ in range(20):
                journal.append(rows.draw(journal.state))
        last = view(journal.state)
        assert any(isinstance(entry, FinishedRow) for entry in journal.state.extended.values())
    assert reread(root) == last
    with own(root) as journal:
        assert view(journal.state) == last
        compact(journal, now_ms=rows.number * HOUR, retention=Retention(unit="hours", amount=20))
        want = view(journal.state)
    assert reread(root) == want
    assert len(want["extended"]) < len(last["extended"])  # type: ignore[arg-type]


def test_operation_on_an_expired_row_gives_the_compaction_up(root: str) -> None:
    name = bytes([7] * 16).hex()

    def change(revision: int, **columns: Any) -> Operation:
        effects = {"jobs": {name: {"revision": revision, "set": columns}}}
        return Operation(at=1, client="c", effects=encode_body(effects), op="retry", request=revision)

    with own(root) as journal:
        journal.append([change(1, id=1, state="failed", finished_at=5)])
        done = []

        def pace(number: int) -> None:
            if not done:
                done.append(journal.append([change(2, state="ready", finished_at=None)]))

        with pytest.raises(JournalError) as caught:
            compact(journal, now_ms=9 * HOUR, retention=Retention(unit="hours", amount=1), pace=pace)
        assert caught.value.refusal == "candidate_mismatch"
        last = view(journal.state)
    assert reread(root) == last


def test_an_aborted_frame_beside_a_compaction_counts_for_nothing(root: str) -> None:
    job_id = bytes(15) + b"\x01"

    def start(revision: int) -> Started:
        return Started(job_id=job_id, at=10, expected_revision=revision, attempt=1, cycle_token=1)

    with own(root) as journal:
        journal.append(
            [Inserted(definition=definition(), eligible_at=10, availability_order=1, job_id=job_id, at=10)]
        )
        done = []

        def pace(number: int) -> None:
            if not done:
                begin, abort = Frame(mark="begin", operation="x"), Frame(mark="abort", operation="x")
                done.append(journal.append([begin, start(1), abort, start(1)]))

        report = compact(journal, now_ms=10, retention=INFINITY, pace=pace)
        assert report.caught_up_records == 4
        last = view(journal.state)
    assert reread(root) == last


@pytest.mark.parametrize("fault", [OSError(errno.EMFILE, "injected"), KeyboardInterrupt()])
def test_a_failure_after_the_pointer_turned_ends_the_owner(
    root: str, fault: BaseException, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The disk has the new generation, the owner's memory has neither: it must not write on."""
    history = History(seed=4)
    journal = own(root)
    for _ in range(60):
        journal.append([history.draw(journal.state)])
    last = view(journal.state)
    descriptors = len(os.listdir("/proc/self/fd"))

    def fail(*args: object) -> None:
        raise fault

    with monkeypatch.context() as patch:
        patch.setattr(journal, "adopt", fail)
        with pytest.raises((JournalError, KeyboardInterrupt)):
            compact(journal, now_ms=history.now, retention=INFINITY)
    assert journal.tail.poisoned
    assert len(os.listdir("/proc/self/fd")) == descriptors
    with pytest.raises(JournalError) as caught:
        journal.append([history.draw(journal.state)])
    assert caught.value.refusal in ("mutation_not_admitted", "poisoned")
    journal.close()
    assert without_members(reread(root)) == without_members(last)
    with own(root) as journal:
        journal.append([history.draw(journal.state)])
    assert len(os.listdir(f"{root}/epochs")) == 1
