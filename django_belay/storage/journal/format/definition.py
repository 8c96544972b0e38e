"""What a job is asked to do, immutable for its life (spec E.1)."""

from __future__ import annotations

import struct
import sys
from dataclasses import dataclass
from typing import Final, TypeAlias

from .domain import is_attempt, is_key, is_optional_time, is_timeout
from .limits import INSERTING, MAX_INSERT_ARGS_BYTES, ValueLimits
from .refusal import refuse
from .template import Template, map_of, text
from .value import Value, decode_value_at, encode_value, holds_opaque

RETRY_POLICY: Final[dict[str, Value]] = {
    "base_ms": 1000,
    "cap_ms": 60_000,
    "jitter_divisor": 4,
    "version": 1,
}
KEYS: Final = frozenset(
    {
        "args",
        "definition_version",
        "max_attempts",
        "queue_key",
        "retry_policy",
        "scheduled_at",
        "timeout_ms",
        "worker_key",
    }
)

_U32: Final = struct.Struct(">I")
_HEAD: Final = map_of(8) + text("args")
_ATTEMPTS: Final = Template(
    text("definition_version") + b"\x04" + (1).to_bytes(8) + text("max_attempts") + b"\x04",
    text("queue_key") + b"\x06",
    ends_with_number=False,
)
_POLICY: Final = text("retry_policy") + encode_value(RETRY_POLICY) + text("scheduled_at")
_TIMEOUT: Final = Template(text("timeout_ms") + b"\x04", text("worker_key") + b"\x06", ends_with_number=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class JobDefinition:
    """A checked definition. Two are the same when ``encoded`` is: bytes are the unit of comparison."""

    encoded: bytes
    max_attempts: int
    queue_key: str
    scheduled_at: int | None
    timeout_ms: int
    worker_key: str

    @property
    def args(self) -> dict[str, Value]:
        """The arguments, decoded anew at each look: most readers never need them."""
        value, _ = decode_value_at(self.encoded, len(_HEAD))
        assert isinstance(value, dict)
        return value


def define_job(
    *,
    worker_key: str,
    args: dict[str, Value],
    queue_key: str = "default",
    max_attempts: int = 10,
    timeout_ms: int = 30_000,
    scheduled_at: int | None = None,
    limits: ValueLimits = INSERTING,
    max_args_bytes: int = MAX_INSERT_ARGS_BYTES,
) -> JobDefinition:
    """Check and encode the definition of a new job.

    The limits are those of insertion: stricter than a reader's, and never applied to what is stored.
    """
    args_bytes = len(encode_value(args, limits))
    if args_bytes > max_args_bytes:
        raise refuse("resource_limit", "max_insert_args_bytes", args_bytes, max_args_bytes)
    value: dict[str, Value] = {
        "args": args,
        "definition_version": 1,
        "max_attempts": max_attempts,
        "queue_key": queue_key,
        "retry_policy": RETRY_POLICY,
        "scheduled_at": scheduled_at,
        "timeout_ms": timeout_ms,
        "worker_key": worker_key,
    }
    definition = definition_of(value, encode_value(value, limits))
    if definition is None:
        raise refuse("argument", "definition")
    return definition


def definition_of(value: Value, encoded: bytes | None = None) -> JobDefinition | None:
    """The definition a decoded Value holds, or None when it breaks a rule."""
    if type(value) is not dict or value.keys() != KEYS:
        return None
    args, attempts, queue = value["args"], value["max_attempts"], value["queue_key"]
    scheduled, timeout, worker = value["scheduled_at"], value["timeout_ms"], value["worker_key"]
    if not (type(args) is dict and not holds_opaque(args)):
        return None
    if not (_is_one(value["definition_version"]) and _is_policy(value["retry_policy"])):
        return None
    if not (is_attempt(attempts) and is_timeout(timeout) and is_optional_time(scheduled)):
        return None
    if not (is_key(queue) and is_key(worker)):
        return None
    return JobDefinition(
        encoded=encode_value(value) if encoded is None else encoded,
        max_attempts=attempts,
        queue_key=sys.intern(queue),
        scheduled_at=scheduled,
        timeout_ms=timeout,
        worker_key=sys.intern(worker),
    )


def match_definition(data: bytes, pos: int, end: int) -> JobDefinition | None:
    """The definition at ``pos`` when it has the usual shape and ends at ``end``; None sends the
    caller to the full decoder. The budgets of nodes and binary bytes are the caller's to rule out."""
    args = pos + len(_HEAD)
    if args >= end or data[args] != 9 or not data.startswith(_HEAD, pos):
        return None
    at = skip_args(data, args, 61)
    if at < 0:
        return None
    rest = data[at:end]
    fields = _known_rests.get(rest) or _match_rest(rest)
    if fields is None:
        return None
    attempts, queue, scheduled, timeout, worker = fields
    return JobDefinition(
        encoded=data[pos:end],
        max_attempts=attempts,
        queue_key=queue,
        scheduled_at=scheduled,
        timeout_ms=timeout,
        worker_key=worker,
    )


# What follows the arguments is the same for all jobs of a kind that are due at once.
_Rest: TypeAlias = tuple[int, str, int | None, int, str]
_known_rests: Final[dict[bytes, _Rest]] = {}
_MOST_KNOWN: Final = 1_000


def _match_rest(rest: bytes) -> _Rest | None:
    """What a definition holds after its arguments, when it has the usual shape."""
    attempts = _ATTEMPTS.match(rest)
    if attempts is None:
        return None
    queue, at = _match_key(rest, _ATTEMPTS.size)
    if not rest.startswith(_POLICY, at):
        return None
    scheduled, at = _match_optional(rest, at + len(_POLICY))
    timeout = _TIMEOUT.match(rest, at)
    if timeout is None:
        return None
    worker, end = _match_key(rest, at + _TIMEOUT.size)
    if end != len(rest) or not queue or not worker:
        return None
    if not (is_attempt(attempts[0]) and is_timeout(timeout[0]) and is_optional_time(scheduled)):
        return None
    fields = (attempts[0], queue, scheduled, timeout[0], worker)
    if scheduled is None and len(_known_rests) < _MOST_KNOWN:
        _known_rests[rest] = fields
    return fields


def skip_args(data: bytes, pos: int, depth: int) -> int:
    """Where the argument Value at ``pos`` ends, or -1 when anything about it is unusual or wrong."""
    if depth == 0 or pos >= len(data):
        return -1
    tag = data[pos]
    if tag == 6:
        return _skip_text(data, pos)
    if tag == 4:
        return pos + 9
    if tag < 3:
        return pos + 1
    if tag == 9:
        return _skip_map(data, pos, depth - 1)
    if tag == 8:
        count = int.from_bytes(data[pos + 1 : pos + 5])
        at = pos + 5
        if count > len(data) - at:
            return -1
        for _ in range(count):
            at = skip_args(data, at, depth - 1)
            if at < 0:
                return -1
        return at
    if tag == 3 and len(data) > pos + 8 and data[pos + 1] >= 0x80:
        return pos + 9
    if tag == 5 and len(data) > pos + 8 and not (data[pos + 1] & 0x7F == 0x7F and data[pos + 2] >= 0xF0):
        return pos + 9
    return -1


def _skip_map(data: bytes, pos: int, depth: int) -> int:
    count = int.from_bytes(data[pos + 1 : pos + 5])
    at = pos + 5
    size = len(data)
    if count and (depth == 0 or 6 * count > size - at):
        return -1
    previous: bytes | None = None
    for _ in range(count):
        # Keys and texts are most of all arguments, so that a call for each would be most of the time.
        start = at + 5
        if start > size or data[at] != 6:
            return -1
        end = start + _U32.unpack_from(data, at + 1)[0]
        body = data[start:end]
        if end >= size or not (body.isascii() or _is_utf8(body)):
            return -1
        if previous is not None and body <= previous:
            return -1
        previous = body
        tag = data[end]
        if tag == 4:
            at = end + 9
        elif tag == 6:
            at = _skip_text(data, end)
        else:
            at = skip_args(data, end, depth)
        if at < 0:
            return -1
    return at


def _skip_text(data: bytes, pos: int) -> int:
    start = pos + 5
    if start > len(data):
        return -1
    end = start + _U32.unpack_from(data, pos + 1)[0]
    body = data[start:end]
    return end if end <= len(data) and (body.isascii() or _is_utf8(body)) else -1


def _is_utf8(body: bytes) -> bool:
    try:
        body.decode()
    except UnicodeDecodeError:
        return False
    return True


def _match_key(data: bytes, pos: int) -> tuple[str, int]:
    start = pos + 4
    end = start + int.from_bytes(data[pos:start])
    body = data[start:end]
    if end > len(data) or not 1 <= len(body) <= 255 or b"\x00" in body:
        return "", pos
    try:
        return sys.intern(body.decode()), end
    except UnicodeDecodeError:
        return "", pos


def _match_optional(data: bytes, pos: int) -> tuple[int | None, int]:
    if data[pos : pos + 1] == b"\x04":
        return int.from_bytes(data[pos + 1 : pos + 9]), pos + 9
    if data[pos : pos + 1] == b"\x00":
        return None, pos + 1
    return -1, pos


def _is_one(value: Value) -> bool:
    return type(value) is int and value == 1


def _is_policy(value: Value) -> bool:
    if type(value) is not dict or value.keys() != RETRY_POLICY.keys():
        return False
    return all(type(value[key]) is int and value[key] == want for key, want in RETRY_POLICY.items())
