"""Frames on a stream: ``u32 length (big endian) | body``, the body JSON."""

from __future__ import annotations

import struct
from typing import Any, Final

import orjson

from django_belay.exceptions import StorageError

#: What a client may send at once, and what an owner may answer.
REQUEST_BYTES: Final = 16 * 2**20
ANSWER_BYTES: Final = 64 * 2**20
#: Depth is bounded by the JSON reader (1,024 on reading, 254 on writing), values by this.
MAX_VALUES: Final = 4_000_000

_LENGTH: Final = struct.Struct(">I")
_OPTIONS: Final = orjson.OPT_PASSTHROUGH_DATACLASS | orjson.OPT_PASSTHROUGH_DATETIME
_OPENING: Final = (b",", b"[", b"{")


class BadFrame(ValueError):
    """What came is no frame, or over its limits."""


def frame(content: object, *, limit: int) -> bytes:
    """The bytes of a frame.

    Raises:
        StorageError: The content cannot be said in JSON, or takes more than ``limit`` bytes.
    """
    try:
        body = orjson.dumps(content, option=_OPTIONS)
    except TypeError as error:
        raise StorageError(f"this cannot be sent between processes: {error}; nothing was done") from None
    if len(body) > limit:
        raise StorageError(
            f"{len(body):,} bytes are too much to send at once, {limit:,} are allowed: ask for less"
        )
    return _LENGTH.pack(len(body)) + body


class FrameReader:
    """Cuts a stream into frames. Holds what has come of the next one, no more than its limit."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._buffer = bytearray()

    @property
    def is_empty(self) -> bool:
        """Whether no part of a frame has come."""
        return not self._buffer

    def feed(self, data: bytes) -> None:
        """Take in what has come."""
        self._buffer += data

    def next(self) -> Any:
        """The content of the next whole frame; ``None`` until it is there. (No content is ``null``.)

        Raises:
            BadFrame: Its length is over the limit, or it holds no JSON.
        """
        buffer = self._buffer
        if len(buffer) < _LENGTH.size:
            return None
        (length,) = _LENGTH.unpack_from(buffer)
        if not 0 < length <= self._limit:
            raise BadFrame(f"a frame of {length:,} bytes, 1 to {self._limit:,} are allowed")
        end = _LENGTH.size + length
        if len(buffer) < end:
            return None
        with memoryview(buffer) as view:
            content = _decode(view[_LENGTH.size : end])
        del buffer[:end]
        return content


def _decode(body: memoryview) -> Any:
    if len(body) > MAX_VALUES:
        data = bytes(body)
        if sum(data.count(sign) for sign in _OPENING) > MAX_VALUES:
            raise BadFrame(f"more than {MAX_VALUES:,} values in one frame")
    try:
        content = orjson.loads(body)
    except ValueError as error:
        raise BadFrame(f"no JSON: {error}") from None
    if content is None:
        raise BadFrame("null")
    return content
