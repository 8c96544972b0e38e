"""Writing the sealed base segments of a candidate generation (spec C.7, G.2)."""

from __future__ import annotations

import hashlib
from typing import Final

from crc32c import crc32c

from django_belay.storage.journal.format.limits import MAX_SEALED_BYTES
from django_belay.storage.journal.format.manifest import BaseSegment
from django_belay.storage.journal.format.record import OVERHEAD_BYTES, frame
from django_belay.storage.journal.format.refusal import refuse
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

from . import disk
from .disk import Directory, File
from .filesystem import Room

_FLUSH_BYTES: Final = 1 << 18


class BaseWriter:
    """Packs records into sealed segments, in bounded memory."""

    def __init__(self, segments: Directory, store_id: bytes, *, target: int, room: Room) -> None:
        self.sealed: list[BaseSegment] = []
        self.next_sequence = 1
        self._segments = segments
        self._store_id = store_id
        self._target = target
        self._room = room
        self._file: File | None = None
        self._parts: list[bytes] = []
        self._pending = 0
        self._flushed = 0
        self._first = 1
        self._crc = 0
        self._sha = hashlib.sha256()

    def add(self, record_type: int, schema: int, payload: bytes) -> int:
        """Write one record; its place as a location."""
        size = OVERHEAD_BYTES + len(payload)
        if HEADER_BYTES + size + FOOTER_BYTES > MAX_SEALED_BYTES:
            raise refuse("invalid_payload", "snapshot_exceeds_segment", size)
        if self._size > HEADER_BYTES and self._size + size + FOOTER_BYTES > self._target:
            self._seal()
        if self._file is None:
            self._begin()
        where = location(len(self.sealed) + 1, self._size)
        self._put(frame(record_type, schema, self.next_sequence, payload))
        self.next_sequence += 1
        return where

    def finish(self) -> tuple[BaseSegment, ...]:
        """Seal what is open; every segment of the base."""
        if self._file is not None:
            self._seal()
        return tuple(self.sealed)

    def abandon(self) -> None:
        """Let go of the open segment; the candidate is given up."""
        if self._file is not None:
            self._file.close()
            self._file = None

    @property
    def _size(self) -> int:
        return self._flushed + self._pending

    def _begin(self) -> None:
        segment_id = len(self.sealed) + 1
        self._file = disk.create(self._segments, segment_name(segment_id), "compact.base.create")
        self._first = self.next_sequence
        self._flushed = self._crc = 0
        self._sha = hashlib.sha256()
        header = SegmentHeader(segment_id=segment_id, first_sequence=self._first, store_id=self._store_id)
        self._put(encode_header(header))

    def _put(self, data: bytes) -> None:
        self._parts.append(data)
        self._pending += len(data)
        if self._pending >= _FLUSH_BYTES:
            self._flush()

    def _flush(self) -> None:
        assert self._file is not None
        data = b"".join(self._parts)
        self._parts, self._pending = [], 0
        self._room.take(len(data))
        disk.write(self._file, self._flushed, data, "compact.base.write")
        self._flushed += len(data)
        self._crc = crc32c(data, self._crc)
        self._sha.update(data)

    def _seal(self) -> None:
        assert self._file is not None
        self._flush()
        segment_id, last = len(self.sealed) + 1, self.next_sequence - 1
        footer = encode_footer(
            SegmentFooter(
                segment_id=segment_id,
                first_sequence=self._first,
                last_sequence=last,
                record_count=last - self._first + 1,
                store_id=self._store_id,
                segment_crc=self._crc,
            )
        )
        disk.write(self._file, self._flushed, footer, "compact.base.footer.write")
        self._sha.update(footer)
        disk.fsync(self._file, "compact.base.fsync")
        self._file.close()
        self._file = None
        self.sealed.append(
            BaseSegment(
                size=self._flushed + FOOTER_BYTES,
                sha256=self._sha.digest(),
                first_sequence=self._first,
                segment_id=segment_id,
                last_sequence=last,
            )
        )
        self._flushed = 0
