"""No test database is made of the index: tests read that of their own journal."""

from __future__ import annotations

from typing import Any

from django.db.backends.sqlite3 import creation


class DatabaseCreation(creation.DatabaseCreation):
    """Makes, copies and destroys nothing."""

    def create_test_db(self, *_: Any, **__: Any) -> str:
        return str(self.connection.settings_dict["NAME"])

    def destroy_test_db(self, *_: Any, **__: Any) -> None:
        self.connection.close()

    def clone_test_db(self, *_: Any, **__: Any) -> None: ...

    def setup_worker_connection(self, _worker_id: int) -> None: ...

    def get_test_db_clone_settings(self, suffix: str) -> dict[str, Any]:
        return dict(self.connection.settings_dict)

    def serialize_db_to_string(self) -> str:
        return "[]"

    def deserialize_db_from_string(self, data: str) -> None: ...
