"""Stores that earlier versions wrote open to the state that they had (mapping page: effects, not commands)."""

from __future__ import annotations

import json
import zipfile
from datetime import datetime
from pathlib import Path

import pytest

from tests.behaviour import golden
from tests.unit.journal import by_hand


def test_the_kept_files_are_what_they_were() -> None:
    sums = (golden.FOLDER / "SHA256SUMS").read_text().splitlines()
    assert dict(reversed(line.split()) for line in sums) == golden.digests()
    assert {name.split(".")[0] for name in golden.digests()} >= golden.HISTORIES.keys()


@pytest.mark.parametrize("name", sorted(path.stem for path in golden.FOLDER.glob("*.zip")))
def test_a_kept_store_opens_to_its_state(name: str, tmp_path: Path) -> None:
    with zipfile.ZipFile(golden.FOLDER / f"{name}.zip") as archive:
        archive.extractall(tmp_path / "store")
    want = json.loads((golden.FOLDER / f"{name}.json").read_text())
    now = datetime.fromisoformat(want.pop("opened_at"))
    by_hand.read_store(tmp_path / "store")
    store = golden.open_store(tmp_path / "store", now=now, profile=golden.HISTORIES[name][1])
    try:
        assert golden.state_of(store, now=now) == want
    finally:
        store.close()


def test_the_kept_stores_hold_what_they_are_kept_for(tmp_path: Path) -> None:
    pairs = {}
    for name in golden.HISTORIES:
        with zipfile.ZipFile(golden.FOLDER / f"{name}.zip") as archive:
            archive.extractall(tmp_path / name)
        pairs[name] = by_hand.pairs_of(tmp_path / name)
    assert pairs["core"] == {(8, 1), (10, 2)}
    assert pairs["strict"] <= {(7, 1), (8, 1), (10, 2)}
    assert pairs["extended"] >= {(8, 1), (128, 1), (129, 1)}
    assert pairs["compacted"] >= {(7, 1), (128, 1), (129, 1), (130, 1)}
    assert (131, 1) in pairs["frames"]


@pytest.mark.parametrize("name", golden.HISTORIES)
def test_the_history_played_today_comes_to_that_state(name: str, tmp_path: Path) -> None:
    """If not, the engine decides otherwise than it did: on purpose, or not."""
    want = json.loads((golden.FOLDER / f"{name}.json").read_text())
    assert json.loads(json.dumps(golden.write(name, tmp_path / name))) == want
