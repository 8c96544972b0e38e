"""Which generation is the authority: STORE-V2, CURRENT and MANIFEST together (spec C.4, F.3-F.5)."""

from __future__ import annotations

import errno
import hashlib
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, TypeVar

from django_belay.exceptions import JournalError
from django_belay.storage.journal.format.limits import MAX_MANIFEST_BYTES
from django_belay.storage.journal.format.manifest import Manifest, decode_manifest
from django_belay.storage.journal.format.metadata import (
    CURRENT_BYTES,
    MARKER_BYTES,
    Current,
    decode_current,
    decode_marker,
)
from django_belay.storage.journal.format.refusal import located, refuse

from . import disk, layout
from .disk import Directory

T = TypeVar("T")
LIMITS: Final = {
    layout.MARKER: MARKER_BYTES,
    layout.CURRENT: CURRENT_BYTES,
    layout.MANIFEST: MAX_MANIFEST_BYTES,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Authority:
    """The selected generation, its directories held open."""

    store_id: bytes
    current: Current
    current_bytes: bytes
    marker_bytes: bytes
    manifest: Manifest
    manifest_bytes: bytes
    epochs: Directory
    epoch: Directory
    segments: Directory

    def close(self) -> None:
        """Let go of the directories."""
        for directory in (self.segments, self.epoch, self.epochs):
            directory.close()


def read_authority(root: Directory) -> Authority:
    """Read the three files and check that they belong together."""
    marker_bytes = read_metadata(root, layout.MARKER)
    current_bytes = read_metadata(root, layout.CURRENT)
    store_id = _decode(decode_marker, marker_bytes, root.child(layout.MARKER))
    current = _decode(decode_current, current_bytes, root.child(layout.CURRENT))
    if current.store_id != store_id:
        raise located(_corrupt("store_id_mismatch"), path=root.child(layout.CURRENT))
    epochs = _open(layout.EPOCHS, root)
    try:
        epoch = _open(layout.epoch_name(current.epoch_id), epochs)
        try:
            return _read_epoch(epochs, epoch, current, current_bytes, marker_bytes)
        except BaseException:
            epoch.close()
            raise
    except BaseException:
        epochs.close()
        raise


def recheck_authority(root: Directory, authority: Authority) -> None:
    """Refuse when marker or pointer changed since they were read."""
    if (read_metadata(root, layout.MARKER), read_metadata(root, layout.CURRENT)) != (
        authority.marker_bytes,
        authority.current_bytes,
    ):
        raise located(refuse("changed_view", "authority_changed"), path=root.path)
    name = layout.epoch_name(authority.current.epoch_id)
    held = (
        disk.same_entry(root, layout.EPOCHS, authority.epochs.fd)
        and disk.same_entry(authority.epochs, name, authority.epoch.fd)
        and disk.same_entry(authority.epoch, layout.SEGMENTS, authority.segments.fd)
    )
    if not held:
        raise located(refuse("changed_view", "path_or_extent_changed"), path=authority.epoch.path)


def read_metadata(directory: Directory, name: str) -> bytes:
    """A metadata file whole; its size is looked at before it is read."""
    path = directory.child(name)
    try:
        file = disk.open_file(directory, name)
    except OSError as error:
        if error.errno not in (errno.ENOENT, errno.ELOOP, errno.EISDIR, errno.ENXIO):
            raise disk.io_error(error, path) from error
        raise located(_corrupt("metadata_missing_or_invalid"), path=path) from error
    try:
        info = os.fstat(file.fd)
        if not disk.is_single_file(info) or not 0 < info.st_size <= LIMITS[name]:
            raise located(_corrupt("metadata_missing_or_invalid", info.st_size), path=path)
        data = disk.read_exactly(file.fd, 0, info.st_size + 1)
        if len(data) != info.st_size:
            raise located(refuse("io", "changed_file_or_short_read"), path=path)
        return data
    except OSError as error:
        raise disk.io_error(error, path) from error
    finally:
        file.close()


def _read_epoch(
    epochs: Directory, epoch: Directory, current: Current, current_bytes: bytes, marker_bytes: bytes
) -> Authority:
    layout.check_epoch(epoch)
    path = epoch.child(layout.MANIFEST)
    manifest_bytes = read_metadata(epoch, layout.MANIFEST)
    manifest = _decode(decode_manifest, manifest_bytes, path)
    if manifest.store_id != current.store_id:
        raise located(_corrupt("store_id_mismatch"), path=path)
    if manifest.epoch_id != current.epoch_id:
        raise located(_corrupt("epoch_mismatch"), path=path)
    if hashlib.sha256(manifest_bytes).digest() != current.manifest_sha256:
        raise located(_corrupt("manifest_digest"), path=path)
    return Authority(
        store_id=current.store_id,
        current=current,
        current_bytes=current_bytes,
        marker_bytes=marker_bytes,
        manifest=manifest,
        manifest_bytes=manifest_bytes,
        epochs=epochs,
        epoch=epoch,
        segments=_open(layout.SEGMENTS, epoch),
    )


def _decode(decode: Callable[[bytes], T], data: bytes, path: str) -> T:
    try:
        return decode(data)
    except JournalError as error:
        raise located(error, path=path) from None


def _open(name: str, within: Directory) -> Directory:
    try:
        return disk.open_directory(name, within=within)
    except OSError as error:
        raise disk.io_error(error, within.child(name)) from error


def _corrupt(reason: str, *details: object) -> JournalError:
    return refuse("physical_corruption", reason, *details)
