"""Walks one segment from its header to its end, in bounded memory (spec B.6)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple, TypeAlias

from crc32c import crc32c

from django_belay.exceptions import JournalError

from .limits import MAX_ACTIVE_BYTES, MAX_PAYLOAD_BYTES, MAX_SEALED_BYTES, MAX_SEGMENT_RECORDS
from .record import CRC, HEADER, MAGIC, OVERHEAD_BYTES, Incomplete, decode_record
from .record import HEADER_BYTES as RECORD_HEADER_BYTES
from .refusal import located, refuse
from .segment import (
    FOOTER_BYTES,
    FOOTER_MAGIC,
    HEADER_BYTES,
    SegmentFooter,
    SegmentHeader,
    decode_footer,
    decode_header,
)

CHUNK_BYTES: Final = 1 << 20
ReadAt: TypeAlias = Callable[[int, int], bytes]


class Scanned(NamedTuple):
    """One record as it is met; a tuple because millions of them pass through an opening."""

    record_type: int
    payload_schema: int
    sequence: int
    payload: bytes
    offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentSummary:
    """What a whole scan observed."""

    state: Literal["active", "sealed"]
    segment_id: int
    first_sequence: int
    record_count: int
    size: int
    crc: int

    @property
    def last_sequence(self) -> int | None:
        """The last record's sequence, or None when there is no record."""
        return self.first_sequence + self.record_count - 1 if self.record_count else None

    @property
    def next_sequence(self) -> int:
        """The sequence after this segment."""
        return self.first_sequence + self.record_count


class SegmentScan:
    """One pass over a segment file: iterate it, then read ``summary``.

    ``position``, ``count`` and ``header`` say how far it came when it refuses.
    """

    def __init__(
        self,
        read_at: ReadAt,
        size: int,
        *,
        expected_id: int,
        expected_store: bytes | None,
        highest: bool,
        max_payload_bytes: int = MAX_PAYLOAD_BYTES,
    ) -> None:
        self._read_at = read_at
        self._size = size
        self._expected_id = expected_id
        self._expected_store = expected_store
        self._highest = highest
        self._budget = max_payload_bytes
        self._buffer = b""
        self._base = 0  # the file offset of the buffer's first byte
        self._crc = 0  # over the file up to _base
        self.position = 0
        self.count = 0
        self.header: SegmentHeader | None = None
        self.summary: SegmentSummary | None = None

    def __iter__(self) -> Iterator[Scanned]:
        header = self._read_header()
        first = header.first_sequence
        unpack, header_bytes, overhead = HEADER.unpack_from, RECORD_HEADER_BYTES, OVERHEAD_BYTES
        self.position = HEADER_BYTES
        while self._boundary():
            start = self.position
            buffer, at = self._buffer, self.position - self._base
            # Every record that lies whole in the buffer goes this way; anything else about a
            # record is left to _explain, which applies the checks one by one in their order.
            limit = len(buffer)
            while at + overhead <= limit:
                magic, version, kind, flags, schema, sequence, length, head_crc = unpack(buffer, at)
                body = at + header_bytes
                end = body + length
                if magic != MAGIC or end + 4 > limit or version != 1 or flags:
                    break
                prefix_crc = crc32c(buffer[at : at + 20])
                payload = buffer[body:end]
                if (
                    prefix_crc != head_crc
                    or crc32c(payload, prefix_crc) != CRC.unpack_from(buffer, end)[0]
                    or sequence != first + self.count
                    or length > self._budget
                    or kind in (0, 255)
                    or not schema
                    or self.count >= MAX_SEGMENT_RECORDS
                ):
                    break
                offset = self._base + at
                at = end + 4
                self.position = self._base + at
                self.count += 1
                yield Scanned(kind, schema, sequence, payload, offset)
            if self.position == start and not self._refill_record(at):
                self._explain()

    def _read_header(self) -> SegmentHeader:
        self._fill(0, HEADER_BYTES)
        try:
            header = decode_header(
                self._buffer[:HEADER_BYTES],
                expected_id=self._expected_id,
                expected_store=self._expected_store,
            )
        except JournalError as error:
            raise self._header_fault(error) from None
        if self._size > MAX_SEALED_BYTES:
            raise self._fault("physical_corruption", "corrupt_segment_header", "segment_size_exceeds_format")
        self.header = header
        return header

    def _header_fault(self, error: JournalError) -> JournalError:
        inner = error.refusal
        if inner == "incomplete":
            return self._incomplete("incomplete_segment_header", *error.details)
        name = {
            "unsupported_version": "unsupported_segment_version",
            "unsupported_flags": "unsupported_segment_flags",
            "mismatch": "id_or_store_mismatch",
        }.get(inner, "corrupt_segment_header")
        return self._fault(error.kind, name, inner, *error.details)

    def _boundary(self) -> bool:
        """Whether a record begins at ``position``; False at the end; refuses everything else."""
        left = self._size - self.position
        if left == 0:
            self._end_active()
            return False
        if len(self._buffer) - (self.position - self._base) < min(left, OVERHEAD_BYTES):
            self._fill(self.position, min(left, CHUNK_BYTES))
        at = self.position - self._base
        mark = self._buffer[at : at + 4]
        if mark == MAGIC:
            return True
        if mark == FOOTER_MAGIC:
            self._end_sealed()
            return False
        if len(mark) < 4 and b"TAY".startswith(mark):
            raise self._incomplete("ambiguous_short_tail", left)
        raise self._fault("physical_corruption", "invalid_magic")

    def _end_active(self) -> None:
        if not self._highest:
            raise self._fault("physical_corruption", "sealed_history_error", "earlier_active_segment")
        if self._size > MAX_ACTIVE_BYTES:
            raise self._fault("physical_corruption", "active_size_exceeds_format", self._size)
        self._finish("active")

    def _end_sealed(self) -> None:
        left = self._size - self.position
        self._fill(self.position, min(left, FOOTER_BYTES))
        assert self.header is not None
        observed = SegmentFooter(
            segment_id=self.header.segment_id, first_sequence=self.header.first_sequence,
            last_sequence=self.header.first_sequence + self.count - 1, record_count=self.count,
            store_id=self.header.store_id, segment_crc=self._crc,
        )  # fmt: skip
        if left < FOOTER_BYTES:
            raise self._incomplete("incomplete_footer", left, FOOTER_BYTES)
        if left > FOOTER_BYTES:
            raise self._fault("physical_corruption", "corrupt_footer", "trailing_footer_bytes")
        try:
            decode_footer(self._buffer[:FOOTER_BYTES], observed=observed)
        except JournalError as error:
            raise self._footer_fault(error) from None
        self._finish("sealed")

    def _footer_fault(self, error: JournalError) -> JournalError:
        inner = error.refusal
        name = {
            "unsupported_version": "unsupported_segment_version",
            "unsupported_flags": "unsupported_segment_flags",
            "segment_crc": "segment_crc",
        }.get(inner, "corrupt_footer")
        return self._fault(error.kind, name, inner, *error.details)

    def _finish(self, state: Literal["active", "sealed"]) -> None:
        assert self.header is not None
        if state == "active":
            self._advance(self.position)
        self.summary = SegmentSummary(
            state=state, segment_id=self.header.segment_id, first_sequence=self.header.first_sequence,
            record_count=self.count, size=self._size, crc=self._crc,
        )  # fmt: skip

    def _refill_record(self, at: int) -> bool:
        """Bring the record at ``at`` whole into the buffer; False when that changes nothing."""
        left = self._size - self.position
        buffer = self._buffer
        if left < RECORD_HEADER_BYTES:
            return False
        if crc32c(buffer[at : at + 20]) != int.from_bytes(buffer[at + 20 : at + 24]):
            return False
        length = int.from_bytes(buffer[at + 16 : at + 20])
        size = OVERHEAD_BYTES + length
        if length > self._budget or size > left or len(buffer) - at >= size:
            return False
        self._fill(self.position, min(left, max(size, CHUNK_BYTES)))
        return True

    def _explain(self) -> None:
        """Refuse the record at ``position`` with the first rule it breaks."""
        left = self._size - self.position
        self._fill(self.position, min(left, RECORD_HEADER_BYTES))
        try:
            found = decode_record(self._buffer[:RECORD_HEADER_BYTES], max_payload_bytes=self._budget)
            if isinstance(found, Incomplete) and found.record_bytes is not None:
                self._fill(self.position, min(left, found.record_bytes))
                found = decode_record(self._buffer[: found.record_bytes], max_payload_bytes=self._budget)
        except JournalError as error:
            raise located(error, offset=self.position) from None
        if isinstance(found, Incomplete):
            missing = found.missing_bytes
            raise self._incomplete("incomplete_record", found.stage, left, left + missing)
        assert self.header is not None
        want = self.header.first_sequence + self.count
        if self.count >= MAX_SEGMENT_RECORDS:
            raise self._fault("physical_corruption", "record_count_exceeds_format", self.count + 1)
        raise self._fault("continuity", "sequence", want, found.record.sequence)

    def _incomplete(self, name: str, *details: object) -> JournalError:
        if self._highest:
            return self._fault("incomplete_tail", name, *details)
        return self._fault("physical_corruption", "sealed_history_error", name)

    def _fault(self, kind: str, name: str, *details: object) -> JournalError:
        return located(refuse(kind, name, *details), offset=self.position)

    def _fill(self, position: int, size: int) -> None:
        """Make the buffer start at ``position`` and hold at least ``size`` bytes of the file."""
        self._advance(position)
        size = min(size, self._size - position)
        have = len(self._buffer)
        if have < size:
            more = self._read_at(position + have, size - have)
            if len(more) != size - have:
                raise self._fault("io", "changed_file_or_short_read", size - have, len(more))
            self._buffer += more

    def _advance(self, position: int) -> None:
        used = position - self._base
        if used:
            self._crc = crc32c(self._buffer[:used], self._crc)
            self._buffer = self._buffer[used:]
            self._base = position
