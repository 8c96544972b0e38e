"""An owner that is killed while it writes the index: the next one shows what the store holds."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path

import pytest

from django_belay.storage.journal.files.initialise import initialise
from django_belay.storage.journal.files.journal import open_journal
from django_belay.storage.journal.format.manifest import Retention
from django_belay.storage.journal.index import start_index
from django_belay.storage.journal.store.store import JournalStore
from tests.behaviour.indexed import held, mark_of, shown, wait_until_shown
from tests.crash.index_owner import OPTIONS

ROOT = Path(__file__).resolve().parent.parent.parent
KILLS = 6
MANY_KILLS = 60


def kill_while_it_works(directory: Path, rounds: int) -> None:
    """Start an owner, let it go through so many rounds, and kill it in the middle of one."""
    command = [sys.executable, "-m", "tests.crash.index_owner", str(directory)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        for _ in range(rounds):
            assert process.stdout.readline()
        os.kill(process.pid, signal.SIGKILL)


@pytest.mark.parametrize("kills", [KILLS, pytest.param(MANY_KILLS, marks=pytest.mark.slow)])
def test_the_index_is_the_stores_after_every_kill(tmp_path: Path, kills: int) -> None:
    store_path, index_path = tmp_path / "store", tmp_path / "index.sqlite3"
    initialise(
        str(store_path), now_ms=0, retention=Retention(), durability="write", validated_filesystem=True
    )
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    dice = random.Random(seed)
    for _ in range(kills):
        kill_while_it_works(tmp_path, dice.randint(1, 12))
        before = mark_of(index_path)
        now = datetime.now(UTC)
        with closing(JournalStore(open_journal(str(store_path), OPTIONS), now=now)) as store:
            # Nothing that the store does not hold was ever shown.
            generation, sequence = store.durable_sequence()
            assert before is None or (before[0] == generation and before[1] <= sequence)
            indexer = start_index(store, index_path)
            wait_until_shown(store, index_path)
            assert shown(index_path) == held(store)
            indexer.close()
