"""Long random lives of a store: appends, rotations, compactions, kills, tears and salvage, each step
compared with the second reader and with a state that never touched a disk."""

from __future__ import annotations

import os
import random
import shutil
from pathlib import Path
from typing import Any

import pytest

from django_belay.storage.journal.files.compaction import compact
from django_belay.storage.journal.files.initialise import initialise
from django_belay.storage.journal.files.inspection import verify
from django_belay.storage.journal.files.journal import Journal, JournalOptions, open_journal
from django_belay.storage.journal.files.salvage import salvage
from django_belay.storage.journal.format.manifest import INFINITY, Retention
from django_belay.storage.journal.state.store_state import StoreState

from . import by_hand
from .history import History, view

STEPS = int(os.environ.get("BELAY_MODEL_STEPS", "60"))


class Life:
    """One store, its model, and what may happen to it."""

    def __init__(self, base: Path, seed: int) -> None:
        self.base = base
        self.rng = random.Random(seed)
        self.history = History(seed=seed)
        self.root = base / "store0"
        self.number = 0
        self.model = StoreState()
        initialise(str(self.root), now_ms=1, retention=INFINITY, durability="write")
        self.journal = self.open()

    def open(self) -> Journal:
        options = JournalOptions(
            durability="write",
            writer=self.rng.choice(["inline", "inline", "scribe"]),  # type: ignore[arg-type]
            rotation_target_bytes=self.rng.choice([1024, 4096, 65_536]),
            reserve_bytes=0,
            lock_wait_s=10.0,
        )
        return open_journal(str(self.root), options)

    def append(self) -> None:
        count = self.rng.randrange(1, 6)
        group = []
        trial = self.journal.state
        for _ in range(count):
            item = self.history.draw(self.model)
            self.model.apply(item)
            group.append(item)
        if self.rng.random() < 0.5:
            self.journal.append(group)
        else:
            self.journal.submit(group)
        assert trial is self.journal.state

    def reopen(self) -> None:
        self.journal.close()
        self.journal = self.open()

    def compact(self) -> None:
        bounded = self.rng.random() < 0.4
        retention = Retention(unit="hours", amount=1) if bounded else INFINITY
        now = self.history.now + (self.rng.randrange(3_500_000, 3_700_000) if bounded else 0)
        at_rest = self.rng.random() < 0.5

        def pace(done: int) -> None:
            # What has expired must stay so: only new jobs are added beside a bounded compaction.
            if not at_rest and not bounded and self.rng.random() < 0.7:
                self.append()

        compact(self.journal, now_ms=now, retention=retention, at_rest=at_rest, pace=pace)
        self.follow_compaction(now, retention, at_rest=at_rest)

    def follow_compaction(self, now: int, retention: Retention, *, at_rest: bool) -> None:
        duration = retention.milliseconds
        if duration is not None:
            for job_id, job in list(self.model.jobs.items()):
                ended = None if isinstance(job, bytes) else job.terminal_at
                if ended is not None and ended <= now - duration:
                    self.model.forget("jobs", job_id)
                    self.model.forget("results", job_id)
            self.history.ids = [job_id for job_id in self.history.ids if job_id in self.model.jobs]
        if at_rest:
            waiting = [
                job
                for job in self.model.jobs.values()
                if not isinstance(job, bytes) and job.state == "available"
            ]
            waiting.sort(key=lambda job: (job.definition.queue_key.encode(), job.eligible_at, job.availability_order, job.job_id))  # fmt: skip
            self.model.renumber({job.job_id: number for number, job in enumerate(waiting, 1)})

    def kill(self) -> None:
        """What was written is there, whatever became of the owner."""
        self.journal.flush()
        self.number += 1
        moved = self.base / f"store{self.number}"
        shutil.copytree(self.root, moved)
        self.journal.close()
        shutil.rmtree(self.root)
        self.root = moved
        self.journal = self.open()

    def tear(self) -> None:
        """A torn tail is refused, and salvage gives back everything before it."""
        self.journal.close()
        file = sorted(self.root.glob("epochs/e-*/segments/*.tay"))[-1]
        with file.open("ab") as tail:
            tail.write(b"TAY\x00\x01" + self.rng.randbytes(self.rng.randrange(1, 40)))
        assert verify(str(self.root))["ok"] is False
        self.number += 1
        saved = self.base / f"store{self.number}"
        report = salvage(str(self.root), str(saved), durability="write")
        assert report.fault is not None
        shutil.rmtree(self.root)
        self.root = saved
        self.journal = self.open()

    def check(self) -> None:
        self.journal.flush()
        want, got = view(self.model), view(self.journal.state)
        for name in want:
            if name != "schedules":
                assert got[name] == want[name], name
        read = by_hand.read_store(self.root)
        assert (read["next_sequence"], read["next_order"]) == (
            self.journal.tail.planned.next_sequence, self.model.next_order,
        )  # fmt: skip
        assert set(read["results"]) == set(self.model.results)
        for job_id, fields in read["jobs"].items():
            job: Any = self.model.jobs[job_id]
            for name in ("state", "revision", "attempt", "cycle", "terminal_at", "availability_order"):
                assert fields[name] == getattr(job, name), (job_id.hex(), name)
        for name, fields in read["schedules"].items():
            held = self.model.schedules[name]
            assert (fields["revision"], fields["next_at"]) == (held.revision, held.next_at)


@pytest.mark.parametrize("seed", [int(item) for item in os.environ.get("BELAY_MODEL_SEEDS", "1 2 3").split()])
def test_a_stores_life(seed: int, tmp_path: Path) -> None:
    life = Life(Path(os.path.realpath(tmp_path)), seed)
    for step in range(STEPS):
        pick = life.rng.random()
        if pick < 0.6:
            life.append()
        elif pick < 0.75:
            life.compact()
        elif pick < 0.85:
            life.reopen()
        elif pick < 0.93:
            life.kill()
        else:
            life.tear()
        if step % 4 == 0:
            life.check()
    life.check()
    life.journal.close()
