"""Canonical values: the body of every payload and of the manifest (spec D).

=== ============================================ ====================
tag body                                         Python
=== ============================================ ====================
00                                               ``None``
01                                               ``False``
02                                               ``True``
03  8 bytes two's complement, strictly negative  ``int``
04  8 bytes unsigned                             ``int``
05  8 bytes IEEE-754 binary64, finite            ``float``
06  u32 length and UTF-8                         ``str``
07  u32 length and bytes                         ``bytes``
08  u32 count and that many values               ``list``
09  u32 count and that many (text, value) pairs  ``dict``
=== ============================================ ====================
"""

from __future__ import annotations

import struct
from typing import Final, TypeAlias

from .limits import MAX_PAYLOAD_BYTES, MAX_U64, READING, ValueLimits
from .refusal import refuse

Value: TypeAlias = "bool | int | float | str | bytes | list[Value] | dict[str, Value] | None"

_U32: Final = struct.Struct(">I")
_U64: Final = struct.Struct(">Q")
_I64: Final = struct.Struct(">q")
_F64: Final = struct.Struct(">d")
_TAGGED_U64: Final = struct.Struct(">BQ")
_TAGGED_U32: Final = struct.Struct(">BI")


class _Reader:
    """One decoding: the bytes, where it stands, and what it may still spend."""

    __slots__ = ("binary", "data", "depth", "end", "nodes", "pos")

    def __init__(self, data: bytes, pos: int, limits: ValueLimits) -> None:
        self.data = data
        self.pos = pos
        self.end = len(data)
        self.depth = limits.depth
        self.nodes = limits.nodes
        self.binary = limits.binary_bytes

    def read(self, depth: int) -> Value:
        if depth > self.depth:
            raise refuse("resource_limit", "resource_limit", "depth")
        if self.nodes == 0:
            raise refuse("resource_limit", "resource_limit", "output_nodes")
        self.nodes -= 1
        if self.pos >= self.end:
            raise refuse("invalid_payload", "truncated_value")
        tag = self.data[self.pos]
        self.pos += 1
        if tag == 6:
            return self._text()
        if tag == 4:
            return int(_U64.unpack_from(self.data, self._take(8))[0])
        if tag < 3:
            return _SCALARS[tag]
        if tag == 9:
            return self._map(depth + 1)
        if tag == 8:
            return self._list(depth + 1)
        return self._rare(tag)

    def _rare(self, tag: int) -> Value:
        if tag == 7:
            return self._body()
        if tag == 3:
            number = int(_I64.unpack_from(self.data, self._take(8))[0])
            if number >= 0:
                raise refuse("invalid_payload", "noncanonical_integer")
            return number
        if tag == 5:
            start = self._take(8)
            if self.data[start] & 0x7F == 0x7F and self.data[start + 1] & 0xF0 == 0xF0:
                raise refuse("invalid_payload", "nonfinite_float")
            return float(_F64.unpack_from(self.data, start)[0])
        raise refuse("invalid_payload", "unknown_tag", tag)

    def _take(self, size: int) -> int:
        start = self.pos
        if self.end - start < size:
            raise refuse("invalid_payload", "truncated_value")
        self.pos = start + size
        return start

    def _body(self) -> bytes:
        (length,) = _U32.unpack_from(self.data, self._take(4))
        start = self._take(length)
        if length > self.binary:
            raise refuse("resource_limit", "resource_limit", "binary_bytes")
        self.binary -= length
        return self.data[start : start + length]

    def _text(self) -> str:
        try:
            return self._body().decode()
        except UnicodeDecodeError:
            raise refuse("invalid_payload", "utf8") from None

    def _count(self, each_bytes: int, each_nodes: int) -> int:
        (count,) = _U32.unpack_from(self.data, self._take(4))
        if count * each_bytes > self.end - self.pos:
            raise refuse("invalid_payload", "truncated_value")
        if count * each_nodes > self.nodes:
            raise refuse("resource_limit", "resource_limit", "output_nodes")
        return int(count)

    def _list(self, depth: int) -> list[Value]:
        return [self.read(depth) for _ in range(self._count(1, 1))]

    def _map(self, depth: int) -> dict[str, Value]:
        result: dict[str, Value] = {}
        previous: bytes | None = None
        for _ in range(self._count(6, 2)):
            start = self.pos
            key = self.read(depth)
            if type(key) is not str:
                raise refuse("invalid_payload", "map_key")
            body = self.data[start + 5 : self.pos]
            if previous is not None and body <= previous:
                raise refuse("invalid_payload", "map_order")
            previous = body
            result[key] = self.read(depth)
        return result


_SCALARS: Final[tuple[None, bool, bool]] = (None, False, True)


def decode_value(data: bytes | memoryview, limits: ValueLimits = READING) -> Value:
    """Decode exactly one Value that fills ``data``.

    Raises:
        CorruptRecord: The bytes are not a canonical Value.
        JournalError: A budget is exceeded; says nothing about the bytes.
    """
    size = len(data)
    if size > MAX_PAYLOAD_BYTES:
        raise refuse("invalid_payload", "payload_hard_limit", size)
    if size > limits.encoded_bytes:
        raise refuse("resource_limit", "resource_limit", "encoded_bytes")
    reader = _Reader(bytes(data), 0, limits)
    value = reader.read(1)
    if reader.pos != reader.end:
        raise refuse("invalid_payload", "trailing_bytes")
    return value


def decode_value_at(data: bytes, pos: int, limits: ValueLimits = READING) -> tuple[Value, int]:
    """Decode the Value that starts at ``pos``; returns it and where it ends."""
    reader = _Reader(data, pos, limits)
    value = reader.read(1)
    return value, reader.pos


class _Writer:
    """One encoding: the parts written so far and what may still be spent."""

    __slots__ = ("binary", "depth", "nodes", "parts")

    def __init__(self, limits: ValueLimits) -> None:
        self.parts: list[bytes] = []
        self.depth = limits.depth
        self.nodes = limits.nodes
        self.binary = limits.binary_bytes

    def write(self, value: object, depth: int) -> None:
        if depth > self.depth:
            raise refuse("resource_limit", "resource_limit", "depth")
        if self.nodes == 0:
            raise refuse("resource_limit", "resource_limit", "output_nodes")
        self.nodes -= 1
        kind = type(value)
        if value is None:
            self.parts.append(b"\x00")
        elif kind is bool:
            self.parts.append(b"\x02" if value else b"\x01")
        elif kind is int:
            self.parts.append(_integer(value))  # type: ignore[arg-type]
        elif kind is float:
            self.parts.append(_float(value))  # type: ignore[arg-type]
        elif kind is str:
            self._body(6, _utf8(value))  # type: ignore[arg-type]
        elif kind is bytes:
            self._body(7, value)  # type: ignore[arg-type]
        elif kind is list or kind is tuple:
            self._list(value, depth + 1)  # type: ignore[arg-type]
        elif kind is dict:
            self._map(value, depth + 1)  # type: ignore[arg-type]
        else:
            raise refuse("invalid_payload", "invalid_value", kind.__name__)

    def _body(self, tag: int, body: bytes) -> None:
        if len(body) > self.binary:
            raise refuse("resource_limit", "resource_limit", "binary_bytes")
        self.binary -= len(body)
        self.parts.append(_TAGGED_U32.pack(tag, len(body)))
        self.parts.append(body)

    def _list(self, items: list[object] | tuple[object, ...], depth: int) -> None:
        if len(items) > self.nodes:
            raise refuse("resource_limit", "resource_limit", "output_nodes")
        self.parts.append(_TAGGED_U32.pack(8, len(items)))
        for item in items:
            self.write(item, depth)

    def _map(self, items: dict[object, object], depth: int) -> None:
        if 2 * len(items) > self.nodes:
            raise refuse("resource_limit", "resource_limit", "output_nodes")
        if items and depth > self.depth:
            raise refuse("resource_limit", "resource_limit", "depth")
        pairs = sorted((_key(key), key) for key in items)
        self.parts.append(_TAGGED_U32.pack(9, len(pairs)))
        for body, key in pairs:
            if self.nodes == 0:
                raise refuse("resource_limit", "resource_limit", "output_nodes")
            self.nodes -= 1
            self._body(6, body)
            self.write(items[key], depth)


def encode_value(value: object, limits: ValueLimits = READING) -> bytes:
    """The one canonical encoding of ``value``; refuses what has none or costs too much."""
    writer = _Writer(limits)
    writer.write(value, 1)
    encoded = b"".join(writer.parts)
    if len(encoded) > limits.encoded_bytes:
        raise refuse("resource_limit", "resource_limit", "encoded_bytes")
    if len(encoded) > MAX_PAYLOAD_BYTES:
        raise refuse("invalid_payload", "payload_hard_limit", len(encoded))
    return encoded


def holds_opaque(value: Value) -> bool:
    """Whether a tag-07 byte string lies anywhere inside ``value``."""
    if type(value) is bytes:
        return True
    if type(value) is list:
        return any(holds_opaque(item) for item in value)
    if type(value) is dict:
        return any(holds_opaque(item) for item in value.values())
    return False


def _integer(number: int) -> bytes:
    if 0 <= number <= MAX_U64:
        return _TAGGED_U64.pack(4, number)
    if -(2**63) <= number < 0:
        return b"\x03" + _I64.pack(number)
    raise refuse("invalid_payload", "invalid_value", "integer outside -2^63..2^64-1")


def _float(number: float) -> bytes:
    if number != number or number in (float("inf"), float("-inf")):
        raise refuse("invalid_payload", "nonfinite_float")
    return b"\x05" + _F64.pack(number)


def _utf8(text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise refuse("invalid_payload", "utf8") from None


def _key(key: object) -> bytes:
    if type(key) is not str:
        raise refuse("invalid_payload", "map_key")
    return _utf8(key)
