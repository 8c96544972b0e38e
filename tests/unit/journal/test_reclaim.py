"""Reclamation: only the predecessor the manifest names, only while it looks like one, resumable."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from django_belay.storage.journal.files import fail
from django_belay.storage.journal.files.authority import read_authority
from django_belay.storage.journal.files.compaction import compact
from django_belay.storage.journal.files.disk import open_path
from django_belay.storage.journal.files.initialise import initialise
from django_belay.storage.journal.files.journal import JournalOptions, open_journal
from django_belay.storage.journal.files.reclaim import reclaim_predecessor
from django_belay.storage.journal.format.manifest import INFINITY
from tests.crash.power_cut import Recorder

from .history import History

OPTIONS = JournalOptions(durability="write", writer="inline", rotation_target_bytes=2048, reserve_bytes=0)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A compacted store whose predecessor is still there."""
    path = Path(os.path.realpath(tmp_path)) / "store"
    initialise(str(path), now_ms=1, retention=INFINITY, durability="write")
    history = History(seed=2)
    with open_journal(str(path), OPTIONS) as journal:
        for _ in range(20):
            journal.append([history.draw(journal.state)])
        shutil.copytree(path / "epochs", path.with_name("before"))
        compact(journal, now_ms=1, retention=INFINITY)
    old = next(path.with_name("before").iterdir())
    shutil.copytree(old, path / "epochs" / old.name)
    return path


def predecessor(root: Path) -> Path:
    current = (root / "CURRENT").read_bytes()[24:40].hex()
    return next(path for path in (root / "epochs").iterdir() if path.name != f"e-{current}")


def reclaim(root: Path) -> bool:
    directory = open_path(str(root))
    authority = read_authority(directory)
    try:
        return reclaim_predecessor(directory, authority)
    finally:
        authority.close()
        directory.close()


def test_predecessor_goes_and_nothing_else_does(root: Path) -> None:
    (root / "epochs" / "e-other").mkdir()
    assert reclaim(root)
    assert len(list((root / "epochs").iterdir())) == 2
    assert (root / "epochs" / "e-other").is_dir()
    assert reclaim(root)


CASES: dict[str, Callable[[Path], object]] = {
    "foreign file": lambda epoch: (epoch / "NOTES").touch(),
    "foreign segment": lambda epoch: (epoch / "segments" / "x").touch(),
    "linked segment": lambda epoch: os.link(next((epoch / "segments").iterdir()), epoch.parent.parent / "held"),
    "no manifest": lambda epoch: (epoch / "MANIFEST").unlink(),
    "manifest a folder": lambda epoch: ((epoch / "MANIFEST").unlink(), shutil.rmtree(epoch / "segments"), (epoch / "MANIFEST").mkdir()),
}  # fmt: skip


@pytest.mark.parametrize("name", sorted(CASES))
def test_what_does_not_look_like_a_generation_is_left_alone(root: Path, name: str) -> None:
    epoch = predecessor(root)
    CASES[name](epoch)
    before = sorted(str(path) for path in epoch.rglob("*"))
    assert not reclaim(root)
    assert sorted(str(path) for path in epoch.rglob("*")) == before


def test_a_pointer_that_changed_defers_it(root: Path) -> None:
    directory = open_path(str(root))
    authority = read_authority(directory)
    data = (root / "CURRENT").read_bytes()
    (root / "CURRENT").write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    assert not reclaim_predecessor(directory, authority)
    assert predecessor(root).is_dir()
    authority.close()
    directory.close()


def test_it_resumes_after_a_failure_at_any_step(root: Path) -> None:
    count = Recorder()
    shutil.copytree(root, root.with_name("trial"))
    with fail.arm(count):
        assert reclaim(root.with_name("trial"))
    shutil.copytree(root, root.with_name("fresh"))
    for at in range(len(count.points)):
        shutil.rmtree(root)
        shutil.copytree(root.with_name("fresh"), root)
        with fail.arm(Recorder(OSError(5, "injected"), at)):
            assert not reclaim(root)
        assert reclaim(root)
        assert len(list((root / "epochs").iterdir())) == 1
