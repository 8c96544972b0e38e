"""Speed of the journal, as ratios in one run on one disk.

    python -m soak.bench.journal [append] [sync] [recovery] [compaction] [--dir DIR] [--jobs N]

Each line gives a rate and, where the goal is a ratio, what it is measured beside.
"""

from __future__ import annotations

import argparse
import os
import resource
import shutil
import struct
import sys
import tempfile
import threading
import time
from collections.abc import Callable

from django_belay.storage.journal.files.compaction import compact, keep_share
from django_belay.storage.journal.files.initialise import initialise
from django_belay.storage.journal.files.journal import Journal, JournalOptions, open_journal
from django_belay.storage.journal.files.ownership import acquire
from django_belay.storage.journal.files.recovery import recover
from django_belay.storage.journal.format.definition import define_job
from django_belay.storage.journal.format.event_v1 import Finished, Inserted, JobEvent, Started
from django_belay.storage.journal.format.manifest import INFINITY
from django_belay.storage.journal.format.record import frame
from django_belay.storage.journal.state.store_state import StoreState

BATCH = 64
DEFINITION = define_job(
    worker_key="shop.send_receipt", args={"order_id": 42, "note": "thanks"}, max_attempts=5
)


def life(number: int, order: int, now: int) -> list[JobEvent]:
    """A typical job: inserted, started, completed."""
    job_id = struct.pack(">QQ", number + 1, 7)
    return [
        Inserted(job_id=job_id, at=now, definition=DEFINITION, eligible_at=now, availability_order=order),
        Started(job_id=job_id, expected_revision=1, at=now, attempt=1, cycle_token=1),
        Finished(
            job_id=job_id, expected_revision=2, at=now, diagnostic=None, disposition=0,
            execution_token=2, next_attempt=None, next_due_at=None, outcome=0,
        ),
    ]  # fmt: skip


def new_store(parent: str, name: str, **options: object) -> Journal:
    path = os.path.join(parent, name)
    shutil.rmtree(path, ignore_errors=True)
    initialise(path, now_ms=1, retention=INFINITY, validated_filesystem=True)
    return open_journal(path, JournalOptions(validated_filesystem=True, **options))  # type: ignore[arg-type]


def timed(work: Callable[[], None]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def bench_append(parent: str, jobs: int) -> None:
    events = [event for number in range(jobs) for event in life(number, number + 1, 1000 + number)]
    for writer in ("inline", "scribe"):
        journal = new_store(parent, f"append-{writer}", durability="write", writer=writer)

        def run(journal: Journal = journal) -> None:
            for start in range(0, len(events), BATCH):
                journal.append(events[start : start + BATCH])

        took = timed(run)
        rate = len(events) / took
        journal.close()
        print(f"append, no fsync, batches of {BATCH}, {writer}: {rate:,.0f} mutations/s (goal 60,000)")
    payload = bytes(150)
    fd = os.open(os.path.join(parent, "bare"), os.O_RDWR | os.O_CREAT | os.O_TRUNC)

    def bare() -> None:
        for start in range(1, len(events), BATCH):
            os.write(fd, b"".join(frame(8, 1, start + step, payload) for step in range(BATCH)))

    print(f"  beside pack + crc32c + write alone: {len(events) / timed(bare):,.0f} records/s")
    os.close(fd)


def bench_sync(parent: str, jobs: int) -> None:
    fd = os.open(os.path.join(parent, "single"), os.O_RDWR | os.O_CREAT | os.O_TRUNC)
    data = bytes(200)

    def singles() -> None:
        for _ in range(200):
            os.write(fd, data)
            os.fsync(fd)

    single = 200 / timed(singles)
    os.close(fd)
    journal = new_store(parent, "sync", durability="sync", writer="scribe")
    each = max(1, jobs // 64)
    barrier = threading.Barrier(65)

    def work(thread: int) -> None:
        barrier.wait()
        for step in range(each):
            number = thread * each + step
            journal.transact(lambda state, number=number: life(number, state.next_order, 5)[:1])  # type: ignore[misc]

    threads = [threading.Thread(target=work, args=(number,)) for number in range(64)]
    for thread in threads:
        thread.start()
    barrier.wait()
    took = timed(lambda: [thread.join() for thread in threads] and None)
    rate = each * 64 / took
    journal.close()
    print(
        f"sync, 64 appenders: {rate:,.0f}/s beside {single:,.0f}/s of one fsync a record: {rate / single:.1f}x (goal 20x)"
    )

    journal = new_store(parent, "sync-loop", durability="sync", writer="scribe")

    def gathered() -> None:
        for start in range(0, jobs, 64):
            for number in range(start, start + 64):
                sequence = journal.submit(life(number, journal.state.next_order, 5)[:1])
            journal.wait(sequence)

    rate = jobs / timed(gathered)
    journal.close()
    print(
        f"  64 requests gathered by one loop, as the owner serves its socket: {rate:,.0f}/s: {rate / single:.1f}x"
    )


def bench_recovery(parent: str, jobs: int) -> None:
    journal = new_store(parent, "recovery", durability="write", writer="inline")
    for start in range(0, jobs, 21):
        batch = [e for number in range(start, min(start + 21, jobs)) for e in life(number, number + 1, 1000)]
        journal.append(batch)
    path = journal.path
    journal.close()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    start_s = time.perf_counter()
    with acquire(path) as ownership:
        recovered = recover(ownership)
    took = time.perf_counter() - start_s
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024
    print(f"recovery of {recovered.records:,} mutations: {recovered.records / took:,.0f}/s (goal 60,000)")
    print(f"  {jobs:,} finished jobs, {grown / jobs:,.0f} bytes of memory each (peak, upper bound)")
    recovered.close()


def bench_compaction(parent: str, jobs: int) -> None:
    journal = new_store(parent, "compaction", durability="write", writer="scribe")
    for start in range(0, jobs, 21):
        journal.append([e for n in range(start, min(start + 21, jobs)) for e in life(n, n + 1, 1000)])
    number = jobs

    def append_for(seconds: float, stop: Callable[[], bool] = lambda: False) -> float:
        nonlocal number
        start_s, done = time.perf_counter(), 0
        while time.perf_counter() - start_s < seconds and not stop():
            journal.append(life(number, journal.state.next_order, 1000))
            number += 1
            done += 3
        return done / (time.perf_counter() - start_s)

    before = append_for(2.0)
    report: list[object] = []

    def work() -> None:
        report.append(compact(journal, now_ms=2000, retention=INFINITY, pace=keep_share(0.25)))

    thread = threading.Thread(target=work)
    start_s = time.perf_counter()
    thread.start()

    def watch() -> bool:
        return not thread.is_alive() or not journal.admits

    first = number
    while thread.is_alive():
        append_for(0.5, watch)
        while thread.is_alive() and not journal.admits:
            time.sleep(0.01)
    thread.join()
    took = time.perf_counter() - start_s
    during = (number - first) * 3 / took
    print(
        f"compaction of {jobs:,} finished jobs: {took:.1f} s; appends {during:,.0f}/s beside {before:,.0f}/s: {during / before:.2f} (goal 0.5)"
    )
    held = len(journal.state.jobs)
    grown = peak_growth(lambda: compact(journal, now_ms=2000, retention=INFINITY))
    print(
        f"  a compaction alone takes {grown / held:,.0f} bytes of memory a job at its peak, {grown / 1e6:.1f} MB in all"
    )
    path = journal.path
    journal.close()
    start_s = time.perf_counter()
    with acquire(path) as ownership:
        recovered = recover(ownership)
    took = time.perf_counter() - start_s
    print(
        f"recovery after it, {recovered.records:,} records, most of them snapshots: {recovered.records / took:,.0f}/s (goal 25,000)"
    )
    recovered.close()


def peak_growth(work: Callable[[], object]) -> int:
    """How far the resident memory rises while ``work`` runs, sampled."""
    before = peak = rss_bytes()
    stop = threading.Event()

    def sample() -> None:
        nonlocal peak
        while not stop.wait(0.02):
            peak = max(peak, rss_bytes())

    sampler = threading.Thread(target=sample)
    sampler.start()
    work()
    stop.set()
    sampler.join()
    return peak - before


def rss_bytes() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def bench_memory(jobs: int) -> None:
    class Nowhere:
        """Nothing is read back here."""

        definition = columns = None

    state = StoreState(Nowhere())  # type: ignore[arg-type]
    for number in range(jobs):
        for event in life(number, state.next_order, 1000):
            state.apply(event, (1 << 30) + number)
    size = sum(sys.getsizeof(k) + sys.getsizeof(v) for k, v in state.jobs.items()) + sys.getsizeof(state.jobs)
    print(f"  state alone: {size / jobs:,.0f} bytes a finished job")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", nargs="*", default=["append", "sync", "recovery"])
    parser.add_argument("--dir", default=None)
    parser.add_argument("--jobs", type=int, default=20_000)
    options = parser.parse_args()
    parent = os.path.realpath(options.dir or tempfile.mkdtemp(prefix="belay-bench-"))
    os.makedirs(parent, exist_ok=True)
    try:
        if "append" in options.what:
            bench_append(parent, options.jobs)
        if "sync" in options.what:
            bench_sync(parent, options.jobs)
        if "compaction" in options.what:
            bench_compaction(parent, options.jobs)
        if "recovery" in options.what:
            bench_recovery(parent, options.jobs)
            bench_memory(options.jobs)
    finally:
        if options.dir is None:
            shutil.rmtree(parent, ignore_errors=True)


if __name__ == "__main__":
    main()
