"""Backup, restore and salvage: what comes out opens, and nothing that went in is changed."""

from __future__ import annotations

import errno
import json
import os
import shutil
from pathlib import Path

import pytest

from django_belay.exceptions import JournalError, UnsupportedFormat
from django_belay.storage.journal.files import disk
from django_belay.storage.journal.files.compaction import compact
from django_belay.storage.journal.files.copy import CopyOptions, backup, restore
from django_belay.storage.journal.files.initialise import initialise
from django_belay.storage.journal.files.inspection import inspect, verify
from django_belay.storage.journal.files.journal import JournalOptions, open_journal
from django_belay.storage.journal.files.ownership import acquire
from django_belay.storage.journal.files.recovery import recover
from django_belay.storage.journal.files.salvage import salvage
from django_belay.storage.journal.format.extension import Frame, Operation, encode_body
from django_belay.storage.journal.format.manifest import INFINITY

from .by_hand import crc
from .history import History, view

OPTIONS = JournalOptions(durability="write", writer="inline", rotation_target_bytes=4096, reserve_bytes=0)
FAST = CopyOptions(durability="write")


@pytest.fixture
def base(tmp_path: Path) -> str:
    return os.path.realpath(tmp_path)


@pytest.fixture
def root(base: str) -> str:
    """A store with a base, several tail segments and an active one."""
    path = os.path.join(base, "store")
    initialise(path, now_ms=1_000, retention=INFINITY, durability="write")
    history = History(seed=1)
    with open_journal(path, OPTIONS) as journal:
        for _ in range(150):
            journal.append([history.draw(journal.state)])
        compact(journal, now_ms=history.now, retention=INFINITY)
        for _ in range(80):
            journal.append([history.draw(journal.state)])
    return path


def tree(path: str) -> dict[str, bytes]:
    return {str(f.relative_to(path)): f.read_bytes() for f in Path(path).rglob("*") if f.is_file()}


def seen(path: str) -> dict[str, object]:
    with acquire(path) as ownership:
        recovered = recover(ownership)
        found = view(recovered.state)
        recovered.close()
    return found


def tail_file(path: str) -> Path:
    return sorted(Path(path).glob("epochs/e-*/segments/*.tay"))[-1]


def refusal(call: object, *args: object, **kwargs: object) -> str:
    with pytest.raises(JournalError) as caught:
        call(*args, **kwargs)  # type: ignore[operator]
    return caught.value.refusal


def test_backup_and_restore_give_the_same_store(root: str, base: str) -> None:
    report = backup(root, f"{base}/copy", f"{base}/copy.json", FAST)
    assert tree(f"{base}/copy") == tree(root)
    assert report.files == len(tree(root))
    restore(f"{base}/copy", f"{base}/again", f"{base}/again.json", f"{base}/copy.json", FAST)
    assert seen(f"{base}/again") == seen(root)
    catalog = json.loads(Path(f"{base}/copy.json").read_text())
    assert catalog["version"] == 1
    assert set(catalog["files"]) == set(tree(root))


def test_restore_refuses_a_copy_that_does_not_match_its_catalog(root: str, base: str) -> None:
    backup(root, f"{base}/copy", f"{base}/copy.json", FAST)
    with tail_file(f"{base}/copy").open("ab") as file:
        file.write(b"x")
    reason = refusal(restore, f"{base}/copy", f"{base}/b", f"{base}/b.json", f"{base}/copy.json", FAST)
    assert reason == "archive_checksum_mismatch"
    assert not os.path.exists(f"{base}/b")


@pytest.mark.parametrize(
    ("destination", "catalog", "reason"),
    [
        ("{base}/store/in", "{base}/c.json", "overlapping_paths"),
        ("{base}/copy", "{base}/store/c.json", "catalog_must_be_external"),
        ("{base}/copy", "{base}/copy/c.json", "catalog_must_be_external"),
        ("{base}/../x/copy", "{base}/c.json", "unsafe_path"),
        ("copy", "{base}/c.json", "unsafe_path"),
        ("{base}", "{base}/c.json", "overlapping_paths"),
        ("{base}/taken", "{base}/c.json", "destination_exists"),
    ],
)
def test_backup_refuses_unsafe_places(
    root: str, base: str, destination: str, catalog: str, reason: str
) -> None:
    os.mkdir(f"{base}/taken")
    assert refusal(backup, root, destination.format(base=base), catalog.format(base=base), FAST) == reason


def test_backup_refuses_an_owned_store_and_tiny_budgets(root: str, base: str) -> None:
    with open_journal(root, OPTIONS):
        assert refusal(backup, root, f"{base}/c", f"{base}/c.json", FAST) == "source_owned"
    small = CopyOptions(durability="write", max_files=3)
    assert refusal(backup, root, f"{base}/c", f"{base}/c.json", small) == "file_budget"
    small = CopyOptions(durability="write", max_bytes=1000)
    assert refusal(backup, root, f"{base}/c", f"{base}/c.json", small) == "byte_budget"
    assert refusal(restore, root, f"{base}/c", f"{base}/c.json", None, FAST) == "restore_catalog_required"


def test_inspection_counts_and_changes_nothing(root: str) -> None:
    before = tree(root)
    summary = inspect(root)
    assert summary.records == summary.next_sequence - 1
    assert summary.base_segments > 0
    assert verify(root)["ok"] is True
    assert tree(root) == before


@pytest.mark.parametrize("torn", [1, 5, 27, 40])
def test_torn_tail_is_refused_with_its_place_and_salvaged(root: str, base: str, torn: int) -> None:
    whole = inspect(root)
    file = tail_file(root)
    os.truncate(file, file.stat().st_size - torn)
    before = tree(root)
    report = verify(root)
    assert report["ok"] is False
    assert report["path"] == str(file)
    assert report["last_good_sequence"] < whole.records
    assert report["offset"] is not None
    saved = salvage(root, f"{base}/saved", durability="write")
    assert saved.summary.records == report["last_good_sequence"] == saved.last_good_sequence
    assert saved.bytes_behind == file.stat().st_size - report["offset"]
    assert saved.summary.store_id != whole.store_id
    assert tree(root) == before


def test_salvage_of_a_whole_store_keeps_everything(root: str, base: str) -> None:
    report = salvage(root, f"{base}/saved", durability="write")
    assert report.fault is None
    assert seen(f"{base}/saved") == seen(root)


def test_salvage_stops_at_a_flipped_bit_in_the_middle(root: str, base: str) -> None:
    files = sorted(Path(root).glob("epochs/e-*/segments/*.tay"))
    middle = files[-2]
    data = bytearray(middle.read_bytes())
    data[len(data) // 2] ^= 1
    middle.write_bytes(data)
    report = salvage(root, f"{base}/saved", durability="write")
    assert report.segments_behind == 1
    assert report.fault is not None
    assert report.summary.records == report.last_good_sequence
    open_journal(f"{base}/saved", OPTIONS).close()


def test_salvage_refuses_a_damaged_base(root: str, base: str) -> None:
    first = sorted(Path(root).glob("epochs/e-*/segments/*.tay"))[0]
    data = bytearray(first.read_bytes())
    data[100] ^= 1
    first.write_bytes(data)
    assert refusal(salvage, root, f"{base}/saved", durability="write") == "base_digest"
    assert not os.path.exists(f"{base}/saved")


def test_salvage_leaves_an_unfinished_frame_out(root: str, base: str) -> None:
    whole = seen(root)
    effects = encode_body({"tables": {"rate": {"a": {"n": 1}}}})
    with open_journal(root, OPTIONS) as journal:
        journal.append(
            [
                Frame(mark="begin", operation="big"),
                Operation(at=1, client="c", effects=effects, op="debit_rate", request=1),
            ]
        )
    report = salvage(root, f"{base}/saved", durability="write")
    assert report.frame_dropped
    assert not report.summary.open_frame
    assert seen(f"{base}/saved") == whole


def test_copies_of_the_lock_alone_are_not_a_store(base: str) -> None:
    os.mkdir(f"{base}/s")
    Path(f"{base}/s/.tay-owner.lock").touch()
    assert refusal(backup, f"{base}/s", f"{base}/c", f"{base}/c.json", FAST) == "missing_metadata"
    assert refusal(inspect, f"{base}/s") == "initialization_required"
    shutil.rmtree(f"{base}/s")
    assert refusal(inspect, f"{base}/s") == "existing_root_or_lock_missing"


@pytest.mark.parametrize(
    ("damage", "name"),
    [
        ("record version", "format"),
        ("record flags", "flags"),
        ("type", "record_profile"),
        ("schema", "payload_schema"),
        ("segment version", "unsupported_segment_version"),
        ("segment flags", "unsupported_segment_flags"),
    ],
)
@pytest.mark.parametrize("segment", [-2, -1], ids=["sealed", "active"])
def test_salvage_refuses_what_a_newer_version_wrote(
    root: str, base: str, damage: str, name: str, segment: int
) -> None:
    """Behind it lies history that may be whole: leaving it out would be a loss, not a rescue."""
    file = sorted(Path(root).glob("epochs/e-*/segments/*.tay"))[segment]
    data = file.read_bytes()
    newer = {
        "record version": lambda: data[:44] + rewritten(data[44:], version=2),
        "record flags": lambda: data[:44] + rewritten(data[44:], flags=1),
        "type": lambda: data[:44] + rewritten(data[44:], kind=200),
        "schema": lambda: data[:44] + rewritten(data[44:], schema=9),
        "segment version": lambda: data[:4] + b"\x02" + data[5:],
        "segment flags": lambda: with_crc(data[:5] + b"\x01" + data[6:40]) + data[44:],
    }[damage]()
    file.write_bytes(newer)
    before = tree(root)
    with pytest.raises(UnsupportedFormat) as caught:
        salvage(root, f"{base}/saved", durability="write")
    error = caught.value
    last_good = int.from_bytes(data[16:24], "big") - 1
    place = 0 if damage.startswith("segment") else 44
    assert (error.refusal, error.path, error.offset) == (name, str(file), place)
    assert error.last_good_sequence == last_good
    assert "the version that wrote it" in str(error)
    assert tree(root) == before
    assert not os.path.exists(f"{base}/saved")


def rewritten(
    records: bytes,
    *,
    version: int = 1,
    kind: int | None = None,
    flags: int = 0,
    schema: int | None = None,
) -> bytes:
    """The records with the first one's header changed and its checksums right."""
    size = int.from_bytes(records[16:20], "big")
    head = bytearray(records[:20])
    head[4], head[6] = version, flags
    head[5] = head[5] if kind is None else kind
    head[7] = head[7] if schema is None else schema
    payload = records[24 : 24 + size]
    whole = with_crc(bytes(head)) + payload + crc(bytes(head) + payload).to_bytes(4, "big")
    return whole + records[len(whole) :]


def with_crc(data: bytes) -> bytes:
    return data + crc(data).to_bytes(4, "big")


def test_salvage_names_the_file_it_could_not_read(
    root: str, base: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A failing disk is not damage: nothing is left out for it, and the path is the source's."""
    damaged = tail_file(root)
    original = disk.read_exactly
    held = os.stat(damaged)

    def failing(fd: int, offset: int, size: int) -> bytes:
        info = os.fstat(fd)
        if (info.st_dev, info.st_ino) == (held.st_dev, held.st_ino):
            raise OSError(errno.EIO, "injected")
        return original(fd, offset, size)

    monkeypatch.setattr(disk, "read_exactly", failing)
    with pytest.raises(JournalError) as caught:
        salvage(root, f"{base}/saved", durability="write")
    assert (caught.value.refusal, caught.value.path) == ("eio", str(damaged))
    assert not os.path.exists(f"{base}/saved")
