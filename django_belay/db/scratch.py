"""A journal in a temporary directory, for the tests of this process alone.

Django's test runners give tests a database of their own; this is the same for a journal. The first use
makes it, :func:`forget` drops it with all that is in it. The store of the settings is never opened.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from threading import Lock
from typing import Any

from django_belay import conf
from django_belay.contract.job import JSON, NewJob
from django_belay.contract.json_value import dump_jsonb, loads
from django_belay.storage.base import Inserted
from django_belay.storage.journal.files.initialise import initialise
from django_belay.storage.journal.files.journal import JournalOptions, open_journal
from django_belay.storage.journal.format.manifest import Retention
from django_belay.storage.journal.index.direct import DirectIndex
from django_belay.storage.journal.store.store import JournalStore


class _AsServed(JournalStore):
    """What comes in is what the owner's socket would make of it: JSON, shared with no caller."""

    def insert_jobs(self, jobs: Sequence[NewJob], *, now: datetime) -> list[Inserted]:
        return super().insert_jobs([_served(job) for job in jobs], now=now)

    def insert_reserved(self, jobs: Sequence[NewJob], ids: Sequence[int], *, now: datetime) -> list[Inserted]:
        return super().insert_reserved([_served(job) for job in jobs], ids, now=now)

    def insert_members(
        self, jobs: Sequence[NewJob], ids: Sequence[int], *, workflow_id: str, now: datetime
    ) -> list[Inserted]:
        members = [_served(job) for job in jobs]
        return super().insert_members(members, ids, workflow_id=workflow_id, now=now)

    def put_signal(
        self, scope: str, name: str, payload: JSON, *, to_job: bool = False, now: datetime
    ) -> list[int]:
        return super().put_signal(scope, name, _copied(payload), to_job=to_job, now=now)

    def append_event(self, job_id: int, payload: JSON, *, now: datetime) -> int:
        return super().append_event(job_id, _copied(payload), now=now)


def _served(job: NewJob) -> NewJob:
    return replace(job, input=_copied(job.input), meta=_copied(job.meta))


def _copied(value: Any) -> Any:
    return loads(dump_jsonb(value, path="value"))


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


class _Unclosed:
    """The scratch store for who closes what it was given."""

    def __getattr__(self, name: str) -> Any:
        return getattr(_scratch.store(), name)

    def close(self) -> None:
        """Leave it to the test."""


def unclosed() -> Any:
    """The storage for a command that the test calls."""
    return _Unclosed()


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
    return _AsServed(open_journal(path, options), now=conf.clock().now())
