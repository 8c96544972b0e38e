"""Django's SQLite backend on the journal's inspection index: read-only, for this app's models alone.

Where no owner has made the index yet, an empty one is read. ``atomic()`` opens no transaction: there is
nothing to write, and a reader that held an old state would hold up the index's file.
"""

from __future__ import annotations

import os
import sqlite3
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NoReturn
from urllib.parse import quote

from django.db.backends.sqlite3 import base
from django.db.utils import NotSupportedError

from django_belay.inspection.containment import json_contained, json_contains
from django_belay.inspection.creation import DatabaseCreation
from django_belay.inspection.features import DatabaseFeatures
from django_belay.storage.journal.index import statements

# Before what Python's sqlite3 gives up with "database is locked"; nobody writes but the owner.
BUSY_S = 5.0


class ReadOnlySchemaEditor:
    """Refuses: the owner of the journal makes the tables."""

    def __init__(self, connection: Any, *_: Any, **__: Any) -> None:
        self.connection = connection

    def __enter__(self) -> NoReturn:
        raise NotSupportedError(
            f"the database {self.connection.alias!r} is the journal's inspection index, which the owner of "
            "the journal writes: migrate the other databases, and add 'django_belay.routers.BelayRouter' to "
            "DATABASE_ROUTERS"
        )

    def __exit__(self, *_: object) -> None: ...


class DatabaseWrapper(base.DatabaseWrapper):
    """A connection to the index, or to an empty stand-in where there is none."""

    creation_class = DatabaseCreation
    features_class = DatabaseFeatures
    SchemaEditorClass = ReadOnlySchemaEditor  # type: ignore[assignment]

    _inode: int | None = None

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._former: list[sqlite3.Connection] = []

    @property
    def path(self) -> Path:
        """The index's file; in tests that of the tests' own journal."""
        from django_belay.db import scratch

        return scratch.index() if scratch.is_wanted() else Path(self.settings_dict["NAME"])

    def get_connection_params(self) -> dict[str, Any]:
        params: dict[str, Any] = super().get_connection_params()
        return {"timeout": BUSY_S, **params, "database": self.path}

    def get_new_connection(self, conn_params: dict[str, Any]) -> Any:
        path: Path = conn_params["database"]
        self._inode = _inode_of(path)
        if self._inode is not None:
            address = f"file:{quote(str(path))}?mode=ro"
            connection = super().get_new_connection({**conn_params, "database": address})
            with ExitStack() as unless_it_is_used:
                unless_it_is_used.callback(connection.close)
                if _has_tables(connection):
                    unless_it_is_used.pop_all()
                    return self._set_up(connection)
            # Its owner is about to make them.
            self._inode = None
        connection = super().get_new_connection({**conn_params, "database": ":memory:"})
        for text in statements.schema():
            connection.execute(text)
        return self._set_up(connection)

    def _set_up(self, connection: sqlite3.Connection) -> sqlite3.Connection:
        connection.isolation_level = None
        connection.execute("PRAGMA query_only = ON")
        connection.create_function("BELAY_JSON_CONTAINS", 3, json_contains, deterministic=True)
        connection.create_function("BELAY_JSON_CONTAINED", 3, json_contained, deterministic=True)
        return connection

    def ensure_connection(self) -> None:
        """Turn to another file where the index was made, or replaced, since."""
        if self.connection is not None and _inode_of(self.path) != self._inode:
            with self.wrap_database_errors:
                self._former.append(self.connection)  # a cursor may still be read
                self.connection = self.get_new_connection(self.get_connection_params())
        super().ensure_connection()

    def _close(self) -> None:
        super()._close()  # type: ignore[misc]
        while self._former:
            self._former.pop().close()

    def _start_transaction_under_autocommit(self) -> None:
        """Each query sees what is there by then."""

    def _savepoint(self, sid: str) -> None:
        """Nothing is written that could be taken back."""

    _savepoint_rollback = _savepoint_commit = _savepoint


def _inode_of(path: Path) -> int | None:
    try:
        return os.stat(path).st_ino
    except FileNotFoundError:
        return None


def _has_tables(connection: sqlite3.Connection) -> bool:
    query = "SELECT 1 FROM sqlite_master WHERE name = 'belay_index'"
    return connection.execute(query).fetchone() is not None
