"""Model fields for columns that any SDK writes: an odd value is shown, it never stops a read.

On the journal's index (SQLite) the same columns are text: instants in UTC, JSON and arrays in one form.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from django.conf import settings
from django.db import models
from django.db.models.fields import json as json_field
from django.db.models.fields.json import (
    ContainedBy,
    DataContains,
    KeyTransform,
    KeyTransformFactory,
    KeyTransformGt,
    KeyTransformGte,
    KeyTransformLt,
    KeyTransformLte,
)
from django.utils import timezone

from django_belay.contract.envelope import Opaque
from django_belay.contract.json_value import JsonError, loads
from django_belay.storage.journal.index.rows import json_text

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
        if compiler.connection.vendor != "postgresql":
            return super().select_format(compiler, sql, tuple(params))
        clamped = (
            f"CASE WHEN {sql} > {LATEST_SQL} THEN {LATEST_SQL} "
            f"WHEN {sql} < {EARLIEST_SQL} THEN {EARLIEST_SQL} ELSE {sql} END"
        )
        return clamped, [*params, *params, *params]

    def from_db_value(self, value: Any, expression: Any, connection: Any) -> Any:
        """Without ``USE_TZ`` SQLite's texts are taken for local time; the index has UTC."""
        if settings.USE_TZ or connection.vendor != "sqlite" or not isinstance(value, datetime):
            return value
        return timezone.make_naive(value.replace(tzinfo=UTC), timezone.get_default_timezone())

    def get_db_prep_value(self, value: Any, connection: Any, prepared: bool = False) -> Any:
        if not prepared:
            value = self.get_prep_value(value)
        if isinstance(value, datetime) and not settings.USE_TZ and connection.vendor == "sqlite":
            value = timezone.make_aware(value, timezone.get_default_timezone())
            value = timezone.make_naive(value, UTC)
        return super().get_db_prep_value(value, connection, prepared=True)


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

    def get_db_prep_value(self, value: Any, connection: Any, prepared: bool = False) -> Any:
        """On SQLite equal values are compared as equal texts: in the form that the index has."""
        if connection.vendor == "sqlite" and self.encoder is None and not hasattr(value, "as_sql"):
            try:
                return json_text(value)
            except JsonError:
                pass
        return super().get_db_prep_value(value, connection, prepared)

    def get_transform(self, name: str) -> Any:
        found = super().get_transform(name)
        return _KeyFactory(name) if isinstance(found, KeyTransformFactory) else found

    def value_to_string(self, obj: Any) -> str:
        return json.dumps(self.value_from_object(obj), default=str)


class _SqliteContainment:
    """Asks a function that the index's connections have; SQLite has none."""

    function: str

    def as_sqlite(self, compiler: Any, connection: Any) -> tuple[str, list[Any]]:
        lookup: Any = self
        if isinstance(lookup.lhs, KeyTransform):
            lhs, lhs_params, path = lookup.lhs.preprocess_lhs(compiler, connection)
        else:
            lhs, lhs_params = lookup.process_lhs(compiler, connection)
            path = []
        rhs, rhs_params = lookup.process_rhs(compiler, connection)
        keys = [str(key) for key in path]
        return f"{self.function}({lhs}, %s, {rhs})", [*lhs_params, json_text(keys), *rhs_params]


@StoredJSONField.register_lookup
class _Contains(_SqliteContainment, DataContains):
    function = "BELAY_JSON_CONTAINS"


@StoredJSONField.register_lookup
class _ContainedBy(_SqliteContainment, ContainedBy):
    function = "BELAY_JSON_CONTAINED"


class _StoredKeyTransform(KeyTransform):
    """A value within a stored document."""


class _KeyFactory(KeyTransformFactory):
    def __call__(self, *args: Any, **kwargs: Any) -> KeyTransform:
        return _StoredKeyTransform(self.key_name, *args, **kwargs)


class _SqliteOrder:
    """Compares numbers with numbers and texts with texts; to SQLite every text is more than a number."""

    def as_sqlite(self, compiler: Any, connection: Any) -> tuple[str, list[Any]]:
        lookup: Any = self
        sql, params = lookup.as_sql(compiler, connection)
        document, document_params, path = lookup.lhs.preprocess_lhs(compiler, connection)
        types = "('text')" if isinstance(lookup.rhs, str) else "('integer', 'real')"
        typed = f"JSON_TYPE({document}, %s) IN {types}"
        return f"({sql} AND {typed})", [*params, *document_params, _json_path(connection, path)]


def _json_path(connection: Any, path: list[Any]) -> str:
    compiled: str = (
        connection.ops.compile_json_path(path)
        if hasattr(connection.ops, "compile_json_path")
        else json_field.compile_json_path(path)  # type: ignore[attr-defined]  # before Django 6.0
    )
    return compiled


for _lookup in (KeyTransformLt, KeyTransformLte, KeyTransformGt, KeyTransformGte):
    _StoredKeyTransform.register_lookup(type(f"_Stored{_lookup.__name__}", (_SqliteOrder, _lookup), {}))


class TextArrayField(models.Field):  # type: ignore[type-arg]
    """A ``text[]`` to read; ``ArrayField`` would want another app installed."""

    def db_type(self, connection: Any) -> str:
        return "text[]" if connection.vendor == "postgresql" else "text"

    def from_db_value(self, value: Any, expression: Any, connection: Any) -> list[str]:
        if value is None:
            return []
        return list(loads(value.encode()) if isinstance(value, str) else value)

    def get_db_prep_value(self, value: Any, connection: Any, prepared: bool = False) -> Any:
        if connection.vendor == "sqlite" and isinstance(value, list | tuple):
            return json_text(list(value))
        return super().get_db_prep_value(value, connection, prepared)
