"""Jobs that run in real worker processes; they talk to the tests through files.

``BELAY_TEST_SITE`` names a directory. ``note`` appends a line to a file there; ``await_file``
waits until a test has put a file there.
"""

from __future__ import annotations

import os
import signal
import time
from itertools import repeat
from pathlib import Path

from django_belay import Budget, Cost, batches, job


def site() -> Path:
    return Path(os.environ["BELAY_TEST_SITE"])


def note(name: str, line: str) -> str:
    with (site() / name).open("a") as file:
        file.write(line + "\n")
    return line


def await_file(name: str, timeout_s: float = 60.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not (site() / name).exists():
        if time.monotonic() > deadline:
            raise TimeoutError(name)
        time.sleep(0.01)  # polls a file: there is nothing to be woken by


@job(queue="work", backoff=[0.1])
def marks(ctx, name: str) -> str:
    """Leaves a line with the attempt."""
    note(name, f"{ctx.id}:{ctx.attempt}:{os.getpid()}")
    return name


@job(queue="work", backoff=[0.1])
def holds(ctx, name: str) -> str:
    """Runs until a test lets it go."""
    note(f"{name}.started", f"{ctx.id}:{ctx.attempt}:{os.getpid()}")
    await_file(f"{name}.go")
    return name


@job(queue="work", backoff=[0.1])
def walks(ctx, name: str, count: int, hold_at: int = -1) -> int:
    """Steps that leave a line each; waits before one of them."""
    total = 0
    for number in range(count):
        if number == hold_at:
            note(f"{name}.started", f"{ctx.id}:{ctx.attempt}:{os.getpid()}")
            await_file(f"{name}.go")
        total += ctx.step(f"s{number}", walk, name, number, cost=Cost(usd="0.01"))
    return total


def walk(name: str, number: int) -> int:
    note(f"{name}.effects", str(number))
    return number


@job(queue="work", backoff=[0.1], budget=Budget(usd="0.50"))
def pays(ctx, name: str) -> None:
    """Spends more than its budget."""
    for number in range(5):
        ctx.step(f"b{number}", walk, name, number, cost=Cost(usd="0.20"))


@job(queue="work", backoff=[0.1])
def occupies(ctx, seconds: float) -> float:
    """Holds the interpreter in one call that never lets go."""
    before = time.perf_counter()
    sum(repeat(1, 2_000_000))
    rate = 2_000_000 / (time.perf_counter() - before)
    before = time.perf_counter()
    sum(repeat(1, int(rate * seconds)))
    return time.perf_counter() - before


@job(queue="work", backoff=[0.1], max_attempts=3)
def dies(ctx, name: str, times: int) -> int:
    """Kills its process on its first attempts."""
    note(name, str(ctx.attempt))
    if ctx.attempt <= times:
        os.kill(os.getpid(), signal.SIGKILL)
    return ctx.attempt


@job(queue="work", backoff=[0.05], max_attempts=2, timeout=0.3)
def overruns(ctx, name: str) -> None:
    """Takes longer than it may."""
    note(name, str(ctx.attempt))
    await_file(f"{name}.never")


@job(queue="work", max_attempts=1, timeout=0.2)
def resists(ctx, name: str) -> None:
    """Does not stop when it is told to."""
    note(f"{name}.started", str(os.getpid()))
    while not (site() / f"{name}.go").exists():
        try:
            await_file(f"{name}.go")
        except BaseException:
            continue


@job(queue="work", backoff=[0.1])
def totals(ctx, name: str, batch_id: str) -> dict[str, int]:
    """The job on completion of a batch: leaves a line a run, returns the batch's numbers."""
    note(name, f"{ctx.id}:{ctx.attempt}")
    progress = batches.get(batch_id).progress()
    return {"total": progress.total, "succeeded": progress.succeeded, "failed": progress.failed}


@job(queue="work", max_attempts=1)
def breaks(ctx) -> None:
    """Fails."""
    raise ValueError("broken on purpose")


@job(queue="work")
def tells(ctx, count: int) -> int:
    """Emits numbers."""
    for number in range(count):
        ctx.emit(number)
    return count
