"""How fast jobs run on a journal that an owner serves to a worker and to this process.

Run: ``python -m soak.bench.served [roundtrip] [latency] [drain] [--durability write|sync] [--dir PATH]``.
Beside each figure stands a raw one of the same run: an echo through a Unix socket, a bare write and fsync.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import socket
import statistics
import struct
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from soak.bench.site import start_worker

QUEUE = "bench"


@contextmanager
def journal_site(directory: Path, durability: str, concurrency: int) -> Iterator[None]:
    """Django set up on a journal in a fresh directory; whoever serves it at the end is ended."""
    options = {"directory": str(directory / "belay"), "durability": durability, "validated_filesystem": True}
    storage = {"BACKEND": "django_belay.storage.journal", "OPTIONS": options}
    database = {"ENGINE": "django.db.backends.sqlite3", "NAME": str(directory / "db.sqlite3")}
    os.environ["DJANGO_SETTINGS_MODULE"] = "soak.bench.settings"
    os.environ["BELAY_BENCH_DATABASE"] = json.dumps(database)
    os.environ["BELAY_BENCH_OPTIONS"] = json.dumps({"QUEUES": {QUEUE: concurrency}, "STORAGE": storage})
    import django

    django.setup()
    try:
        yield
    finally:
        _end_owner(directory / "belay")


def _end_owner(directory: Path) -> None:
    from django_belay.storage.journal.serving.place import Place

    with suppress(OSError, ProcessLookupError), Place(directory).connect(1.0) as connection:
        raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
        os.kill(struct.unpack("3i", raw)[0], signal.SIGTERM)


def timed(operation: Callable[[], Any], count: int) -> list[float]:
    """Milliseconds of each call, ascending."""
    taken = []
    for _ in range(count):
        begin = time.perf_counter()
        operation()
        taken.append(1000 * (time.perf_counter() - begin))
    return sorted(taken)


def told(taken: list[float]) -> str:
    return f"p50 {statistics.median(taken):.3f} ms, p99 {taken[int(0.99 * len(taken))]:.3f} ms"


# -- a client's read ---------------------------------------------------------------------


def echo(count: int) -> list[float]:
    """A hundred bytes through a Unix socket and back, another process at the other end."""
    here, there = socket.socketpair()
    if (child := os.fork()) == 0:
        here.close()
        while data := there.recv(4096):
            there.sendall(data)
        os._exit(0)
    there.close()

    def once() -> None:
        here.sendall(b"x" * 100)
        here.recv(4096)

    taken = timed(once, count)
    here.close()
    os.waitpid(child, 0)
    return taken


def roundtrip(count: int) -> None:
    from django_belay.db import storage_for_client
    from soak.bench.jobs import noop

    job = noop.enqueue()
    storage = storage_for_client().storage
    raw, ours = echo(count), timed(lambda: storage.get_standing(job.id), count)
    ratio = statistics.median(ours) / statistics.median(raw)
    print(f"read round trip: {told(ours)}; a bare echo {told(raw)}: {ratio:.1f} times")
    job.cancel("measured")


# -- from an enqueueing to the start -------------------------------------------------------


def raw_writes(directory: Path, durability: str, count: int = 200) -> list[float]:
    """A record's worth appended, and synced where the journal does."""
    with (directory / "raw").open("wb", buffering=0) as file:

        def once() -> None:
            file.write(b"x" * 300)
            if durability == "sync":
                os.fdatasync(file.fileno())

        return timed(once, count)


def latency(directory: Path, durability: str, jobs: int) -> None:
    from soak.bench.jobs import noop, started

    worker = start_worker("--queue", f"{QUEUE}=10")
    try:
        noop.enqueue().result(timeout=60)
        handles = []
        for _ in range(jobs):
            handles.append(started.enqueue(sent_at=time.time()))
            time.sleep(random.uniform(0.1, 0.7))  # past the hot cadence: the worker is idle again
        taken = sorted(1000 * handle.result(timeout=60) for handle in handles)
    finally:
        worker.terminate()
        worker.wait(timeout=30)
    raw = raw_writes(directory, durability)
    print(f"enqueue to start, {durability}: {told(taken)}; a bare write {told(raw)}")


# -- a backlog ------------------------------------------------------------------------------


def drain(directory: Path, durability: str, jobs: int, concurrency: int) -> None:
    from django_belay.db import storage_for_client
    from django_belay.storage.base import JobFilter
    from soak.bench.jobs import noop

    noop.enqueue_many([{}] * jobs)
    worker = start_worker(
        "--until-empty", "--queue", f"{QUEUE}={concurrency}", "--concurrency", str(concurrency)
    )
    assert worker.wait(timeout=600) == 0
    found = storage_for_client().storage.list_jobs(JobFilter(kind=noop.kind), limit=2 * jobs)
    rows = [row for row in found if row.state == "succeeded"]
    assert len(rows) >= jobs, (len(rows), jobs)
    begin = min(row.started_at for row in rows if row.started_at)
    end = max(row.finished_at for row in rows if row.finished_at)
    rate = jobs / (end - begin).total_seconds()
    raw = 1000 / statistics.median(raw_writes(directory, durability))
    print(f"drain of {jobs:,}, {durability}: {rate:,.0f} jobs/s; bare writes one by one {raw:,.0f}/s")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", nargs="*", choices=["roundtrip", "latency", "drain"], default=[])
    parser.add_argument("--durability", choices=["write", "sync"], default="sync")
    parser.add_argument("--dir", type=Path, default=Path("/var/tmp"), help="on the disk to measure")
    parser.add_argument("--jobs", type=int, default=20_000, help="of the backlog")
    parser.add_argument("--sent", type=int, default=200, help="jobs sent one by one")
    parser.add_argument("--concurrency", type=int, default=100)
    given = parser.parse_args()
    wanted = given.what or ["roundtrip", "latency", "drain"]
    with (
        tempfile.TemporaryDirectory(prefix="belay-bench-", dir=given.dir) as name,
        journal_site(Path(name), given.durability, given.concurrency),
    ):
        print(f"journal in {given.dir}, {os.cpu_count()} CPUs, load {os.getloadavg()[0]:.1f}")
        if "roundtrip" in wanted:
            roundtrip(2_000)
        if "latency" in wanted:
            latency(Path(name), given.durability, given.sent)
        if "drain" in wanted:
            drain(Path(name), given.durability, given.jobs, given.concurrency)


if __name__ == "__main__":
    main()
