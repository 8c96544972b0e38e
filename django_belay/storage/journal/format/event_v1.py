"""Event v1: the six things that happen to a job, pairs (1,1) to (6,1) (spec E.2).

The same dataclasses travel bare, as these payloads, and inside the (8,1) envelope
of ``mutation``, which alone carries ``availability_order``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Final, TypeAlias

from .definition import JobDefinition, definition_of
from .domain import is_attempt, is_id, is_seq, is_time
from .limits import READING, ValueLimits
from .refusal import refuse
from .value import Value, decode_value, encode_value

COMPLETED: Final = 0
RETRYABLE: Final = 1
DISCARDED: Final = 2
SUCCESS: Final = 0
FAILURE: Final = 1
TIMEOUT: Final = 2
INTERRUPTED: Final = 3
_CODES_OF_OUTCOME: Final = {
    SUCCESS: frozenset({None}),
    FAILURE: frozenset({1, 2, 3, 4, 6}),
    TIMEOUT: frozenset({5}),
    INTERRUPTED: frozenset({7}),
}
_DISPOSITIONS_OF_OUTCOME: Final = {
    SUCCESS: (COMPLETED,),
    FAILURE: (RETRYABLE, DISCARDED),
    TIMEOUT: (RETRYABLE, DISCARDED),
    INTERRUPTED: (RETRYABLE,),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Inserted:
    """The job begins."""

    kind: ClassVar[int] = 1
    job_id: bytes
    expected_revision: int = 0
    at: int
    definition: JobDefinition
    eligible_at: int
    availability_order: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Available:
    """A waiting job has become due."""

    kind: ClassVar[int] = 2
    job_id: bytes
    expected_revision: int
    at: int
    due_at: int
    availability_order: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Started:
    """An attempt begins; its new revision is the execution token."""

    kind: ClassVar[int] = 3
    job_id: bytes
    expected_revision: int
    at: int
    attempt: int
    cycle_token: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    """An attempt ends. ``diagnostic`` is the code 1..7, or None."""

    kind: ClassVar[int] = 4
    job_id: bytes
    expected_revision: int
    at: int
    diagnostic: int | None
    disposition: int
    execution_token: int
    next_attempt: int | None
    next_due_at: int | None
    outcome: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Cancelled:
    """The job is cancelled; the token is that of a running attempt, or None."""

    kind: ClassVar[int] = 5
    job_id: bytes
    expected_revision: int
    at: int
    execution_token: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Retried:
    """An operator asks again: mode 0 expedites a retry, mode 1 reopens a discarded job."""

    kind: ClassVar[int] = 6
    job_id: bytes
    expected_revision: int
    at: int
    mode: int
    new_due_at: int
    availability_order: int | None = None


JobEvent: TypeAlias = Inserted | Available | Started | Finished | Cancelled | Retried

COMMON_KEYS: Final = frozenset({"at", "expected_revision", "job_id"})
BODY_KEYS: Final[dict[int, frozenset[str]]] = {
    1: frozenset({"definition", "eligible_at"}),
    2: frozenset({"due_at"}),
    3: frozenset({"attempt", "cycle_token"}),
    4: frozenset({"diagnostic", "disposition", "execution_token", "next_attempt", "next_due_at", "outcome"}),
    5: frozenset({"execution_token"}),
    6: frozenset({"mode", "new_due_at"}),
}
CLASSES: Final[dict[int, Callable[..., JobEvent]]] = {
    1: Inserted,
    2: Available,
    3: Started,
    4: Finished,
    5: Cancelled,
    6: Retried,
}


def decode_event_v1(
    event_type: int, schema: int, payload: bytes | memoryview, limits: ValueLimits = READING
) -> JobEvent:
    """Decode a bare Event-v1 payload."""
    if event_type not in CLASSES:
        raise refuse("unsupported_semantics", "unknown_event_type", event_type)
    if schema != 1:
        raise refuse("unsupported_semantics", "unsupported_payload_schema", event_type, schema)
    value = decode_value(payload, limits)
    if type(value) is not dict or value.keys() != COMMON_KEYS | BODY_KEYS[event_type]:
        raise refuse("invalid_payload", "invalid_event")
    return event_from_fields(event_type, value)


def encode_event_v1(event: JobEvent) -> bytes:
    """The bare payload of an event; an availability order has no place in it."""
    check_event(event)
    if getattr(event, "availability_order", None) is not None:
        raise refuse("argument", "invalid_event", "availability_order")
    fields = body_fields(event)
    fields.update(at=event.at, expected_revision=event.expected_revision, job_id=event.job_id)
    return encode_value(fields)


def event_from_fields(event_type: int, fields: Mapping[str, Value], order: Value = None) -> JobEvent:
    """Build and check the event whose exact keys are already known to be there."""
    arguments: dict[str, Any] = dict(fields)
    if event_type == 1:
        arguments["definition"] = definition_of(fields["definition"])
    if event_type == 4:
        arguments["diagnostic"] = diagnostic_of(fields["diagnostic"])
    if event_type in (1, 2, 6):
        arguments["availability_order"] = order
    event = CLASSES[event_type](**arguments)
    check_event(event)
    return event


def body_fields(event: JobEvent) -> dict[str, Value]:
    """What a payload's map holds besides the common keys and the order."""
    fields: dict[str, Value] = {}
    for key in BODY_KEYS[event.kind]:
        fields[key] = getattr(event, key)
    if type(event) is Inserted:
        fields["definition"] = definition_value(event.definition)
    if type(event) is Finished:
        fields["diagnostic"] = diagnostic_value(event.diagnostic)
    return fields


def definition_value(definition: JobDefinition) -> Value:
    """A definition as the Value it is encoded from."""
    return decode_value(definition.encoded)


def diagnostic_value(code: int | None) -> Value:
    """A diagnostic code as the map that stores it."""
    return None if code is None else {"code": code, "version": 1}


def diagnostic_of(value: Value) -> int | None:
    """The code of a stored diagnostic; -1 for anything that is not one."""
    if value is None:
        return None
    if type(value) is not dict or value.keys() != {"code", "version"}:
        return -1
    code, version = value["code"], value["version"]
    if type(code) is not int or not 1 <= code <= 7 or type(version) is not int or version != 1:
        return -1
    return code


def check_event(event: JobEvent) -> None:
    """Every rule of E.2 that needs no other record."""
    expected = event.expected_revision
    common = is_id(event.job_id) and is_time(event.at)
    revision = (type(expected) is int and expected == 0) if event.kind == 1 else is_seq(expected)
    if not (common and revision and _RULES[event.kind](event)):
        raise refuse("invalid_payload", "invalid_event", event.kind)


def _inserted(event: Inserted) -> bool:
    if type(event.definition) is not JobDefinition or not is_time(event.eligible_at):
        return False
    scheduled = event.definition.scheduled_at
    return event.eligible_at == (event.at if scheduled is None else scheduled)


def _available(event: Available) -> bool:
    return is_time(event.due_at) and event.due_at <= event.at


def _started(event: Started) -> bool:
    return is_attempt(event.attempt) and is_seq(event.cycle_token)


def _finished(event: Finished) -> bool:
    outcome, disposition = event.outcome, event.disposition
    if type(outcome) is not int or outcome not in _CODES_OF_OUTCOME or type(disposition) is not int:
        return False
    if event.diagnostic not in _CODES_OF_OUTCOME[outcome]:
        return False
    if disposition not in _DISPOSITIONS_OF_OUTCOME[outcome] or not is_seq(event.execution_token):
        return False
    if disposition == RETRYABLE:
        return is_attempt(event.next_attempt) and is_time(event.next_due_at)
    return event.next_attempt is None and event.next_due_at is None


def _cancelled(event: Cancelled) -> bool:
    return event.execution_token is None or is_seq(event.execution_token)


def _retried(event: Retried) -> bool:
    return type(event.mode) is int and event.mode in (0, 1) and _same(event.new_due_at, event.at)


def _same(value: object, want: int) -> bool:
    return type(value) is int and value == want


_RULES: Final[dict[int, Callable[[Any], bool]]] = {
    1: _inserted,
    2: _available,
    3: _started,
    4: _finished,
    5: _cancelled,
    6: _retried,
}
