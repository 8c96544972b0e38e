"""What the index's backend can do."""

from __future__ import annotations

from django.db.backends.sqlite3 import features


class DatabaseFeatures(features.DatabaseFeatures):
    """SQLite's. Django would find out about transactions by making a table."""

    supports_transactions = True  # so that TestCase takes it as it takes others
    can_introspect_json_field = False
    has_json_object_function = True
