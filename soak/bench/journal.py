"""Speed of the journal, as ratios in one run on one disk.

    python -m soak.bench.journal [append] [sync] [recovery] [compaction] [million] [--dir DIR] [--jobs N]

Each line gives a rate and, where the goal is a ratio, what it is measured beside.
"""

from __future__ import annotations

import argparse
import gc
import os
import queue
import resource
import shutil
import statistics
import struct
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable
from functools import partial

from django_belay.exceptions import JournalError
from django_belay.storage.journal.files.compaction import compact, keep_share
from django_belay.storage.journal.files.initialise import initialise
from django_belay.storage.journal.files.journal import Journal, JournalOptions, open_journal
from django_belay.storage.journal.files.ownership import acquire
from django_belay.storage.journal.files.recovery import recover
from django_belay.storage.journal.format.definition import define_job
from django_belay.storage.journal.format.event_v1 import Finished, Inserted, JobEvent, Started
from django_belay.storage.journal.format.manifest import INFINITY
from django_belay.storage.journal.format.pair import encode_payload
from django_belay.storage.journal.format.record import frame
from django_belay.storage.journal.state.store_state import StoreState

BATCH = 64
MILLION = 1_000_000
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


CLIENTS = 64
ROUNDS = 6
ROUND_S = 0.5


class Appends:
    """Insertions into one store, each its own request: one client, 64 threads, or a loop for 64 clients."""

    def __init__(self, journal: Journal) -> None:
        self.journal = journal
        self.made = 0
        self._told: queue.SimpleQueue[int] = queue.SimpleQueue()

    def one(self, state: StoreState) -> list[JobEvent]:
        self.made += 1
        return life(self.made, state.next_order, 5)[:1]

    def alone(self, seconds: float) -> None:
        end = time.perf_counter() + seconds
        while time.perf_counter() < end:
            self.journal.transact(self.one)

    def threads(self, seconds: float) -> None:
        threads = [threading.Thread(target=self.alone, args=(seconds,)) for _ in range(CLIENTS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def loop(self, seconds: float) -> None:
        """Each client asks again once it is answered; nobody waits for a single record."""
        leave = self.journal.follow(lambda through, error: self._told.put(through))
        pending = deque(self.journal.submit(self.one(self.journal.state)) for _ in range(CLIENTS))
        end = time.perf_counter() + seconds
        while pending:
            through = self._told.get()
            while pending and pending[0] <= through:
                pending.popleft()
                if time.perf_counter() < end:
                    pending.append(self.journal.submit(self.one(self.journal.state)))
        leave()


def bench_sync(parent: str) -> None:
    """Rounds of each way by turns, with the disk measured before and after: it changes from second to second."""
    fd = os.open(os.path.join(parent, "single"), os.O_RDWR | os.O_CREAT | os.O_TRUNC)
    kind, schema, payload = encode_payload(life(0, 1, 5)[0])
    data = frame(kind, schema, 1, payload)
    waiting = Appends(new_store(parent, "sync", durability="sync", writer="scribe"))
    followed = Appends(new_store(parent, "sync-loop", durability="sync", writer="scribe"))
    ways = {
        "one appender, through the scribe": (waiting, waiting.alone),
        f"{CLIENTS} threads": (waiting, waiting.threads),
        f"a loop for {CLIENTS} clients": (followed, followed.loop),
    }
    ratios: dict[str, list[tuple[float, float, float]]] = {name: [] for name in ways}
    for _ in range(ROUNDS):
        for name, (appends, way) in ways.items():
            before = single_rate(fd, data)
            made, cpu, start = appends.made, time.process_time(), time.perf_counter()
            way(ROUND_S)
            count = appends.made - made
            rate = count / (time.perf_counter() - start)
            single = (before + single_rate(fd, data)) / 2
            ratios[name].append((rate / single, rate, (time.process_time() - cpu) / count * 1e6))
    os.close(fd)
    for appends in (waiting, followed):
        appends.journal.close()
    for name, seen in ratios.items():
        ratio, rate, cpu_us = (statistics.median(values) for values in zip(*seen, strict=True))
        print(
            f"sync, {name}: {ratio:.1f}x one write and fsync a record (goal 20x); {rate:,.0f}/s, {cpu_us:.0f} us of CPU each"
        )


def single_rate(fd: int, data: bytes) -> float:
    count, start = 0, time.perf_counter()
    while time.perf_counter() - start < ROUND_S / 2:
        os.write(fd, data)
        os.fsync(fd)
        count += 1
    return count / (time.perf_counter() - start)


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
            try:
                journal.append(life(number, journal.state.next_order, 1000))
            except JournalError as error:
                if error.refusal != "mutation_not_admitted":
                    raise
                break  # the switch has begun since it was looked at
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


def bench_million(parent: str) -> None:
    """A million finished jobs: opened from their mutations, compacted, opened from their snapshots."""
    journal = new_store(parent, "million", durability="write", writer="inline")
    for start in range(0, MILLION, 21):
        last = min(start + 21, MILLION)
        journal.append([event for n in range(start, last) for event in life(n, n + 1, 1000)])
    path = journal.path
    journal.close()
    for what in ("mutations", "snapshots"):
        gc.collect()
        before, cpu, start_s = rss_bytes(), time.process_time(), time.perf_counter()
        journal = open_journal(
            path,
            JournalOptions(validated_filesystem=True, durability="write", writer="inline"),
            progress=show_progress,
        )
        took, cpu = time.perf_counter() - start_s, time.process_time() - cpu
        held = (rss_bytes() - before) / len(journal.state.jobs)
        print(
            f"\nopened as {journal.recovered.records:,} {what}: {took:.1f} s (goal 60), {cpu:.1f} of CPU; {held:.0f} bytes a job"
        )
        if what == "mutations":
            start_s = time.perf_counter()
            grown = peak_growth(partial(compact, journal, now_ms=2000, retention=INFINITY))
            print(
                f"  compacted in {time.perf_counter() - start_s:.1f} s with {grown / MILLION:.0f} bytes a kept job"
            )
        journal.close()


def show_progress(records: int, done: int, total: int) -> None:
    print(f"\r  {records:,} records, {done * 100 // total} %", end="", flush=True)


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
            bench_sync(parent)
        if "compaction" in options.what:
            bench_compaction(parent, options.jobs)
        if "million" in options.what:
            bench_million(parent)
        if "recovery" in options.what:
            bench_recovery(parent, options.jobs)
            bench_memory(options.jobs)
    finally:
        if options.dir is None:
            shutil.rmtree(parent, ignore_errors=True)


if __name__ == "__main__":
    main()
