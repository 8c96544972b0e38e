"""Entries of a job's ``errors`` column: built, made storable, kept bounded (§7, rule 25).

Nothing here raises: failing to describe a failure must not keep a job alive.
"""

from __future__ import annotations

import json
import math
import re
import traceback
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Final

from django_belay.contract.job import JSON
from django_belay.contract.outcome import iso

ERROR_BYTES: Final = 2048
TRACEBACK_BYTES: Final = 4096
TEXT_BYTES: Final = 2048
ENTRY_BYTES: Final = 16_384

#: How many entries a job keeps: the first, a marker that counts what was left out, the newest.
MAX_ENTRIES: Final = 50
OMITTED: Final = "omitted"

_FRAMES: Final = 50
_MAX_INT: Final = 2**63
# jsonb refuses NUL, UTF-8 refuses lone surrogates.
_UNSTORABLE: Final = re.compile("[\x00\ud800-\udfff]")
_REPLACEMENT: Final = "\ufffd"
_CUT: Final = "…"


def error_entry(error: BaseException, *, attempt: int, at: datetime) -> dict[str, JSON]:
    """The entry of an attempt that ended with an exception.

    ``error`` is the exception's message (its type where it has none), ``traceback``
    the end of the formatted traceback, at most 4 KiB.
    """
    kind = _type_name(error)
    return {
        "error": clean_text(_message(error) or kind, max_bytes=ERROR_BYTES),
        "attempt": attempt,
        "type": kind,
        "at": iso(at),
        "traceback": clean_text(_formatted(error), max_bytes=TRACEBACK_BYTES, keep_end=True),
    }


def named_entry(name: str, *, attempt: int, at: datetime, detail: str | None = None) -> dict[str, JSON]:
    """The entry of a failure that is no exception, such as ``budget_exceeded``."""
    entry: dict[str, JSON] = {"error": clean_text(name, max_bytes=ERROR_BYTES)}
    if detail is not None:
        entry["detail"] = clean_text(detail, max_bytes=TEXT_BYTES)
    return {**entry, "attempt": attempt, "at": iso(at)}


def told(entry: Mapping[str, JSON]) -> str:
    """An entry as people read it: the exception's type and its message, empty where neither is there."""
    error, kind = str(entry.get("error", "")), str(entry.get("type", ""))
    return f"{kind}: {error}" if kind and error and kind != error else error or kind


def storable_entry(entry: Mapping[str, JSON]) -> dict[str, JSON]:
    """An entry that ``jsonb`` takes: text cleaned and cut, odd values as text, the whole bounded."""
    cleaned = {_key(key): _clean_member(key, value) for key, value in entry.items()}
    if len(json.dumps(cleaned).encode()) <= ENTRY_BYTES:
        return cleaned
    kept = {key: value for key, value in cleaned.items() if key in _BOUNDED or isinstance(value, int | float)}
    return {**kept, "cut": True}


def with_entry(errors: Sequence[JSON], entry: Mapping[str, JSON]) -> list[JSON]:
    """``errors`` with ``entry`` appended, bounded by :data:`MAX_ENTRIES`.

    A full list keeps its first entry, replaces the oldest others by the marker
    ``{"omitted": n}`` and keeps the newest. The same rule stands in SQL.
    """
    if len(errors) < MAX_ENTRIES:
        return [*errors, dict(entry)]
    first, second, _third, *rest = errors
    already = second.get(OMITTED) if isinstance(second, dict) else None
    omitted = already + 1 if isinstance(already, int) and already < _MAX_INT else 2
    return [first, {OMITTED: omitted}, *rest, dict(entry)]


def clean_text(text: str, *, max_bytes: int, keep_end: bool = False) -> str:
    """Text that ``jsonb`` takes, at most ``max_bytes`` of UTF-8, a cut marked by ``…``."""
    # A character is a byte at least: cutting first keeps hostile sizes cheap.
    over = len(text) > max_bytes
    text = text[-max_bytes:] if keep_end else text[:max_bytes]
    data = _UNSTORABLE.sub(_REPLACEMENT, text).encode()
    if not over and len(data) <= max_bytes:
        return data.decode()
    room = max_bytes - len(_CUT.encode())
    if keep_end:
        return _CUT + data[-room:].decode(errors="ignore")
    return data[:room].decode(errors="ignore") + _CUT


_BOUNDED: Final = frozenset({"error", "reason", "type", "at", "traceback", "detail"})


def _key(key: object) -> str:
    return clean_text(str(key), max_bytes=128)


def _clean_member(key: object, value: JSON) -> JSON:
    if key == "traceback" and isinstance(value, str):
        return clean_text(value, max_bytes=TRACEBACK_BYTES, keep_end=True)
    return _clean(value, depth=8)


def _clean(value: JSON, *, depth: int) -> JSON:
    if isinstance(value, str):
        return clean_text(value, max_bytes=TEXT_BYTES)
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int) and -_MAX_INT <= value < _MAX_INT:
        return int(value)
    if isinstance(value, float) and math.isfinite(value):
        return float(value)
    if depth and isinstance(value, Mapping):
        return {_key(key): _clean(part, depth=depth - 1) for key, part in value.items()}
    if depth and isinstance(value, list | tuple):
        return [_clean(part, depth=depth - 1) for part in value]
    return clean_text(_shown(value), max_bytes=TEXT_BYTES)


def _type_name(error: BaseException) -> str:
    kind = type(error)
    module = "" if kind.__module__ == "builtins" else f"{kind.__module__}."
    return clean_text(f"{module}{kind.__qualname__}", max_bytes=256)


def _message(error: BaseException) -> str:
    try:
        return str(error)
    except BaseException as broken:  # user code, which may exit as well
        return f"(the message raised {type(broken).__name__})"


def _formatted(error: BaseException) -> str:
    try:
        return "".join(traceback.format_exception(error, limit=-_FRAMES))
    except BaseException as broken:
        return f"(the traceback raised {type(broken).__name__})"


def _shown(value: object) -> str:
    try:
        return repr(value)
    except BaseException:
        return f"<{type(value).__name__}>"
