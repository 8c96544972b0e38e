"""Worker processes that a command starts, and that are gone when it ends, however it ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from threading import Thread

STOP_S = 15  # over SHUTDOWN_GRACE: after it they are killed

Worker = subprocess.Popen[bytes]


@contextmanager
def running_workers(count: int, *, say: Callable[[str], None]) -> Iterator[list[Worker]]:
    """Worker processes, each in a process group of its own; what they log goes to ``say``."""
    workers: list[Worker] = []
    try:
        for _ in range(count):
            workers.append(start_worker(say))
        yield workers
    finally:
        stop(workers)


def start_worker(say: Callable[[str], None]) -> Worker:
    command = [sys.executable, "-m", "django", "belay_worker", "--settings", "example_project.settings"]
    # A group of its own: Ctrl-C reaches the command alone, which stops the workers itself.
    worker = subprocess.Popen([*command, "-v", "0"], start_new_session=True, stderr=subprocess.PIPE)
    Thread(target=pass_on, args=[worker, say], daemon=True).start()
    return worker


def pass_on(worker: Worker, say: Callable[[str], None]) -> None:
    """Give on what a worker logs, line by line."""
    assert worker.stderr is not None
    for line in worker.stderr:
        say(line.decode(errors="replace").rstrip("\n"))


def stop(workers: list[Worker]) -> None:
    """Ask the workers to end, and kill what is left: after a while, or at a second Ctrl-C."""
    try:
        for worker in workers:
            worker.terminate()
        for worker in workers:
            with suppress(subprocess.TimeoutExpired):
                worker.wait(timeout=STOP_S)
    finally:
        for worker in workers:
            kill(worker)


def kill(worker: Worker) -> None:
    """kill -9 a worker and every process it started, as a power cut would."""
    with suppress(ProcessLookupError):
        os.killpg(worker.pid, signal.SIGKILL)
    worker.wait()
