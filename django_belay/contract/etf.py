"""A bounded reader of the Erlang external term format, giving JSON values.

One pass over the bytes with an explicit stack, so that no input can exhaust the
interpreter's. Every length is checked against the bytes that are left before anything is
made of it. Atoms become text and are interned nowhere; functions, process ids, references
and ports are skipped, never built.

``nil``, ``true``, ``false`` become null, true, false and other atoms their name; UTF-8
binaries become text; lists and tuples arrays; maps objects, whose text, atom and integer
keys become text; DateTime, NaiveDateTime, Date, Time and Decimal become text, other
structs objects with ``__struct__``. A term without such a view is still read to its end,
so that broken bytes are refused and not shown as opaque.

Contract: §2.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from django_belay.contract.etf_container import Container, Map, ProperList, Tuple
from django_belay.contract.etf_leaf import EtfError, Leaves, NoJsonView, Tag
from django_belay.contract.json_value import MAX_DEPTH

__all__ = ["DEFAULT_LIMITS", "VERSION", "EtfError", "Limits", "NoJsonView", "loads"]

#: First byte of every term, the discriminator of the envelope.
VERSION: Final = 131

_HEADER_BYTES = 6  # of a compressed term: version, tag, size


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Bounds of a decoder.

    Attributes:
        max_bytes: Bytes read at all.
        max_inflated_bytes: Bytes a compressed term may unpack to.
        max_depth: Arrays and objects (lists, tuples and maps) within each other.
        max_elements: Erlang terms in all; each integer of a compact list counts.
    """

    max_bytes: int = 268_435_456
    max_inflated_bytes: int = 16_777_216
    max_depth: int = MAX_DEPTH
    max_elements: int = 1_000_000


DEFAULT_LIMITS: Final = Limits()


def loads(data: bytes, *, limits: Limits = DEFAULT_LIMITS) -> Any:
    """Read one term as a JSON value.

    Args:
        data: The whole term, its version byte included, and nothing after it.

    Returns:
        ``None``, ``bool``, ``int``, ``float``, ``str``, ``list`` or ``dict``.

    Raises:
        EtfError: Broken bytes, bytes after the term, or more than the limits allow.
        NoJsonView: A valid term that holds a process id, a function, bytes that are not
            UTF-8, an improper list, a key JSON has not, or an integer over 4,300 digits.

    Contract: §2.
    """
    if len(data) > limits.max_bytes:
        raise EtfError(f"{len(data):,} bytes; at most {limits.max_bytes:,} are read")
    if not data or data[0] != VERSION:
        raise EtfError("does not begin with the version byte 131")
    if len(data) > 1 and data[1] == Tag.COMPRESSED:
        return _Reader(_inflate(data, limits), 0, limits).read()
    return _Reader(data, 1, limits).read()


def _inflate(data: bytes, limits: Limits) -> bytes:
    if len(data) < _HEADER_BYTES:
        raise EtfError("ends inside the header of a compressed term")
    size = int.from_bytes(data[2:_HEADER_BYTES], "big")
    if size > limits.max_inflated_bytes:
        raise EtfError(
            f"a compressed term of {size:,} bytes; at most {limits.max_inflated_bytes:,} are unpacked"
        )
    inflater = zlib.decompressobj()
    try:
        # One byte more than claimed shows a false claim without unpacking the rest.
        inflated = inflater.decompress(memoryview(data)[_HEADER_BYTES:], size + 1)
    except zlib.error:
        raise EtfError("a compressed term that is no zlib stream") from None
    if len(inflated) != size or not inflater.eof:
        raise EtfError(f"a compressed term that does not unpack to the {size:,} bytes it claims")
    if inflater.unused_data:
        raise EtfError(f"{len(inflater.unused_data):,} bytes after the compressed term")
    return inflated


class _Reader(Leaves):
    """Reads one term; containers wait on a stack until their last term has come."""

    __slots__ = ("max_depth",)

    def __init__(self, data: bytes, position: int, limits: Limits) -> None:
        super().__init__(data, position, max_elements=limits.max_elements)
        self.max_depth = limits.max_depth

    def read(self) -> Any:
        value = self._read_term()
        if self.left():
            raise EtfError(f"{self.left():,} bytes after the end of the term")
        if self.no_view:
            raise NoJsonView(self.no_view)
        return value

    def _read_term(self) -> Any:
        stack: list[Container] = []
        while True:
            tag = self.read_tag()
            if stack:
                stack[-1].tag = tag
            opener = _OPENERS.get(tag)
            if opener is None:
                value = self.read_leaf(tag)
            else:
                container = opener(self)
                if len(stack) >= self.max_depth:
                    raise EtfError(f"terms nested deeper than {self.max_depth} levels")
                if container.left:
                    stack.append(container)
                    continue
                value = container.value()
            while stack:
                if not stack[-1].add(value, self):
                    break
                value = stack.pop().value()
            else:
                return value


_OPENERS: Final[dict[int, Callable[[_Reader], Container]]] = {
    Tag.LIST: lambda reader: ProperList(reader.read_count(terms_each=1)),
    Tag.MAP: lambda reader: Map(reader.read_count(terms_each=2)),
    Tag.SMALL_TUPLE: lambda reader: Tuple(reader.read_arity()),
    Tag.LARGE_TUPLE: lambda reader: Tuple(reader.read_count(terms_each=1)),
}
