"""The integer ids of jobs and their 16-byte ids in the records (mapping page, Identity).

A number is ``milliseconds since 2020-01-01 << 12 | counter``: ascending, and exact in 53 bits.
The first eight bytes of an id are its number, the last eight random. A foreign id gets a number
of its own.
"""

from __future__ import annotations

import hashlib
import os
from array import array
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import count
from typing import Final

BITS: Final = 53
LAST_NUMBER: Final = 2**BITS - 1
_BEGIN_MS: Final = 1_577_836_800_000  # 2020-01-01T00:00:00Z
_COUNTER_BITS: Final = 12
_HALF: Final = 8
_AHEAD_MS: Final = 1000
# Numbers that one promise covers: at most sixty promises a second where the clock leads.
_PROMISED: Final = 1 << 16


class IdBook:
    """Which number belongs to which id. Sixteen bytes a job, for ids that came in ascending order."""

    def __init__(self) -> None:
        self._numbers = array("Q")
        self._halves = bytearray()
        self._odd: dict[int, bytes] = {}
        self._numbers_of: dict[bytes, int] = {}
        self._last = 0
        self._promised = LAST_NUMBER
        self._promise: Callable[[int], None] = lambda number: None

    def begin(self, now_ms: int, *, given: int | None, promise: Callable[[int], None]) -> None:
        """Draw none that an owner before may have given out to somebody who has not inserted it yet.

        Args:
            given: What the owner before promised not to draw beyond; ``None`` where that is not known.
                Then this one begins a second ahead, and somewhere in the next one: the one before drew
                by clients' clocks, a moment ago.
            promise: Called before a number is drawn that is beyond what was promised.
        """
        if given is None:
            spread = _AHEAD_MS << _COUNTER_BITS
            given = (max(now_ms - _BEGIN_MS, 0) << _COUNTER_BITS) + spread
            given += int.from_bytes(os.urandom(4)) % spread
        self._last = self._promised = max(self._last, given)
        self._promise = promise

    def draw(self, now_ms: int) -> int:
        """The next number: above every one drawn before, whatever the clock does.

        Raises:
            JournalError: It could not be promised to nobody else.
        """
        number = max(self._last + 1, max(now_ms - _BEGIN_MS, 0) << _COUNTER_BITS)
        while number in self._odd:
            number += 1
        if number > self._promised:
            self._promise(number + _PROMISED)
            self._promised = number + _PROMISED
        self._last = number
        return number

    def new_key(self, number: int) -> bytes:
        """A fresh id for a drawn number; it counts once :meth:`add` is told of it."""
        return number.to_bytes(_HALF) + os.urandom(_HALF)

    def add(self, key: bytes, *, recorded: Mapping[bytes, int] | None = None) -> int:
        """Take an id in; its number.

        Args:
            recorded: Numbers that are no plain reduction, as the table ``ids`` has them.
        """
        number = (recorded or {}).get(key) or self._free_number(key)
        if number.to_bytes(_HALF) != key[:_HALF]:
            self._odd[number] = key  # another writer's, which may be anywhere: it does not lead the drawing
            self._numbers_of[key] = number
            return number
        self._last = max(self._last, number)
        if not self._numbers or number > self._numbers[-1]:
            self._numbers.append(number)
            self._halves += key[_HALF:]
        else:
            self._odd[number] = key
        return number

    def remove(self, keys: Iterable[bytes]) -> set[int]:
        """Take ids out, which nobody may ask for any more; their numbers."""
        removed: set[int] = set()
        places: list[int] = []
        for key in keys:
            number = self.number_of(key)
            removed.add(number)
            if self._odd.pop(number, None) is None:
                places.append(bisect_left(self._numbers, number))
            else:
                self._numbers_of.pop(key, None)
        self._cut(sorted(places))
        return removed

    def _cut(self, places: list[int]) -> None:
        """Leave out these places of the arrays: copied in stretches, for old jobs go side by side."""
        if not places:
            return
        numbers, halves = array("Q"), bytearray()
        begin = 0
        for place in (*places, len(self._numbers)):
            numbers += self._numbers[begin:place]
            halves += self._halves[_HALF * begin : _HALF * place]
            begin = place + 1
        self._numbers, self._halves = numbers, halves

    def is_plain(self, key: bytes, number: int) -> bool:
        """Whether the number is the id's first eight bytes, reduced."""
        return _reduced(key) == number

    def key_of(self, number: int) -> bytes | None:
        """The id; ``None`` for a number that no job has."""
        odd = self._odd.get(number)
        if odd is not None:
            return odd
        at = bisect_left(self._numbers, number) if 0 < number <= LAST_NUMBER else len(self._numbers)
        if at == len(self._numbers) or self._numbers[at] != number:
            return None
        return number.to_bytes(_HALF) + bytes(self._halves[_HALF * at : _HALF * (at + 1)])

    def number_of(self, key: bytes) -> int:
        """The number of an id that was added."""
        found = self._numbers_of.get(key)
        return _reduced(key) if found is None else found

    def newest_first(self) -> Iterator[int]:
        """Every number, descending."""
        odd = sorted(self._odd, reverse=True)
        for number in reversed(self._numbers):
            while odd and odd[0] > number:
                yield odd.pop(0)
            yield number
        yield from odd

    def _free_number(self, key: bytes) -> int:
        number = _reduced(key)
        tries = count()
        while number == 0 or self.key_of(number) is not None:
            digest = hashlib.sha256(key + next(tries).to_bytes(_HALF)).digest()
            number = _reduced(digest)
        return number


def _reduced(key: bytes) -> int:
    return int.from_bytes(key[:_HALF]) & LAST_NUMBER
