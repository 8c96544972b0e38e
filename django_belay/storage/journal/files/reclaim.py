"""Removing the predecessor of a published generation, one resumable step at a time (spec G.4)."""

from __future__ import annotations

import stat

from django_belay.exceptions import JournalError
from django_belay.storage.journal.format.segment import segment_id_of

from . import authority as authority_files
from . import disk, layout
from .authority import Authority
from .disk import Directory


def reclaim_predecessor(root: Directory, authority: Authority) -> bool:
    """Remove the generation this one replaced; True when nothing of it is left.

    A failure only defers: the predecessor has no authority, and the next opening tries again.
    """
    source = authority.manifest.source_epoch_id
    if source is None or source == authority.current.epoch_id:
        return True
    name = layout.epoch_name(source)
    try:
        info = disk.entry_stat(authority.epochs, name)
        if info is None:
            return True
        if authority_files.read_metadata(root, layout.CURRENT) != authority.current_bytes:
            return False
        if not stat.S_ISDIR(info.st_mode):
            return False
        epoch = disk.open_directory(name, within=authority.epochs)
        try:
            if not _empty(epoch):
                return False
        finally:
            epoch.close()
        disk.rmdir(authority.epochs, name, "reclaim.epoch.rmdir")
        disk.fsync_dir(authority.epochs, "reclaim.epochs.fsync_dir")
    except (OSError, JournalError):
        return False
    return True


def _empty(epoch: Directory) -> bool:
    names = layout.list_names(epoch)
    if not set(names) <= {layout.MANIFEST, layout.SEGMENTS}:
        return False
    if layout.SEGMENTS in names:
        if layout.MANIFEST not in names:
            return False
        segments = disk.open_directory(layout.SEGMENTS, within=epoch)
        try:
            if not _remove_segments(segments):
                return False
        finally:
            segments.close()
        disk.rmdir(epoch, layout.SEGMENTS, "reclaim.segments.rmdir")
        disk.fsync_dir(epoch, "reclaim.segments.fsync_dir")
    if layout.MANIFEST in names:
        if not disk.is_single_file(disk.entry_stat(epoch, layout.MANIFEST)):
            return False
        disk.unlink(epoch, layout.MANIFEST, "reclaim.manifest.unlink")
        disk.fsync_dir(epoch, "reclaim.manifest.fsync_dir")
    return True


def _remove_segments(segments: Directory) -> bool:
    names = layout.list_names(segments)
    for name in names:
        if segment_id_of(name) is None or not disk.is_single_file(disk.entry_stat(segments, name)):
            return False
    for name in names:
        disk.unlink(segments, name, "reclaim.segment.unlink")
        disk.fsync_dir(segments, "reclaim.segment.fsync_dir")
    return True


def remove_candidate(epochs: Directory, name: str) -> None:
    """Remove the private candidate of a build that was given up; nothing else is ever touched."""
    try:
        candidate = disk.open_directory(name, within=epochs)
    except FileNotFoundError:
        return
    try:
        if layout.SEGMENTS in layout.list_names(candidate):
            segments = disk.open_directory(layout.SEGMENTS, within=candidate)
            try:
                for entry in layout.list_names(segments):
                    disk.unlink(segments, entry, "abandon.segment.unlink")
            finally:
                segments.close()
            disk.rmdir(candidate, layout.SEGMENTS, "abandon.segments.rmdir")
        for entry in layout.list_names(candidate):
            disk.unlink(candidate, entry, "abandon.manifest.unlink")
    finally:
        candidate.close()
    disk.rmdir(epochs, name, "abandon.rmdir")
