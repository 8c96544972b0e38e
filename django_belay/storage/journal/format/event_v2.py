"""Event v2: schedules and results, pairs (7,2) to (13,2) (spec E.7).

The key names of (11,2), (12,2) and (13,2) beyond ``active_job_id``, ``active_job_ids``
and ``membership_complete`` are this project's decision: no vector is public.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from itertools import pairwise
from typing import Any, ClassVar, Final, Literal, TypeAlias

from .domain import is_id, is_key, is_name, is_optional_time, is_seq, is_time, is_u64
from .limits import READING, ValueLimits
from .refusal import refuse
from .value import Value, decode_value, encode_value, holds_opaque

SCHEMA: Final = 2
CATCH_UP: Final = ("latest", "all")
OVERLAP: Final = ("allow", "skip", "queue")


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleDefinition:
    """What a schedule starts and when. ``expression`` is milliseconds for kind ``every``."""

    args: dict[str, Value]
    catch_up: str
    expression: str | int
    kind: Literal["cron", "every"]
    options: dict[str, Value]
    overlap: str
    task: str
    timezone: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleRegistered:
    """(7,2), the historical form of a registration."""

    event_type: ClassVar[int] = 7
    at: int
    definition: ScheduleDefinition
    expected_revision: int
    next_at: int
    schedule_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleAdvanced:
    """(8,2), the historical form of an advancement."""

    event_type: ClassVar[int] = 8
    at: int
    due_at: int
    expected_revision: int
    next_at: int
    schedule_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleCancelled:
    """(9,2)."""

    event_type: ClassVar[int] = 9
    at: int
    expected_revision: int
    schedule_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ResultRecorded:
    """(10,2): what a completed job returned."""

    event_type: ClassVar[int] = 10
    at: int
    expected_revision: int
    job_id: bytes
    result: Value


@dataclass(frozen=True, slots=True, kw_only=True)
class OccurrenceDelivered:
    """(11,2): a delivery, or a skip when ``active_job_id`` is None."""

    event_type: ClassVar[int] = 11
    active_job_id: bytes | None
    at: int
    due_at: int
    expected_revision: int
    next_at: int
    schedule_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleCheckpoint:
    """(12,2), the historical form of a checkpoint."""

    event_type: ClassVar[int] = 12
    active_job_id: bytes | None
    at: int
    cancelled_at: int | None
    definition: ScheduleDefinition
    expected_revision: int
    last_at: int | None
    next_at: int
    registered_at: int
    revision: int
    schedule_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduleState:
    """(13,2): a registration or a checkpoint, with every active occurrence job."""

    event_type: ClassVar[int] = 13
    active_job_ids: tuple[bytes, ...]
    at: int
    cancelled_at: int | None
    definition: ScheduleDefinition
    expected_revision: int
    last_at: int | None
    membership_complete: bool
    next_at: int
    registered_at: int
    revision: int
    schedule_id: str


EventV2: TypeAlias = (
    ScheduleRegistered
    | ScheduleAdvanced
    | ScheduleCancelled
    | ResultRecorded
    | OccurrenceDelivered
    | ScheduleCheckpoint
    | ScheduleState
)

CLASSES: Final[dict[int, Callable[..., EventV2]]] = {
    7: ScheduleRegistered,
    8: ScheduleAdvanced,
    9: ScheduleCancelled,
    10: ResultRecorded,
    11: OccurrenceDelivered,
    12: ScheduleCheckpoint,
    13: ScheduleState,
}
_KEYS: Final = {kind: frozenset(f.name for f in fields(cls)) for kind, cls in CLASSES.items()}  # type: ignore[arg-type]
_DEFINITION_KEYS: Final = frozenset(f.name for f in fields(ScheduleDefinition))


def decode_event_v2(
    event_type: int, schema: int, payload: bytes | memoryview, limits: ValueLimits = READING
) -> EventV2:
    """Decode a schema-2 payload."""
    if event_type not in CLASSES:
        raise refuse("unsupported_semantics", "unknown_event_type", event_type)
    if schema != SCHEMA:
        raise refuse("unsupported_semantics", "unsupported_payload_schema", event_type, schema)
    value = decode_value(payload, limits)
    if type(value) is not dict or value.keys() != _KEYS[event_type]:
        raise refuse("invalid_payload", "invalid_event", event_type)
    arguments: dict[str, Any] = dict(value)
    if "definition" in arguments:
        arguments["definition"] = schedule_definition_of(value["definition"])
    if "active_job_ids" in arguments:
        members = value["active_job_ids"]
        arguments["active_job_ids"] = tuple(members) if type(members) is list else None
    event = CLASSES[event_type](**arguments)
    check_event_v2(event)
    return event


def encode_event_v2(event: EventV2) -> bytes:
    """The payload of a schema-2 event."""
    check_event_v2(event)
    value: dict[str, Value] = {key: getattr(event, key) for key in _KEYS[event.event_type]}
    if "definition" in value:
        value["definition"] = schedule_definition_value(event.definition)  # type: ignore[union-attr]
    return encode_value(value)


def schedule_definition_value(definition: ScheduleDefinition) -> Value:
    """A schedule definition as the map that stores it."""
    return {key: getattr(definition, key) for key in _DEFINITION_KEYS}


def schedule_definition_of(value: Value) -> ScheduleDefinition | None:
    """The schedule definition a decoded Value holds, or None when it breaks a rule."""
    if type(value) is not dict or value.keys() != _DEFINITION_KEYS:
        return None
    definition = ScheduleDefinition(**value)  # type: ignore[arg-type]  # checked on the next line
    return definition if is_schedule_definition(definition) else None


def is_schedule_definition(definition: object) -> bool:
    """Whether every field of a schedule definition is in its domain."""
    if type(definition) is not ScheduleDefinition:
        return False
    maps = (definition.args, definition.options)
    if any(type(item) is not dict or holds_opaque(item) for item in maps):
        return False
    if not (_among(definition.catch_up, CATCH_UP) and _among(definition.overlap, OVERLAP)):
        return False
    if definition.kind == "cron":
        timed = is_name(definition.expression)
    else:
        timed = definition.kind == "every" and is_seq(definition.expression)
    zoned = definition.timezone is None or is_name(definition.timezone)
    return timed and zoned and is_key(definition.task)


def check_event_v2(event: EventV2) -> None:
    """Every rule of E.7 that needs no other record."""
    if not (is_time(event.at) and _RULES[event.event_type](event)):
        raise refuse("invalid_payload", "invalid_event", event.event_type)


def _among(value: object, allowed: tuple[str, ...]) -> bool:
    return type(value) is str and value in allowed


def _registered(event: ScheduleRegistered) -> bool:
    named = is_name(event.schedule_id) and is_u64(event.expected_revision)
    return named and is_time(event.next_at) and is_schedule_definition(event.definition)


def _advanced(event: ScheduleAdvanced | OccurrenceDelivered) -> bool:
    if not (is_name(event.schedule_id) and is_seq(event.expected_revision)):
        return False
    if not (is_time(event.due_at) and is_time(event.next_at)):
        return False
    return event.due_at <= event.at and event.next_at > event.due_at


def _delivered(event: OccurrenceDelivered) -> bool:
    return _advanced(event) and (event.active_job_id is None or is_id(event.active_job_id))


def _cancelled(event: ScheduleCancelled) -> bool:
    return is_name(event.schedule_id) and is_seq(event.expected_revision)


def _result(event: ResultRecorded) -> bool:
    return is_id(event.job_id) and is_seq(event.expected_revision) and not holds_opaque(event.result)


def _state(event: ScheduleCheckpoint | ScheduleState) -> bool:
    if not (is_name(event.schedule_id) and is_schedule_definition(event.definition)):
        return False
    if not (is_u64(event.expected_revision) and is_seq(event.revision)):
        return False
    times = is_time(event.next_at) and is_time(event.registered_at)
    optional = is_optional_time(event.last_at) and is_optional_time(event.cancelled_at)
    return times and optional and event.revision == event.expected_revision + 1


def _checkpoint(event: ScheduleCheckpoint) -> bool:
    return _state(event) and (event.active_job_id is None or is_id(event.active_job_id))


def _current(event: ScheduleState) -> bool:
    members = event.active_job_ids
    if type(members) is not tuple or type(event.membership_complete) is not bool:
        return False
    if not all(is_id(member) for member in members):
        return False
    return _state(event) and all(a < b for a, b in pairwise(members))


_RULES: Final[dict[int, Callable[[Any], bool]]] = {
    7: _registered,
    8: _advanced,
    9: _cancelled,
    10: _result,
    11: _delivered,
    12: _checkpoint,
    13: _current,
}
