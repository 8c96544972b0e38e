"""A reader that shares no code with the package agrees with what the package writes."""

from __future__ import annotations

import os
import random
from pathlib import Path
from typing import Any

import pytest

from django_belay.storage.journal.files.compaction import compact
from django_belay.storage.journal.files.initialise import initialise
from django_belay.storage.journal.files.journal import Journal, JournalOptions, open_journal
from django_belay.storage.journal.format.event_v2 import decode_event_v2
from django_belay.storage.journal.format.extension import Frame, Operation, Row, encode_body
from django_belay.storage.journal.format.manifest import INFINITY, Retention
from django_belay.storage.journal.format.pair import Payload
from django_belay.storage.journal.state.store_state import StoreState
from tests.unit.journal import by_hand
from tests.unit.journal.history import History

OPTIONS = JournalOptions(durability="write", writer="inline", rotation_target_bytes=16_384, reserve_bytes=0)
SCALARS = (
    "state", "attempt", "next_attempt", "revision", "cycle", "execution", "inserted_at", "attempted_at",
    "completed_at", "terminal_at", "eligible_at", "availability_order",
)  # fmt: skip


def ours(journal: Journal) -> dict[str, Any]:
    state = journal.state
    jobs = {}
    for job_id in state.jobs:
        job = state.find_job(job_id)
        assert job is not None
        jobs[job_id] = {name: getattr(job, name) for name in SCALARS} | {
            "diagnostic": job.diagnostic and {"code": job.diagnostic, "version": 1},
            "definition": by_hand.read_value(job.definition.encoded),
        }
    results: dict[bytes, Any] = {}
    for job_id, entry in state.results.items():
        event = (
            journal.recovered.reader.result(entry)
            if isinstance(entry, int)
            else decode_event_v2(10, 2, entry)
        )
        results[job_id] = event.result  # type: ignore[union-attr]
    schedules = {
        name: {
            "revision": item.revision, "next_at": item.next_at, "last_at": item.last_at,
            "cancelled_at": item.cancelled_at, "members": set(item.active_job_ids),
        }
        for name, item in state.schedules.items()
    }  # fmt: skip
    position = journal.tail.planned
    return {
        "jobs": jobs, "results": results, "schedules": schedules,
        "extended": {job_id: whole_row(state, job_id) for job_id in state.extended},
        "tables": {name: rows for name, rows in state.tables.items() if rows},
        "next_sequence": position.next_sequence, "next_order": state.next_order,
    }  # fmt: skip


def whole_row(state: StoreState, job_id: bytes) -> tuple[int, dict[str, Any]]:
    job = state.find_row(job_id)
    assert job is not None
    return job.revision, job.row


class Mixed:
    """A history of the contract's records with the project's own among them."""

    def __init__(self, seed: int) -> None:
        self.core = History(seed=seed)
        self.rng = random.Random(seed + 1_000)  # not the ids that the core draws
        self.number = 0

    def draw(self, state: StoreState) -> list[Payload]:
        self.number += 1
        pick = self.rng.random()
        if pick < 0.6:
            return [self.core.draw(state)]
        if pick < 0.68:
            return self._promote(state)
        operation = self._operation(state)
        if pick < 0.9:
            return [operation]
        name = f"frame {self.number}"
        mark = self.rng.choice(("commit", "abort"))
        return [Frame(mark="begin", operation=name), operation, Frame(mark=mark, operation=name)]

    def _promote(self, state: StoreState) -> list[Payload]:
        """A core job of any state, its result with it, becomes an extended one and is changed at once."""
        job = state.find_job(self.rng.choice(self.core.ids))
        if job is None:
            return [self._operation(state)]
        number = len(state.extended) + 1
        row = {"id": number, "state": "ready", "revision": job.revision, "input": {"text": "é\U0001f600"}}
        change = {"revision": job.revision + 1, "set": {"priority": 3}}
        effects = {"jobs": {job.job_id.hex(): change}, "tables": {}}
        return [Row(job_id=job.job_id, row=encode_body(row)), self._record(effects)]

    def _operation(self, state: StoreState) -> Operation:
        jobs: dict[str, Any] = {}
        if len(state.extended) < 5 or self.rng.random() < 0.3:
            columns = {"id": len(state.extended) + 1, "state": "ready", "order": state.next_order, "x": 1.5}
            jobs[self.rng.randbytes(16).hex()] = {"revision": 1, "set": columns}
        else:
            job_id = self.rng.choice(sorted(state.extended))
            name = self.rng.choice(["ready", "running", "succeeded", "failed"])
            ended = self.core.now if name in ("succeeded", "failed") else None
            change = {"state": name, "finished_at": ended, "note": self.number, "order": None}
            revision = state.extended[job_id].revision + self.rng.randrange(1, 3)
            jobs[job_id.hex()] = None if self.rng.random() < 0.05 else {"revision": revision, "set": change}
        table = self.rng.choice(["steps", "signals", "queues", "ids"])
        row = None if self.rng.random() < 0.2 else {"n": self.number, "none": None}
        return self._record({"jobs": jobs, "tables": {table: {f"ü{self.number % 40}": row}}})

    def _record(self, effects: dict[str, Any]) -> Operation:
        body = encode_body(effects)
        return Operation(at=self.core.now, client="c", effects=body, op="ack", request=self.number)


@pytest.mark.parametrize("seed", range(3))
def test_reader_agrees_on_the_projects_own_records(seed: int, tmp_path: Path) -> None:
    root = Path(os.path.realpath(tmp_path)) / "store"
    initialise(str(root), now_ms=1, retention=INFINITY, durability="write")
    mixed = Mixed(seed)
    for generation in range(3):
        with open_journal(str(root), OPTIONS) as journal:
            for _ in range(500):
                journal.submit(mixed.draw(journal.state))
            journal.flush()
            assert journal.tail.written.segment_id > 5
            want = ours(journal)
        assert len(want["extended"]) > 20
        assert len(want["tables"]) == 4
        assert by_hand.read_store(root) == want
        if generation == 2:
            break
        with open_journal(str(root), OPTIONS) as journal:
            hour = Retention(unit="hours", amount=1)
            later = mixed.core.now + 3_000_000

            def pace(done: int, journal: Journal = journal) -> None:
                journal.submit(mixed.draw(journal.state))

            compact(
                journal,
                now_ms=mixed.core.now if generation else later,
                retention=INFINITY if generation else hour,
                pace=pace if generation else None,
            )
        with open_journal(str(root), OPTIONS) as journal:
            want = ours(journal)
        assert by_hand.read_store(root) == want
        mixed.core.ids = [job_id for job_id in mixed.core.ids if job_id in want["jobs"]]


@pytest.mark.parametrize("seed", [1, 2])
def test_reader_agrees_over_a_long_history(seed: int, tmp_path: Path) -> None:
    root = Path(os.path.realpath(tmp_path)) / "store"
    initialise(str(root), now_ms=1, retention=INFINITY, durability="write")
    history = History(seed=seed)
    for generation in range(3):
        with open_journal(str(root), OPTIONS) as journal:
            for _ in range(700):
                journal.submit([history.draw(journal.state)])
            journal.flush()
            assert journal.tail.written.segment_id > 5
            want = ours(journal)
        assert by_hand.read_store(root) == want
        if generation == 2:
            break
        with open_journal(str(root), OPTIONS) as journal:
            retention = INFINITY if generation else Retention(unit="hours", amount=1)
            now = history.now if generation else history.now + 3_000_000
            compact(journal, now_ms=now, retention=retention, at_rest=generation == 1)
        # The members of a schedule are cut to open jobs by the base; read them back.
        with open_journal(str(root), OPTIONS) as journal:
            want = ours(journal)
        assert by_hand.read_store(root) == want
        history.ids = [job_id for job_id in history.ids if job_id in want["jobs"]]
