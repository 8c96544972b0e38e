"""Every failpoint that the code names is passed by what the crash tests stop at.

The names are taken from the source, so that a new write, sync, rename or unlink fails here until a
scenario reaches it.
"""

from __future__ import annotations

import ast
import errno
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from django_belay.exceptions import JournalError
from django_belay.storage.journal import files
from django_belay.storage.journal.files import fail
from django_belay.storage.journal.files.compaction import compact
from django_belay.storage.journal.files.copy import CopyOptions, backup, restore
from django_belay.storage.journal.files.initialise import initialise
from django_belay.storage.journal.files.inspection import inspect
from django_belay.storage.journal.files.journal import Journal, JournalOptions, open_journal
from django_belay.storage.journal.files.salvage import salvage
from django_belay.storage.journal.format.manifest import INFINITY
from tests.unit.journal.history import History

from .power_cut import Recorder

SYNC = JournalOptions(
    durability="sync", validated_filesystem=True, writer="inline", rotation_target_bytes=2048, reserve_bytes=0
)
COPYING = CopyOptions(durability="sync", validated_filesystem=True)
NAME = re.compile(r"[a-z]+(\.[a-z_]+)+")
RAW = re.compile(r"\bos\.(write|pwrite|writev|fsync|fdatasync|rename|replace|unlink|remove|rmdir|mkdir|makedirs|truncate|ftruncate|link|symlink)\(")  # fmt: skip


def sources() -> list[Path]:
    return sorted(Path(files.__path__[0]).glob("*.py"))


def named_points() -> set[str]:
    """Every failpoint, or the stem of several, that stands in the source."""
    constants = (
        node.value
        for path in sources()
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    )
    return {text for text in constants if NAME.fullmatch(text)}


def give_up(journal: Journal, now: int) -> None:
    """Call a compaction off once its candidate has everything, so that all of it is removed."""

    def is_whole() -> bool:
        return any(Path(journal.path).glob("epochs/.tay-candidate-*/MANIFEST"))

    with pytest.raises(JournalError):
        compact(journal, now_ms=now, retention=INFINITY, is_cancelled=is_whole)


@pytest.fixture
def passed(tmp_path: Path) -> set[str]:
    """The points passed by initialisation, appends, rotation, compactions, copies, salvage, opening."""
    base = os.path.realpath(tmp_path)
    store, history, recorder = f"{base}/store", History(seed=1), Recorder()
    with fail.arm(recorder):
        initialise(store, now_ms=1, retention=INFINITY, durability="sync", validated_filesystem=True)
        with open_journal(store, SYNC) as journal:
            for _ in range(40):
                journal.append([history.draw(journal.state)])
            give_up(journal, history.now)
            done: list[int] = []

            def pace(number: int) -> None:
                if not done:
                    done.append(journal.append([history.draw(journal.state)]))

            compact(journal, now_ms=history.now, retention=INFINITY, pace=pace)
        backup(store, f"{base}/copy", f"{base}/copy.json", COPYING)
        restore(f"{base}/copy", f"{base}/again", f"{base}/again.json", f"{base}/copy.json", COPYING)
        salvage(store, f"{base}/saved", durability="sync", validated_filesystem=True)
    return set(recorder.points)


def test_every_named_failpoint_is_passed(passed: set[str]) -> None:
    named = named_points()
    assert len(named) > 60
    never = {name for name in named if not any(p == name or p.startswith(f"{name}.") for p in passed)}
    assert never == set()


def test_every_passed_failpoint_begins_with_a_name_in_the_source(passed: set[str]) -> None:
    stems = named_points() | {"append", "rotate"}
    assert {p for p in passed if not any(p == stem or p.startswith(f"{stem}.") for stem in stems)} == set()


def test_only_the_guarded_modules_change_a_disk() -> None:
    """System calls that change something stand behind failpoints in ``disk``, raw in ``scribe``, nowhere else."""
    elsewhere = {path.name: RAW.findall(path.read_text()) for path in sources()}
    assert {name for name, calls in elsewhere.items() if calls} <= {"disk.py", "scribe.py"}


Act = Callable[[str], object]
ACTS: dict[str, Act] = {
    "initialise": lambda b: initialise(f"{b}/new", now_ms=1, retention=INFINITY, durability="write"),
    "backup": lambda b: backup(f"{b}/store", f"{b}/new", f"{b}/new.json", COPYING),
    "restore": lambda b: restore(f"{b}/copy", f"{b}/new", f"{b}/new.json", f"{b}/copy.json", COPYING),
    "salvage": lambda b: salvage(f"{b}/store", f"{b}/new", durability="write"),
}


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO, errno.EROFS, errno.EACCES])
@pytest.mark.parametrize("name", sorted(ACTS))
def test_a_call_that_fails_is_refused_by_name_and_spoils_no_source(
    name: str, number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At every point in turn: disk full, broken, read-only, permission gone."""
    monkeypatch.setattr(os, "fsync", lambda fd: None)
    origin, base = f"{os.path.realpath(tmp_path)}/origin", f"{os.path.realpath(tmp_path)}/base"
    os.mkdir(origin)
    history = History(seed=1)
    initialise(f"{origin}/store", now_ms=1, retention=INFINITY, durability="write")
    with open_journal(f"{origin}/store", SYNC) as journal:
        for _ in range(15):
            journal.append([history.draw(journal.state)])
    backup(f"{origin}/store", f"{origin}/copy", f"{origin}/copy.json", COPYING)
    want = inspect(f"{origin}/store")
    shutil.copytree(origin, base)
    count = Recorder()
    with fail.arm(count):
        ACTS[name](base)
    for at, point in enumerate(count.points):
        shutil.rmtree(base)
        shutil.copytree(origin, base)
        with fail.arm(Recorder(OSError(number, "injected"), at)), pytest.raises(JournalError) as caught:
            ACTS[name](base)
        assert caught.value.refusal == errno.errorcode[number].lower(), point
        assert caught.value.path, point
        assert inspect(f"{base}/store") == want, point
        assert inspect(f"{base}/copy") == want, point
