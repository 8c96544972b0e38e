"""Run as a process: owns a store, keeps its index, works without pause. Killed by the test.

python index_owner.py DIRECTORY
"""

from __future__ import annotations

import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from django_belay.contract.job import NewJob
from django_belay.storage.base import NewStep
from django_belay.storage.journal.files.journal import JournalOptions, open_journal
from django_belay.storage.journal.index import IndexOptions, start_index
from django_belay.storage.journal.store.store import JournalStore
from django_belay.testing.clock import SimClock
from tests.behaviour.driving import claim, end

OPTIONS = JournalOptions(durability="write", validated_filesystem=True, writer="inline", lock_wait_s=5.0)


def work(store: JournalStore, clock: Any, number: int) -> None:
    now = clock.now()
    jobs = [NewJob(kind="k", input={"n": number, "fill": "x" * 300}) for _ in range(20)]
    store.insert_jobs(jobs, now=now)
    store.insert_jobs([NewJob(kind="k", priority=1, meta={"n": number})], now=now)
    for job in claim(store, clock, 15):
        store.put_step(job.id, NewStep(name="s", value=b"1"), now=now)
        store.append_event(job.id, {"n": number}, now=now)
        end(store, clock, job)
    store.put_queue(f"q{number % 7}", {"limit": number}, now=now)
    if number % 10 == 9:
        store.prune_jobs({"succeeded": timedelta(seconds=30)}, now=now)
    clock.advance(1)


def main() -> None:
    directory = Path(sys.argv[1])
    clock = SimClock(datetime.now(UTC))
    store = JournalStore(open_journal(str(directory / "store"), OPTIONS), now=clock.now())
    start_index(store, directory / "index.sqlite3", IndexOptions(interval_s=0.005))
    number = 0
    while True:
        work(store, clock, number)
        number += 1
        sys.stdout.write(f"{number}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
