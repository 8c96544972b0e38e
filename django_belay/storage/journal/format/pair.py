"""Which payload a (type, schema) pair holds, and where a Store-v2 store may hold it."""

from __future__ import annotations

from typing import Final, Literal, TypeAlias

from . import event_v1, event_v2, extension
from .event_v1 import JobEvent
from .event_v2 import EventV2, decode_event_v2, encode_event_v2
from .extension import Extension, decode_extension, encode_extension
from .limits import READING, ValueLimits
from .mutation import decode_mutation, encode_mutation
from .refusal import refuse
from .snapshot import Job, decode_snapshot, encode_snapshot

Place: TypeAlias = Literal["base", "tail"]
Payload: TypeAlias = Job | JobEvent | EventV2 | Extension

BASE_PAIRS: Final = frozenset({(7, 1), (10, 2), (12, 2), (13, 2), (129, 1), (130, 1)})
TAIL_PAIRS: Final = frozenset(
    {(8, 1), *((kind, 2) for kind in event_v2.CLASSES), (128, 1), (129, 1), (131, 1)}
)
_SCHEMAS: Final = frozenset({1, 2})
_MUTATIONS: Final = frozenset(event_v1.CLASSES.values())
_EXTENSIONS: Final = frozenset(extension.CLASSES.values())


def decode_payload(
    record_type: int, schema: int, payload: bytes, place: Place, limits: ValueLimits = READING
) -> Payload:
    """Decode the payload of a record that stands in ``place``.

    Raises:
        UnsupportedFormat: The pair is unknown, or does not belong in ``place``.
        CorruptRecord: The payload breaks a rule of its pair.
    """
    if place == "tail" and record_type == 8 and schema == 1:
        return decode_mutation(payload, limits)
    if schema not in _SCHEMAS:
        raise refuse("unsupported_semantics", "payload_schema", record_type, schema)
    if (record_type, schema) not in (BASE_PAIRS if place == "base" else TAIL_PAIRS):
        raise refuse("unsupported_semantics", "record_profile", record_type, schema, place)
    if schema == 2:
        return decode_event_v2(record_type, schema, payload, limits)
    if record_type == 7:
        return decode_snapshot(payload, limits)
    return decode_extension(record_type, schema, payload, limits)


def encode_payload(item: Payload) -> tuple[int, int, bytes]:
    """Type, schema and payload of the record that says ``item`` in a store."""
    kind = type(item)
    if kind in _MUTATIONS:
        return 8, 1, encode_mutation(item)  # type: ignore[arg-type]
    if kind is Job:
        return 7, 1, encode_snapshot(item)  # type: ignore[arg-type]
    if kind in _EXTENSIONS:
        return item.record_type, 1, encode_extension(item)  # type: ignore[union-attr, arg-type]
    return item.event_type, 2, encode_event_v2(item)  # type: ignore[union-attr, arg-type]
