"""Salvage: a new store from the verified prefix of a damaged one; the source is only read.

The prefix ends at the first damage; bytes that another version wrote are not damage but
refused. It must reach into the tail: base segments are whole or refused. The new store has an
id of its own, and its records keep their payloads and order; a frame that was still open when
the damage was met is left out.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final

from crc32c import crc32c

from django_belay.exceptions import CorruptRecord, JournalError
from django_belay.storage.journal.format.manifest import BaseSegment, Manifest, encode_manifest
from django_belay.storage.journal.format.metadata import Current, encode_marker
from django_belay.storage.journal.format.pair import decode_payload
from django_belay.storage.journal.format.record import OVERHEAD_BYTES
from django_belay.storage.journal.format.refusal import located, refuse
from django_belay.storage.journal.format.scan import Scanned, SegmentScan
from django_belay.storage.journal.format.segment import (
    HEADER_BYTES,
    SegmentHeader,
    encode_header,
    segment_name,
)
from django_belay.storage.journal.state.finished import location
from django_belay.storage.journal.state.store_state import StoreState

from . import authority as authority_files
from . import disk, layout
from .authority import Authority
from .base import BaseWriter
from .disk import Directory, File
from .filesystem import Durability, Room, check_place
from .initialise import make_root, publish_current
from .inspection import Summary, inspect
from .ownership import absolute, acquire, create_lock
from .pen import InlinePen
from .reader import SegmentReader
from .recovery import PROGRESS_RECORDS, Progress
from .tail import ROTATION_TARGET_BYTES, Position, Run, Tail

_BATCH_RECORDS: Final = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class SalvageReport:
    """What was saved, and what lay behind the fault."""

    summary: Summary
    fault: JournalError | None
    last_good_sequence: int
    bytes_behind: int
    segments_behind: int
    frame_dropped: bool


class _Prefix:
    """The records of a store up to its first fault, replayed as they are drawn."""

    def __init__(self, authority: Authority, progress: Progress | None) -> None:
        self.authority = authority
        self._progress = progress
        self.last_good = 0
        self.frame_from: int | None = None
        self.fault: JournalError | None = None
        self.bytes_behind = 0
        self.segments_behind = 0
        self._reader = SegmentReader(authority.segments)
        self._state = StoreState(self._reader)

    @property
    def keep_through(self) -> int:
        """The last sequence that goes into the new store."""
        return self.last_good if self.frame_from is None else self.frame_from - 1

    def tell(self, written: Progress | None, sequence: int) -> None:
        """Say how much of the prefix has been written, now and then and at its end."""
        end = self.keep_through
        if written is not None and (sequence % PROGRESS_RECORDS == 0 or sequence == end):
            written(sequence, sequence, end)

    def run(self) -> None:
        """Find where the prefix ends."""
        try:
            self._run()
        finally:
            self._reader.close()

    def _run(self) -> None:
        base = len(self.authority.manifest.base_segments)
        listing = _listing(self.authority.segments)
        total, before = sum(size for _, _, size in listing), 0
        if len(listing) <= base:
            raise located(refuse("discovery", "tail_missing"), path=self.authority.segments.path)
        for number, (segment_id, name, size) in enumerate(listing):
            if segment_id == base + 1:
                self._state.finish_base(self.authority.manifest.availability_frontier)
            try:
                if segment_id != number + 1:
                    raise refuse("discovery", "noncontiguous_ids", number + 1, segment_id)
                for scanned in scan_segment(self.authority, segment_id, highest=number == len(listing) - 1):
                    if self._progress is not None and scanned.sequence % PROGRESS_RECORDS == 0:
                        self._progress(scanned.sequence, before + scanned.offset, total)
                    self._take(scanned, segment_id, in_base=segment_id <= base)
            except JournalError as error:
                fault = located(
                    error, path=self.authority.segments.child(name), last_good_sequence=self.last_good
                )
                # What could not be read, or not by this version, is not damage: it may be whole.
                if segment_id <= base or not isinstance(fault, CorruptRecord):
                    raise fault from error.__cause__
                self.fault = fault
                self.bytes_behind = (
                    size - (fault.offset or 0) + sum(item[2] for item in listing[number + 1 :])
                )
                self.segments_behind = len(listing) - number - 1
                return
            before += size

    def _take(self, scanned: Scanned, segment_id: int, *, in_base: bool) -> None:
        kind, schema, sequence, payload, offset = scanned
        try:
            if sequence != self.last_good + 1:
                raise refuse("continuity", "physical_sequence", self.last_good + 1, sequence)
            item = decode_payload(kind, schema, payload, "base" if in_base else "tail")
            where = location(segment_id, offset)
            (self._state.apply_base if in_base else self._state.apply)(item, where)
        except JournalError as error:
            raise located(error, offset=offset) from None
        self.last_good = sequence
        if self._state.open_frame is None:
            self.frame_from = None
        elif self.frame_from is None:
            self.frame_from = sequence


def salvage(
    source: str,
    destination: str,
    *,
    durability: Durability = "sync",
    validated_filesystem: bool = False,
    progress: Progress | None = None,
    written: Progress | None = None,
    checked: Progress | None = None,
) -> SalvageReport:
    """Write a new store from what is whole in ``source``.

    Args:
        progress: Called with records, bytes done and bytes in all while the source is read.
        written: Called with records, records done and records in all while the new store is written.
        checked: As ``progress``, while the new store is read back.

    Raises:
        JournalError: The authority or the base is damaged, so there is no prefix to save; or
            the destination exists; or what was met is no damage: a file that cannot be read, a
            budget, or (``UnsupportedFormat``) bytes of another version. The source is never changed.
    """
    source, destination = absolute(source), absolute(destination)
    if destination == source or destination.startswith(source.rstrip("/") + "/"):
        raise located(refuse("argument", "overlapping_paths"), path=destination)
    if os.path.lexists(destination):
        raise located(refuse("argument", "destination_exists"), path=destination)
    with acquire(source) as ownership:
        layout.check_root(ownership.root)
        authority = authority_files.read_authority(ownership.root)
        try:
            prefix = _Prefix(authority, progress)
            prefix.run()
            _write_store(prefix, destination, durability, validated_filesystem, written)
        except OSError as error:
            raise disk.io_error(error, destination) from error
        finally:
            authority.close()
    return SalvageReport(
        summary=inspect(destination, progress=checked),
        fault=prefix.fault,
        last_good_sequence=prefix.last_good,
        bytes_behind=prefix.bytes_behind,
        segments_behind=prefix.segments_behind,
        frame_dropped=prefix.frame_from is not None,
    )


def scan_segment(authority: Authority, segment_id: int, *, highest: bool) -> Iterator[Scanned]:
    """Draw one segment's records; a base segment is compared with the manifest first."""
    name = segment_name(segment_id)
    try:
        file = disk.open_file(authority.segments, name)
        try:
            yield from _scan_file(authority, file, segment_id, highest=highest)
        finally:
            file.close()
    except OSError as error:
        raise disk.io_error(error, authority.segments.child(name)) from error


def _scan_file(authority: Authority, file: File, segment_id: int, *, highest: bool) -> Iterator[Scanned]:
    size = os.fstat(file.fd).st_size
    bases = authority.manifest.base_segments
    if segment_id <= len(bases):
        _check_base(file, size, bases[segment_id - 1])
    yield from SegmentScan(
        lambda position, count: disk.read_exactly(file.fd, position, count),
        size,
        expected_id=segment_id,
        expected_store=authority.store_id,
        highest=highest,
    )


def _check_base(file: File, size: int, base: BaseSegment) -> None:
    digest, position = hashlib.sha256(), 0
    while chunk := os.pread(file.fd, 1 << 20, position):
        digest.update(chunk)
        position += len(chunk)
    if size != base.size:
        raise refuse("physical_corruption", "base_size", base.size, size)
    if digest.digest() != base.sha256:
        raise refuse("physical_corruption", "base_digest")


def _listing(segments: Directory) -> list[tuple[int, str, int]]:
    """Every segment there is, gaps included: what lies behind a gap is behind the fault."""
    return layout.list_segments(segments, contiguous=False)


def _write_store(
    prefix: _Prefix,
    destination: str,
    durability: Durability,
    validated: bool,
    written: Progress | None,
) -> None:
    check_place(destination, durability, validated=validated)
    root = make_root(destination, use_empty=False)
    try:
        ownership = create_lock(root, "salvage.lock")
    except BaseException:
        root.close()
        raise
    store_id, epoch_id = layout.draw_id(), layout.draw_id()
    with ownership:
        ownership.check_noreplace()
        disk.fsync(ownership.lock, "salvage.lock.fsync")
        stage = layout.marker_stage_name()
        disk.write_new(root, stage, encode_marker(store_id), "salvage.marker")
        disk.rename_new(root, stage, layout.MARKER, "salvage.marker.rename")
        epochs = disk.mkdir(root, layout.EPOCHS, "salvage.epochs.mkdir")
        try:
            disk.fsync_dir(root, "salvage.root.fsync_dir")
            name = layout.candidate_name()
            manifest = _write_generation(prefix, epochs, name, store_id, epoch_id, written)
            disk.rename_new(epochs, name, layout.epoch_name(epoch_id), "salvage.generation.rename")
            disk.fsync_dir(epochs, "salvage.generation.fsync_dir")
        finally:
            epochs.close()
        digest = hashlib.sha256(manifest).digest()
        current = Current(store_id=store_id, epoch_id=epoch_id, manifest_sha256=digest)
        publish_current(root, current, point="salvage.current", replacing=False)


def _write_generation(
    prefix: _Prefix,
    epochs: Directory,
    name: str,
    store_id: bytes,
    epoch_id: bytes,
    written: Progress | None,
) -> bytes:
    source = prefix.authority.manifest
    candidate = disk.mkdir(epochs, name, "salvage.mkdir")
    segments = disk.mkdir(candidate, layout.SEGMENTS, "salvage.segments.mkdir")
    try:
        room = Room(epochs)
        writer = BaseWriter(segments, store_id, target=ROTATION_TARGET_BYTES, room=room)
        for base in source.base_segments:
            for item in scan_segment(prefix.authority, base.segment_id, highest=False):
                writer.add(item.record_type, item.payload_schema, item.payload)
                prefix.tell(written, item.sequence)
        bases = writer.finish()
        manifest = replace(
            source,
            base_segments=bases,
            epoch_id=epoch_id,
            store_id=store_id,
            source_epoch_id=None,
            source_frontier=0,
            source_segments=(),
            tail_segment_id=len(bases) + 1,
        )
        encoded = encode_manifest(manifest)
        disk.write_new(candidate, layout.MANIFEST, encoded, "salvage.manifest")
        _write_tail(prefix, segments, manifest, room, written)
        disk.fsync_dir(segments, "salvage.segments.fsync_dir")
        disk.fsync_dir(candidate, "salvage.fsync_dir")
    finally:
        segments.close()
        candidate.close()
    return encoded


def _write_tail(
    prefix: _Prefix, segments: Directory, manifest: Manifest, room: Room, written: Progress | None
) -> None:
    first = manifest.tail_first_sequence
    header = encode_header(
        SegmentHeader(segment_id=manifest.tail_segment_id, first_sequence=first, store_id=manifest.store_id)
    )
    disk.write_new(segments, segment_name(manifest.tail_segment_id), header, "salvage.tail")
    position = Position(manifest.tail_segment_id, HEADER_BYTES, first, first)
    tail = Tail(InlinePen(), segments, manifest.store_id, position, crc=crc32c(header), sync=False)
    try:
        runs: list[Run] = []
        for item in _tail_records(prefix):
            room.take(len(item.payload) + OVERHEAD_BYTES)
            tail.plan([(item.record_type, item.payload_schema, item.payload)], runs)
            prefix.tell(written, item.sequence)
            if tail.planned.next_sequence - tail.written.next_sequence >= _BATCH_RECORDS:
                tail.write(runs)
                runs = []
        tail.write(runs)
        tail.sync()
    finally:
        tail.close()


def _tail_records(prefix: _Prefix) -> Iterator[Scanned]:
    segment_id = prefix.authority.manifest.tail_segment_id
    sequence = prefix.authority.manifest.tail_first_sequence - 1
    while sequence < prefix.keep_through:
        for item in scan_segment(prefix.authority, segment_id, highest=True):
            yield item
            sequence = item.sequence
            if sequence == prefix.keep_through:
                return
        segment_id += 1
