"""From PostgreSQL's rows to the contract's records.

One odd value must not stop a whole round (rule 4), so loading never raises:
JSON that Python cannot carry becomes an ``Opaque``, instants outside Python's
range become its first or last.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import orjson
from psycopg import DataError, adapt
from psycopg.abc import AdaptContext, Buffer
from psycopg.types.datetime import TimestamptzLoader

from django_belay.contract.envelope import Opaque
from django_belay.contract.job import Job
from django_belay.contract.json_value import loads

EARLIEST = datetime.min.replace(tzinfo=UTC)
LATEST = datetime.max.replace(tzinfo=UTC)


class _JsonLoader(adapt.Loader):
    def load(self, data: Buffer) -> Any:
        try:
            return loads(bytes(data))
        except (ValueError, RecursionError) as error:
            return Opaque(bytes(data), reason=str(error))


class _InstantLoader(TimestamptzLoader):
    def load(self, data: Buffer) -> datetime:
        try:
            return super().load(data).astimezone(UTC)
        except (DataError, OverflowError):
            return EARLIEST if _is_early(bytes(data)) else LATEST


def _is_early(data: bytes) -> bool:
    """Of text that is beyond Python's years; the first of them may be before year 1 in UTC."""
    return data.startswith((b"-", b"0001-")) or data.endswith(b"BC")


def register_loaders(context: AdaptContext) -> None:
    """Make a connection or cursor load rows as the storage wants them."""
    adapters = context.adapters
    assert adapters is not None
    for name in ("json", "jsonb"):
        adapters.register_loader(name, _JsonLoader)
    adapters.register_loader("timestamptz", _InstantLoader)


def job_from_row(row: tuple[Any, ...]) -> Job:
    """A record from a row selected with ``{job}``."""
    return Job(*row)


def json_text(value: Any) -> str:
    """A JSON value as text for a ``::jsonb`` parameter."""
    return orjson.dumps(value).decode()
