"""Sends the wire tables' models to the storage's database, and nothing else there.

Add ``"django_belay.routers.BelayRouter"`` to ``DATABASE_ROUTERS`` when ``"database"`` in
``BELAY["STORAGE"]["OPTIONS"]`` is not ``"default"``, and with the journal, whose index the models read.
"""

from __future__ import annotations

from typing import Any

from django_belay import conf

LABEL = "belay"


class BelayRouter:
    """Reads, migrations and relations of the app ``belay``; no opinion on other apps."""

    def db_for_read(self, model: type[Any], **hints: Any) -> str | None:
        return self._alias() if model._meta.app_label == LABEL else None

    db_for_write = db_for_read

    def allow_relation(self, one: Any, other: Any, **hints: Any) -> bool | None:
        labels = {one._meta.app_label, other._meta.app_label}
        return True if labels == {LABEL} else None

    def allow_migrate(self, db: str, app_label: str, **hints: Any) -> bool | None:
        """Of the journal nothing is migrated: the index is made by the journal's owner."""
        if (index := index_alias()) is not None:
            return False if app_label == LABEL or db == index else None
        return db == self._alias() if app_label == LABEL else None

    def _alias(self) -> str:
        return index_alias() or conf.get().postgres.database


def index_alias() -> str | None:
    """The database that the journal's index is read through; ``None`` on PostgreSQL."""
    journal = conf.get().journal
    return None if journal is None else journal.index_database
