"""Instants that Python cannot hold come as its first or last, whatever the session's time zone (rule 4)."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import psycopg
import pytest

from django_belay.storage.postgres.rows import EARLIEST, LATEST, register_loaders


@pytest.mark.parametrize("zone", ["UTC", "Asia/Karachi", "America/Lima"])
@pytest.mark.parametrize(
    ("written", "read"),
    [
        ("-infinity", EARLIEST),
        ("4000-01-01 00:00:00+00 BC", EARLIEST),
        ("0001-12-31 23:59:59+00 BC", EARLIEST),
        ("0001-01-01 00:00:00+00", EARLIEST),
        ("0001-01-01 01:00:00+05", EARLIEST),
        ("9999-12-31 23:59:59.999999+00", LATEST),
        ("9999-12-31 23:59:59.999999-05", LATEST),
        ("10000-01-01 00:00:00+00", LATEST),
        ("290000-01-01 00:00:00+00", LATEST),
        ("infinity", LATEST),
    ],
)
def test_4_instants_beyond_python_are_its_bounds(
    connection: psycopg.Connection[Any], zone: str, written: str, read: datetime
) -> None:
    register_loaders(connection)
    connection.execute("SELECT set_config('TimeZone', %s, false)", [zone])
    assert connection.execute("SELECT %s::timestamptz", [written]).fetchone() == (read,)
