"""The inspection index: a disposable SQLite file with the wire tables' names and columns, which the
models, the admin and the commands read. No decision of the engine reads it."""

from __future__ import annotations

from pathlib import Path

from django_belay.storage.journal.store.store import JournalStore

from .indexer import Indexer, IndexOptions


def start_index(store: JournalStore, path: Path, options: IndexOptions | None = None) -> Indexer:
    """Keep the index of a store from now on, in a thread; close it before the store."""
    indexer = Indexer(store, path, options)
    indexer.start()
    return indexer
