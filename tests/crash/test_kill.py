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
from django_belay.storage.journal.files.ownership import acquire
from django_belay.storage.journal.files.recovery import recover
from django_belay.storage.journal.files.salvage import salvage
from django_belay.storage.journal.format.manifest import INFINITY
from django_belay.storage.journal.format.record import OVERHEAD_BYTES
from django_belay.storage.journal.format.segment import HEADER_BYTES

ROOT = Path(__file__).resolve().parents[2]
OWNER = Path(__file__).with_name("kill_owner.py")
ROUNDS = int(os.environ.get("BELAY_KILL_ROUNDS", "6"))
LARGE_BYTES = (65_536, 262_144, 1_048_576, 4_194_304)
MOST_LARGE_ROUNDS = 60
LONGEST_AIM_S = 2.0


@pytest.fixture
def base(tmp_path: Path) -> str:
    return os.path.realpath(tmp_path)


@contextlib.contextmanager
def owner(store: str, pid_file: str, record_bytes: int = 0) -> Iterator[subprocess.Popen[str]]:
    large = [str(record_bytes)] if record_bytes else []
    process = subprocess.Popen(
        [sys.executable, str(OWNER), store, pid_file, *large],
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
            kill_scribe(pid_file)
        process.kill()
        return max(acknowledged, last_line(process))


def run_and_kill_inside_a_write(store: str, pid_file: str, size: int, skip: int) -> int:
    """Kill scribe and owner once the tail has been seen to end inside a record ``skip`` times."""
    with owner(store, pid_file, size) as process:
        assert process.stdout is not None
        acknowledged = int(process.stdout.readline())
        (tail,) = Path(store).rglob("*.tay")
        with tail.open("rb") as file:
            file.seek(HEADER_BYTES + 16)
            record = OVERHEAD_BYTES + int.from_bytes(file.read(4))
            end = time.monotonic() + LONGEST_AIM_S
            seen = before = 0
            while time.monotonic() < end:
                whole, rest = divmod(os.fstat(file.fileno()).st_size - HEADER_BYTES, record)
                seen += bool(rest) and whole > before
                if rest and seen > skip:
                    break
                before = whole if rest else before
            kill_scribe(pid_file)
        process.kill()
        return max(acknowledged, last_line(process))


def kill_scribe(pid_file: str) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(int(Path(pid_file).read_text()), signal.SIGKILL)


def last_line(process: subprocess.Popen[str]) -> int:
    """The last whole line a killed owner had written, 0 when there is no more."""
    assert process.stdout is not None
    return max((int(line) for line in process.stdout if line.endswith("\n")), default=0)


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


def latest_number(store: str) -> int:
    """The number of the last large record that took effect."""
    with acquire(store) as ownership:
        recovered = recover(ownership)
        try:
            table = recovered.state.tables.get("events", {})
            return int(table["latest"]["number"]) if table else 0
        finally:
            recovered.close()


def kill_inside_a_large_write(base: str, rng: random.Random, size: int) -> bool:
    """Kill owner and scribe together; whether that tore a record, which is then refused and salvaged."""
    store = f"{base}/store"
    initialise(store, now_ms=1, retention=INFINITY, durability="write")
    acknowledged = run_and_kill_inside_a_write(store, f"{base}/pid", size, rng.randrange(8))
    found = look_or_refusal(store)
    if isinstance(found, JournalError):
        assert found.refusal == "incomplete_record"
        assert found.path is not None
        assert found.offset is not None
        assert found.last_good_sequence is not None
        assert found.last_good_sequence >= acknowledged
        whole = sorted(Path(store).rglob("*.tay"))[-1].read_bytes()
        assert found.offset < len(whole)
        report = salvage(store, f"{base}/saved", durability="write")
        assert sorted(Path(store).rglob("*.tay"))[-1].read_bytes() == whole
        assert report.last_good_sequence == found.last_good_sequence
        assert report.bytes_behind == len(whole) - found.offset
        assert latest_number(f"{base}/saved") >= acknowledged
        shutil.rmtree(f"{base}/saved")
    else:
        assert latest_number(store) >= acknowledged
    shutil.rmtree(store)
    return isinstance(found, JournalError)


def test_killing_both_inside_a_large_write_tears_it_and_loses_nothing(base: str) -> None:
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    for number in range(MOST_LARGE_ROUNDS):
        if kill_inside_a_large_write(base, rng, LARGE_BYTES[number % len(LARGE_BYTES)]):
            return
    pytest.fail(f"none of {MOST_LARGE_ROUNDS} kills tore a record: the refusal was not seen")


@pytest.mark.slow
def test_two_hundred_kills_inside_large_writes(base: str) -> None:
    seed = random.randrange(1 << 32)
    rng = random.Random(seed)
    torn = dict.fromkeys(LARGE_BYTES, 0)
    for size in LARGE_BYTES:
        for _ in range(50):
            torn[size] += kill_inside_a_large_write(base, rng, size)
    print(f"seed {seed}; torn of 50 by bytes a record: {torn}")
    assert sum(torn.values()) >= 20
