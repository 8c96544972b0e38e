"""``manage.py belay_migrate``: make or update the belay_* tables."""

from __future__ import annotations

import json
from argparse import ArgumentParser
from typing import Any

from django.core.management.base import BaseCommand, CommandError
from django.db import DEFAULT_DB_ALIAS, connections

from django_belay import conf
from django_belay.exceptions import BelayError


class Command(BaseCommand):
    help = (
        "Makes or updates the belay_* tables and indexes. Safe to run again, while workers run, and on a "
        "database that another SDK migrated. 'manage.py migrate' runs the same."
    )
    requires_system_checks = []
    requires_migrations_checks = False

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--plan", action="store_true", help="only say what would run")
        parser.add_argument("--database", help="the database alias; by default the one of the storage")
        parser.add_argument("--format", choices=("text", "json"), default="text")

    def handle(self, *args: Any, **options: Any) -> None:
        alias = options["database"] or _storage_alias()
        if alias not in connections:
            raise CommandError(f"no database {alias!r} in DATABASES; there are: {', '.join(connections)}")
        steps = self._migrate(alias, plan=options["plan"])
        if options["format"] == "json":
            self.stdout.write(json.dumps({"database": alias, "plan": options["plan"], "steps": steps}))
            return
        verb = "would apply" if options["plan"] else "applied"
        for step in steps or ():
            self.stdout.write(f"{verb} {step}")
        if steps is not None and not steps:
            self.stdout.write("nothing to do: the belay_* tables are up to date")

    def _migrate(self, alias: str, *, plan: bool) -> list[str] | None:
        connection: Any = connections[alias]
        if connection.vendor != "postgresql":
            self.stderr.write(
                f"database {alias!r} is {connection.display_name}, not PostgreSQL: nothing to do"
            )
            return None
        from django_belay.storage.postgres import schema  # the driver, which other databases do without

        connection.ensure_connection()
        try:
            return schema.migrate(connection.connection, plan=plan, partitions=conf.partitions())
        except BelayError as error:
            raise CommandError(str(error)) from error


def _storage_alias() -> str:
    """The alias of the PostgreSQL storage; the default one in journal mode."""
    found = conf.get()
    return found.postgres.database if found.backend == conf.POSTGRES else DEFAULT_DB_ALIAS
