"""kill -9 under constant large batches: the owner's death tears nothing; that of both may, and is salvaged."""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from django_belay.exceptions import JournalError
from django_belay.storage.journal.files.initialise import initialise
from django_belay.storage.journal.files.inspection import Summary, inspect
from django_belay.storage.journal.files.salvage import salvage
from django_belay.storage.journal.format.manifest import INFINITY

ROOT = Path(__file__).resolve().parents[2]
OWNER = Path(__file__).with_name("kill_owner.py")
ROUNDS = int(os.environ.get("BELAY_KILL_ROUNDS", "6"))


@pytest.fixture
def base(tmp_path: Path) -> str:
    return os.path.realpath(tmp_path)


@contextlib.contextmanager
def owner(store: str, pid_file: str) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, str(OWNER), store, pid_file],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


def run_and_kill(store: str, pid_file: str, rng: random.Random, *, scribe_too: bool) -> int:
    """Let an owner work for a moment, kill it; the last sequence it acknowledged."""
    with owner(store, pid_file) as process:
        assert process.stdout is not None
        acknowledged = int(process.stdout.readline())
        # The moment of the kill is what is tested; there is nothing to wait for.
        time.sleep(rng.uniform(0.0, 0.06))
        if scribe_too:
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(Path(pid_file).read_text()), signal.SIGKILL)
        process.kill()
        for line in process.stdout:
            if line.endswith("\n"):
                acknowledged = int(line)
    return acknowledged


def look(store: str) -> Summary:
    """Inspect once the scribe has let go of the lock."""
    deadline = time.monotonic() + 10
    while True:
        try:
            return inspect(store)
        except JournalError as error:
            if error.refusal != "store_busy" or time.monotonic() > deadline:
                raise
        time.sleep(0.005)  # the scribe is finishing the batch in hand


def look_or_refusal(store: str) -> Summary | JournalError:
    try:
        return look(store)
    except JournalError as error:
        return error


def test_killed_owner_leaves_a_store_that_opens(base: str) -> None:
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    store = f"{base}/store"
    initialise(store, now_ms=1, retention=INFINITY, durability="write")
    for number in range(ROUNDS):
        if number % 20 == 19:
            shutil.rmtree(store)
            initialise(store, now_ms=1, retention=INFINITY, durability="write")
        acknowledged = run_and_kill(store, f"{base}/pid", rng, scribe_too=False)
        summary = look(store)
        assert summary.records >= acknowledged
        assert summary.jobs == {"available": summary.records}


def test_killing_owner_and_scribe_opens_or_is_salvaged(base: str) -> None:
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    torn = 0
    for number in range(ROUNDS):
        store = f"{base}/store{number}"
        initialise(store, now_ms=1, retention=INFINITY, durability="write")
        acknowledged = run_and_kill(store, f"{base}/pid", rng, scribe_too=True)
        found = look_or_refusal(store)
        if isinstance(found, JournalError):
            torn += 1
            assert found.offset is not None
            found = salvage(store, f"{base}/saved{number}", durability="write").summary
        assert found.records >= acknowledged
        shutil.rmtree(store)
    print(f"{torn} of {ROUNDS} were torn")
