"""A journal in a temporary directory, for the tests of this process alone.

Django's test runners give tests a database of their own; this is the same for a journal. The first use
makes it, :func:`forget` drops it with all that is in it. The store of the settings is never opened.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from pathlib import Path
from threading import Lock

from django_belay import conf
from django_belay.storage.journal.files.initialise import initialise
from django_belay.storage.journal.files.journal import JournalOptions, open_journal
from django_belay.storage.journal.format.manifest import Retention
from django_belay.storage.journal.index.direct import DirectIndex
from django_belay.storage.journal.store.store import JournalStore


class _Scratch:
    """The one of this process."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._store: JournalStore | None = None
        self._directory: Path | None = None
        self._index: DirectIndex | None = None
        self.is_off = False

    def store(self) -> JournalStore:
        """Opened by the first call."""
        with self._lock:
            if self._store is None:
                self._directory = Path(tempfile.mkdtemp(prefix="belay-journal-"))
                self._store = _make(self._directory / "store")
            return self._store

    def index(self) -> Path:
        """Its inspection index, which from now on every operation brings up to date before it answers."""
        store = self.store()
        with self._lock:
            assert self._directory is not None
            path = self._directory / "index.sqlite3"
            if self._index is None:
                self._index = DirectIndex(store, path)
            return path

    def forget(self) -> None:
        """Drop it; the next use begins with an empty one."""
        with self._lock:
            if self._index is not None:
                self._index.close()
                self._index = None
            if self._store is not None and self._directory is not None:
                self._store.close()
                shutil.rmtree(self._directory, ignore_errors=True)
            self._store = None


_scratch = _Scratch()
store = _scratch.store
index = _scratch.index
forget = _scratch.forget


def use(is_on: bool) -> None:
    """Whether tests get it; off, they reach the directory of the settings, as real workers beside them do."""
    _scratch.is_off = not is_on


def is_wanted() -> bool:
    """Whether this process runs tests, by Django's own sign of it."""
    utils = sys.modules.get("django.test.utils")
    is_testing = utils is not None and hasattr(getattr(utils, "_TestState", None), "saved_data")
    return is_testing and not _scratch.is_off


def _make(root: Path) -> JournalStore:
    path = str(root.resolve())
    initialise(path, now_ms=0, retention=Retention(), durability="write", validated_filesystem=True)
    options = JournalOptions(durability="write", validated_filesystem=True, writer="inline")
    return JournalStore(open_journal(path, options), now=conf.clock().now())
