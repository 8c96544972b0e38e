"""Segment v1: the fixed blocks around the records, and the names of the files (spec B).

Header, 44 bytes:

====== ===== ==============
offset width field
====== ===== ==============
0      4     ``TAYS``
4      1     version, 1
5      1     flags, 0
6      2     reserved, 0
8      8     segment id
16     8     first sequence
24     16    store id
40     4     header CRC
====== ===== ==============

Footer, 64 bytes:

====== ===== ==============
offset width field
====== ===== ==============
0      4     ``TAYF``
4      1     version, 1
5      1     flags, 0
6      2     reserved, 0
8      8     segment id
16     8     first sequence
24     8     last sequence
32     8     record count
40     16    store id
56     4     segment CRC
60     4     footer CRC
====== ===== ==============
"""

from __future__ import annotations

import re
import struct
from dataclasses import dataclass
from typing import Final

from crc32c import crc32c

from .domain import ZERO_ID
from .limits import MAX_SEGMENT_RECORDS, MAX_U64
from .refusal import refuse

HEADER_MAGIC: Final = b"TAYS"
FOOTER_MAGIC: Final = b"TAYF"
LEGACY_MAGIC: Final = b"TAYI"
HEADER: Final = struct.Struct(">4sBBHQQ16sI")
FOOTER: Final = struct.Struct(">4sBBHQQQQ16sII")
LEGACY: Final = struct.Struct(">4sBBH16sI")
HEADER_BYTES: Final = 44
FOOTER_BYTES: Final = 64
LEGACY_BYTES: Final = 28
_CRC: Final = struct.Struct(">I")
_NAME: Final = re.compile(r"([0-9]{20})\.tay")


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentHeader:
    """The first 44 bytes of a segment file."""

    segment_id: int
    first_sequence: int
    store_id: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentFooter:
    """The last 64 bytes of a sealed segment file."""

    segment_id: int
    first_sequence: int
    last_sequence: int
    record_count: int
    store_id: bytes
    segment_crc: int


def encode_header(header: SegmentHeader) -> bytes:
    """The 44 bytes of a header."""
    _check_coordinates(header.segment_id, header.first_sequence, header.store_id)
    body = HEADER.pack(HEADER_MAGIC, 1, 0, 0, header.segment_id, header.first_sequence, header.store_id, 0)[
        :-4
    ]
    return body + _CRC.pack(crc32c(body))


def decode_header(
    data: bytes | memoryview, *, expected_id: int | None = None, expected_store: bytes | None = None
) -> SegmentHeader:
    """Decode a header in the order of spec B.5; what is expected is compared last."""
    view = memoryview(data)
    check_block(view, HEADER_MAGIC, HEADER_BYTES)
    fields = HEADER.unpack_from(view)
    header = SegmentHeader(segment_id=fields[4], first_sequence=fields[5], store_id=fields[6])
    _check_coordinates(header.segment_id, header.first_sequence, header.store_id)
    if expected_id is not None and header.segment_id != expected_id:
        raise refuse("physical_corruption", "mismatch", "id", expected_id, header.segment_id)
    if expected_store is not None and header.store_id != expected_store:
        raise refuse(
            "physical_corruption", "mismatch", "store_id", expected_store.hex(), header.store_id.hex()
        )
    return header


def encode_footer(footer: SegmentFooter) -> bytes:
    """The 64 bytes of a footer."""
    _check_footer_fields(footer)
    body = FOOTER.pack(
        FOOTER_MAGIC, 1, 0, 0, footer.segment_id, footer.first_sequence, footer.last_sequence,
        footer.record_count, footer.store_id, footer.segment_crc, 0,
    )[:-4]  # fmt: skip
    return body + _CRC.pack(crc32c(body))


def decode_footer(data: bytes | memoryview, *, observed: SegmentFooter) -> SegmentFooter:
    """Decode a footer and compare it with what the scan of its segment observed.

    ``observed.last_sequence`` is that of an impossible last record (first - 1) when there is none.
    """
    view = memoryview(data)
    check_block(view, FOOTER_MAGIC, FOOTER_BYTES)
    if len(view) > FOOTER_BYTES:
        raise refuse("physical_corruption", "trailing_footer_bytes", len(view) - FOOTER_BYTES)
    fields = FOOTER.unpack_from(view)
    footer = SegmentFooter(
        segment_id=fields[4], first_sequence=fields[5], last_sequence=fields[6], record_count=fields[7],
        store_id=fields[8], segment_crc=fields[9],
    )  # fmt: skip
    _check_footer_ranges(footer)
    _compare("id", observed.segment_id, footer.segment_id)
    _compare("first_sequence", observed.first_sequence, footer.first_sequence)
    if footer.store_id == ZERO_ID:
        raise refuse("physical_corruption", "invalid_store_id")
    _compare("store_id", observed.store_id.hex(), footer.store_id.hex())
    _check_relation(footer)
    _compare("record_count", observed.record_count, footer.record_count)
    _compare("last_sequence", observed.last_sequence, footer.last_sequence)
    if footer.segment_crc != observed.segment_crc:
        raise refuse("physical_corruption", "segment_crc")
    return footer


def decode_legacy_marker(data: bytes | memoryview) -> bytes:
    """The store id in the 28-byte ``STORE`` of Store v1. Recognised only; never an authority."""
    view = memoryview(data)
    check_block(view, LEGACY_MAGIC, LEGACY_BYTES)
    store_id = bytes(LEGACY.unpack_from(view)[4])
    if store_id == ZERO_ID:
        raise refuse("physical_corruption", "invalid_store_id")
    return store_id


def check_block(view: memoryview, magic: bytes, size: int) -> None:
    """The checks every fixed block of this format begins with (spec B.5)."""
    if bytes(view[:4]) != magic[: len(view[:4])]:
        raise refuse("physical_corruption", "invalid_magic")
    if len(view) < 5:
        raise refuse("incomplete_tail", "incomplete", len(view), size)
    if view[4] == 0:
        raise refuse("physical_corruption", "invalid_version", 0)
    if view[4] != 1:
        raise refuse("unsupported_physical", "unsupported_version", view[4])
    if len(view) < size:
        raise refuse("incomplete_tail", "incomplete", len(view), size)
    if crc32c(bytes(view[: size - 4])) != _CRC.unpack_from(view, size - 4)[0]:
        raise refuse("physical_corruption", "checksum")
    if view[5]:
        raise refuse("unsupported_physical", "unsupported_flags", view[5])
    if view[6] or view[7]:
        raise refuse("physical_corruption", "reserved_bytes")


def segment_name(segment_id: int) -> str:
    """``00000000000000000001.tay`` for 1."""
    if not 1 <= segment_id <= MAX_U64:
        raise refuse("argument", "invalid_segment_id", segment_id)
    return f"{segment_id:020d}.tay"


def segment_id_of(name: str) -> int | None:
    """The id a canonical segment name says; None for every other name."""
    match = _NAME.fullmatch(name)
    if match is None or not name.isascii():
        return None
    number = int(match[1])
    return number if 1 <= number <= MAX_U64 else None


def check_topology(segments: list[tuple[int, int, int]]) -> int:
    """The next sequence after (id, first sequence, record count) of all segments, in file order."""
    following = 1
    for expected_id, (segment_id, first, count) in enumerate(segments, start=1):
        if segment_id != expected_id:
            raise refuse("discovery", "noncontiguous_ids", expected_id, segment_id)
        if first != following:
            raise refuse("continuity", "first_sequence", segment_id, following, first)
        following = first + count
    return following


def _check_coordinates(segment_id: int, first: int, store_id: bytes) -> None:
    if not 1 <= segment_id <= MAX_U64:
        raise refuse("physical_corruption", "invalid_segment_id", segment_id)
    if not 1 <= first <= MAX_U64:
        raise refuse("physical_corruption", "invalid_first_sequence", first)
    if len(store_id) != 16 or store_id == ZERO_ID:
        raise refuse("physical_corruption", "invalid_store_id")


def _check_footer_fields(footer: SegmentFooter) -> None:
    _check_footer_ranges(footer)
    if footer.store_id == ZERO_ID:
        raise refuse("physical_corruption", "invalid_store_id")
    _check_relation(footer)


def _check_footer_ranges(footer: SegmentFooter) -> None:
    if not 1 <= footer.segment_id <= MAX_U64:
        raise refuse("physical_corruption", "invalid_segment_id", footer.segment_id)
    if not 1 <= footer.first_sequence <= MAX_U64:
        raise refuse("physical_corruption", "invalid_first_sequence", footer.first_sequence)
    if not 1 <= footer.last_sequence <= MAX_U64:
        raise refuse("physical_corruption", "invalid_last_sequence", footer.last_sequence)
    if not 1 <= footer.record_count <= MAX_SEGMENT_RECORDS:
        raise refuse("physical_corruption", "invalid_record_count", footer.record_count)


def _check_relation(footer: SegmentFooter) -> None:
    if footer.first_sequence + footer.record_count - 1 != footer.last_sequence:
        raise refuse("physical_corruption", "count_sequence_relation")


def _compare(field: str, want: object, got: object) -> None:
    if want != got:
        raise refuse("physical_corruption", "mismatch", field, want, got)
