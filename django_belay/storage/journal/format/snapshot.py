"""Snapshot, pair (7,1): a whole core job in a base segment (spec E.3).

====== ===== =============================================
offset width field
====== ===== =============================================
0      16    job id
16     8     revision
24     8     cycle
32     1     1 when an execution token follows, else 0
33     8     execution token, only if present
...    ...   Value
====== ===== =============================================
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

from .definition import JobDefinition, definition_of, match_definition
from .domain import is_id, is_optional_time, is_seq, is_time
from .event_v1 import diagnostic_of, diagnostic_value
from .limits import MAX_PAYLOAD_BYTES, MAX_TIME, READING, ValueLimits
from .refusal import refuse
from .template import Template, map_of, text
from .value import Value, decode_value, encode_value

PAIR: Final = (7, 1)
PREFIX: Final = struct.Struct(">16sQQB")
TOKEN: Final = struct.Struct(">Q")

JobState: TypeAlias = Literal[
    "scheduled", "available", "executing", "retryable", "completed", "cancelled", "discarded"
]
STATES: Final[tuple[JobState, ...]] = (
    "scheduled",
    "available",
    "executing",
    "retryable",
    "completed",
    "cancelled",
    "discarded",
)
TERMINAL: Final = frozenset({"completed", "cancelled", "discarded"})
KEYS: Final = frozenset(
    {
        "attempt",
        "attempted_at",
        "availability_order",
        "completed_at",
        "definition",
        "diagnostic",
        "eligible_at",
        "inserted_at",
        "next_attempt",
        "state",
        "terminal_at",
    }
)
# next_attempt, eligible_at, order, execution, completed_at: which are set (spec E.3, first table).
_SHAPE: Final[dict[str, tuple[bool, bool, bool, bool, bool]]] = {
    "scheduled": (True, True, False, False, False),
    "retryable": (True, True, False, False, False),
    "available": (True, True, True, False, False),
    "executing": (True, False, False, True, False),
    "completed": (False, False, False, False, True),
    "cancelled": (False, False, False, False, False),
    "discarded": (False, False, False, False, False),
}


# Never changed once made, but not frozen: every mutation makes one, and freezing fifteen
# fields costs 2.6 us instead of 0.7.
@dataclass(slots=True, kw_only=True)
class Job:
    """A core job as the contract's own records can say it. Times are UTC milliseconds."""

    job_id: bytes
    revision: int
    cycle: int
    execution: int | None
    state: JobState
    attempt: int
    next_attempt: int | None
    definition: JobDefinition
    diagnostic: int | None
    eligible_at: int | None
    inserted_at: int
    attempted_at: int | None
    completed_at: int | None
    terminal_at: int | None
    availability_order: int | None


def decode_snapshot(payload: bytes, limits: ValueLimits = READING) -> Job:
    """Decode a (7,1) payload; the checks come in the order of spec E.3."""
    size = len(payload)
    if size > MAX_PAYLOAD_BYTES:
        raise refuse("invalid_payload", "payload_too_large", size)
    if size < PREFIX.size:
        raise refuse("invalid_payload", "invalid_snapshot", size)
    job_id, revision, cycle, present = PREFIX.unpack_from(payload)
    start = PREFIX.size
    execution: int | None = None
    if present > 1:
        raise refuse("invalid_payload", "execution_token", present)
    if present:
        if size < start + TOKEN.size:
            raise refuse("invalid_payload", "invalid_snapshot", size)
        (execution,) = TOKEN.unpack_from(payload, start)
        start += TOKEN.size
        if execution == 0:
            raise refuse("invalid_payload", "execution_token", 0)
    if size <= limits.nodes and size <= limits.binary_bytes and limits.depth >= 64:
        job = _match(payload, start, job_id, revision, cycle, execution)
        if job is not None:
            return job
    value = decode_value(payload[start:], limits)
    if type(value) is not dict or value.keys() != KEYS:
        raise refuse("invalid_payload", "snapshot_keys")
    return _from_map(value, job_id, revision, cycle, execution)


def encode_snapshot(job: Job) -> bytes:
    """The (7,1) payload of a job."""
    check_job(job)
    prefix = PREFIX.pack(job.job_id, job.revision, job.cycle, job.execution is not None)
    token = b"" if job.execution is None else TOKEN.pack(job.execution)
    payload = b"".join(
        (
            prefix, token, _K_ATTEMPT, _U64.pack(job.attempt),
            _K_ATTEMPTED, _optional(job.attempted_at), _K_ORDER, _optional(job.availability_order),
            _K_COMPLETED, _optional(job.completed_at), _K_DEFINITION, job.definition.encoded,
            _K_DIAGNOSTIC, encode_value(diagnostic_value(job.diagnostic)),
            _K_ELIGIBLE, _optional(job.eligible_at), _K_INSERTED, _U64.pack(job.inserted_at),
            _K_NEXT, _optional(job.next_attempt), _K_STATE, text(job.state),
            _K_TERMINAL, _optional(job.terminal_at),
        )
    )  # fmt: skip
    if len(payload) > MAX_PAYLOAD_BYTES:
        raise refuse("invalid_payload", "payload_too_large", len(payload))
    return payload


def check_job(job: Job) -> None:
    """Every rule of E.3 from the state on, in its order."""
    if job.state not in STATES:
        raise refuse("invalid_payload", "snapshot_state")
    if not is_id(job.job_id):
        raise refuse("invalid_payload", "job_id")
    if type(job.definition) is not JobDefinition:
        raise refuse("invalid_payload", "definition")
    _check_counters(job)
    _check_times(job)
    if not (job.availability_order is None or is_seq(job.availability_order)):
        raise refuse("invalid_payload", "availability_order")
    if not (job.execution is None or (is_seq(job.execution) and job.execution <= job.revision)):
        raise refuse("invalid_payload", "execution_token")
    if not (job.diagnostic is None or (type(job.diagnostic) is int and 1 <= job.diagnostic <= 7)):
        raise refuse("invalid_payload", "diagnostic")
    _check_terminal(job)
    if not _has_shape(job):
        raise refuse("invalid_payload", "state_fields", job.state)


def _check_counters(job: Job) -> None:
    if not (is_seq(job.revision) and is_seq(job.cycle) and job.cycle <= job.revision):
        raise refuse("invalid_payload", "revision")
    most = job.definition.max_attempts
    if type(job.attempt) is not int or not 0 <= job.attempt <= most:
        raise refuse("invalid_payload", "attempt")
    following = job.next_attempt
    if following is not None and (type(following) is not int or not 1 <= following <= most):
        raise refuse("invalid_payload", "next_attempt")


def _check_times(job: Job) -> None:
    if not (
        is_time(job.inserted_at)
        and is_optional_time(job.eligible_at)
        and is_optional_time(job.attempted_at)
        and is_optional_time(job.completed_at)
        and is_optional_time(job.terminal_at)
    ):
        raise refuse("invalid_payload", "timestamp")


def _check_terminal(job: Job) -> None:
    if job.state == "completed":
        good = job.terminal_at is not None and job.terminal_at == job.completed_at
    elif job.state in TERMINAL:
        good = job.terminal_at is not None and job.completed_at is None
    else:
        good = job.terminal_at is None
    if not good:
        raise refuse("invalid_payload", "terminal_at")


def _has_shape(job: Job) -> bool:
    present = (
        job.next_attempt is not None,
        job.eligible_at is not None,
        job.availability_order is not None,
        job.execution is not None,
        job.completed_at is not None,
    )
    if present != _SHAPE[job.state]:
        return False
    tried = job.attempt > 0 and job.attempted_at is not None
    untried = job.attempt == 0 and job.attempted_at is None
    if job.state == "scheduled":
        first = job.revision == 1 and job.cycle == 1 and job.next_attempt == 1
        return first and untried and job.diagnostic is None
    if job.state == "available":
        return tried or (untried and job.next_attempt == 1)
    if job.state == "executing":
        return tried and job.execution == job.revision and job.next_attempt == job.attempt
    if job.state in ("retryable", "discarded"):
        return tried and job.diagnostic is not None
    return tried or job.state == "cancelled"


def _from_map(
    value: dict[str, Value], job_id: bytes, revision: int, cycle: int, execution: int | None
) -> Job:
    state = value["state"]
    if type(state) is not str or state not in STATES:
        raise refuse("invalid_payload", "snapshot_state")
    if not is_id(job_id):
        raise refuse("invalid_payload", "job_id")
    definition = definition_of(value["definition"])
    if definition is None:
        raise refuse("invalid_payload", "definition")
    fields = {key: value[key] for key in KEYS - {"definition", "diagnostic", "state"}}
    job = Job(
        job_id=job_id, revision=revision, cycle=cycle, execution=execution, definition=definition,
        diagnostic=diagnostic_of(value["diagnostic"]), state=state,
        **fields,  # type: ignore[arg-type]  # check_job looks at every one of them
    )  # fmt: skip
    check_job(job)
    return job


_U64: Final = struct.Struct(">Q")
_K_ATTEMPT: Final = map_of(11) + text("attempt") + b"\x04"
_K_ATTEMPTED: Final = text("attempted_at")
_K_ORDER: Final = text("availability_order")
_K_COMPLETED: Final = text("completed_at")
_K_DEFINITION: Final = text("definition")
_K_DIAGNOSTIC: Final = text("diagnostic")
_K_ELIGIBLE: Final = text("eligible_at")
_K_INSERTED: Final = text("inserted_at") + b"\x04"
_K_NEXT: Final = text("next_attempt")
_K_TERMINAL: Final = text("terminal_at")
_K_STATE: Final = text("state")
_COMPLETED_HEAD: Final = Template(
    _K_ATTEMPT,
    _K_ATTEMPTED + b"\x04",
    _K_ORDER + b"\x00" + _K_COMPLETED + b"\x04",
    _K_DEFINITION,
    ends_with_number=False,
)
_COMPLETED_TAIL: Final = Template(
    _K_DIAGNOSTIC + b"\x00" + _K_ELIGIBLE + b"\x00" + _K_INSERTED,
    _K_NEXT + b"\x00" + _K_STATE + text("completed") + _K_TERMINAL + b"\x04",
)
_DIAGNOSTICS: Final = {
    encode_value(diagnostic_value(code)): code for code in (None, *range(1, 8))
}  # fmt: skip
_STATE_BY_BYTES: Final[dict[bytes, JobState]] = {text(state): state for state in STATES}


def _optional(number: int | None) -> bytes:
    return b"\x00" if number is None else b"\x04" + _U64.pack(number)


class _Miss(Exception):
    """The payload does not have the usual shape; the full decoder says what it has."""


def _match(
    payload: bytes, start: int, job_id: bytes, revision: int, cycle: int, execution: int | None
) -> Job | None:
    """The job when its payload has the usual shape, else None. Its rules are checked either way."""
    try:
        fields, definition, diagnostic, state = _match_completed(payload, start) or _match_fields(
            payload, start
        )
    except _Miss:
        return None
    attempt, attempted, order, completed, eligible, inserted, following, terminal = fields
    if attempt is None or inserted is None:
        return None
    job = Job(
        job_id=job_id, revision=revision, cycle=cycle, execution=execution, state=state,
        attempt=attempt, next_attempt=following, definition=definition, diagnostic=diagnostic,
        eligible_at=eligible, inserted_at=inserted, attempted_at=attempted, completed_at=completed,
        terminal_at=terminal, availability_order=order,
    )  # fmt: skip
    check_job(job)
    return job


_Fields: TypeAlias = tuple[tuple[int | None, ...], JobDefinition, int | None, JobState]


def _match_completed(payload: bytes, start: int) -> _Fields | None:
    """What most snapshots say, in two steps: a job that succeeded at its first attempt."""
    head = _COMPLETED_HEAD.match(payload, start)
    end = len(payload) - _COMPLETED_TAIL.size
    at = start + _COMPLETED_HEAD.size
    tail = _COMPLETED_TAIL.match(payload, end) if head is not None and end > at else None
    definition = None if tail is None else match_definition(payload, at, end)
    if head is None or tail is None or definition is None:
        return None
    (attempt, attempted, completed), (inserted, terminal) = head, tail
    return (
        (attempt, attempted, None, completed, None, inserted, None, terminal),
        definition,
        None,
        "completed",
    )


def _match_fields(payload: bytes, start: int) -> _Fields:
    attempt, at = _match_number(payload, start, _K_ATTEMPT[:-1])
    attempted, at = _match_number(payload, at, _K_ATTEMPTED)
    order, at = _match_number(payload, at, _K_ORDER)
    completed, at = _match_number(payload, at, _K_COMPLETED)
    if not payload.startswith(_K_DEFINITION, at):
        raise _Miss
    # No key of a definition holds these bytes (nor may one hold a zero), and no later field does.
    end = payload.rfind(_K_DIAGNOSTIC)
    definition = match_definition(payload, at + len(_K_DEFINITION), end)
    if definition is None:
        raise _Miss
    diagnostic, at = _match_diagnostic(payload, end)
    eligible, at = _match_number(payload, at, _K_ELIGIBLE)
    inserted, at = _match_number(payload, at, _K_INSERTED[:-1])
    following, at = _match_number(payload, at, _K_NEXT)
    state, at = _match_state(payload, at)
    terminal, at = _match_number(payload, at, _K_TERMINAL)
    if at != len(payload):
        raise _Miss
    numbers = (attempt, attempted, order, completed, eligible, inserted, following, terminal)
    return numbers, definition, diagnostic, state


def _match_number(payload: bytes, pos: int, key: bytes) -> tuple[int | None, int]:
    if not payload.startswith(key, pos):
        raise _Miss
    at = pos + len(key)
    tag = payload[at : at + 1]
    if tag == b"\x00":
        return None, at + 1
    if tag != b"\x04" or len(payload) < at + 9:
        raise _Miss
    (number,) = _U64.unpack_from(payload, at + 1)
    if number > MAX_TIME:
        raise _Miss
    return number, at + 9


def _match_diagnostic(payload: bytes, pos: int) -> tuple[int | None, int]:
    at = pos + len(_K_DIAGNOSTIC)
    if not payload.startswith(_K_DIAGNOSTIC, pos):
        raise _Miss
    size = 1 if payload[at : at + 1] == b"\x00" else 44
    body = payload[at : at + size]
    if body not in _DIAGNOSTICS:
        raise _Miss
    return _DIAGNOSTICS[body], at + size


def _match_state(payload: bytes, pos: int) -> tuple[JobState, int]:
    if not payload.startswith(_K_STATE, pos):
        raise _Miss
    at = pos + len(_K_STATE)
    end = at + 5 + int.from_bytes(payload[at + 1 : at + 5])
    state = _STATE_BY_BYTES.get(payload[at:end])
    if state is None:
        raise _Miss
    return state, end
