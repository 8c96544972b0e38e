"""Refusals that need a forged file, a full counter or a moment's bad luck."""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
import struct
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from crc32c import crc32c

from django_belay.exceptions import JournalError, JournalFull
from django_belay.storage.journal.files import base as base_module
from django_belay.storage.journal.files import catalog as catalog_module
from django_belay.storage.journal.files import compaction as compaction_module
from django_belay.storage.journal.files import copy as copy_module
from django_belay.storage.journal.files import delta as delta_module
from django_belay.storage.journal.files import fail, layout, scribe
from django_belay.storage.journal.files import tail as tail_module
from django_belay.storage.journal.files.base import BaseWriter
from django_belay.storage.journal.files.catalog import decode_catalog
from django_belay.storage.journal.files.compaction import compact
from django_belay.storage.journal.files.copy import CopyOptions, backup, restore
from django_belay.storage.journal.files.disk import Directory
from django_belay.storage.journal.files.filesystem import Room
from django_belay.storage.journal.files.initialise import initialise
from django_belay.storage.journal.files.inspection import inspect
from django_belay.storage.journal.files.journal import Journal, JournalOptions, open_journal
from django_belay.storage.journal.files.tail import Position, next_position
from django_belay.storage.journal.format import scan as scan_module
from django_belay.storage.journal.format.describe import describe
from django_belay.storage.journal.format.event_v1 import Cancelled
from django_belay.storage.journal.format.extension import Operation, encode_body
from django_belay.storage.journal.format.manifest import INFINITY, Retention, decode_manifest, encode_manifest
from django_belay.storage.journal.format.metadata import decode_current, encode_current
from django_belay.storage.journal.format.mutation import decode_mutation
from django_belay.storage.journal.format.record import frame
from django_belay.storage.journal.format.scan import SegmentScan
from django_belay.storage.journal.format.segment import SegmentHeader, encode_header
from django_belay.storage.journal.format.snapshot import decode_snapshot
from django_belay.storage.journal.state.rows import columns_of, stated_columns
from django_belay.storage.journal.state.store_state import StoreState
from tests.crash.power_cut import Recorder

from . import by_hand
from .fixtures import JOB, STORE, T, _metadata, snapshot
from .history import History
from .refusals import reason, refused

OPTIONS = JournalOptions(durability="write", writer="inline", rotation_target_bytes=4096, reserve_bytes=0)
FAST = CopyOptions(durability="write")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    path = Path(os.path.realpath(tmp_path)) / "store"
    initialise(str(path), now_ms=1, retention=INFINITY, durability="write")
    return path


def filled(root: Path, records: int = 30, **options: Any) -> Journal:
    history = History(seed=3)
    journal = open_journal(str(root), OPTIONS)
    for _ in range(records):
        journal.append([history.draw(journal.state)])
    if not options:
        return journal
    journal.close()
    return open_journal(str(root), replace(OPTIONS, **options))


def segments(root: Path) -> list[Path]:
    return sorted(root.glob("epochs/e-*/segments/*.tay"))


def repoint(root: Path, **changes: Any) -> None:
    file = next(root.glob("epochs/e-*/MANIFEST"))
    data = encode_manifest(replace(decode_manifest(file.read_bytes()), **changes))
    file.write_bytes(data)
    current = decode_current((root / "CURRENT").read_bytes())
    (root / "CURRENT").write_bytes(
        encode_current(replace(current, manifest_sha256=hashlib.sha256(data).digest()))
    )


# -- format -------------------------------------------------------------------


def test_fixed_blocks_with_more_or_with_no_owner() -> None:
    header = by_hand.header(1, 1, STORE)
    record = by_hand.record(1, 1, 1, b"")
    footer = by_hand.footer(1, 1, 1, STORE, header + record)
    error = refused(scan, header + record + footer + b"x")
    assert (error.refusal, error.details[0]) == ("corrupt_footer", "trailing_footer_bytes")
    error = refused(scan, by_hand.header(1, 1, bytes(16)))
    assert (error.refusal, error.details[0]) == ("corrupt_segment_header", "invalid_store_id")


def scan(data: bytes) -> None:
    walk = SegmentScan(
        lambda at, size: data[at : at + size], len(data), expected_id=1, expected_store=None, highest=True
    )
    for _ in walk:
        continue


def test_sizes_and_counts_beyond_the_format(monkeypatch: pytest.MonkeyPatch) -> None:
    data = by_hand.header(1, 1, STORE) + frame(8, 1, 1, b"a") + frame(8, 1, 2, b"b")
    monkeypatch.setattr(scan_module, "MAX_ACTIVE_BYTES", len(data) - 1)
    assert reason(scan, data) == "active_size_exceeds_format"
    monkeypatch.setattr(scan_module, "MAX_SEGMENT_RECORDS", 1)
    assert reason(scan, data) == "record_count_exceeds_format"
    monkeypatch.setattr(scan_module, "MAX_SEALED_BYTES", len(data) - 1)
    assert refused(scan, data).details == ("segment_size_exceeds_format",)


@pytest.mark.parametrize(
    ("first", "last", "count", "detail"),
    [
        (1, 0, 1, "invalid_last_sequence"),
        (1, 1, 0, "invalid_record_count"),
        (1, 1, 38_347_919, "invalid_record_count"),
        (1, 9, 1, "count_sequence_relation"),
        (0, 1, 1, "invalid_first_sequence"),
    ],
)
def test_footer_fields_out_of_range(first: int, last: int, count: int, detail: str) -> None:
    data = by_hand.header(1, 1, STORE) + frame(8, 1, 1, b"a")
    body = struct.pack(">4sBBHQQQQ16sI", b"TAYF", 1, 0, 0, 1, first, last, count, STORE, crc32c(data))
    error = refused(scan, data + body + struct.pack(">I", crc32c(body)))
    assert (error.refusal, error.details[0]) == ("corrupt_footer", detail)


MANIFEST = by_hand.read_value(_metadata()["metadata-manifest-later"][12:-4])
BASE = MANIFEST["base_segments"][0]


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        ({"zzz": 1}, "manifest_keys"),
        ({"base_segments": [{**BASE, "x": 1}]}, "manifest_entries"),
        ({"base_segments": {}}, "manifest_entries"),
        ({"source_segments": [{"id": 1}]}, "manifest_entries"),
        ({"tail_segment_id": None}, "manifest_fields"),
        ({"tail_first_sequence": 0}, "manifest_fields"),
        ({"epoch_id": bytes(16)}, "manifest_id"),
        ({"store_id": "s"}, "manifest_id"),
        ({"source_epoch_id": bytes(16)}, "source_epoch"),
        ({"source_epoch_id": 0}, "source_epoch"),
        ({"source_frontier": -1}, "source_frontier"),
        ({"availability_frontier": 1.0}, "availability_frontier"),
        ({"captured_at": 2**63}, "captured_at"),
        ({"terminal_retention": {"days": 1}}, "terminal_retention"),
        ({"terminal_retention": {"minutes": 153_722_867_280_913}}, "terminal_retention"),
        ({"source_segments": [{"id": 2, "digest": bytes(32)}]}, "source_segments"),
        ({"source_segments": [{"id": 1, "digest": bytes(31)}]}, "source_segments"),
        ({"base_segments": [{**BASE, "id": 1.0}]}, "base_segments"),
        ({"base_segments": [{**BASE, "bytes": 63}]}, "base_segments"),
        ({"base_segments": [{**BASE, "first_sequence": 2}]}, "base_segments"),
        ({"tail_segment_id": 3}, "base_segments"),
        ({"tail_first_sequence": 5}, "base_segments"),
    ],
)
def test_manifest_refusals(changes: dict[str, Any], name: str) -> None:
    assert reason(decode_manifest, by_hand.manifest({**MANIFEST, **changes})) == name


@pytest.mark.parametrize(
    "retention",
    [
        "infinity",
        {"hours": 0},
        {"minutes": 1},
        {"minutes": 153_722_867_280_912},
        {"hours": 2_562_047_788_015},
    ],
)
def test_every_retention_is_read(retention: Any) -> None:
    decode_manifest(by_hand.manifest({**MANIFEST, "terminal_retention": retention}))


def test_payloads_beyond_the_format() -> None:
    assert reason(decode_mutation, bytes(16_777_217)) == "payload_too_large"
    assert reason(decode_snapshot, bytes(16_777_217)) == "payload_too_large"
    assert reason(encode_body, "x" * 8_388_608) == "extension_body_too_large"
    assert reason(describe, "nonsense", b"") == reason(describe, "event:1:x", b"") == "unknown_kind"


# -- state -------------------------------------------------------------------


def test_a_revision_that_cannot_grow() -> None:
    state = StoreState()
    state.apply_base(
        decode_snapshot(
            snapshot(
                2**64 - 1, 1, None, state="available", availability_order=1, eligible_at=T, next_attempt=1
            )
        )
    )
    event = Cancelled(job_id=JOB, expected_revision=2**64 - 1, at=T, execution_token=None)
    assert reason(state.apply, event) == "logical_revision_exhausted"


def test_a_trail_that_leads_elsewhere() -> None:
    item = Operation(at=1, client="c", effects=encode_body({}), op="x", request=1)
    assert reason(columns_of, stated_columns(item), b"j" * 16) == "trail_mismatch"


# -- opening -------------------------------------------------------------------


def test_manifest_of_another_epoch(root: Path) -> None:
    repoint(root, epoch_id=b"x" * 16)
    assert reason(inspect, str(root)) == "epoch_mismatch"


def test_base_that_is_not_what_the_manifest_lists(root: Path) -> None:
    with filled(root) as journal:
        compact(journal, now_ms=1, retention=INFINITY)
        manifest = journal.recovered.manifest
    last = manifest.base_segments[-1]
    longer = (*manifest.base_segments[:-1], replace(last, last_sequence=last.last_sequence + 1))
    repoint(root, base_segments=longer, tail_first_sequence=manifest.tail_first_sequence + 1)
    assert reason(inspect, str(root)) == "base_inventory"


def test_tail_that_begins_elsewhere(root: Path) -> None:
    file = segments(root)[0]
    store = decode_current((root / "CURRENT").read_bytes()).store_id
    file.write_bytes(encode_header(SegmentHeader(segment_id=1, first_sequence=9, store_id=store)))
    error = refused(inspect, str(root))
    assert (error.refusal, error.details) == ("tail_frontier", (1, 9))
    file.write_bytes(file.read_bytes() + frame(8, 1, 9, b""))
    error = refused(inspect, str(root))
    assert (error.refusal, error.offset) == ("physical_sequence", 44)


def test_file_system_without_the_rename_it_needs(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scribe, "rename_noreplace", lambda *names: None)
    assert reason(open_journal, str(root), OPTIONS) == "rename_noreplace_unsupported"


# -- writing -------------------------------------------------------------------


def test_exhausted_counters_and_oversized_records(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    at = Position(2**64 - 1, 4000, 1, 10)
    assert reason(next_position, at, 500, 4096) == "segment_id_exhausted"
    with filled(root, 1) as journal:
        planned = journal.tail.planned
        journal.tail.planned = planned._replace(next_sequence=2**64)
        assert reason(journal.tail.plan, [(8, 1, b"")], []) == "sequence_exhausted"
        journal.tail.planned = planned
        monkeypatch.setattr(tail_module, "MAX_SEALED_BYTES", 100)
        assert reason(next_position, Position(1, 44, 1, 1), 500, 4096) == "record_exceeds_segment"
        monkeypatch.setattr(base_module, "MAX_SEALED_BYTES", 100)
        epochs = journal.recovered.authority.epochs
        writer = BaseWriter(epochs, STORE, target=4096, room=Room(epochs, 0))
        assert reason(writer.add, 7, 1, bytes(100)) == "snapshot_exceeds_segment"


def test_segment_changed_under_its_writer(root: Path) -> None:
    journal = filled(root, 3)
    file = segments(root)[-1]
    data = bytearray(file.read_bytes())
    data[60] ^= 1
    file.write_bytes(data)
    assert reason(journal.tail.rotate) == "writer_state_mismatch"
    assert reason(journal.tail.rotate) == "poisoned"
    journal.close()


def test_segment_grown_under_its_writer(root: Path) -> None:
    journal = filled(root, 3)
    with segments(root)[-1].open("ab") as file:
        file.write(b"x")
    assert reason(journal.append, [History(seed=50).draw(journal.state)]) == "write_mismatch"
    journal.close()


def test_successor_that_is_there_already(root: Path) -> None:
    journal = filled(root, 3)
    following = journal.tail.written.segment_id + 1
    (segments(root)[0].parent / f"{following:020d}.tay").touch()
    assert reason(journal.tail.rotate) == "successor_mismatch"
    journal.close()


def test_closed_journal_admits_nothing(root: Path) -> None:
    journal = filled(root, 1)
    journal.close()
    journal.close()
    assert reason(journal.submit, []) == "mutation_not_admitted"


# -- compaction -------------------------------------------------------------------


def test_one_compaction_at_a_time(root: Path) -> None:
    with filled(root, 5) as journal:
        seen = []

        def pace(done: int) -> None:
            seen.append(reason(compact, journal, now_ms=1, retention=INFINITY))

        compact(journal, now_ms=1, retention=INFINITY, pace=pace)
    assert set(seen) == {"compaction_not_admitted"}


@pytest.mark.parametrize(
    ("options", "name"),
    [({"is_cancelled": lambda: True}, "compaction_cancelled"), ({"deadline_s": -1.0}, "compaction_deadline")],
)
def test_compaction_may_be_called_off(root: Path, options: dict[str, Any], name: str) -> None:
    with filled(root, 20) as journal:
        assert reason(compact, journal, now_ms=1, retention=INFINITY, **options) == name
        assert len(os.listdir(root / "epochs")) == 1
        journal.append([History(seed=41).draw(journal.state)])


def test_no_headroom_gives_up_and_goes_on(root: Path) -> None:
    with filled(root, 20, reserve_bytes=1 << 60) as journal:
        assert reason(compact, journal, now_ms=1, retention=INFINITY) == "insufficient_headroom"
        assert len(os.listdir(root / "epochs")) == 1
        with pytest.raises(JournalFull):
            journal.append([History(seed=9).draw(journal.state)])


def test_delta_too_large_for_a_segment(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delta_module, "MAX_ACTIVE_BYTES", 500)
    history = History(seed=21)
    with filled(root, 20) as journal:

        def pace(done: int) -> None:
            journal.append([history.draw(journal.state)])

        assert reason(compact, journal, now_ms=1, retention=INFINITY, pace=pace) == "online_delta_too_large"
        journal.append([history.draw(journal.state)])
        assert len(os.listdir(root / "epochs")) == 1


def test_finished_row_without_its_time_stops_a_bounded_compaction(root: Path) -> None:
    effects = encode_body({"jobs": {"07" * 16: {"revision": 1, "set": {"state": "failed"}}}})
    with filled(root, 2) as journal:
        journal.append([Operation(at=1, client="c", effects=effects, op="insert", request=1)])
        hours = Retention(unit="hours", amount=1)
        assert reason(compact, journal, now_ms=T, retention=hours) == "retention_timestamp_unavailable"
        compact(journal, now_ms=T, retention=INFINITY)


def test_missing_source_segments(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with filled(root, 20) as journal:
        with monkeypatch.context() as patch:
            patch.setattr(layout, "list_segments", lambda segments: [])
            assert reason(compact, journal, now_ms=1, retention=INFINITY) == "source_segments_missing"
        journal.append([History(seed=31).draw(journal.state)])


@pytest.mark.parametrize("damaged", ["renamed_candidate_mismatch", "published_candidate_mismatch"])
def test_base_damaged_after_it_was_checked(root: Path, monkeypatch: pytest.MonkeyPatch, damaged: str) -> None:
    real = compaction_module._check_digests

    def spoil(segments: Directory, build: Any, name: str) -> None:
        if name == damaged:
            file = Path(f"/proc/self/fd/{segments.fd}/00000000000000000001.tay")
            data = bytearray(file.read_bytes())
            data[100] ^= 1
            file.write_bytes(data)
        real(segments, build, name)

    monkeypatch.setattr(compaction_module, "_check_digests", spoil)
    journal = filled(root, 20)
    assert reason(compact, journal, now_ms=1, retention=INFINITY) == damaged
    assert journal.tail.poisoned
    journal.close()


def test_pointer_changed_by_somebody_else(root: Path) -> None:
    journal = filled(root, 20)
    other = root / "CURRENT"

    def pace(done: int) -> None:
        data = bytearray(other.read_bytes())
        data[30] = 7
        other.write_bytes(data)

    assert reason(compact, journal, now_ms=1, retention=INFINITY, pace=pace) == "source_current_changed"
    assert journal.tail.poisoned
    journal.close()


@pytest.mark.parametrize("point", ["compact.current.rename", "compact.current.fsync_dir"])
def test_unknown_outcome_is_settled_by_opening_again(root: Path, point: str) -> None:
    journal = filled(root, 20)
    want = journal.state.count_states()
    count = Recorder()
    shutil.copytree(root, root.with_name("trial"))
    with open_journal(str(root.with_name("trial")), OPTIONS) as trial, fail.arm(count):
        compact(trial, now_ms=1, retention=INFINITY)
    at = count.points.index(point)
    with fail.arm(Recorder(OSError(errno.EIO, "injected"), at)):
        assert reason(compact, journal, now_ms=1, retention=INFINITY) == "unknown_publication_outcome"
    assert reason(journal.submit, []) in ("mutation_not_admitted", "poisoned")
    journal.close()
    with open_journal(str(root), OPTIONS) as again:
        assert again.state.count_states() == want


# -- copies -------------------------------------------------------------------


@pytest.mark.parametrize(
    "data",
    [b"", b"[]", b"{}", b'{"version":2}', b"[" * 100_000, b'{"version":1,"files":[]}'],
)
def test_catalogs_that_are_none(data: bytes) -> None:
    assert reason(decode_catalog, data) == "invalid_catalog"


def test_catalog_beyond_its_budget(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    there = root.parent
    backup(str(root), f"{there}/copy", f"{there}/c.json", FAST)
    monkeypatch.setattr(catalog_module, "MAX_BYTES", 10)
    error = refused(restore, f"{there}/copy", f"{there}/b", f"{there}/b.json", f"{there}/c.json", FAST)
    assert (error.refusal, error.path) == ("catalog_budget", f"{there}/c.json")


def test_sources_that_are_not_whole(root: Path) -> None:
    there = root.parent
    (root / "a\nb").touch()
    assert reason(backup, str(root), f"{there}/c", f"{there}/c.json", FAST) == "unsafe_name"
    (root / "a\nb").unlink()
    (root / "link").symlink_to("CURRENT")
    assert reason(backup, str(root), f"{there}/c", f"{there}/c.json", FAST) == "unsafe_file"
    (root / "link").unlink()
    segments(root)[0].unlink()
    assert reason(backup, str(root), f"{there}/c", f"{there}/c.json", FAST) == "missing_history"
    assert not (there / "c").exists()


def test_source_that_changes_while_it_is_copied(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    there, real = root.parent, copy_module._copy_tree

    def change(*args: Any, **options: Any) -> None:
        real(*args, **options)
        (root / "late").touch()

    monkeypatch.setattr(copy_module, "_copy_tree", change)
    assert reason(backup, str(root), f"{there}/c", f"{there}/c.json", FAST) == "source_changed"
    assert not (there / "c.json").exists()


def test_refusals_say_what_to_do(root: Path) -> None:
    with pytest.raises(JournalError) as caught:
        raise refused(inspect, f"{root}/none")
    assert "check the path" in str(caught.value)
