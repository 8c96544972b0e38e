"""The active segment: where the next record goes, and turning to the next segment (spec B.7, B.8).

Planning and writing are apart: ``plan`` decides under the owner's lock where records will
stand; ``write`` carries the plan out, later and in the same order.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from crc32c import crc32c

from django_belay.exceptions import JournalError
from django_belay.storage.journal.format.limits import MAX_SEALED_BYTES, MAX_SEGMENT_RECORDS, MAX_U64
from django_belay.storage.journal.format.record import OVERHEAD_BYTES, frame
from django_belay.storage.journal.format.refusal import located, refuse
from django_belay.storage.journal.format.scan import CHUNK_BYTES
from django_belay.storage.journal.format.segment import (
    FOOTER_BYTES,
    HEADER_BYTES,
    SegmentFooter,
    SegmentHeader,
    encode_footer,
    encode_header,
    segment_name,
)
from django_belay.storage.journal.state.finished import location

from . import disk, layout
from .disk import Directory, File
from .pen import Pen
from .scribe import PAGE_BYTES

ROTATION_TARGET_BYTES: Final = 67_108_864


class Position(NamedTuple):
    """Where the next record goes."""

    segment_id: int
    size: int
    first_sequence: int
    next_sequence: int

    @property
    def records(self) -> int:
        """Records in the segment."""
        return self.next_sequence - self.first_sequence


@dataclass(slots=True)
class Run:
    """Records of one segment that will be written together."""

    segment_id: int
    offset: int
    frames: list[bytes] = field(default_factory=list)


def next_position(position: Position, size: int, target: int) -> Position:
    """Where a record of ``size`` bytes goes: here, or at the start of the next segment."""
    sealed = position.size + size + FOOTER_BYTES
    if position.size == HEADER_BYTES or (sealed <= target and position.records < MAX_SEGMENT_RECORDS):
        if sealed > MAX_SEALED_BYTES:
            raise refuse("argument", "record_exceeds_segment", size)
        return position
    if position.segment_id >= MAX_U64:
        raise refuse("resource_limit", "segment_id_exhausted")
    return Position(position.segment_id + 1, HEADER_BYTES, position.next_sequence, position.next_sequence)


def cut_at_pages(offset: int, sizes: list[int]) -> list[int]:
    """Lengths of writes that end at record boundaries and cross a page only inside one record."""
    cuts: list[int] = []
    open_bytes = 0
    for size in sizes:
        room = PAGE_BYTES - (offset + open_bytes) % PAGE_BYTES
        if open_bytes and size > room:
            cuts.append(open_bytes)
            offset += open_bytes
            open_bytes = 0
        open_bytes += size
        if (offset + open_bytes) % PAGE_BYTES == 0 or size > room:
            cuts.append(open_bytes)
            offset += open_bytes
            open_bytes = 0
    if open_bytes:
        cuts.append(open_bytes)
    return cuts


class Tail:
    """The writer's end of a generation. Once a write has failed it refuses everything."""

    def __init__(
        self,
        pen: Pen,
        segments: Directory,
        store_id: bytes,
        position: Position,
        *,
        crc: int,
        target: int = ROTATION_TARGET_BYTES,
        sync: bool = True,
    ) -> None:
        self.planned = position
        self.written = position
        self.poisoned = False
        self._pen = pen
        self._segments = segments
        self._store_id = store_id
        self._crc = crc
        self._target = min(target, MAX_SEALED_BYTES)
        self._sync = sync
        self.file = self._open_segment(position.segment_id)
        self._open = True

    def plan(self, records: Iterable[tuple[int, int, bytes]], runs: list[Run]) -> list[int]:
        """Add records (type, schema, payload) to ``runs``; their places as locations."""
        segment_id, offset, first, sequence = self.planned
        places: list[int] = []
        for record_type, schema, payload in records:
            if sequence > MAX_U64:
                raise refuse("resource_limit", "sequence_exhausted")
            size = OVERHEAD_BYTES + len(payload)
            if offset == HEADER_BYTES or not self._fits(offset + size, sequence - first):
                at = next_position(Position(segment_id, offset, first, sequence), size, self._target)
                segment_id, offset, first, sequence = at
            if not runs or runs[-1].segment_id != segment_id:
                runs.append(Run(segment_id, offset))
            runs[-1].frames.append(frame(record_type, schema, sequence, payload))
            places.append(location(segment_id, offset))
            offset += size
            sequence += 1
        self.planned = Position(segment_id, offset, first, sequence)
        return places

    def _fits(self, end: int, records: int) -> bool:
        """Whether a record may end there in a segment that holds some."""
        return end + FOOTER_BYTES <= self._target and records < MAX_SEGMENT_RECORDS

    def write(self, runs: list[Run]) -> None:
        """Write what was planned, turning segments where the plan does.

        Raises:
            JournalError: ``poisoned``, or the fault that poisoned the writer. What reached the
                disk is unknown then; the bytes are left as they are.
        """
        if self.poisoned:
            raise located(refuse("io", "poisoned"), path=self.file.path)
        try:
            for run in runs:
                if run.segment_id != self.written.segment_id:
                    self._rotate()
                self._append(run)
        except OSError as error:
            self.poisoned = True
            raise disk.io_error(error, self.file.path) from error
        except BaseException:
            self.poisoned = True
            raise

    def rotate(self) -> None:
        """Seal the active segment and begin the next; an empty segment stays as it is."""
        if self.poisoned:
            raise located(refuse("io", "poisoned"), path=self.file.path)
        if self.written.size == HEADER_BYTES:
            return
        try:
            self._rotate()
        except OSError as error:
            self.poisoned = True
            raise disk.io_error(error, self.file.path) from error
        except BaseException:
            self.poisoned = True
            raise
        self.planned = self.written

    def sync(self) -> None:
        """Make everything written durable, whatever the durability asked for."""
        self._pen.fsync(self.file, "append.fsync")

    def close(self) -> None:
        """Let go of the active segment. Safe to call twice, and after a rotation failed half-way."""
        if self._open:
            self._open = False
            self.file.close()

    def _append(self, run: Run) -> None:
        data = b"".join(run.frames)
        cuts = cut_at_pages(run.offset, [len(item) for item in run.frames])
        if run.offset != self.written.size:
            raise refuse("io", "writer_state_mismatch", self.written.size, run.offset)
        self._pen.append(self.file, run.offset, data, cuts, sync=self._sync)
        self._crc = crc32c(data, self._crc)
        at = self.written
        self.written = Position(
            at.segment_id, at.size + len(data), at.first_sequence, at.next_sequence + len(run.frames)
        )

    def _rotate(self) -> None:
        at = self.written
        self._check_active(at)
        footer = encode_footer(
            SegmentFooter(
                segment_id=at.segment_id,
                first_sequence=at.first_sequence,
                last_sequence=at.next_sequence - 1,
                record_count=at.records,
                store_id=self._store_id,
                segment_crc=self._crc,
            )
        )
        self._pen.append(self.file, at.size, footer, [len(footer)], sync=False, point="rotate.footer")
        self._pen.fsync(self.file, "rotate.footer.fsync")
        self._pen.release(self.file)
        self.close()
        self._crc = create_successor(
            self._pen, self._segments, self._store_id, at.segment_id + 1, at.next_sequence
        )
        self.written = Position(at.segment_id + 1, HEADER_BYTES, at.next_sequence, at.next_sequence)
        self.file = self._open_segment(self.written.segment_id)
        self._open = True

    def _check_active(self, at: Position) -> None:
        """Read the segment again before it is sealed for ever."""
        crc = position = 0
        while position < at.size:
            chunk = os.pread(self.file.fd, min(CHUNK_BYTES, at.size - position), position)
            if not chunk:
                break
            crc = crc32c(chunk, crc)
            position += len(chunk)
        if os.fstat(self.file.fd).st_size != at.size or crc != self._crc:
            raise located(refuse("changed_view", "writer_state_mismatch"), path=self.file.path)

    def _open_segment(self, segment_id: int) -> File:
        file = disk.open_file(
            self._segments, segment_name(segment_id), os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC
        )
        self._pen.adopt(file)
        return file


def create_successor(
    pen: Pen, segments: Directory, store_id: bytes, segment_id: int, first_sequence: int
) -> int:
    """Publish an empty segment under its final name (spec B.8, 4 to 7); the CRC of its header."""
    header = encode_header(
        SegmentHeader(segment_id=segment_id, first_sequence=first_sequence, store_id=store_id)
    )
    stage = layout.segment_stage_name(segment_id)
    pen.create(segments, stage, header, "rotate.stage")
    try:
        pen.rename_new(segments, stage, segment_name(segment_id), "rotate")
    except FileExistsError as error:
        raise _taken(segments, segment_id) from error
    return crc32c(header)


def _taken(segments: Directory, segment_id: int) -> JournalError:
    path = segments.child(segment_name(segment_id))
    return located(refuse("io", "successor_mismatch"), path=path)
