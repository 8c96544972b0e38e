"""Single pieces of bytes, decoded and said in JSON: for forensics, and to try a byte string."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from typing import Any, Final

from .definition import JobDefinition
from .event_v1 import decode_event_v1
from .event_v2 import decode_event_v2
from .extension import decode_extension
from .manifest import decode_manifest
from .metadata import decode_current, decode_marker
from .mutation import decode_mutation
from .record import Incomplete, decode_record
from .refusal import refuse
from .scan import SegmentScan
from .snapshot import decode_snapshot
from .value import decode_value


def describe(kind: str, data: bytes) -> Any:
    """Decode ``data`` as ``kind`` and return what it says, fit for JSON.

    Args:
        kind: ``record``, ``segment``, ``value``, ``current``, ``manifest``, ``marker`` or
            ``event:TYPE:SCHEMA``.

    Raises:
        JournalError: The first rule the bytes break.
    """
    if not is_kind(kind):
        raise refuse("argument", "unknown_kind", kind)
    decode = _DECODERS.get(kind)
    return _as_json(_decode_payload(kind, data)) if decode is None else decode(data)


def is_kind(kind: str) -> bool:
    """Whether ``kind`` is one of :data:`KINDS`; a pair may be one that nothing is known of."""
    return kind in _DECODERS or _EVENT.fullmatch(kind) is not None


def _decode_payload(kind: str, data: bytes) -> object:
    event_type, schema = (int(part) for part in kind.split(":")[1:])
    if (event_type, schema) == (7, 1):
        return decode_snapshot(data)
    if (event_type, schema) == (8, 1):
        return decode_mutation(data)
    if event_type >= 128:
        return decode_extension(event_type, schema, data)
    if event_type >= 7:
        return decode_event_v2(event_type, schema, data)
    return decode_event_v1(event_type, schema, data)


def _record(data: bytes) -> Any:
    found = decode_record(data)
    if isinstance(found, Incomplete):
        raise refuse("incomplete_tail", "incomplete", found.stage, found.available_bytes, found.missing_bytes)
    return {**_as_json(found.record), "size": found.size, "remainder_bytes": len(found.remainder)}


def _segment(data: bytes) -> Any:
    expected = int.from_bytes(data[8:16])  # whatever it says: there is no file name to compare with
    scan = SegmentScan(
        lambda position, size: data[position : position + size],
        len(data),
        expected_id=expected,
        expected_store=None,
        highest=True,
    )
    records = [
        {
            "offset": item.offset,
            "record_type": item.record_type,
            "payload_schema": item.payload_schema,
            "sequence": item.sequence,
            "payload_bytes": len(item.payload),
        }
        for item in scan
    ]
    assert scan.header is not None
    return {**_as_json(scan.header), **_as_json(scan.summary), "records": records}


_DECODERS: Final[dict[str, Callable[[bytes], Any]]] = {
    "record": _record,
    "segment": _segment,
    "value": lambda data: _as_json(decode_value(data)),
    "current": lambda data: _as_json(decode_current(data)),
    "manifest": lambda data: _as_json(decode_manifest(data)),
    "marker": lambda data: {"store_id": decode_marker(data).hex()},
}
_EVENT: Final = re.compile(r"event:[0-9]{1,3}:[0-9]{1,3}")
KINDS: Final = (*_DECODERS, "event:TYPE:SCHEMA")


def _as_json(item: Any) -> Any:
    if isinstance(item, bytes):
        return {"hex": item.hex()}
    if isinstance(item, JobDefinition):
        return _as_json(decode_value(item.encoded))
    if is_dataclass(item):
        return {field.name: _as_json(getattr(item, field.name)) for field in fields(item)}
    if isinstance(item, dict):
        return {key: _as_json(value) for key, value in item.items()}
    if isinstance(item, list | tuple):
        return [_as_json(value) for value in item]
    return item
