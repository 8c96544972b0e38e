"""An index that is written by the operations themselves: for tests, which read what they just did."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from django_belay.storage.journal.store.row import Row
from django_belay.storage.journal.store.store import JournalStore

from .build import fill
from .file import Changes, IndexFile
from .rows import TABLES


class DirectIndex:
    """Builds the index of a store at once, and writes each operation's changes before it answers."""

    def __init__(self, store: JournalStore, path: Path) -> None:
        self._store = store
        self._file = IndexFile(path)
        with store.journal.lock, self._file.transaction():
            self._file.make_tables()
            fill(self._file, store, pace=lambda: None)
            self._file.make_lookups()
            self._put_mark()
            self._leave = store.watch(self._note)
        store.index_lag = lambda: 0.0

    def close(self) -> None:
        """Write no more, and let go of the file."""
        self._leave()
        self._file.close()

    def _note(
        self,
        sequence: int,
        rows: Mapping[int, Row | None],
        tables: Mapping[str, Mapping[str, dict[str, Any] | None]],
    ) -> None:
        shown = {table: dict(changed) for table, changed in tables.items() if table in TABLES}
        with self._file.transaction():
            self._file.write(Changes(dict(rows), shown))
            self._put_mark()

    def _put_mark(self) -> None:
        generation, through = self._store.durable_sequence()
        self._file.put_mark(store=self._store.journal.store_id.hex(), generation=generation, through=through)
