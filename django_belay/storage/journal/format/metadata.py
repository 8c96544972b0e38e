"""STORE-V2 and CURRENT: the two small files that make a generation the authority (spec C.2, C.3).

STORE-V2, 28 bytes: ``TAY2`` 01 00 00 00, store id (16), CRC32C of the first 24 bytes.

CURRENT, 76 bytes: ``TAYC`` 01 00 00 00, store id (16), epoch id (16), SHA-256 of the whole
MANIFEST (32), CRC32C of the first 72 bytes.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Final

from crc32c import crc32c

from .domain import ZERO_ID, is_id
from .refusal import refuse

MARKER: Final = struct.Struct(">4sB3s16sI")
CURRENT: Final = struct.Struct(">4sB3s16s16s32sI")
MARKER_BYTES: Final = 28
CURRENT_BYTES: Final = 76
_CRC: Final = struct.Struct(">I")


@dataclass(frozen=True, slots=True, kw_only=True)
class Current:
    """The pointer to the one authoritative generation."""

    store_id: bytes
    epoch_id: bytes
    manifest_sha256: bytes


def encode_marker(store_id: bytes) -> bytes:
    """The bytes of STORE-V2."""
    if not is_id(store_id):
        raise refuse("argument", "store_id")
    return sealed(b"TAY2\x01\x00\x00\x00" + store_id)


def decode_marker(data: bytes | memoryview) -> bytes:
    """The store id in STORE-V2."""
    check_length(data, MARKER_BYTES, exact=True)
    check_crc(data)
    magic, version, reserved, store_id, _ = MARKER.unpack(data)
    if (magic, version, reserved) != (b"TAY2", 1, b"\x00\x00\x00"):
        raise refuse("physical_corruption", "marker_format")
    if store_id == ZERO_ID:
        raise refuse("physical_corruption", "store_id")
    return bytes(store_id)


def encode_current(current: Current) -> bytes:
    """The bytes of CURRENT."""
    if not (is_id(current.store_id) and is_id(current.epoch_id) and len(current.manifest_sha256) == 32):
        raise refuse("argument", "current_fields")
    return sealed(b"TAYC\x01\x00\x00\x00" + current.store_id + current.epoch_id + current.manifest_sha256)


def decode_current(data: bytes | memoryview) -> Current:
    """The pointer in CURRENT."""
    check_length(data, CURRENT_BYTES, exact=True)
    check_crc(data)
    magic, version, reserved, store_id, epoch_id, digest, _ = CURRENT.unpack(data)
    if (magic, version, reserved) != (b"TAYC", 1, b"\x00\x00\x00"):
        raise refuse("physical_corruption", "current_format")
    if ZERO_ID in (store_id, epoch_id):
        raise refuse("physical_corruption", "current_fields")
    return Current(store_id=store_id, epoch_id=epoch_id, manifest_sha256=digest)


def sealed(body: bytes) -> bytes:
    """``body`` with the CRC of all of it behind it."""
    return body + _CRC.pack(crc32c(body))


def check_length(data: bytes | memoryview, size: int, *, exact: bool) -> None:
    """Refuse a metadata file of the wrong size."""
    if len(data) < size or (exact and len(data) != size):
        raise refuse("physical_corruption", "metadata_length", len(data))


def check_crc(data: bytes | memoryview) -> None:
    """Refuse a metadata file whose last four bytes are not the CRC of the rest."""
    if crc32c(bytes(data[:-4])) != _CRC.unpack_from(data, len(data) - 4)[0]:
        raise refuse("physical_corruption", "metadata_checksum")
