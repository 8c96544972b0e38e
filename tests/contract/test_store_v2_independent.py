"""A reader that shares no code with the package agrees with what the package writes."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from django_belay.storage.journal.files.compaction import compact
from django_belay.storage.journal.files.initialise import initialise
from django_belay.storage.journal.files.journal import Journal, JournalOptions, open_journal
from django_belay.storage.journal.format.event_v2 import decode_event_v2
from django_belay.storage.journal.format.manifest import INFINITY, Retention
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
        "next_sequence": position.next_sequence, "next_order": state.next_order,
    }  # fmt: skip


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
