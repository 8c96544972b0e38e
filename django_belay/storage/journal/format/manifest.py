"""MANIFEST: what a generation is made of; written once, never changed (spec C.4).

``TAYM`` 01 00 00 00, u32 length of the body, body (one Value map), CRC32C of all before it.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias, cast

from .domain import is_id, is_seq, is_time, is_u64
from .limits import MAX_MANIFEST_BYTES, MAX_SEALED_BYTES
from .metadata import check_crc, check_length, sealed
from .refusal import refuse
from .value import Value, decode_value, encode_value

HEAD: Final = struct.Struct(">4sB3sI")
FRAMING_BYTES: Final = 16
MAX_HOURS: Final = 2_562_047_788_015
MAX_MINUTES: Final = 153_722_867_280_912
_REQUIRED: Final = frozenset(
    {
        "base_segments",
        "captured_at",
        "epoch_id",
        "source_epoch_id",
        "source_frontier",
        "source_segments",
        "store_id",
        "tail_first_sequence",
        "tail_segment_id",
        "terminal_retention",
    }
)
_FRONTIER: Final = "availability_frontier"
_BASE_KEYS: Final = frozenset({"bytes", "digest", "first_sequence", "id", "last_sequence"})
_SOURCE_KEYS: Final = frozenset({"digest", "id"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Retention:
    """How long finished jobs are kept: for ever, or a whole number of hours or minutes."""

    unit: Literal["infinity", "hours", "minutes"] = "infinity"
    amount: int = 0

    @property
    def milliseconds(self) -> int | None:
        """The duration, None for ever. A stored 0 asks for one unit, as the reference reads it."""
        if self.unit == "infinity":
            return None
        return max(self.amount, 1) * (3_600_000 if self.unit == "hours" else 60_000)


INFINITY: Final = Retention()


@dataclass(frozen=True, slots=True, kw_only=True)
class BaseSegment:
    """A sealed segment of the canonical base."""

    size: int
    sha256: bytes
    first_sequence: int
    segment_id: int
    last_sequence: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceSegment:
    """A sealed segment of the predecessor that this generation replaces."""

    sha256: bytes
    segment_id: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """One generation. ``availability_frontier`` None means unknown: the key is absent."""

    base_segments: tuple[BaseSegment, ...]
    captured_at: int
    epoch_id: bytes
    source_epoch_id: bytes | None
    source_frontier: int
    source_segments: tuple[SourceSegment, ...]
    store_id: bytes
    tail_first_sequence: int
    tail_segment_id: int
    terminal_retention: Retention
    availability_frontier: int | None = None


def first_manifest(*, store_id: bytes, epoch_id: bytes, captured_at: int, retention: Retention) -> Manifest:
    """The manifest of a new store's empty generation (spec C.6)."""
    return Manifest(
        base_segments=(), captured_at=captured_at, epoch_id=epoch_id, source_epoch_id=None,
        source_frontier=0, source_segments=(), store_id=store_id, tail_first_sequence=1,
        tail_segment_id=1, terminal_retention=retention,
    )  # fmt: skip


def encode_manifest(manifest: Manifest) -> bytes:
    """The bytes of MANIFEST."""
    value: dict[str, Value] = {
        "base_segments": [_base_value(item) for item in manifest.base_segments],
        "captured_at": manifest.captured_at,
        "epoch_id": manifest.epoch_id,
        "source_epoch_id": manifest.source_epoch_id,
        "source_frontier": manifest.source_frontier,
        "source_segments": [
            {"digest": item.sha256, "id": item.segment_id} for item in manifest.source_segments
        ],
        "store_id": manifest.store_id,
        "tail_first_sequence": manifest.tail_first_sequence,
        "tail_segment_id": manifest.tail_segment_id,
        "terminal_retention": _retention_value(manifest.terminal_retention),
    }
    if manifest.availability_frontier is not None:
        value[_FRONTIER] = manifest.availability_frontier
    body = encode_value(value)
    if len(body) > MAX_MANIFEST_BYTES - FRAMING_BYTES:
        raise refuse("resource_limit", "manifest_length", len(body))
    encoded = sealed(HEAD.pack(b"TAYM", 1, b"\x00\x00\x00", len(body)) + body)
    decode_manifest(encoded)
    return encoded


def decode_manifest(data: bytes | memoryview) -> Manifest:
    """Decode MANIFEST in the order of spec C.4."""
    if len(data) > MAX_MANIFEST_BYTES:
        raise refuse("physical_corruption", "metadata_length", len(data))
    check_length(data, FRAMING_BYTES, exact=False)
    check_crc(data)
    magic, version, reserved, length = HEAD.unpack_from(data)
    if (magic, version, reserved) != (b"TAYM", 1, b"\x00\x00\x00"):
        raise refuse("physical_corruption", "manifest_format")
    if length != len(data) - FRAMING_BYTES:
        raise refuse("physical_corruption", "manifest_length", length)
    value = decode_value(bytes(data[HEAD.size : -4]))
    if type(value) is not dict or value.keys() - {_FRONTIER} != _REQUIRED:
        raise refuse("physical_corruption", "manifest_keys")
    return _from_map(value)


def retention_of(value: Value) -> Retention:
    """The retention a Value states; an unknown form is never read as infinity."""
    if type(value) is str and value == "infinity":
        return INFINITY
    if type(value) is dict and len(value) == 1:
        (unit, amount), *_ = value.items()
        most = {"hours": MAX_HOURS, "minutes": MAX_MINUTES}.get(unit, -1)
        if type(amount) is int and 0 <= amount <= most:
            return Retention(unit=cast(Literal["hours", "minutes"], unit), amount=amount)
    raise refuse("physical_corruption", "terminal_retention")


def _from_map(value: dict[str, Value]) -> Manifest:
    retention = retention_of(value["terminal_retention"])
    bases = _entries(value["base_segments"], _BASE_KEYS)
    sources = _entries(value["source_segments"], _SOURCE_KEYS)
    tail_id, tail_first = value["tail_segment_id"], value["tail_first_sequence"]
    store_id, epoch_id, source_id = value["store_id"], value["epoch_id"], value["source_epoch_id"]
    frontier, orders, captured = value["source_frontier"], value.get(_FRONTIER), value["captured_at"]
    if not (is_seq(tail_id) and is_seq(tail_first)):
        raise refuse("physical_corruption", "manifest_fields")
    if not (is_id(store_id) and is_id(epoch_id)):
        raise refuse("physical_corruption", "manifest_id")
    if not (source_id is None or is_id(source_id)):
        raise refuse("physical_corruption", "source_epoch")
    if not is_u64(frontier):
        raise refuse("physical_corruption", "source_frontier")
    if not (orders is None or is_u64(orders)):
        raise refuse("physical_corruption", _FRONTIER)
    if not is_time(captured):
        raise refuse("physical_corruption", "captured_at")
    return Manifest(
        source_segments=_sources(sources), base_segments=_bases(bases, tail_id, tail_first),
        captured_at=captured, epoch_id=epoch_id, source_epoch_id=source_id, source_frontier=frontier,
        store_id=store_id, tail_first_sequence=tail_first, tail_segment_id=tail_id,
        terminal_retention=retention, availability_frontier=orders,
    )  # fmt: skip


_Entries: TypeAlias = "list[dict[str, Value]]"


def _entries(value: Value, keys: frozenset[str]) -> _Entries:
    if type(value) is not list or any(type(item) is not dict or item.keys() != keys for item in value):
        raise refuse("physical_corruption", "manifest_entries")
    return cast(_Entries, value)


def _sources(entries: _Entries) -> tuple[SourceSegment, ...]:
    result = []
    for number, entry in enumerate(entries, start=1):
        segment_id, digest = entry["id"], entry["digest"]
        if type(segment_id) is not int or segment_id != number or not _is_digest(digest):
            raise refuse("physical_corruption", "source_segments")
        result.append(SourceSegment(sha256=cast(bytes, digest), segment_id=number))
    return tuple(result)


def _bases(entries: _Entries, tail_id: int, tail_first: int) -> tuple[BaseSegment, ...]:
    result = []
    following = 1
    for number, entry in enumerate(entries, start=1):
        segment_id, size, digest = entry["id"], entry["bytes"], entry["digest"]
        first, last = entry["first_sequence"], entry["last_sequence"]
        good = type(segment_id) is int and segment_id == number and _is_digest(digest)
        if not (good and is_seq(first) and is_seq(last) and first == following and last >= first):
            raise refuse("physical_corruption", "base_segments")
        if type(size) is not int or not 64 <= size <= MAX_SEALED_BYTES:
            raise refuse("physical_corruption", "base_segments")
        following = last + 1
        result.append(
            BaseSegment(
                size=size,
                sha256=cast(bytes, digest),
                first_sequence=first,
                segment_id=number,
                last_sequence=last,
            )
        )
    if (tail_id, tail_first) != (len(entries) + 1, following):
        raise refuse("physical_corruption", "base_segments")
    return tuple(result)


def _is_digest(value: Value) -> bool:
    return type(value) is bytes and len(value) == 32


def _base_value(item: BaseSegment) -> Value:
    return {
        "bytes": item.size,
        "digest": item.sha256,
        "first_sequence": item.first_sequence,
        "id": item.segment_id,
        "last_sequence": item.last_sequence,
    }


def _retention_value(retention: Retention) -> Value:
    if retention.unit == "infinity":
        return "infinity"
    return {retention.unit: retention.amount}
