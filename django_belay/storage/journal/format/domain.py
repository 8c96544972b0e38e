"""The domains of single fields (spec E.1). A bool is never an integer here, nor is 1.0."""

from __future__ import annotations

from typing import Final, TypeGuard

from .limits import MAX_ATTEMPTS, MAX_KEY_BYTES, MAX_NAME_BYTES, MAX_TIME, MAX_TIMEOUT_MS, MAX_U64

ID_BYTES: Final = 16
ZERO_ID: Final = bytes(ID_BYTES)


def is_u64(value: object) -> TypeGuard[int]:
    """0..2^64-1."""
    return type(value) is int and 0 <= value <= MAX_U64


def is_seq(value: object) -> TypeGuard[int]:
    """1..2^64-1: sequences, revisions, tokens, orders."""
    return type(value) is int and 1 <= value <= MAX_U64


def is_time(value: object) -> TypeGuard[int]:
    """UTC epoch milliseconds, 0..2^63-1."""
    return type(value) is int and 0 <= value <= MAX_TIME


def is_optional_time(value: object) -> TypeGuard[int | None]:
    """Nil or a time."""
    return value is None or is_time(value)


def is_attempt(value: object) -> TypeGuard[int]:
    """1..65,535."""
    return type(value) is int and 1 <= value <= MAX_ATTEMPTS


def is_timeout(value: object) -> TypeGuard[int]:
    """1 ms to one day."""
    return type(value) is int and 1 <= value <= MAX_TIMEOUT_MS


def is_id(value: object) -> TypeGuard[bytes]:
    """16 bytes, not all zero."""
    return type(value) is bytes and len(value) == ID_BYTES and value != ZERO_ID


def is_key(value: object) -> TypeGuard[str]:
    """Text of 1..255 bytes without U+0000."""
    return _is_text(value, MAX_KEY_BYTES)


def is_name(value: object) -> TypeGuard[str]:
    """Text of 1..128 bytes without U+0000."""
    return _is_text(value, MAX_NAME_BYTES)


def _is_text(value: object, most: int) -> bool:
    if type(value) is not str or not value or "\x00" in value:
        return False
    if value.isascii():
        return len(value) <= most
    try:
        return len(value.encode()) <= most
    except UnicodeEncodeError:
        return False
