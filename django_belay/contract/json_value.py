"""What a JSON value may be, and its bytes.

Two stores take JSON with different limits. A ``jsonb`` column (inputs, meta, signal
and event payloads) holds no NUL character, and this package keeps its integers within
64 bits. An envelope (step values, job results) is text in a ``bytea``: NUL is allowed
and integers keep all their digits.

Messages name places and types, never the values: an input may be a secret, and the
messages end up in ``belay_jobs.errors``.

Contract: §2.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, NoReturn

import orjson

from django_belay.exceptions import BelayError, InvalidInput

# Depth counts as in the journal: the root has 1, items and members are one deeper.

#: Depth that :func:`dumps` writes; :func:`loads` reads as many arrays and objects. Within
#: orjson's own limit, and shallow enough for ``repr`` and ``copy`` under the interpreter's
#: default recursion limit.
MAX_DEPTH = 250

#: Depth of an input, signal or event payload unless ``BELAY["MAX_DEPTH"]`` says otherwise.
MAX_INPUT_DEPTH = 32

#: Bits of the largest integer an envelope carries: 4,300 digits, where the interpreter
#: itself stops converting between integers and text.
MAX_INT_BITS = 14_284

_MAX_INTEGER = 2**MAX_INT_BITS - 1

MIN_INT64 = -(2**63)
MAX_UINT64 = 2**64 - 1

# Datetimes, dataclasses and the like are not JSON: without these orjson writes them.
_OPTIONS = orjson.OPT_PASSTHROUGH_DATETIME | orjson.OPT_PASSTHROUGH_DATACLASS

_DIGITS_TO_ZERO = bytes(0x30 if 0x30 <= byte <= 0x39 else 0x20 for byte in range(256))
# The shortest run of digits that orjson may read as a float: -9223372036854775809.
_LONG_RUN = b"0" * 19

# The closing quote is optional so that a hostile unterminated string costs one pass.
_STRING = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"?', re.DOTALL)
_NOT_BRACKETS = bytes(byte for byte in range(256) if byte not in b"[]{}")
_BRACKET_STEPS = bytes.maketrans(b"[{]}", b"\x01\x01\xff\xff")

_MAX_PATH = 200
_IDENTIFIER = re.compile(r"[A-Za-z_]\w{0,79}", re.ASCII)
_SURROGATE = re.compile("[\ud800-\udfff]")


class JsonError(BelayError, ValueError):
    """A value, or bytes, that JSON within our bounds cannot hold.

    Attributes:
        message: What was found and what is allowed.
        path: Where, below the value asked about, such as ``.lines[3].name``.
    """

    def __init__(self, message: str, path: str = "") -> None:
        self.message = message
        self.path = path
        super().__init__(message, path)

    def __str__(self) -> str:
        return f"value{self.short_path}: {self.message}" if self.path else self.message

    @property
    def short_path(self) -> str:
        """The path, its middle left out when it is long."""
        if len(self.path) <= _MAX_PATH:
            return self.path
        return f"{self.path[: _MAX_PATH // 2]}…{self.path[-_MAX_PATH // 2 :]}"

    def as_invalid_input(self, root: str) -> InvalidInput:
        """The error for who enqueues, with a path from ``root``, such as ``input.lines[3]``."""
        return InvalidInput(self.message, path=root + self.short_path)

    def inside(self, part: str | int) -> JsonError:
        """The same error, seen from the container that holds the value under ``part``."""
        self.path = path_part(part) + self.path
        return self


def path_part(part: str | int) -> str:
    """How a key or an index reads in a path: ``.name``, ``["two words"]``, ``[3]``."""
    if isinstance(part, int):
        return f"[{part}]"
    if _IDENTIFIER.fullmatch(part):
        return f".{part}"
    shown = part if len(part) <= 40 else part[:40] + "…"
    return f"[{json.dumps(shown)}]"


# -- checking and writing ----------------------------------------------------


def check_json(value: Any, *, path: str = "input", max_depth: int = MAX_INPUT_DEPTH) -> None:
    """Refuse what a ``jsonb`` column cannot hold exactly.

    Allowed are ``None``, ``bool``, ``int`` from -2**63 to 2**64-1, finite ``float``,
    ``str`` without NUL and lone surrogates, and ``list``, ``tuple`` (an array) and
    ``dict`` with ``str`` keys of these.

    Args:
        path: What the value is called in the message.
        max_depth: Depth allowed: a bare number has 1, ``{"a": 1}`` has 2.

    Raises:
        InvalidInput: Names the offending value's path, what was found and what is allowed.

    Contract: §2, §3 ``input``.
    """
    dump_jsonb(value, path=path, max_depth=max_depth)


def dump_jsonb(value: Any, *, path: str = "input", max_depth: int = MAX_INPUT_DEPTH) -> bytes:
    """Check a value like :func:`check_json` and write it, in one pass.

    Returns:
        Compact UTF-8 JSON that PostgreSQL takes as ``jsonb``.

    Raises:
        InvalidInput: As :func:`check_json` says.

    Contract: §2, §3 ``input``.
    """
    data = _dump_fast(value, max_depth)
    # A false alarm (the six characters \u0000 in a text) only costs the slow path.
    if data is not None and b"\\u0000" not in data:
        return data
    try:
        return orjson.dumps(plain(value, Rules(max_depth=max_depth)), option=_OPTIONS)
    except JsonError as error:
        raise error.as_invalid_input(path) from None


def dumps(value: Any, *, max_depth: int = MAX_DEPTH) -> bytes:
    """Write a JSON value, integers with all their digits.

    Returns:
        Compact UTF-8 JSON.

    Raises:
        JsonError: The value is not JSON (NaN, a lone surrogate, a key that is not text,
            another type), is nested too deep, or has an integer over 4,300 digits.

    Contract: §2.
    """
    data = _dump_fast(value, max_depth)
    return _write(plain(value, Rules.envelope(max_depth=max_depth))) if data is None else data


def dump_with(value: Any, rules: Rules) -> bytes:
    """Write a value under rules of one's own; see :func:`dumps`."""
    data = _dump_fast(value, rules.max_depth)
    return _write(plain(value, rules)) if data is None else data


def _dump_fast(value: Any, max_depth: int) -> bytes | None:
    """The bytes, if orjson writes this very value; else ``None``, and the slow path explains.

    orjson writes NaN as null, and UUIDs and enums in a form of its own, without a word.
    Reading the bytes back and comparing finds all of these at C speed.
    """
    try:
        data = orjson.dumps(value, option=_OPTIONS)
        is_exact = orjson.loads(data) == value
    except (TypeError, ValueError, RecursionError):
        return None
    return data if is_exact and is_within_depth(data, max_depth - 1) else None


def _write(value: Any) -> bytes:
    try:
        return orjson.dumps(value)
    except TypeError:  # an integer beyond 64 bits
        text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
        return text.encode()


# -- the exact walk: explains, and converts -----------------------------------


def unknown_type(value: Any) -> JsonError:
    """The error for a value whose type has no JSON form: what was found, what is allowed."""
    return JsonError(
        f"found {type(value).__name__}; JSON holds None, bool, int, float, str, list and dict with str keys. "
        "Pass an identifier or plain data instead; in a job's input, annotating the parameter "
        "admits datetime, date, time, timedelta, UUID, Decimal, Enum, dataclasses and sets"
    )


def _refuse(value: Any) -> NoReturn:
    raise unknown_type(value)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """What :func:`plain` lets through.

    Attributes:
        max_depth: Depth of the deepest value; the root has 1.
        nul: Whether text may hold NUL.
        min_int, max_int: Bounds of integers.
        convert: Gives a JSON form to a value of another type, or raises ``JsonError``.
    """

    max_depth: int = MAX_INPUT_DEPTH
    nul: bool = False
    min_int: int = MIN_INT64
    max_int: int = MAX_UINT64
    convert: Callable[[Any], Any] = _refuse

    @classmethod
    def envelope(cls, *, max_depth: int, convert: Callable[[Any], Any] = _refuse) -> Rules:
        """The rules of an envelope: NUL allowed, integers up to 4,300 digits."""
        return cls(
            max_depth=max_depth, nul=True, min_int=-_MAX_INTEGER, max_int=_MAX_INTEGER, convert=convert
        )


def plain(value: Any, rules: Rules, depth: int = 1) -> Any:
    """A copy of the value in None, bool, int, float, str, list and dict alone.

    Raises:
        JsonError: With the path of the first value that the rules do not let through.
    """
    if depth > rules.max_depth:
        raise JsonError(
            f"is nested deeper than {rules.max_depth} levels, or contains itself; "
            "flatten it, or store the data elsewhere and pass a reference to it"
        )
    if value is None or value is True or value is False:
        return value
    if isinstance(value, str):
        return _plain_text(value, rules)
    if isinstance(value, int):
        return _plain_int(value, rules)
    if isinstance(value, float):
        return plain_float(value)
    if isinstance(value, dict):
        return _plain_object(value, rules, depth + 1)
    if isinstance(value, list) or type(value) is tuple:
        return _plain_array(value, rules, depth + 1)
    return plain(rules.convert(value), rules, depth)


def _plain_array(value: list[Any] | tuple[Any, ...], rules: Rules, depth: int) -> list[Any]:
    items = []
    for index, item in enumerate(value):
        try:
            items.append(plain(item, rules, depth))
        except JsonError as error:
            error.inside(index)
            raise
    return items


def _plain_object(value: dict[Any, Any], rules: Rules, depth: int) -> dict[str, Any]:
    members = {}
    for key, item in value.items():
        if not isinstance(key, str):
            raise JsonError(f"has a key of type {type(key).__name__}; the keys of a JSON object are str")
        try:
            members[_plain_text(key, rules, what="key")] = plain(item, rules, depth)
        except JsonError as error:
            error.inside(key)
            raise
    return members


def _plain_text(value: str, rules: Rules, what: str = "text") -> str:
    if not rules.nul and (position := value.find("\0")) >= 0:
        raise JsonError(
            f"{what} with a NUL character at position {position}, which PostgreSQL cannot store; "
            "remove it, or encode binary data (base64)"
        )
    if not value.isascii() and (found := _SURROGATE.search(value)):
        raise JsonError(
            f"{what} with a lone surrogate (U+{ord(found[0]):04X}) at position {found.start()}, "
            "which is no valid Unicode; decode the text with errors='replace' or pass base64"
        )
    return str.__str__(value)


def _plain_int(value: int, rules: Rules) -> int:
    if rules.min_int <= value <= rules.max_int:
        return int(value)
    if rules.max_int == MAX_UINT64:
        raise JsonError("integer beyond 64 bits; allowed are -2**63 to 2**64-1. Pass it as text or Decimal")
    raise JsonError(f"integer of {value.bit_length():,} bits; allowed are {MAX_INT_BITS:,} (4,300 digits)")


def plain_float(value: float) -> float:
    """The float itself, if it is finite.

    Raises:
        JsonError: NaN or an infinity.
    """
    if math.isfinite(value):
        return float(value)
    name = "NaN" if math.isnan(value) else "Infinity"
    raise JsonError(f"found {name}; JSON holds finite numbers only: pass None or text instead")


# -- reading -----------------------------------------------------------------


def loads(data: bytes, *, max_depth: int = MAX_DEPTH) -> Any:
    """Read JSON without losing a digit.

    Of a key that stands twice in one object the last counts, as in ``jsonb``.

    Raises:
        JsonError: Not UTF-8 JSON by RFC 8259, nested too deep, or with a number beyond
            a double's range or 4,300 digits.

    Contract: §2.
    """
    if not is_within_depth(data, max_depth):
        raise JsonError(f"JSON nested deeper than {max_depth} levels")
    if _LONG_RUN in data.translate(_DIGITS_TO_ZERO):
        # orjson reads an integer beyond 64 bits as a float.
        return _loads_slowly(data)
    try:
        return orjson.loads(data)
    except orjson.JSONDecodeError as error:
        raise JsonError(f"not valid JSON: {error}") from None


def _loads_slowly(data: bytes) -> Any:
    try:
        value = json.loads(data.decode(), parse_float=_finite, parse_constant=_refuse_constant)
        if b"\\u" in data:  # the only way to a lone surrogate, which orjson refuses
            json.dumps(value, ensure_ascii=False).encode()
    except UnicodeDecodeError:
        raise JsonError("not valid JSON: not UTF-8") from None
    except UnicodeEncodeError:
        raise JsonError("not valid JSON: a lone surrogate in a text") from None
    except json.JSONDecodeError as error:
        raise JsonError(f"not valid JSON: {error}") from None
    except JsonError:
        raise
    except ValueError:
        raise JsonError("has an integer of more than 4,300 digits") from None
    return value


def _finite(text: str) -> float:
    value = float(text)
    if math.isinf(value):
        raise JsonError("has a number beyond the range of a double")
    return value


def _refuse_constant(name: str) -> NoReturn:
    raise JsonError(f"not valid JSON: {name}")


def is_within_depth(data: bytes, max_depth: int) -> bool:
    """Whether at most ``max_depth`` arrays and objects stand within each other; never recurses."""
    if data.count(b"[") + data.count(b"{") <= max_depth:
        return True
    brackets = _STRING.sub(b"", data).translate(_BRACKET_STEPS, _NOT_BRACKETS)
    steps = memoryview(brackets).cast("b")
    return max(accumulate(steps), default=0) <= max_depth
