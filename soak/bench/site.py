"""A database and a worker for the benches."""

from __future__ import annotations

import argparse
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

from django_belay.testing.postgres import SOURCES, PostgresServer, find_postgres

ROOT = Path(__file__).resolve().parents[2]


def add_postgres_option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--postgres", choices=SOURCES, help="the PostgreSQL to use")


@contextmanager
def bench_site(name: str, options: Mapping[str, Any], *, force: str | None = None) -> Iterator[str]:
    """Django set up on a fresh migrated database, dropped at the end; yields its connection string."""
    with find_postgres(force) as server:
        dsn = _fresh_database(server, name)
        settings = {**server.django_settings(), "NAME": name}
        os.environ["DJANGO_SETTINGS_MODULE"] = "soak.bench.settings"
        os.environ["BELAY_BENCH_DATABASE"] = json.dumps(settings)
        os.environ["BELAY_BENCH_OPTIONS"] = json.dumps(options)
        import django
        from django.core.management import call_command
        from django.db import connections

        django.setup()
        call_command("migrate", verbosity=0)
        print(f"{server}; Python {sys.version.split()[0]}; {os.cpu_count()} CPUs")
        try:
            yield dsn
        finally:
            connections.close_all()
            _drop_database(server, name)


def _fresh_database(server: PostgresServer, name: str) -> str:
    _drop_database(server, name)
    with psycopg.connect(server.dsn, autocommit=True) as connection:
        connection.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
    return psycopg.conninfo.make_conninfo(server.dsn, dbname=name)


def _drop_database(server: PostgresServer, name: str) -> None:
    with psycopg.connect(server.dsn, autocommit=True) as connection:
        connection.execute(sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(sql.Identifier(name)))


def start_worker(*arguments: str) -> subprocess.Popen[bytes]:
    """``manage.py belay_worker`` as a process of its own."""
    return subprocess.Popen(
        [sys.executable, "-m", "django", "belay_worker", *arguments],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
