"""Reading the journal's inspection index: Django's SQLite backend, read-only (``base``)."""
