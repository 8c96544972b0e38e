"""Mutation, pair (8,1): one job event in the tail, with its availability order (spec E.4).

====== ===== ==================
offset width field
====== ===== ==================
0      16    job id
16     1     kind, 1..6
17     8     expected revision
25     8     new revision
33     8     at, milliseconds
41     ...   Value
====== ===== ==================
"""

from __future__ import annotations

import struct
from typing import Final

from .definition import match_definition
from .domain import ZERO_ID, is_seq
from .event_v1 import (
    BODY_KEYS,
    Available,
    Cancelled,
    Finished,
    Inserted,
    JobEvent,
    Retried,
    Started,
    body_fields,
    check_event,
    event_from_fields,
)
from .limits import MAX_PAYLOAD_BYTES, MAX_TIME, MAX_U64, READING, ValueLimits
from .refusal import refuse
from .template import Template, map_of, text
from .value import Value, decode_value, encode_value

PAIR: Final = (8, 1)
PREFIX: Final = struct.Struct(">16sBQQQ")
PREFIX_BYTES: Final = 41
_ORDERED: Final = frozenset({1, 2, 6})

_AVAILABLE: Final = Template(map_of(2) + text("availability_order") + b"\x04", text("due_at") + b"\x04")
_STARTED: Final = Template(map_of(2) + text("attempt") + b"\x04", text("cycle_token") + b"\x04")
_SUCCEEDED: Final = Template(
    map_of(6) + text("diagnostic") + b"\x00" + text("disposition") + b"\x04" + bytes(8)
    + text("execution_token") + b"\x04",
    text("next_attempt") + b"\x00" + text("next_due_at") + b"\x00" + text("outcome") + b"\x04" + bytes(8),
    ends_with_number=False,
)  # fmt: skip
_DIAGNOSED: Final = map_of(6) + text("diagnostic") + map_of(2) + text("code") + b"\x04"
_TO_TOKEN: Final = text("execution_token") + b"\x04"
_VERSION: Final = text("version") + b"\x04" + (1).to_bytes(8) + text("disposition") + b"\x04"
_RETRYING: Final = Template(
    _DIAGNOSED, _VERSION, _TO_TOKEN, text("next_attempt") + b"\x04",
    text("next_due_at") + b"\x04", text("outcome") + b"\x04",
)  # fmt: skip
_CANCELLED: Final = Template(map_of(1) + text("execution_token") + b"\x04")
_CANCELLED_WAITING: Final = map_of(1) + text("execution_token") + b"\x00"
_RETRIED: Final = Template(
    map_of(3) + text("availability_order") + b"\x04", text("mode") + b"\x04", text("new_due_at") + b"\x04"
)
_ORDER: Final = Template(
    map_of(3) + text("availability_order") + b"\x04", text("definition"), ends_with_number=False
)
_UNORDERED: Final = map_of(3) + text("availability_order") + b"\x00" + text("definition")
_ELIGIBLE: Final = Template(text("eligible_at") + b"\x04")


def decode_mutation(payload: bytes, limits: ValueLimits = READING) -> JobEvent:
    """Decode a (8,1) payload; the checks come in the order of spec E.4."""
    size = len(payload)
    if size < PREFIX_BYTES:
        raise refuse("invalid_payload", "invalid_mutation", size)
    if size > MAX_PAYLOAD_BYTES:
        raise refuse("invalid_payload", "payload_too_large", size)
    # A short payload cannot exceed the budgets of nodes or bytes; only depth is left to look at.
    if size <= limits.nodes and size <= limits.binary_bytes and limits.depth >= 64:
        event = _match(payload)
        if event is not None:
            return event
    return _decode_slowly(payload, limits)


def encode_mutation(event: JobEvent) -> bytes:
    """The (8,1) payload of an event."""
    check_event(event)
    expected = event.expected_revision
    if expected >= MAX_U64:
        raise refuse("invalid_payload", "revision", expected)
    order = getattr(event, "availability_order", None)
    _check_order(event.kind, order, event.at, getattr(event, "eligible_at", None))
    prefix = PREFIX.pack(event.job_id, event.kind, expected, expected + 1, event.at)
    payload = prefix + _body(event)
    if len(payload) > MAX_PAYLOAD_BYTES:
        raise refuse("invalid_payload", "payload_too_large", len(payload))
    return payload


def _body(event: JobEvent) -> bytes:
    kind = type(event)
    if kind is Started:
        return _STARTED.pack(event.attempt, event.cycle_token)  # type: ignore[union-attr]
    if kind is Available:
        return _AVAILABLE.pack(event.availability_order, event.due_at)  # type: ignore[union-attr, arg-type]
    if kind is Inserted:
        return _inserted_body(event)  # type: ignore[arg-type]
    if kind is Finished and event.outcome == 0:  # type: ignore[union-attr]
        return _SUCCEEDED.pack(event.execution_token)  # type: ignore[union-attr, arg-type]
    fields = body_fields(event)
    if event.kind in _ORDERED:
        fields["availability_order"] = event.availability_order  # type: ignore[union-attr]
    return encode_value(fields)


def _inserted_body(event: Inserted) -> bytes:
    order = event.availability_order
    head = _UNORDERED if order is None else _ORDER.pack(order)
    return head + event.definition.encoded + _ELIGIBLE.pack(event.eligible_at)


def _decode_slowly(payload: bytes, limits: ValueLimits) -> JobEvent:
    job_id, kind, expected, new, at = PREFIX.unpack_from(payload)
    if kind not in BODY_KEYS:
        raise refuse("invalid_payload", "mutation_kind", kind)
    body = decode_value(payload[PREFIX_BYTES:], limits)
    if job_id == ZERO_ID:
        raise refuse("invalid_payload", "job_id")
    if expected == MAX_U64 or new != expected + 1 or (expected == 0) != (kind == 1):
        raise refuse("invalid_payload", "revision", expected, new)
    if at > MAX_TIME:
        raise refuse("invalid_payload", "timestamp", at)
    keys = BODY_KEYS[kind] | {"availability_order"} if kind in _ORDERED else BODY_KEYS[kind]
    if type(body) is not dict or body.keys() != keys:
        raise refuse("invalid_payload", "mutation_keys")
    order = body.pop("availability_order", None)
    _check_order(kind, order, at, body.get("eligible_at"))
    body.update(at=at, expected_revision=expected, job_id=job_id)
    return event_from_fields(kind, body, order)


def _check_order(kind: int, order: Value, at: int, eligible_at: Value) -> None:
    if kind not in _ORDERED:
        return
    # Numbers sort before every other type, so an eligible_at that is none is never due here;
    # that it is none at all is found by the event's own rules.
    due = kind != 1 or (type(eligible_at) in (int, float) and eligible_at <= at)  # type: ignore[operator]
    if not (is_seq(order) if due else order is None):
        raise refuse("invalid_payload", "availability_order")


def _match(payload: bytes) -> JobEvent | None:
    """The event when its payload has the usual shape and every rule holds, else None."""
    job_id, kind, expected, new, at = PREFIX.unpack_from(payload)
    if job_id == ZERO_ID or new != expected + 1 or at > MAX_TIME or expected == 0:
        return _match_inserted(payload, job_id, at) if (kind, expected, new) == (1, 0, 1) else None
    if kind == 3 and len(payload) == PREFIX_BYTES + _STARTED.size:
        numbers = _STARTED.match(payload, PREFIX_BYTES)
        if numbers and 1 <= numbers[0] <= 65_535 and numbers[1]:
            return Started(
                job_id=job_id, expected_revision=expected, at=at, attempt=numbers[0], cycle_token=numbers[1]
            )
    elif kind == 4:
        return _match_finished(payload, job_id, expected, at)
    elif kind == 2 and len(payload) == PREFIX_BYTES + _AVAILABLE.size:
        numbers = _AVAILABLE.match(payload, PREFIX_BYTES)
        if numbers and numbers[0] and numbers[1] <= at:
            return Available(
                job_id=job_id, expected_revision=expected, at=at,
                due_at=numbers[1], availability_order=numbers[0],
            )  # fmt: skip
    elif kind == 5:
        return _match_cancelled(payload, job_id, expected, at)
    elif kind == 6 and len(payload) == PREFIX_BYTES + _RETRIED.size:
        numbers = _RETRIED.match(payload, PREFIX_BYTES)
        if numbers and numbers[0] and numbers[1] <= 1 and numbers[2] == at:
            return Retried(
                job_id=job_id, expected_revision=expected, at=at,
                mode=numbers[1], new_due_at=at, availability_order=numbers[0],
            )  # fmt: skip
    return None


def _match_finished(payload: bytes, job_id: bytes, expected: int, at: int) -> JobEvent | None:
    size = len(payload) - PREFIX_BYTES
    if size == _SUCCEEDED.size:
        numbers = _SUCCEEDED.match(payload, PREFIX_BYTES)
        if numbers and numbers[0]:
            return Finished(
                job_id=job_id, expected_revision=expected, at=at, diagnostic=None, disposition=0,
                execution_token=numbers[0], next_attempt=None, next_due_at=None, outcome=0,
            )  # fmt: skip
    elif size == _RETRYING.size:
        numbers = _RETRYING.match(payload, PREFIX_BYTES)
        if numbers:
            code, disposition, token, attempt, due, outcome = numbers
            event = Finished(
                job_id=job_id, expected_revision=expected, at=at, diagnostic=code, disposition=disposition,
                execution_token=token, next_attempt=attempt, next_due_at=due, outcome=outcome,
            )  # fmt: skip
            check_event(event)
            return event
    return None


def _match_cancelled(payload: bytes, job_id: bytes, expected: int, at: int) -> JobEvent | None:
    size = len(payload) - PREFIX_BYTES
    if size == len(_CANCELLED_WAITING) and payload.endswith(_CANCELLED_WAITING):
        return Cancelled(job_id=job_id, expected_revision=expected, at=at, execution_token=None)
    if size == _CANCELLED.size:
        numbers = _CANCELLED.match(payload, PREFIX_BYTES)
        if numbers and numbers[0]:
            return Cancelled(job_id=job_id, expected_revision=expected, at=at, execution_token=numbers[0])
    return None


def _match_inserted(payload: bytes, job_id: bytes, at: int) -> JobEvent | None:
    if job_id == ZERO_ID or at > MAX_TIME:
        return None
    numbers = _ORDER.match(payload, PREFIX_BYTES)
    start = PREFIX_BYTES + _ORDER.size
    if numbers is None:
        if not payload.startswith(_UNORDERED, PREFIX_BYTES):
            return None
        start = PREFIX_BYTES + len(_UNORDERED)
    end = len(payload) - _ELIGIBLE.size
    eligible = _ELIGIBLE.match(payload, end) if end > start else None
    definition = None if eligible is None else match_definition(payload, start, end)
    if eligible is None or definition is None:
        return None
    due = eligible[0]
    scheduled = definition.scheduled_at
    order = numbers[0] if numbers else None
    if due != (at if scheduled is None else scheduled) or (order is None) != (due > at) or order == 0:
        return None
    return Inserted(job_id=job_id, at=at, definition=definition, eligible_at=due, availability_order=order)
