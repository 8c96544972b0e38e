"""Making a new store: marker, empty generation, pointer, in that order (spec C.6)."""

from __future__ import annotations

import hashlib
import os
import re
from typing import Final

from django_belay.exceptions import JournalError
from django_belay.storage.journal.format.manifest import Retention, encode_manifest, first_manifest
from django_belay.storage.journal.format.metadata import Current, encode_current, encode_marker
from django_belay.storage.journal.format.refusal import located, refuse
from django_belay.storage.journal.format.segment import SegmentHeader, encode_header, segment_name

from . import disk, layout
from .disk import Directory
from .filesystem import Durability, check_place
from .ownership import Ownership, absolute, create_lock
from .recovery import recover

_LEFTOVER: Final = re.compile(r"\.tay-(?:v2-marker|current)-[0-9a-f]{32}\.tmp")


def initialise(
    path: str,
    *,
    now_ms: int,
    retention: Retention,
    use_empty: bool = False,
    durability: Durability = "sync",
    validated_filesystem: bool = False,
    store_id: bytes | None = None,
    epoch_id: bytes | None = None,
) -> bytes:
    """Create a store and open it once the ordinary way; its store id.

    Args:
        now_ms: The instant the first manifest records.
        retention: The retention the first manifest records.
        use_empty: Accept an existing directory that is empty; else it must not exist.

    Raises:
        JournalError: ``already_initialized`` when anything of a store is there; what a failure
            left behind is never completed: remove the directory and begin again.
    """
    path = absolute(path)
    store_id = store_id or layout.draw_id()
    epoch_id = epoch_id or layout.draw_id()
    manifest = encode_manifest(
        first_manifest(store_id=store_id, epoch_id=epoch_id, captured_at=now_ms, retention=retention)
    )
    check_place(path, durability, validated=validated_filesystem)
    try:
        root = make_root(path, use_empty=use_empty)
    except OSError as error:
        raise disk.io_error(error, path) from error
    try:
        ownership = create_lock(root, "init.lock")
    except OSError as error:
        root.close()
        raise disk.io_error(error, path) from error
    except BaseException:
        root.close()
        raise
    with ownership:
        try:
            _publish(ownership, store_id, epoch_id, manifest)
        except OSError as error:
            raise disk.io_error(error, path) from error
        recover(ownership).close()
    return store_id


def write_generation(
    epochs: Directory, candidate_name: str, manifest: bytes, store_id: bytes, point: str
) -> tuple[Directory, Directory]:
    """Write an empty candidate generation, synced and read back; it and its segments, open."""
    candidate = disk.mkdir(epochs, candidate_name, f"{point}.mkdir")
    disk.fsync_dir(epochs, f"{point}.epochs.fsync_dir")
    segments = disk.mkdir(candidate, layout.SEGMENTS, f"{point}.segments.mkdir")
    disk.fsync_dir(candidate, f"{point}.fsync_dir")
    disk.write_new(candidate, layout.MANIFEST, manifest, f"{point}.manifest")
    disk.fsync_dir(candidate, f"{point}.manifest.fsync_dir")
    header = encode_header(SegmentHeader(segment_id=1, first_sequence=1, store_id=store_id))
    disk.write_new(segments, segment_name(1), header, f"{point}.segment")
    disk.fsync_dir(segments, f"{point}.segment.fsync_dir")
    layout.check_epoch(candidate)
    disk.fsync_dir(segments, f"{point}.segments.fsync_dir")
    disk.fsync_dir(candidate, f"{point}.final.fsync_dir")
    return candidate, segments


def publish_current(root: Directory, current: Current, *, point: str, replacing: bool) -> None:
    """Stage CURRENT, rename it into place, sync the root, and check that it is the staged file."""
    stage = layout.current_stage_name()
    file = disk.create(root, stage, f"{point}.create")
    try:
        disk.write(file, 0, encode_current(current), f"{point}.write")
        disk.fsync(file, f"{point}.fsync")
        if replacing:
            disk.replace(root, stage, layout.CURRENT, f"{point}.rename")
        else:
            disk.rename_new(root, stage, layout.CURRENT, f"{point}.rename")
        disk.fsync_dir(root, f"{point}.fsync_dir")
        if not disk.same_entry(root, layout.CURRENT, file.fd):
            raise located(refuse("changed_view", "authority_changed"), path=root.child(layout.CURRENT))
    finally:
        file.close()


def _publish(ownership: Ownership, store_id: bytes, epoch_id: bytes, manifest: bytes) -> None:
    root = ownership.root
    disk.fsync_dir(root, "init.root.fsync_dir")
    disk.fsync(ownership.lock, "init.lock.fsync")
    disk.fsync_dir(root, "init.lock.fsync_dir")
    ownership.check_noreplace()
    stage = layout.marker_stage_name()
    disk.write_new(root, stage, encode_marker(store_id), "init.marker")
    disk.rename_new(root, stage, layout.MARKER, "init.marker.rename")
    disk.fsync_dir(root, "init.marker.fsync_dir")
    epochs = disk.mkdir(root, layout.EPOCHS, "init.epochs.mkdir")
    try:
        disk.fsync_dir(root, "init.epochs.fsync_dir")
        name = layout.candidate_name()
        opened = write_generation(epochs, name, manifest, store_id, "init.generation")
        for directory in opened:
            directory.close()
        disk.rename_new(epochs, name, layout.epoch_name(epoch_id), "init.generation.rename")
        disk.fsync_dir(epochs, "init.generation.fsync_epochs")
    finally:
        epochs.close()
    digest = hashlib.sha256(manifest).digest()
    current = Current(store_id=store_id, epoch_id=epoch_id, manifest_sha256=digest)
    publish_current(root, current, point="init.current", replacing=False)


def make_root(path: str, *, use_empty: bool) -> Directory:
    """Create the directory of a new store, its parents too, or take an existing empty one."""
    parent_path, name = os.path.split(path)
    parent = _make_parents(parent_path)
    try:
        if disk.entry_stat(parent, name) is None:
            root = disk.mkdir(parent, name, "init.mkdir")
            disk.fsync_dir(parent, "init.parent.fsync_dir")
            return root
        root = disk.open_directory(name, within=parent)
    finally:
        parent.close()
    try:
        _check_empty(root, use_empty=use_empty)
    except BaseException:
        root.close()
        raise
    return root


def _make_parents(path: str) -> Directory:
    missing: list[str] = []
    while True:
        try:
            current = disk.open_path(path)
            break
        except FileNotFoundError:
            path, name = os.path.split(path)
            missing.append(name)
    for name in reversed(missing):
        try:
            following = disk.mkdir(current, name, "init.mkdir")
            disk.fsync_dir(current, "init.parent.fsync_dir")
        finally:
            current.close()
        current = following
    return current


def _check_empty(root: Directory, *, use_empty: bool) -> None:
    """Only stage files and the lock of an initialization that was broken off may lie there."""
    names = [name for name in layout.list_names(root) if not _LEFTOVER.fullmatch(name)]
    if not use_empty or any(name != layout.LOCK for name in names):
        raise _already(root)


def _already(root: Directory) -> JournalError:
    return located(refuse("argument", "already_initialized"), path=root.path)
