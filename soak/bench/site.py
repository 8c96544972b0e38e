"""A database and a worker for the benches."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
from psycopg import sql

from django_belay.testing.postgres import PostgresServer, find_postgres

ROOT = Path(__file__).resolve().parents[2]


@contextmanager
def bench_site(name: str, options: Mapping[str, Any]) -> Iterator[str]:
    """Django set up on a fresh migrated database; yields its connection string."""
    with find_postgres() as server:
        dsn = _fresh_database(server, name)
        settings = {**server.django_settings(), "NAME": name}
        os.environ["DJANGO_SETTINGS_MODULE"] = "soak.bench.settings"
        os.environ["BELAY_BENCH_DATABASE"] = json.dumps(settings)
        os.environ["BELAY_BENCH_OPTIONS"] = json.dumps(options)
        import django
        from django.core.management import call_command

        django.setup()
        call_command("migrate", verbosity=0)
        print(f"{server}; Python {sys.version.split()[0]}; {os.cpu_count()} CPUs")
        yield dsn


def _fresh_database(server: PostgresServer, name: str) -> str:
    with psycopg.connect(server.dsn, autocommit=True) as connection:
        connection.execute(sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(sql.Identifier(name)))
        connection.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
    return psycopg.conninfo.make_conninfo(server.dsn, dbname=name)


def start_worker(*arguments: str) -> subprocess.Popen[bytes]:
    """``manage.py belay_worker`` as a process of its own."""
    return subprocess.Popen(
        [sys.executable, "-m", "django", "belay_worker", *arguments],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
