"""Erlang lists, tuples and maps that are still being read.

Each takes its terms one by one through ``add``, which answers whether that was the last.

Contract: §2.
"""

from __future__ import annotations

from typing import Any, Final

from django_belay.contract.etf_leaf import ATOM_TAGS, EtfError, Leaves, Tag
from django_belay.contract.etf_struct import struct_text

_KEY_KINDS: Final[dict[int, str]] = {
    **dict.fromkeys(ATOM_TAGS, "atom"),
    **dict.fromkeys((Tag.BINARY, Tag.BIT_BINARY), "text"),
    **dict.fromkeys((Tag.SMALL_INTEGER, Tag.INTEGER, Tag.SMALL_BIG, Tag.LARGE_BIG), "integer"),
}
_ATOM_NAMES: Final[dict[bool | None, str]] = {None: "nil", True: "true", False: "false"}
_NO_KEY: Final = object()
# Within what every interpreter setting lets be written as text (640 digits).
_MAX_KEY_BITS = 2_100


class Container:
    """Terms read so far, and how many are still to come.

    Attributes:
        tag: Tag of the term that comes next, or has just come.
    """

    __slots__ = ("left", "tag")

    def __init__(self, left: int) -> None:
        self.left = left
        self.tag = 0

    def add(self, value: Any, leaves: Leaves) -> bool:
        """Take the next term; whether it was the last."""
        raise NotImplementedError

    def value(self) -> Any:
        """The JSON value, once the last term has come."""
        raise NotImplementedError


class Tuple(Container):
    """A tuple, seen as an array."""

    __slots__ = ("_items",)

    def __init__(self, left: int) -> None:
        super().__init__(left)
        self._items: list[Any] = []

    def add(self, value: Any, leaves: Leaves) -> bool:
        self._items.append(value)
        self.left -= 1
        return not self.left

    def value(self) -> list[Any]:
        return self._items


class ProperList(Tuple):
    """A list: its elements, then a tail that is a list itself, mostly the empty one."""

    __slots__ = ("_improper",)

    def __init__(self, left: int) -> None:
        super().__init__(left)
        self._improper = False

    def add(self, value: Any, leaves: Leaves) -> bool:
        self._items.append(value)
        self.left -= 1
        return not self.left and (self._improper or self._read_tail(leaves))

    def _read_tail(self, leaves: Leaves) -> bool:
        tag = leaves.peek_tag()
        if tag in (Tag.NIL, Tag.STRING):
            self._items += leaves.read_leaf(leaves.read_tag())
            return True
        if tag == Tag.LIST:
            leaves.read_tag()
            self.left = leaves.read_count(terms_each=1)
            return False
        leaves.miss("an improper list")
        self._improper = True
        self.left = 1
        return False


class Map(Container):
    """A map, seen as an object; its keys and values come by turns."""

    __slots__ = ("_key", "_kinds", "_members", "_struct")

    def __init__(self, left: int) -> None:
        super().__init__(left)
        self._key: Any = None  # the text of the key whose value comes next
        self._kinds: dict[str, str] = {}
        self._members: dict[str, Any] = {}
        self._struct = False

    def add(self, value: Any, leaves: Leaves) -> bool:
        self.left -= 1
        if self._key is None:
            self._key = self._take_key(value, leaves)
            return False
        if self._key is not _NO_KEY:
            self._members[self._key] = value
            if self._key == "__struct__" and self._kinds[self._key] == "atom":
                self._struct = self.tag in ATOM_TAGS
        self._key = None
        return not self.left

    def _take_key(self, value: Any, leaves: Leaves) -> Any:
        kind = _KEY_KINDS.get(self.tag)
        if kind is None:
            leaves.miss("a map key that is not text, an atom or an integer")
            return _NO_KEY
        text = _key_text(kind, value, leaves)
        if text is None:
            return _NO_KEY
        if self._kinds.setdefault(text, kind) != kind:
            leaves.miss("two map keys whose text is the same")
        elif text in self._members:
            raise EtfError("the same map key twice")
        return text

    def value(self) -> Any:
        text = struct_text(self._members) if self._struct else None
        return self._members if text is None else text


def _key_text(kind: str, value: Any, leaves: Leaves) -> str | None:
    if kind == "atom":
        return value if isinstance(value, str) else _ATOM_NAMES[value]
    if kind == "integer" and value is not None:
        if value.bit_length() > _MAX_KEY_BITS:
            leaves.miss(f"a map key that is an integer of {value.bit_length():,} bits")
            return None
        return str(value)
    return value if isinstance(value, str) else None
