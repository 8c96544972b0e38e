"""``belay_journal`` where no store can be taken: it says what lies there, and what to do."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from .test_command import init, run_json

ROOT = Path(__file__).resolve().parents[3]
NOBODY = 65534
# Everything is imported before the rights go: nobody may not read this interpreter everywhere.
AS_NOBODY = f"""
import io, json, os, sys, django
django.setup()
from django.core.management import CommandError, call_command
def ask(*words):
    out = io.StringIO()
    try:
        call_command("belay_journal", *words, "--format", "json", stdout=out)
    except SystemExit as error:
        return [error.code, json.loads(out.getvalue())]
    return [0, json.loads(out.getvalue())]
ask("verify", "/nowhere/at/all"), ask("verify", sys.argv[1])
if os.geteuid() == 0:
    os.setgroups([])
    os.setgid({NOBODY})
    os.setuid({NOBODY})
print(json.dumps([ask(*words.split("|")) for words in sys.argv[2:]]))
"""


@pytest.fixture
def base() -> Iterator[str]:
    """Not pytest's own directory: others may not pass through that."""
    path = os.path.realpath(tempfile.mkdtemp(prefix="belay-misplaced-"))
    os.chmod(path, 0o755)  # for the tests that give up their rights
    yield path
    for folder, _, _ in os.walk(path):
        os.chmod(folder, 0o755)
    shutil.rmtree(path)


def as_nobody(store: str, *commands: str) -> list[tuple[int, dict[str, Any]]]:
    done = subprocess.run(
        [sys.executable, "-c", AS_NOBODY, store, *commands],
        cwd=ROOT,
        env={**os.environ, "DJANGO_SETTINGS_MODULE": "tests.settings", "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return [(code, report) for code, report in json.loads(done.stdout)]


def make(base: str, what: str) -> str:
    path = Path(base, "asked")
    if what == "missing":
        return f"{base}/asked/store"
    if what == "file":
        path.write_bytes(b"12")
        return str(path)
    if what in ("above", "inside", "segment"):
        init(str(base), "asked/store")
        return str(
            path
            if what == "above"
            else next(path.glob("store/epochs/e-*/segments" + "/*.tay" * (what == "segment")))
        )
    names = {
        "empty": (),
        "git": (".git/HEAD", "README.md"),
        "postgres": ("PG_VERSION", "base/1/pg_filenode.map"),
        "other": ("a", "b", "c", "d", "e"),
        "v1 with lock": ("STORE", "segments/00000000000000000001.tay", ".tay-owner.lock"),
        "v1 without lock": ("STORE", "segments/00000000000000000001.tay"),
        "lock alone": (".tay-owner.lock",),
        "lock and stage": (".tay-owner.lock", f".tay-v2-marker-{'0' * 32}.tmp"),
        "lock among others": (".tay-owner.lock", "README.md"),
    }[what]
    path.mkdir()
    for name in names:
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).touch()
    return str(path)


MISSING = "existing_root_or_lock_missing"
PLACES = [
    ("missing", MISSING, "nothing is there; {base} is the last directory of that path", "`belay_journal init`"),
    ("file", "enotdir", "a file of 2 bytes, not a directory", "name a store's root"),
    ("empty", MISSING, "an empty directory", "`belay_journal init {base}/asked --use-empty`"),
    ("git", MISSING, "a git checkout (.git, README.md)", "name a store's root: it holds STORE-V2"),
    ("postgres", MISSING, "a PostgreSQL data directory (PG_VERSION, base)", "name a store's root"),
    ("other", MISSING, "a directory of something else (a, b, c, d, …)", "name a store's root"),
    ("above", MISSING, "the directory above a store", "name {base}/asked/store"),
    ("inside", MISSING, "a part of the store {base}/asked/store", "name {base}/asked/store"),
    ("segment", "enotdir", "a file of 44 bytes of the store {base}/asked/store", "name {base}/asked/store"),
    ("v1 with lock", "store_v1_unsupported", "a Store-v1 root", "migrate it with Tay 1.4.x first"),
    ("v1 without lock", MISSING, "a Store-v1 root", "migrate it with Tay 1.4.x first"),
    ("lock alone", "initialization_required", "left by an init that was broken off", "--use-empty"),
    ("lock and stage", "initialization_required", "left by an init that was broken off", "--use-empty"),
    ("lock among others", "initialization_required", "(.tay-owner.lock, README.md)", "name a store's root"),
]  # fmt: skip


@pytest.mark.parametrize(("what", "name", "found", "advice"), PLACES, ids=[place[0] for place in PLACES])
def test_what_lies_where_a_store_was_asked_for_is_said(
    base: str, what: str, name: str, found: str, advice: str
) -> None:
    path = make(base, what)
    write = ("--durability", "write")
    for words in (
        ("inspect", path),
        ("verify", path),
        ("compact", path, *write),
        ("salvage", path, f"{base}/new", *write),
        ("backup", path, f"{base}/new", f"{base}/new.json", *write),
    ):
        code, report = run_json(*words)
        assert (code, report["ok"]) == (1, False)
        if words[0] != "backup":  # it looks at less
            assert report["refusal"] == name
        assert found.format(base=base) in report["details"][0]
        assert advice.format(base=base) in report["message"]
        assert not os.path.exists(f"{base}/new")


@pytest.mark.parametrize(
    ("what", "name", "found"),
    [
        ("file", "enotdir", "a file of 2 bytes"),
        ("empty", "already_initialized", "an empty directory"),
        ("git", "already_initialized", "a git checkout"),
        ("above", "already_initialized", "the directory above a store"),
        ("v1 with lock", "already_initialized", "a Store-v1 root"),
        ("lock alone", "already_initialized", "left by an init that was broken off"),
    ],
)
def test_init_says_what_is_in_its_way(base: str, what: str, name: str, found: str) -> None:
    code, report = run_json("init", make(base, what), "--durability", "write")
    assert (code, report["refusal"]) == (1, name)
    assert found in report["details"][0]


def test_init_on_a_store_says_so(base: str) -> None:
    code, report = run_json("init", init(base), "--durability", "write")
    assert (code, report["refusal"], report["details"]) == (1, "already_initialized", ["a store"])
    assert "nothing was changed" in report["message"]


def test_a_store_without_its_lock_is_told_from_no_store(base: str) -> None:
    path = init(base)
    os.unlink(f"{path}/.tay-owner.lock")
    code, report = run_json("verify", path)
    assert (code, report["refusal"], report["details"]) == (
        1,
        MISSING,
        ["a store without its .tay-owner.lock"],
    )


def test_a_link_on_the_way_is_named(base: str) -> None:
    path = init(base)
    os.symlink(base, f"{base}/link")
    code, report = run_json("verify", f"{base}/link/store")
    assert (code, report["kind"]) == (1, "ownership_unavailable")
    assert f"{base}/link is a symbolic link" in report["message"]
    assert f"name {path}" in report["message"]


def test_names_that_could_steer_a_terminal_are_escaped(base: str) -> None:
    (Path(base) / "\x1b[31mred\udcff").mkdir()
    _, report = run_json("verify", base)
    report["message"].encode("ascii")
    assert "\x1b" not in report["message"]


def test_what_this_user_may_not_read_is_named(base: str) -> None:
    """The store, a directory above it, and single files of it; the rights are really given up."""
    store, hidden = init(base), init(base, "hidden/store")
    os.chmod(f"{base}/hidden", 0o700 if os.geteuid() == 0 else 0)
    os.chmod(store, 0o755)
    os.chmod(f"{store}/.tay-owner.lock", 0o600 if os.geteuid() == 0 else 0)
    (denied_lock, denied_root, denied_init) = as_nobody(
        f"{base}/none", f"verify|{store}", f"verify|{hidden}", f"init|{base}/hidden/new|--durability|write"
    )
    for (code, report), path in (
        (denied_lock, f"{store}/.tay-owner.lock"),
        (denied_root, f"{base}/hidden"),
        (denied_init, f"{base}/hidden"),
    ):
        assert (code, report["refusal"]) == (1, "eacces")
        assert f"may not read {path}, which belongs to user {os.geteuid()} with mode" in report["message"]
        assert "as the user that runs the workers" in report["message"]


@pytest.mark.parametrize("name", ["STORE-V2", "CURRENT", "epochs/e-*/MANIFEST", "epochs/e-*/segments/*.tay"])
def test_a_file_this_user_may_not_read_is_not_taken_for_damage(base: str, name: str) -> None:
    store = Path(init(base))
    open_up(store)
    os.chmod(next(store.glob(name)), 0o600 if os.geteuid() == 0 else 0)
    for code, report in as_nobody(
        f"{base}/none", f"verify|{store}", f"salvage|{store}|{base}/saved|--durability|write"
    ):
        assert (code, report["refusal"], report["kind"]) == (1, "eacces", "io")
        assert report["path"] == str(next(store.glob(name)))
        assert "may not read" in report["message"]


def test_directories_that_may_only_be_passed_through_are_no_hindrance(base: str) -> None:
    """A home directory is often one: only the store's own directory and its parent are read."""
    root = os.geteuid() == 0
    store = Path(init(base, "home/shop/store"))
    open_up(store)
    if root:
        os.chown(store.parent, NOBODY, NOBODY)
    os.chmod(f"{base}/home", 0o711 if root else 0o311)
    asked = as_nobody(f"{base}/none", f"verify|{store}", f"init|{base}/home/shop/more/new|--durability|write")
    assert [(code, report["ok"]) for code, report in asked] == [(0, True), (0, True)], asked


def open_up(store: Path) -> None:
    for path in (store, *store.rglob("*")):
        path.chmod(0o755 if path.is_dir() else 0o644)
