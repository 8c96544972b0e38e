"""Fixed runs of bytes with unsigned 64-bit numbers between them.

Most payloads are maps with exact keys in one order, so all but a few numbers is
constant. Matching the constant pieces in one unpack is several times faster than
walking the Value, and a payload that does not match is walked as usual: the slow
path alone decides what is wrong with it.
"""

from __future__ import annotations

import struct
from typing import Final

_U32: Final = struct.Struct(">I")


def text(body: str) -> bytes:
    """The tag-06 encoding of a short text."""
    encoded = body.encode()
    return b"\x06" + _U32.pack(len(encoded)) + encoded


def map_of(count: int) -> bytes:
    """The head of a tag-09 map."""
    return b"\x09" + _U32.pack(count)


class Template:
    """Constant pieces, with one u64 after each of them but perhaps the last."""

    __slots__ = ("_constants", "_struct", "size")

    def __init__(self, *pieces: bytes, ends_with_number: bool = True) -> None:
        layout = "Q".join(f"{len(piece)}s" for piece in pieces) + ("Q" if ends_with_number else "")
        self._struct = struct.Struct(">" + layout)
        self._constants = pieces
        self.size = self._struct.size

    def match(self, data: bytes, pos: int = 0) -> tuple[int, ...] | None:
        """The numbers, when the bytes at ``pos`` have exactly this shape."""
        if len(data) - pos < self.size:
            return None
        fields = self._struct.unpack_from(data, pos)
        return fields[1::2] if fields[::2] == self._constants else None

    def pack(self, *numbers: int) -> bytes:
        """The bytes of this shape with these numbers."""
        constants = self._constants
        if len(constants) == 2:
            return self._struct.pack(constants[0], numbers[0], constants[1], *numbers[1:])
        fields: list[bytes | int] = [b""] * (len(constants) + len(numbers))
        fields[::2] = constants
        fields[1::2] = numbers
        return self._struct.pack(*fields)
