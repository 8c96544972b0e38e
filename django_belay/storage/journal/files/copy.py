"""Cold copies: backup and restore are the same copy, without and with a catalog to verify (spec I).

The engine is stopped: the source's own lock is taken. A copy is not semantically checked;
verify it, then open it as a fresh owner, and never run both: they share a store id.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import secrets
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from django_belay.storage.journal.format.refusal import located, refuse
from django_belay.storage.journal.format.segment import segment_id_of

from . import disk, fail, layout, scribe
from .catalog import Entry, encode_catalog, read_catalog, write_catalog
from .disk import Directory, File
from .fail import Step
from .filesystem import Durability, check_durable, filesystem_of
from .ownership import acquire

_CHUNK: Final = 1 << 20
_MAX_DEPTH: Final = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyOptions:
    """Budgets and durability of a copy."""

    durability: Durability = "sync"
    validated_filesystem: bool = False
    max_files: int = 100_000
    max_bytes: int = 10_737_418_240


@dataclass(frozen=True, slots=True, kw_only=True)
class CopyReport:
    """What was copied."""

    files: int
    bytes: int
    destination: str
    catalog: str


def backup(
    source: str,
    destination: str,
    catalog: str,
    options: CopyOptions | None = None,
    *,
    progress: Callable[[int, int], None] | None = None,
) -> CopyReport:
    """Copy a stopped store to a new directory, and list what was copied in a new catalog file.

    Raises:
        JournalError: Refused; source and whatever was copied so far stay as they are.
    """
    return _copy(source, destination, catalog, None, options or CopyOptions(), progress)


def restore(
    source: str,
    destination: str,
    catalog: str,
    verify: str | None,
    options: CopyOptions | None = None,
    *,
    progress: Callable[[int, int], None] | None = None,
) -> CopyReport:
    """Copy a backup to a new directory once it matches the catalog ``verify`` exactly."""
    if verify is None:
        raise refuse("argument", "restore_catalog_required")
    return _copy(source, destination, catalog, verify, options or CopyOptions(), progress)


def _copy(
    source: str,
    destination: str,
    catalog: str,
    verify: str | None,
    options: CopyOptions,
    progress: Callable[[int, int], None] | None,
) -> CopyReport:
    _check_paths(source, destination, catalog, verify)
    try:
        ownership = acquire(source)
    except Exception as error:
        if getattr(error, "refusal", "") == "store_busy":
            raise located(refuse("ownership_busy", "source_owned"), path=source) from error
        raise
    with ownership, _holding(os.path.dirname(destination)) as parent:
        try:
            check_durable(parent, options.durability, validated=options.validated_filesystem)
            files = _inventory(ownership.root, options)
            if verify is not None:
                _check_catalog(files, read_catalog(verify), verify)
            synced = options.durability == "sync"
            total = sum(item.size for item in files.values())
            _copy_tree(ownership.root, parent, destination, files, synced=synced, progress=progress)
            if _inventory(ownership.root, options) != files:
                raise located(refuse("changed_view", "source_changed"), path=source)
            data = encode_catalog(files, synced=synced, filesystem=filesystem_of(parent))
            _write_catalog(catalog, data)
        except OSError as error:
            raise disk.io_error(error, destination) from error
    return CopyReport(files=len(files), bytes=total, destination=destination, catalog=catalog)


def _write_catalog(path: str, data: bytes) -> None:
    try:
        with _holding(os.path.dirname(path)) as folder:
            write_catalog(folder, os.path.basename(path), data)
    except OSError as error:
        raise disk.io_error(error, path) from error


def _check_paths(source: str, destination: str, catalog: str, verify: str | None) -> None:
    for path in (source, destination, catalog, *([] if verify is None else [verify])):
        parts = path.split("/")
        if not os.path.isabs(path) or "\x00" in path or ".." in parts or os.path.normpath(path) != path:
            raise located(refuse("argument", "unsafe_path"), path=path)
    if _within(source, destination) or _within(destination, source):
        raise located(refuse("argument", "overlapping_paths"), path=destination)
    for path in (catalog, *([] if verify is None else [verify])):
        if _within(path, source) or _within(path, destination):
            raise located(refuse("argument", "catalog_must_be_external"), path=path)
    for path in (destination, catalog):
        if os.path.lexists(path):
            raise located(refuse("argument", "destination_exists"), path=path)


def _within(inner: str, outer: str) -> bool:
    return inner == outer or inner.startswith(outer.rstrip("/") + "/")


def _inventory(root: Directory, options: CopyOptions) -> dict[str, Entry]:
    """Path, size and digest of everything below the root."""
    files: dict[str, Entry] = {}
    budget = options.max_bytes
    for path, directory, name, info in _walk(root, "", 0):
        if not disk.is_single_file(info):
            raise located(refuse("discovery", "unsafe_file"), path=root.child(path))
        if len(files) >= options.max_files:
            raise located(refuse("resource_limit", "file_budget", options.max_files), path=root.path)
        budget -= info.st_size
        if budget < 0:
            raise located(refuse("resource_limit", "byte_budget", options.max_bytes), path=root.path)
        files[path] = Entry(size=info.st_size, sha256=_digest(directory, name))
    for name in (layout.LOCK, layout.MARKER, layout.CURRENT):
        if name not in files:
            raise located(refuse("discovery", "missing_metadata", name), path=root.path)
    if not any(segment_id_of(path.rsplit("/", 1)[-1]) for path in files):
        raise located(refuse("discovery", "missing_history"), path=root.path)
    return files


def _walk(
    directory: Directory, prefix: str, depth: int
) -> Iterator[tuple[str, Directory, str, os.stat_result]]:
    for name in layout.list_names(directory):
        if not name.isprintable() or not name.isascii() or depth > _MAX_DEPTH:
            raise located(refuse("discovery", "unsafe_name"), path=directory.path)
        info = disk.entry_stat(directory, name)
        if info is None:
            raise located(refuse("changed_view", "source_changed"), path=directory.child(name))
        path = f"{prefix}{name}"
        if stat.S_ISDIR(info.st_mode):
            child = disk.open_directory(name, within=directory)
            try:
                yield from _walk(child, f"{path}/", depth + 1)
            finally:
                child.close()
        else:
            yield path, directory, name, info


def _digest(directory: Directory, name: str) -> str:
    file = disk.open_file(directory, name)
    try:
        digest, position = hashlib.sha256(), 0
        while chunk := os.pread(file.fd, _CHUNK, position):
            digest.update(chunk)
            position += len(chunk)
    finally:
        file.close()
    return digest.hexdigest()


def _check_catalog(files: dict[str, Entry], listed: dict[str, Entry], path: str) -> None:
    if files != listed:
        wrong = min(name for name in files.keys() | listed.keys() if files.get(name) != listed.get(name))
        raise located(refuse("physical_corruption", "archive_checksum_mismatch", wrong), path=path)


def _copy_tree(
    source: Directory,
    parent: Directory,
    destination: str,
    files: dict[str, Entry],
    *,
    synced: bool,
    progress: Callable[[int, int], None] | None,
) -> None:
    name = os.path.basename(destination)
    stage_name = f".{name}.tay-copy-{secrets.token_hex(12)}"
    stage = disk.mkdir(parent, stage_name, "copy.mkdir")
    total = sum(item.size for item in files.values())
    copied = 0
    lock: File | None = None
    # CURRENT comes last: without it a partial copy has no authority.
    order = [path for path in files if path != layout.CURRENT] + [layout.CURRENT]
    try:
        for path in order:
            _copy_file(source, stage, path, files[path], synced=synced)
            copied += files[path].size
            if path == layout.LOCK:
                lock = disk.open_file(stage, layout.LOCK)
                fcntl.flock(lock.fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if progress is not None:
                progress(copied, total)
        if synced:
            _sync_directories(stage)
        _rename(parent, stage_name, name)
        if synced:
            disk.fsync_dir(parent, "copy.parent.fsync_dir")
            disk.fsync_ancestors(parent.path, "copy.ancestor.fsync_dir")
    finally:
        if lock is not None:
            lock.close()
        stage.close()


def _copy_file(source: Directory, stage: Directory, path: str, want: Entry, *, synced: bool) -> None:
    *folders, name = path.split("/")
    with _descend(source, folders) as origin, _descend(stage, folders, create=True) as target:
        reading = disk.open_file(origin, name)
        try:
            writing = disk.create(target, name, "copy.file.create")
            try:
                digest, position = hashlib.sha256(), 0
                while chunk := os.pread(reading.fd, _CHUNK, position):
                    disk.write(writing, position, chunk, "copy.file.write")
                    digest.update(chunk)
                    position += len(chunk)
                if (position, digest.hexdigest()) != (want.size, want.sha256):
                    raise located(refuse("changed_view", "source_changed"), path=reading.path)
                if synced:
                    disk.fsync(writing, "copy.file.fsync")
            finally:
                writing.close()
        finally:
            reading.close()


@contextmanager
def _descend(root: Directory, folders: list[str], *, create: bool = False) -> Iterator[Directory]:
    current = Directory(fd=os.dup(root.fd), path=root.path)
    try:
        for folder in folders:
            if create and disk.entry_stat(current, folder) is None:
                following = disk.mkdir(current, folder, "copy.mkdir")
            else:
                following = disk.open_directory(folder, within=current)
            current.close()
            current = following
        yield current
    finally:
        current.close()


@contextmanager
def _holding(path: str) -> Iterator[Directory]:
    try:
        directory = disk.open_path(path)
    except OSError as error:
        raise disk.io_error(error, path) from error
    try:
        yield directory
    finally:
        directory.close()


def _sync_directories(directory: Directory) -> None:
    for name in layout.list_names(directory):
        info = disk.entry_stat(directory, name)
        if info is not None and stat.S_ISDIR(info.st_mode):
            child = disk.open_directory(name, within=directory)
            try:
                _sync_directories(child)
            finally:
                child.close()
    disk.fsync_dir(directory, "copy.fsync_dir")


def _rename(parent: Directory, stage: str, name: str) -> None:
    fail.point("copy.rename")
    try:
        scribe.rename_noreplace(parent.fd, stage, parent.fd, name)
    except FileExistsError as error:
        raise located(refuse("argument", "destination_exists"), path=parent.child(name)) from error
    fail.done(Step(action="rename", point="copy.rename", path=parent.child(stage), target=parent.child(name)))
