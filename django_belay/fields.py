"""Model fields for columns that any SDK writes: an odd value is shown, it never stops a read."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from django.db import models

from django_belay.contract.envelope import Opaque
from django_belay.contract.json_value import loads

# Python's years, with room for the session's time zone on either side.
EARLIEST = datetime(1, 1, 3, tzinfo=UTC)
LATEST = datetime(9999, 12, 29, tzinfo=UTC)
EARLIEST_SQL = f"'{EARLIEST.isoformat()}'::timestamptz"
LATEST_SQL = f"'{LATEST.isoformat()}'::timestamptz"


class InstantField(models.DateTimeField):  # type: ignore[type-arg]
    """A ``timestamptz`` that PostgreSQL clamps to what Python's ``datetime`` holds.

    ``infinity`` and the year 294276 come as the last instants, BC as the first.
    """

    def select_format(self, compiler: Any, sql: str, params: Sequence[Any]) -> Any:
        clamped = (
            f"CASE WHEN {sql} > {LATEST_SQL} THEN {LATEST_SQL} "
            f"WHEN {sql} < {EARLIEST_SQL} THEN {EARLIEST_SQL} ELSE {sql} END"
        )
        return clamped, [*params, *params, *params]


class StoredJSONField(models.JSONField):
    """A ``jsonb`` whose values may be beyond Python's JSON; those come as ``Opaque``."""

    def from_db_value(self, value: Any, expression: Any, connection: Any) -> Any:
        if value is None or not isinstance(value, str):
            return value
        data = value.encode("utf-8", "surrogatepass")
        try:
            return loads(data)
        except (ValueError, RecursionError) as error:
            return Opaque(data, reason=str(error))

    def value_to_string(self, obj: Any) -> str:
        return json.dumps(self.value_from_object(obj), default=str)


class TextArrayField(models.Field):  # type: ignore[type-arg]
    """A ``text[]`` to read; ``ArrayField`` would want another app installed."""

    def db_type(self, connection: Any) -> str:
        return "text[]"

    def from_db_value(self, value: Any, expression: Any, connection: Any) -> list[str]:
        return [] if value is None else list(value)
