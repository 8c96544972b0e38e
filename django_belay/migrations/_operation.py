"""The migration operation that runs the packaged DDL."""

from __future__ import annotations

from typing import Any

from django.db import router
from django.db.backends.base.schema import BaseDatabaseSchemaEditor
from django.db.migrations.operations.base import Operation
from django.db.migrations.state import ProjectState

from django_belay import conf


class MigrateSchema(Operation):
    """Bring the belay_* tables up to date, as ``manage.py belay_migrate`` does.

    On databases other than PostgreSQL it does nothing. Backwards it does nothing either:
    the tables may hold other SDKs' jobs, and dropping them is no migration's business.
    """

    reduces_to_sql = False
    reversible = True
    atomic = False  # indexes on tables with rows are built concurrently

    def state_forwards(self, app_label: str, state: ProjectState) -> None:
        """The state of the models stands in operations of its own."""

    def database_forwards(
        self,
        app_label: str,
        schema_editor: BaseDatabaseSchemaEditor,
        from_state: ProjectState,
        to_state: ProjectState,
    ) -> None:
        connection: Any = schema_editor.connection
        if connection.vendor != "postgresql" or not router.allow_migrate(connection.alias, app_label):
            return
        from django_belay.storage.postgres import schema  # the driver, which other databases do without

        connection.ensure_connection()
        with connection.wrap_database_errors:
            schema.migrate(connection.connection, partitions=conf.partitions())

    def database_backwards(
        self,
        app_label: str,
        schema_editor: BaseDatabaseSchemaEditor,
        from_state: ProjectState,
        to_state: ProjectState,
    ) -> None:
        """Nothing: see the class."""

    def describe(self) -> str:
        return "Run the belay_* DDL (backwards: keep the tables)"
