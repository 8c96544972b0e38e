"""Record v1: a 24-byte header, an opaque payload, a checksum (spec A).

====== ===== ================= =========================================
offset width field             unit
====== ===== ================= =========================================
0      4     magic             ``TAY\\0``
4      1     format version    1
5      1     record type       1..254
6      1     flags             0
7      1     payload schema    1..255
8      8     sequence          1..2^64-1
16     4     payload length N  bytes, at most 16,777,216
20     4     header CRC        CRC32C of bytes 0..19
24     N     payload           bytes
24+N   4     record CRC        CRC32C of bytes 0..19 and the payload
====== ===== ================= =========================================
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Final, Literal

from crc32c import crc32c

from .limits import MAX_PAYLOAD_BYTES, MAX_U64
from .refusal import refuse

MAGIC: Final = b"TAY\x00"
HEADER: Final = struct.Struct(">4sBBBBQII")
PREFIX: Final = struct.Struct(">4sBBBBQI")
CRC: Final = struct.Struct(">I")
HEADER_BYTES: Final = 24
OVERHEAD_BYTES: Final = 28


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """One physical record; what its payload means depends on the pair (type, schema)."""

    record_type: int
    payload_schema: int
    sequence: int
    payload: bytes
    format_version: int = 1
    flags: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Decoded:
    """A whole record and whatever followed it."""

    record: Record
    remainder: memoryview
    size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Incomplete:
    """The input ends inside a record. A classification, never permission to repair."""

    stage: Literal["header", "payload", "checksum"]
    available_bytes: int
    missing_bytes: int
    record_type: int | None = None
    payload_schema: int | None = None
    sequence: int | None = None
    payload_length: int | None = None
    record_bytes: int | None = None


def decode_record(
    data: bytes | memoryview, *, max_payload_bytes: int = MAX_PAYLOAD_BYTES
) -> Decoded | Incomplete:
    """Decode exactly one record at the start of ``data``.

    Returns:
        The record with the untouched remainder, or how much of it is missing.

    Raises:
        CorruptRecord, UnsupportedFormat, JournalError: The first rule of spec A.1 that is broken.
    """
    if not isinstance(data, bytes | bytearray | memoryview):
        raise refuse("argument", "invalid_argument", "input")
    check_payload_budget(max_payload_bytes)
    view = memoryview(data)
    if bytes(view[:4]) != MAGIC[: len(view[:4])]:
        raise refuse("physical_corruption", "invalid_magic")
    if len(view) < 5:
        return _short_header(view)
    check_version(view[4])
    if len(view) < HEADER_BYTES:
        return _short_header(view)
    record_type, schema, sequence, length = check_header(view[:HEADER_BYTES], max_payload_bytes)
    size = OVERHEAD_BYTES + length
    if len(view) < size:
        return Incomplete(
            stage="payload" if len(view) < HEADER_BYTES + length else "checksum",
            available_bytes=len(view),
            missing_bytes=size - len(view),
            record_type=record_type,
            payload_schema=schema,
            sequence=sequence,
            payload_length=length,
            record_bytes=size,
        )
    payload = bytes(view[HEADER_BYTES : HEADER_BYTES + length])
    (stored,) = CRC.unpack_from(view, HEADER_BYTES + length)
    if crc32c(payload, crc32c(bytes(view[:20]))) != stored:
        raise refuse("physical_corruption", "record_checksum")
    record = Record(record_type=record_type, payload_schema=schema, sequence=sequence, payload=payload)
    return Decoded(record=record, remainder=view[size:], size=size)


def check_version(version: int) -> None:
    """Refuse every format but 1, before anything else of the layout is used."""
    if version == 0:
        raise refuse("physical_corruption", "invalid_format", 0)
    if version != 1:
        raise refuse("unsupported_physical", "format", version)


def check_header(header: bytes | memoryview, max_payload_bytes: int) -> tuple[int, int, int, int]:
    """Steps 6 to 12 of spec A.1 on 24 bytes: type, schema, sequence and payload length."""
    _, _, record_type, flags, schema, sequence, length, crc = HEADER.unpack(header)
    if crc32c(bytes(header[:20])) != crc:
        raise refuse("physical_corruption", "header_checksum")
    _check_fields(record_type, flags, schema, sequence, length)
    if length > max_payload_bytes:
        raise refuse("resource_limit", "resource_limit", length, max_payload_bytes)
    return record_type, schema, sequence, length


def encode_record(record: Record) -> bytes:
    """The bytes of one record, every field checked in the order of spec A.2."""
    if type(record) is not Record:
        raise refuse("argument", "invalid_argument", "record")
    _check_primitives(record)
    if record.format_version == 0:
        raise refuse("argument", "invalid_record", "invalid_format", 0)
    if record.format_version != 1:
        raise refuse("unsupported_physical", "format", record.format_version)
    if record.flags:
        raise refuse("unsupported_physical", "flags", record.flags)
    length = len(record.payload)
    try:
        _check_fields(record.record_type, 0, record.payload_schema, record.sequence, length)
    except Exception as error:
        reason = getattr(error, "refusal", "")
        raise refuse("argument", "invalid_record", reason, *getattr(error, "details", ())) from None
    return frame(record.record_type, record.payload_schema, record.sequence, record.payload)


def frame(record_type: int, schema: int, sequence: int, payload: bytes) -> bytes:
    """The bytes of a record whose fields are known to be good; the writer's hot path."""
    prefix = PREFIX.pack(MAGIC, 1, record_type, 0, schema, sequence, len(payload))
    header_crc = crc32c(prefix)
    return b"".join((prefix, CRC.pack(header_crc), payload, CRC.pack(crc32c(payload, header_crc))))


def check_payload_budget(budget: object) -> None:
    """Refuse a payload budget outside 0..16,777,216."""
    if type(budget) is not int or not 0 <= budget <= MAX_PAYLOAD_BYTES:
        raise refuse("argument", "invalid_options", "invalid_max_decode_payload_bytes")


def _check_fields(record_type: int, flags: int, schema: int, sequence: int, length: int) -> None:
    if flags:
        raise refuse("unsupported_physical", "flags", flags)
    if record_type in (0, 255):
        raise refuse("physical_corruption", "reserved_type", record_type)
    if schema == 0:
        raise refuse("physical_corruption", "invalid_schema", 0)
    if sequence == 0:
        raise refuse("physical_corruption", "invalid_sequence", 0)
    if length > MAX_PAYLOAD_BYTES:
        raise refuse("physical_corruption", "payload_length_exceeds_format", length, MAX_PAYLOAD_BYTES)


def _check_primitives(record: Record) -> None:
    for name, top in (
        ("format_version", 255),
        ("record_type", 255),
        ("flags", 255),
        ("payload_schema", 255),
        ("sequence", MAX_U64),
    ):
        value = getattr(record, name)
        if type(value) is not int or not 0 <= value <= top:
            raise refuse("argument", "field", name)
    if type(record.payload) is not bytes:
        raise refuse("argument", "field", "payload")


def _short_header(view: memoryview) -> Incomplete:
    return Incomplete(stage="header", available_bytes=len(view), missing_bytes=HEADER_BYTES - len(view))
