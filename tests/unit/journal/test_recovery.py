"""Opening a store: every refusal by its name, with its place, and never a byte changed."""

from __future__ import annotations

import hashlib
import os
import shutil
import socket
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from crc32c import crc32c

from django_belay.exceptions import CorruptRecord, JournalError, JournalLocked, UnsupportedFormat
from django_belay.storage.journal.files import layout
from django_belay.storage.journal.files.compaction import compact
from django_belay.storage.journal.files.initialise import initialise
from django_belay.storage.journal.files.journal import JournalOptions, activate, open_journal
from django_belay.storage.journal.files.ownership import acquire
from django_belay.storage.journal.files.recovery import ReadBudgets, recover
from django_belay.storage.journal.format.limits import ValueLimits
from django_belay.storage.journal.format.manifest import INFINITY, decode_manifest, encode_manifest
from django_belay.storage.journal.format.metadata import decode_current, encode_current

from .history import History
from .refusals import reason, refused

OPTIONS = JournalOptions(durability="write", writer="inline", rotation_target_bytes=4096, reserve_bytes=0)


class Store:
    """A store on disk and the paths into it."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.epoch = next((root / "epochs").glob("e-*"))
        self.segments = self.epoch / "segments"

    @property
    def files(self) -> list[Path]:
        return sorted(self.segments.glob("*.tay"))

    def patch(self, file: Path, at: int, data: bytes) -> None:
        content = bytearray(file.read_bytes())
        content[at : at + len(data) if at >= 0 else None] = data
        file.write_bytes(content)

    def flip(self, file: Path, at: int) -> None:
        """Change a byte, whatever it was: ids are random."""
        self.patch(file, at, bytes([file.read_bytes()[at] ^ 0xFF]))

    def reseal(self, file: Path) -> None:
        """Give a metadata file its checksum again."""
        data = file.read_bytes()[:-4]
        file.write_bytes(data + crc32c(data).to_bytes(4))

    def repoint(self, **changes: Any) -> None:
        """Change the manifest and let CURRENT name it."""
        manifest = replace(decode_manifest((self.epoch / "MANIFEST").read_bytes()), **changes)
        data = encode_manifest(manifest)
        (self.epoch / "MANIFEST").write_bytes(data)
        current = decode_current((self.root / "CURRENT").read_bytes())
        pointer = replace(current, manifest_sha256=hashlib.sha256(data).digest())
        (self.root / "CURRENT").write_bytes(encode_current(pointer))


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with two base segments or more, sealed tail segments and an active one."""
    path = Path(os.path.realpath(tmp_path_factory.mktemp("template"))) / "store"
    initialise(str(path), now_ms=1_000, retention=INFINITY, durability="write")
    history = History(seed=6)
    with open_journal(str(path), OPTIONS) as journal:
        for _ in range(120):
            journal.submit([history.draw(journal.state)])
        compact(journal, now_ms=history.now, retention=INFINITY)
        for _ in range(60):
            journal.submit([history.draw(journal.state)])
    return path


@pytest.fixture
def store(template: Path, tmp_path: Path) -> Store:
    root = Path(os.path.realpath(tmp_path)) / "store"
    shutil.copytree(template, root)
    return Store(root)


def read(store: Store, **budgets: Any) -> Any:
    with acquire(str(store.root)) as ownership:
        recovered = recover(ownership, ReadBudgets(**budgets))
        recovered.close()
    return recovered


def tail_first(store: Store) -> Path:
    manifest = decode_manifest((store.epoch / "MANIFEST").read_bytes())
    return store.files[manifest.tail_segment_id - 1]


def link(source: Path, name: str) -> None:
    os.link(source, source.with_name(name))


Damage = Callable[[Store], object]
CASES: dict[str, tuple[Damage, str]] = {
    "root segments": (lambda s: (s.root / "segments").mkdir(), "v2_root_has_v1_segments"),
    "no epochs": (lambda s: shutil.rmtree(s.root / "epochs"), "epochs_missing"),
    "no marker": (lambda s: (s.root / "STORE-V2").unlink(), "authority_metadata_missing"),
    "no current": (lambda s: (s.root / "CURRENT").unlink(), "authority_metadata_missing"),
    "linked current": (lambda s: link(s.root / "CURRENT", "other"), "authority_metadata_missing"),
    "symlink in root": (lambda s: (s.root / "note").symlink_to("x"), "unsupported_root_entry"),
    "fifo in root": (lambda s: os.mkfifo(s.root / "pipe"), "unsupported_root_entry"),
    "folder in root": (lambda s: (s.root / "extra").mkdir(), "unexpected_root_directory"),
    "empty marker": (lambda s: (s.root / "STORE-V2").write_bytes(b""), "metadata_missing_or_invalid"),
    "long current": (lambda s: (s.root / "CURRENT").write_bytes(bytes(77)), "metadata_missing_or_invalid"),
    "short current": (lambda s: (s.root / "CURRENT").write_bytes(bytes(75)), "metadata_length"),
    "marker bit": (lambda s: s.flip(s.root / "STORE-V2", 9), "metadata_checksum"),
    "marker version": (lambda s: (s.patch(s.root / "STORE-V2", 4, b"\x02"), s.reseal(s.root / "STORE-V2")), "marker_format"),
    "current version": (lambda s: (s.patch(s.root / "CURRENT", 4, b"\x02"), s.reseal(s.root / "CURRENT")), "current_format"),
    "zero epoch": (lambda s: (s.patch(s.root / "CURRENT", 24, bytes(16)), s.reseal(s.root / "CURRENT")), "current_fields"),
    "zero store": (lambda s: (s.patch(s.root / "STORE-V2", 8, bytes(16)), s.reseal(s.root / "STORE-V2")), "store_id"),
    "other marker": (lambda s: (s.flip(s.root / "STORE-V2", 8), s.reseal(s.root / "STORE-V2")), "store_id_mismatch"),
    "no epoch": (lambda s: shutil.rmtree(s.epoch), "enoent"),
    "epoch a link": (lambda s: (s.epoch.rename(s.epoch.with_name("x")), s.epoch.symlink_to("x")), "enotdir"),
    "extra in epoch": (lambda s: (s.epoch / "NOTES").touch(), "unexpected_epoch_topology"),
    "many in epoch": (lambda s: [(s.epoch / f"n{i}").touch() for i in range(20)], "unexpected_epoch_topology"),
    "linked manifest": (lambda s: os.link(s.epoch / "MANIFEST", s.root / "m"), "unexpected_epoch_topology"),
    "manifest bit": (lambda s: s.flip(s.epoch / "MANIFEST", 30), "metadata_checksum"),
    "manifest version": (lambda s: (s.patch(s.epoch / "MANIFEST", 4, b"\x02"), s.reseal(s.epoch / "MANIFEST")), "manifest_format"),
    "manifest length": (lambda s: (s.patch(s.epoch / "MANIFEST", 11, b"\x01"), s.reseal(s.epoch / "MANIFEST")), "manifest_length"),
    "other manifest": (lambda s: replace_manifest(s), "manifest_digest"),
    "no tail": (lambda s: [f.unlink() for f in s.files[len(bases(s)):]], "tail_missing"),
    "gap": (lambda s: s.files[-2].unlink(), "noncontiguous_ids"),
    "empty segment": (lambda s: s.files[-1].write_bytes(b""), "zero_byte_segment"),
    "segment a link": (lambda s: (s.segments / "x").symlink_to("y"), "unsupported_entry_type"),
    "segment linked": (lambda s: link(s.files[-1], "copy"), "hard_link"),
    "odd name": (lambda s: (s.segments / "1.TAY").touch(), "malformed_segment_name"),
    "folder in segments": (lambda s: (s.segments / "sub").mkdir(), "unexpected_directory"),
    "file in segments": (lambda s: (s.segments / "note").touch(), "unexpected_epoch_segment_entry"),
    "odd stage": (lambda s: (s.segments / ".tay-new-1.tmp").touch(), "invalid_staging_file"),
    "large stage": (lambda s: (s.segments / stage(1)).write_bytes(bytes(45)), "invalid_staging_file"),
    "stage of id 0": (lambda s: (s.segments / stage(0)).touch(), "invalid_staging_file"),
    "not utf-8": (lambda s: os.close(os.open(os.fsencode(s.segments) + b"/\xff", os.O_CREAT)), "invalid_name_encoding"),
    "base size": (lambda s: os.truncate(s.files[0], s.files[0].stat().st_size - 1), "base_size"),
    "base bit": (lambda s: s.flip(s.files[0], 60), "base_digest"),
    "earlier unsealed": (lambda s: os.truncate(tail_first(s), tail_first(s).stat().st_size - 64), "sealed_history_error"),
    "torn": (lambda s: os.truncate(s.files[-1], s.files[-1].stat().st_size - 3), "incomplete_record"),
    "torn header": (lambda s: os.truncate(s.files[-1], 20), "incomplete_segment_header"),
    "record bit": (lambda s: s.flip(s.files[-1], 44 + 30), "record_checksum"),
    "wrong first": (lambda s: s.repoint(base_segments=(), tail_segment_id=1, tail_first_sequence=1), "record_profile"),
}  # fmt: skip


def bases(store: Store) -> tuple[Any, ...]:
    return decode_manifest((store.epoch / "MANIFEST").read_bytes()).base_segments


def replace_manifest(store: Store) -> None:
    manifest = decode_manifest((store.epoch / "MANIFEST").read_bytes())
    (store.epoch / "MANIFEST").write_bytes(encode_manifest(replace(manifest, captured_at=5)))


def stage(segment_id: int) -> str:
    return f".tay-new-{segment_id:020d}-{'a' * 32}.tmp"


@pytest.mark.parametrize("name", sorted(CASES))
def test_damage_is_refused_by_its_name(store: Store, name: str) -> None:
    damage, want = CASES[name]
    damage(store)
    before = fingerprint(store.root)
    error = refused(read, store)
    assert error.refusal == want
    assert error.path is not None
    assert str(store.root) in error.path
    assert want in str(error)
    assert fingerprint(store.root) == before


def fingerprint(root: Path) -> list[tuple[str, int, bytes]]:
    found = []
    for folder, _, names in os.walk(os.fsencode(root)):
        for name in names:
            path = os.path.join(folder, name)
            info = os.lstat(path)
            data = (
                Path(os.fsdecode(path)).read_bytes()
                if os.path.isfile(path) and not os.path.islink(path)
                else b""
            )
            found.append((os.fsdecode(path), info.st_mode, data))
    return sorted(found)


def test_corruption_in_the_tail_names_offset_and_last_good_sequence(store: Store) -> None:
    whole = read(store)
    file = store.files[-1]
    os.truncate(file, file.stat().st_size - 1)
    error = refused(read, store)
    assert isinstance(error, CorruptRecord)
    assert error.kind == "incomplete_tail"
    assert error.path == str(file)
    assert error.last_good_sequence == whole.next_sequence - 2
    assert error.offset is not None
    assert file.read_bytes()[error.offset : error.offset + 4] == b"TAY\x00"
    assert f"at byte {error.offset}" in str(error)
    assert "salvage" in str(error)


def test_what_is_tolerated_stays_untouched(store: Store) -> None:
    (store.segments / stage(99)).write_bytes(bytes(44))
    (store.root / ".tay-current-x.tmp").write_bytes(bytes(500))
    (store.root / "STORE").write_bytes(b"junk")
    (store.root / "epochs" / ".tay-candidate-leftover.tmp").mkdir()
    (store.root / "epochs" / "e-stray").mkdir()
    before = fingerprint(store.root)
    read(store)
    open_journal(str(store.root), OPTIONS).close()
    assert fingerprint(store.root) == before


def test_store_v1_is_recognised_and_refused_with_the_way_on(tmp_path: Path) -> None:
    root = Path(os.path.realpath(tmp_path)) / "old"
    (root / "segments").mkdir(parents=True)
    (root / "STORE").write_bytes(b"TAYI")
    (root / ".tay-owner.lock").touch()
    with acquire(str(root)) as ownership:
        error = refused(recover, ownership)
    assert isinstance(error, UnsupportedFormat)
    assert error.refusal == "store_v1_unsupported"
    assert "Tay 1.4.x" in str(error)


@pytest.mark.parametrize(
    ("budgets", "detail"),
    [
        ({"max_payload_bytes": 10}, 10),
        ({"values": ValueLimits(depth=2)}, "depth"),
        ({"max_directory_entries": 2}, "directory_entries"),
        ({"max_total_segment_bytes": 100}, 100),
        ({"max_replay_records": 3}, 3),
        ({"deadline_s": -1.0}, "recovery_deadline"),
    ],
)
def test_budgets_refuse_without_calling_the_bytes_bad(
    store: Store, budgets: dict[str, Any], detail: object
) -> None:
    error = refused(read, store, **budgets)
    assert error.kind == "resource_limit"
    assert detail in (error.refusal, *error.details)
    assert not isinstance(error, CorruptRecord)
    read(store)


# -- ownership -------------------------------------------------------------------


def test_lock_must_be_a_plain_file_of_its_own(store: Store) -> None:
    lock = store.root / layout.LOCK
    lock.unlink()
    assert reason(acquire, str(store.root)) == "existing_root_or_lock_missing"
    assert not lock.exists()
    lock.symlink_to("STORE-V2")
    assert reason(acquire, str(store.root)) == "eloop"
    lock.unlink()
    lock.mkdir()
    assert reason(acquire, str(store.root)) == "eisdir"
    lock.rmdir()
    lock.touch()
    os.link(lock, store.root / "second")
    assert reason(acquire, str(store.root)) == "hard_link"


def test_no_component_of_the_path_may_be_a_link(store: Store, tmp_path: Path) -> None:
    alias = Path(os.path.realpath(tmp_path)) / "alias"
    alias.symlink_to(store.root)
    error = refused(acquire, str(alias))
    assert error.refusal in ("eloop", "enotdir")
    assert f"its real path is {store.root}" in str(error)
    assert reason(acquire, str(store.root / "nothing")) == "existing_root_or_lock_missing"


def test_busy_store_is_refused_before_anything_is_read(store: Store) -> None:
    with acquire(str(store.root)):
        (store.root / "CURRENT").unlink()
        error = refused(acquire, str(store.root))
    assert isinstance(error, JournalLocked)
    assert (error.refusal, error.kind) == ("store_busy", "ownership_busy")


def test_moved_root_and_changed_pointer_are_noticed(store: Store) -> None:
    with acquire(str(store.root)) as ownership:
        recovered = recover(ownership)
        store.root.rename(store.root.with_name("moved"))
        assert reason(ownership.recheck) == "path_or_extent_changed"
        store.root.with_name("moved").rename(store.root)
        (store.root / "new-file").touch()
        assert reason(activate, ownership, recovered, OPTIONS) == "root_changed"
        (store.root / "new-file").unlink()
        data = (store.root / "CURRENT").read_bytes()
        (store.root / "CURRENT").write_bytes(data[:-1] + b"\x00")
        assert reason(activate, ownership, recovered, OPTIONS) == "authority_changed"
        recovered.close()


def test_an_owner_notices_that_its_store_was_replaced(store: Store) -> None:
    with open_journal(str(store.root), OPTIONS) as journal:
        journal.recheck()
        store.segments.rename(store.epoch / "moved")
        shutil.copytree(store.epoch / "moved", store.segments)
        assert reason(journal.recheck) == "path_or_extent_changed"


def test_bytes_changed_between_reading_and_activation_are_noticed(store: Store) -> None:
    with acquire(str(store.root)) as ownership:
        recovered = recover(ownership)
        store.patch(store.files[-1], 50, b"\xff")
        assert reason(activate, ownership, recovered, OPTIONS) == "v2_frozen_view_changed"
        recovered.close()


def test_activation_is_once_and_in_time(store: Store) -> None:
    with acquire(str(store.root)) as ownership:
        recovered = recover(ownership)
        late = replace(OPTIONS, activation_window_s=-1.0)
        assert reason(activate, ownership, recovered, late) == "activation_window_expired"
        recovered.process_id += 1
        assert reason(activate, ownership, recovered, OPTIONS) == "caller_lost"
        recovered.process_id -= 1
        journal = activate(ownership, recovered, OPTIONS)
        assert reason(activate, ownership, recovered, OPTIONS) == "already_activated"
        journal.tail.close()
        recovered.close()


def test_sealed_highest_segment_gets_its_successor_on_activation(store: Store) -> None:
    with open_journal(str(store.root), OPTIONS) as journal:
        journal.tail.rotate()
    store.files[-1].unlink()
    count = len(store.files)
    with open_journal(str(store.root), OPTIONS) as journal:
        assert journal.tail.written.segment_id == count + 1
    assert len(store.files) == count + 1


# -- initialisation ---------------------------------------------------------------


def new(path: Path, **options: Any) -> bytes:
    return initialise(str(path), now_ms=7, retention=INFINITY, durability="write", **options)


def test_initialisation_never_adopts_anything(store: Store, tmp_path: Path) -> None:
    before = fingerprint(store.root)
    assert reason(new, store.root) == "already_initialized"
    assert reason(new, store.root, use_empty=True) == "already_initialized"
    assert fingerprint(store.root) == before
    empty = Path(os.path.realpath(tmp_path)) / "empty"
    empty.mkdir()
    assert reason(new, empty) == "already_initialized"
    (empty / "note").touch()
    assert reason(new, empty, use_empty=True) == "already_initialized"
    (empty / "note").unlink()
    (empty / ".tay-owner.lock").touch()
    (empty / f".tay-current-{'a' * 32}.tmp").touch()
    new(empty, use_empty=True)
    with acquire(str(empty)) as ownership:
        recover(ownership).close()


def test_initialisation_waits_for_nobody_who_holds_the_lock(tmp_path: Path) -> None:
    empty = Path(os.path.realpath(tmp_path)) / "empty"
    empty.mkdir()
    (empty / ".tay-owner.lock").touch()
    with acquire(str(empty)):
        assert reason(new, empty, use_empty=True) == "store_busy"
    assert [path.name for path in empty.iterdir()] == [".tay-owner.lock"]


def test_modes_and_layout_of_a_new_store(tmp_path: Path) -> None:
    root = Path(os.path.realpath(tmp_path)) / "deep" / "er" / "store"
    new(root)
    for path in [root, *root.rglob("*")]:
        assert path.stat().st_mode & 0o777 == (0o700 if path.is_dir() else 0o600)
    assert sorted(path.name for path in root.iterdir()) == [
        ".tay-owner.lock",
        "CURRENT",
        "STORE-V2",
        "epochs",
    ]
    manifest = decode_manifest(next(root.glob("epochs/*/MANIFEST")).read_bytes())
    assert (manifest.captured_at, manifest.source_epoch_id, manifest.availability_frontier) == (7, None, None)


def test_sync_is_refused_where_it_means_nothing() -> None:
    if not os.path.isdir("/dev/shm"):
        pytest.skip("no tmpfs at /dev/shm here")
    path = f"/dev/shm/belay-test-{os.getpid()}"
    try:
        for vouched in (False, True):
            error = refused(
                initialise,
                path,
                now_ms=1,
                retention=INFINITY,
                validated_filesystem=vouched,
                use_empty=vouched,
            )
            assert error.refusal == "filesystem_not_durable"
    finally:
        shutil.rmtree(path, ignore_errors=True)


def test_sync_in_a_directory_for_temporary_files_must_be_vouched_for() -> None:
    path = f"/tmp/belay-test-{os.getpid()}"
    try:
        error = refused(initialise, path, now_ms=1, retention=INFINITY)
        assert error.refusal == "filesystem_not_validated"
        assert "temporary files" in str(error)
        assert not os.path.exists(path)
    finally:
        shutil.rmtree(path, ignore_errors=True)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_read_only_directory_is_refused_by_errno(store: Store) -> None:
    store.segments.chmod(0o500)
    try:
        with open_journal(str(store.root), OPTIONS) as journal, pytest.raises(JournalError) as caught:
            journal.tail.rotate()
        assert caught.value.refusal == "eacces"
    finally:
        store.segments.chmod(0o700)


def test_a_socket_in_the_root_is_refused(store: Store) -> None:
    here = os.getcwd()
    os.chdir(store.root)
    try:
        with socket.socket(socket.AF_UNIX) as server:
            server.bind("s")
    finally:
        os.chdir(here)
    assert reason(read, store) == "unsupported_root_entry"
