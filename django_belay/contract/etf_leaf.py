"""Erlang terms that hold no other term, read from bytes.

Contract: §2.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from struct import Struct
from typing import Any, Final

from django_belay.contract.json_value import MAX_INT_BITS


class EtfError(ValueError):
    """The bytes are no whole, valid term, or are over the limits."""


class NoJsonView(ValueError):
    """A valid term, but nothing in JSON stands for it; the message says why."""


class Tag:
    """First byte of a term, by the names of Erlang's documentation without ``_EXT``."""

    NEW_FLOAT: Final = 70
    BIT_BINARY: Final = 77
    COMPRESSED: Final = 80
    NEW_PID: Final = 88
    NEW_PORT: Final = 89
    NEWER_REFERENCE: Final = 90
    SMALL_INTEGER: Final = 97
    INTEGER: Final = 98
    FLOAT: Final = 99
    ATOM: Final = 100
    REFERENCE: Final = 101
    PORT: Final = 102
    PID: Final = 103
    SMALL_TUPLE: Final = 104
    LARGE_TUPLE: Final = 105
    NIL: Final = 106
    STRING: Final = 107
    LIST: Final = 108
    BINARY: Final = 109
    SMALL_BIG: Final = 110
    LARGE_BIG: Final = 111
    NEW_FUN: Final = 112
    EXPORT: Final = 113
    NEW_REFERENCE: Final = 114
    SMALL_ATOM: Final = 115
    MAP: Final = 116
    ATOM_UTF8: Final = 118
    SMALL_ATOM_UTF8: Final = 119
    V4_PORT: Final = 120
    LOCAL: Final = 121


ATOM_TAGS: Final = frozenset({Tag.ATOM, Tag.SMALL_ATOM, Tag.ATOM_UTF8, Tag.SMALL_ATOM_UTF8})

_LIST = Tag.LIST
_EMPTY_LIST = bytes([Tag.LIST]) + bytes(4)

_U16 = Struct(">H")
_U32 = Struct(">I")
_I32 = Struct(">i")
_F64 = Struct(">d")

_OLD_FLOAT_BYTES = 31
_OLD_FLOAT = re.compile(rb" *[+-]?\d+\.\d+(?:[eE][+-]?\d+)?\0*", re.ASCII)
_MAX_ATOM_CHARACTERS = 255
_MAX_REFERENCE_WORDS = 5
_ATOM_VALUES: Final[dict[str, bool | None]] = {"nil": None, "true": True, "false": False}


class Leaves:
    """A position in the bytes of a term, and the terms that can be read at one go.

    Attributes:
        no_view: Why the term read so far has no JSON view; empty as long as it has one.
    """

    __slots__ = ("_data", "_elements_left", "_end", "_max_elements", "_position", "no_view")

    def __init__(self, data: bytes, position: int, *, max_elements: int) -> None:
        self._data = data
        self._position = position
        self._end = len(data)
        self._max_elements = max_elements
        self._elements_left = max_elements
        self.no_view = ""

    def left(self) -> int:
        """Bytes not read yet."""
        return self._end - self._position

    def miss(self, reason: str) -> None:
        """Note that the term has no JSON view; the first reason stays."""
        self.no_view = self.no_view or reason

    # -- numbers and bytes -------------------------------------------------------

    def _take(self, size: int) -> bytes:
        start = self._position
        if size > self._end - start:
            raise EtfError(f"ends {size - (self._end - start):,} bytes too early")
        self._position = start + size
        return self._data[start : start + size]

    def _read(self, layout: Struct) -> Any:
        start = self._position
        if layout.size > self._end - start:
            raise EtfError(f"ends {layout.size - (self._end - start):,} bytes too early")
        self._position = start + layout.size
        return layout.unpack_from(self._data, start)[0]

    def _count(self, terms: int) -> None:
        self._elements_left -= terms
        if self._elements_left < 0:
            raise EtfError(f"more than {self._max_elements:,} terms")

    # -- what containers ask for ---------------------------------------------------

    def read_tag(self) -> int:
        """Pass the next term's tag. A list of no elements is passed over: its tail is the value."""
        tag = self.peek_tag()
        self._position += 1
        self._count(1)
        return tag

    def peek_tag(self) -> int:
        """The tag that :meth:`read_tag` will pass."""
        start = self._position
        if start >= self._end:
            raise EtfError("ends where a term should begin")
        tag = self._data[start]
        if tag == _LIST and self._data[start + 1 : start + 5] == b"\0\0\0\0":
            self._position = start + 5
            return self._peek_past_empty_lists()
        return tag

    def _peek_past_empty_lists(self) -> int:
        while self._data[self._position : self._position + 5] == _EMPTY_LIST:
            self._position += 5
        return self.peek_tag()

    def read_arity(self) -> int:
        """One byte's number of terms that follow."""
        return self._fits(self.read_byte())

    def read_count(self, *, terms_each: int) -> int:
        """A 32-bit number of items, as the terms that follow."""
        return self._fits(int(self._read(_U32)) * terms_each)

    def _fits(self, terms: int) -> int:
        # A term takes a byte at least, so a false count is known before its terms are read.
        if terms > self.left():
            raise EtfError(f"says {terms:,} terms follow where only {self.left():,} bytes do")
        return terms

    def read_leaf(self, tag: int) -> Any:
        """The value of a term that holds no other.

        Returns:
            Its JSON value, or ``None`` after :meth:`miss` if there is none.

        Raises:
            EtfError: An unknown tag, or broken bytes.
        """
        read = _LEAVES.get(tag)
        if read is None:
            raise EtfError(f"unknown tag {tag}")
        return read(self)

    # -- integers and floats -------------------------------------------------------

    def read_byte(self) -> int:
        """One byte, which is also what a small integer is."""
        start = self._position
        if start >= self._end:
            raise EtfError("ends 1 byte too early")
        self._position = start + 1
        return self._data[start]

    def _integer(self) -> int:
        return int(self._read(_I32))

    def _small_big(self) -> int | None:
        return self._big(self.read_byte())

    def _large_big(self) -> int | None:
        return self._big(int(self._read(_U32)))

    def _big(self, size: int) -> int | None:
        sign = self.read_byte()
        value = int.from_bytes(self._take(size), "little")
        if value.bit_length() > MAX_INT_BITS:
            self.miss(f"an integer of {value.bit_length():,} bits")
            return None
        return -value if sign else value

    def _new_float(self) -> float:
        return _finite(self._read(_F64))

    def _old_float(self) -> float:
        text = self._take(_OLD_FLOAT_BYTES)
        if _OLD_FLOAT.fullmatch(text) is None:
            raise EtfError("a text float that is no number")
        return _finite(float(text.rstrip(b"\0")))

    # -- text, lists of bytes --------------------------------------------------------

    def _binary(self) -> str | None:
        return self._text(self._take(self._read(_U32)))

    def _bit_binary(self) -> str | None:
        size, bits = self._read(_U32), self.read_byte()
        data = self._take(size)
        if bits == 8:
            return self._text(data)
        if not 0 < bits < 8 or not size:
            raise EtfError(f"a bit string with {bits} bits in its last byte")
        self.miss("a bit string")
        return None

    def _text(self, data: bytes) -> str | None:
        try:
            return data.decode()
        except UnicodeDecodeError:
            self.miss("a binary that is not UTF-8")
            return None

    def _nil(self) -> list[int]:
        return []

    def _string(self) -> list[int]:
        size = self._read(_U16)
        self._count(size)
        return list(self._take(size))

    # -- atoms -------------------------------------------------------------------

    def _atom(self) -> str | bool | None:
        return self._atom_value(self._read(_U16), "latin-1")

    def _small_atom(self) -> str | bool | None:
        return self._atom_value(self.read_byte(), "latin-1")

    def _atom_utf8(self) -> str | bool | None:
        return self._atom_value(self._read(_U16), "utf-8")

    def _small_atom_utf8(self) -> str | bool | None:
        return self._atom_value(self.read_byte(), "utf-8")

    def _atom_value(self, size: int, encoding: str) -> str | bool | None:
        try:
            name = self._take(size).decode(encoding)
        except UnicodeDecodeError:
            raise EtfError("an atom whose name is not UTF-8") from None
        if len(name) > _MAX_ATOM_CHARACTERS:
            raise EtfError(f"an atom of {len(name):,} characters; Erlang allows {_MAX_ATOM_CHARACTERS}")
        return _ATOM_VALUES.get(name, name)

    # -- terms that are no data ----------------------------------------------------

    def _skip_atom(self) -> None:
        tag = self.read_tag()
        if tag not in ATOM_TAGS:
            raise EtfError(f"tag {tag} where an atom should be")
        self.read_leaf(tag)

    def _skip_node(self, reason: str, *, then: int) -> None:
        self._skip_atom()
        self._take(then)
        self.miss(reason)

    def _pid(self) -> None:
        self._skip_node("a process id", then=9)

    def _new_pid(self) -> None:
        self._skip_node("a process id", then=12)

    def _port(self) -> None:
        self._skip_node("a port", then=5)

    def _new_port(self) -> None:
        self._skip_node("a port", then=8)

    def _v4_port(self) -> None:
        self._skip_node("a port", then=12)

    def _reference(self) -> None:
        self._skip_node("a reference", then=5)

    def _new_reference(self) -> None:
        self._skip_words(creation=1)

    def _newer_reference(self) -> None:
        self._skip_words(creation=4)

    def _skip_words(self, *, creation: int) -> None:
        words = self._read(_U16)
        if not 0 < words <= _MAX_REFERENCE_WORDS:
            raise EtfError(f"a reference of {words} words")
        self._skip_node("a reference", then=creation + 4 * words)

    def _export(self) -> None:
        self._skip_atom()
        self._skip_atom()
        if self.read_tag() != Tag.SMALL_INTEGER:
            raise EtfError("a function without its arity")
        self.read_byte()
        self.miss("a function")

    def _new_fun(self) -> None:
        # The size counts its own four bytes. What a function holds is not looked into.
        size = self._read(_U32)
        if size < 4:
            raise EtfError(f"a function of {size} bytes")
        self._take(size - 4)
        self.miss("a function")

    def _local(self) -> None:
        # Only the node that wrote it can read it, so there is nothing to check.
        self._take(self.left())
        self.miss("a term in a node's own format")


def _finite(value: float) -> float:
    if not math.isfinite(value):
        raise EtfError("a float that is not finite")
    return value


_LEAVES: Final[dict[int, Callable[[Leaves], Any]]] = {
    Tag.SMALL_INTEGER: Leaves.read_byte,
    Tag.INTEGER: Leaves._integer,
    Tag.SMALL_BIG: Leaves._small_big,
    Tag.LARGE_BIG: Leaves._large_big,
    Tag.NEW_FLOAT: Leaves._new_float,
    Tag.FLOAT: Leaves._old_float,
    Tag.BINARY: Leaves._binary,
    Tag.BIT_BINARY: Leaves._bit_binary,
    Tag.NIL: Leaves._nil,
    Tag.STRING: Leaves._string,
    Tag.ATOM: Leaves._atom,
    Tag.SMALL_ATOM: Leaves._small_atom,
    Tag.ATOM_UTF8: Leaves._atom_utf8,
    Tag.SMALL_ATOM_UTF8: Leaves._small_atom_utf8,
    Tag.PID: Leaves._pid,
    Tag.NEW_PID: Leaves._new_pid,
    Tag.PORT: Leaves._port,
    Tag.NEW_PORT: Leaves._new_port,
    Tag.V4_PORT: Leaves._v4_port,
    Tag.REFERENCE: Leaves._reference,
    Tag.NEW_REFERENCE: Leaves._new_reference,
    Tag.NEWER_REFERENCE: Leaves._newer_reference,
    Tag.EXPORT: Leaves._export,
    Tag.NEW_FUN: Leaves._new_fun,
    Tag.LOCAL: Leaves._local,
}
