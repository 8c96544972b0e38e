"""The project's own pairs (128,1) to (131,1): what Event v1 and v2 cannot say.

A Value map with exact keys whose bulk is one tag-07 body of JSON (UTF-8, sorted
keys, at most 8 MiB). A store that holds one of them is readable by this project alone.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, fields
from math import isfinite
from typing import Any, ClassVar, Final, Literal, TypeAlias

from .domain import is_id, is_key, is_name, is_time, is_u64
from .limits import READING, ValueLimits
from .refusal import refuse
from .value import Value, decode_value, encode_value

SCHEMA: Final = 1
MAX_BODY_BYTES: Final = 8_388_608
MARKS: Final = ("begin", "commit", "abort")
TABLES: Final = frozenset(
    {"steps", "events", "signals", "rate", "queues", "crons", "slots", "answers", "ids"}
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """(128,1): one operation of the wire contract, as the changes it made."""

    record_type: ClassVar[int] = 128
    at: int
    client: str
    effects: bytes
    op: str
    request: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """(129,1): the whole row of an extended job."""

    record_type: ClassVar[int] = 129
    job_id: bytes
    row: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class TableRows:
    """(130,1): rows of one extension table, sorted by key, at least one."""

    record_type: ClassVar[int] = 130
    rows: bytes
    table: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Frame:
    """(131,1): a bracket around an operation larger than one record."""

    record_type: ClassVar[int] = 131
    mark: Literal["begin", "commit", "abort"]
    operation: str


Extension: TypeAlias = Operation | Row | TableRows | Frame
CLASSES: Final[dict[int, Callable[..., Extension]]] = {128: Operation, 129: Row, 130: TableRows, 131: Frame}
_KEYS: Final = {kind: frozenset(f.name for f in fields(cls)) for kind, cls in CLASSES.items()}  # type: ignore[arg-type]


def decode_extension(
    record_type: int, schema: int, payload: bytes | memoryview, limits: ValueLimits = READING
) -> Extension:
    """Decode an extension payload. The JSON inside is looked at when it is applied."""
    if record_type not in CLASSES:
        raise refuse("unsupported_semantics", "unknown_event_type", record_type)
    if schema != SCHEMA:
        raise refuse("unsupported_semantics", "unsupported_payload_schema", record_type, schema)
    value = decode_value(payload, limits)
    if type(value) is not dict or value.keys() != _KEYS[record_type]:
        raise refuse("invalid_payload", "invalid_extension", record_type)
    arguments: dict[str, Any] = dict(value)
    extension = CLASSES[record_type](**arguments)
    check_extension(extension)
    return extension


def encode_extension(extension: Extension) -> bytes:
    """The payload of an extension record."""
    check_extension(extension)
    value: dict[str, Value] = {key: getattr(extension, key) for key in _KEYS[extension.record_type]}
    return encode_value(value)


def encode_body(content: object) -> bytes:
    """JSON as these records hold it: UTF-8, keys sorted, no spaces."""
    try:
        text = json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    except RecursionError:
        raise refuse("argument", "invalid_extension", "nested too deep") from None
    try:
        body = text.encode()
    except UnicodeEncodeError:
        raise refuse("argument", "invalid_extension", "lone surrogate: not text UTF-8 can hold") from None
    if len(body) > MAX_BODY_BYTES:
        raise refuse("argument", "extension_body_too_large", len(body), MAX_BODY_BYTES)
    return body


def decode_body(body: bytes) -> Any:
    """What :func:`encode_body` wrote."""
    try:
        text = body.decode()
        content = _JSON.decode(text)
        if "\\u" in text:  # an escape may name half a pair, which could never be written again
            json.dumps(content, ensure_ascii=False).encode()
    except (ValueError, RecursionError):
        raise refuse("invalid_payload", "invalid_extension", "json") from None
    return content


def _no_number(text: str) -> float:
    raise ValueError(text)


def _finite(text: str) -> float:
    number = float(text)
    return number if isfinite(number) else _no_number(text)


# Refuses NaN and the infinities, which JSON does not have, and what is infinite as a float: 1e999.
_JSON: Final = json.JSONDecoder(parse_constant=_no_number, parse_float=_finite)


def check_extension(extension: Extension) -> None:
    """Every rule that needs no other record and does not read the JSON."""
    if not _RULES[extension.record_type](extension):
        raise refuse("invalid_payload", "invalid_extension", extension.record_type)


def _is_body(body: object) -> bool:
    return type(body) is bytes and 0 < len(body) <= MAX_BODY_BYTES


def _operation(value: Operation) -> bool:
    named = is_name(value.op) and is_key(value.client)
    return named and is_time(value.at) and is_u64(value.request) and _is_body(value.effects)


def _row(value: Row) -> bool:
    return is_id(value.job_id) and _is_body(value.row)


def _table(value: TableRows) -> bool:
    return type(value.table) is str and value.table in TABLES and _is_body(value.rows)


def _frame(value: Frame) -> bool:
    return type(value.mark) is str and value.mark in MARKS and is_name(value.operation)


_RULES: Final[dict[int, Callable[[Any], bool]]] = {128: _operation, 129: _row, 130: _table, 131: _frame}
