"""The thread of the owner that keeps the inspection index.

The index is written behind the store and never asked by it: whatever happens here, the engine goes
on. What cannot be written waits, as ids alone once there are many; a file that is damaged, of another
store or not where the store is, is built anew.
"""

from __future__ import annotations

import logging
import os
import sqlite3
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Final

from django_belay.storage.journal.store.row import Row
from django_belay.storage.journal.store.store import JournalStore

from .build import CHUNK, fill, find_row
from .file import CHECKPOINT_BYTES, Changes, IndexFile, Mark, is_kept, is_passing, remove
from .pending import MOST_VALUES, REREAD, Pending
from .statements import FORMAT

logger = logging.getLogger("django_belay.journal")

_DURABLE_POLL_S: Final = 0.002
_IDLE_S: Final = 1.0
#: An index that is behind by more than this writes is built anew by the next owner, who waits for us.
_CLOSE_S: Final = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexOptions:
    """How the index is written. The defaults are those of production.

    Args:
        interval_s: At most one transaction in so many seconds; the first change goes at once.
        retry_s: How long a failure is left alone the first time, ``most_retry_s`` at last.
        reserve_bytes: Free space that the index never takes: the journal refuses work below 64 MiB.
        wal_bytes: What a reader may hold up; with more, nothing is written until it is done.
        reader_patience_s: How long it is waited for; then readers to come get a new file.
    """

    interval_s: float = 0.1
    retry_s: float = 1.0
    most_retry_s: float = 30.0
    reserve_bytes: int = 128 * 2**20
    wal_bytes: int = 128 * 2**20
    reader_patience_s: float = 60.0
    most_values: int = MOST_VALUES


class _Stopped(Exception):
    """The owner closes, or its journal can no longer be written."""


class _NotNow(Exception):
    """Nothing can be written at the moment; says why."""


class Indexer:
    """Keeps one index of one store. :meth:`start` it before the store changes, close it before the store.

    ``store.index_lag`` answers from then on.
    """

    def __init__(self, store: JournalStore, path: Path, options: IndexOptions | None = None) -> None:
        self._store = store
        self._path = path
        self._options = options or IndexOptions()
        self._pending = Pending(most_values=self._options.most_values)
        self._stop = threading.Event()
        self._wake = threading.Event()
        self._thread = threading.Thread(target=self._run, name="belay-index", daemon=True)
        self._file: IndexFile | None = None
        #: What the file holds if it is ours: as it was left by the owner before, then as we left it.
        self._mark: Mark
        self._busy_since: float | None = None
        self._held_since: float | None = None
        self._next_checkpoint_at = 0.0
        self._is_current = False
        self._retry_s = self._options.retry_s
        self._trouble: str | None = None
        self._give_up_at = float("inf")

    def start(self) -> None:
        """Note changes from now on, and write."""
        with self._store.journal.lock:
            self._leave = self._store.watch(self._note)
            self._mark = self._position()
            # What is known of a run in memory alone: its lease, and who holds it.
            for running in self._store.memory.view.running.values():
                self._pending.note_ids(running)
        self._wake.set()
        self._store.index_lag = self.lag_s
        self._thread.start()

    def close(self) -> None:
        """Write what is pending, if that is possible within some seconds, and let go of the file."""
        self._give_up_at = time.monotonic() + _CLOSE_S
        self._stop.set()
        self._wake.set()
        self._thread.join(2 * _CLOSE_S)
        self._leave()

    def lag_s(self) -> float:
        """How long ago the oldest change came that readers do not see yet."""
        moments = [at for at in (self._busy_since, self._pending.since) if at is not None]
        return time.monotonic() - min(moments) if moments else 0.0

    # -- the owner's side ---------------------------------------------------

    def _note(
        self,
        sequence: int,
        rows: Mapping[int, Row | None],
        tables: Mapping[str, Mapping[str, dict[str, Any] | None]],
    ) -> None:
        self._pending.note(sequence, rows, tables)
        if not self._wake.is_set():
            self._wake.set()

    def _position(self) -> Mark:
        generation, sequence = self._store.durable_sequence()
        return Mark(FORMAT, self._store.journal.store_id.hex(), generation, sequence)

    # -- the thread ---------------------------------------------------------

    def _run(self) -> None:
        journal = self._store.journal
        try:
            while not (self._stop.is_set() or journal.closed or journal.tail.poisoned):
                self._attempt()
        finally:
            self._let_go()

    def _attempt(self) -> None:
        """Open and write until something is wrong, or until the end."""
        try:
            file = self._open()
            while not self._stop.is_set():
                self._turn(file)
            self._write_pending(file)
            file.checkpoint()
        except _Stopped:
            pass
        except _NotNow as reason:
            self._pause(str(reason))
        except sqlite3.Error as error:
            if not is_passing(error):
                self._replace(f"it is damaged ({error})")
            elif not is_kept(error):
                self._let_go()
            self._pause(str(error))
        except OSError as error:
            self._let_go()
            self._pause(str(error))
        except Exception as error:
            if self._trouble != repr(error):
                logger.exception("The inspection index cannot be written")
            self._let_go()
            self._pause(repr(error))

    def _turn(self, file: IndexFile) -> None:
        """One transaction, and the pause to the next."""
        self._wake.wait(_IDLE_S)
        self._wake.clear()
        if not file.is_in_place:
            self._let_go()
            raise _NotNow("the file was removed")
        if not file.is_untouched:
            self._replace("somebody else wrote to it")
            raise _NotNow("the file is made anew")
        began = time.monotonic()
        self._keep_small(file)
        self._write_pending(file)
        self._trouble, self._retry_s = None, self._options.retry_s
        self._stop.wait(max(self._options.interval_s - (time.monotonic() - began), 0.0))

    def _pause(self, why: str) -> None:
        """Leave it alone, twice as long each time."""
        if self._trouble != why:
            self._trouble = why
            logger.warning("The inspection index waits: %s", why)
        self._stop.wait(self._retry_s)
        self._wake.set()
        self._retry_s = min(self._retry_s * 2, self._options.most_retry_s)

    def _replace(self, why: str) -> None:
        logger.warning("The inspection index %s is built anew: %s", self._path, why)
        self._let_go()
        remove(self._path)

    def _let_go(self) -> None:
        self._is_current = False
        if self._file is not None:
            self._file.close()
            self._file = None

    # -- opening ------------------------------------------------------------

    def _open(self) -> IndexFile:
        """The file, holding what :attr:`_mark` says."""
        if self._file is None:
            if not self._path.exists():
                remove(self._path)  # a -wal that its file is gone from
            self._file = IndexFile(self._path)
            if not self._file.is_whole():
                self._replace("it is damaged")
                self._file = IndexFile(self._path)
        if not self._is_current:
            if self._file.read_mark() != self._mark:
                self._build(self._file)
            self._is_current = True
        return self._file

    def _build(self, file: IndexFile) -> None:
        """Everything anew, in one transaction; readers see the state before until it is done."""
        began = self._busy_since = time.monotonic()
        self._check_space()
        if file.read_mark() is None:
            with file.transaction():
                file.make_tables()  # readers find nothing, and no error, until the rows are there
        with self._store.journal.lock:
            self._pending = Pending(most_values=self._options.most_values)
            mark = self._position()
        with file.transaction():
            file.make_tables()
            fill(file, self._store, pace=self._check_stop)
            file.make_lookups()
            self._commit_mark(file, mark)
        self._mark = mark
        self._busy_since = None
        logger.info("The inspection index was built in %.1f s", time.monotonic() - began)

    def _check_stop(self) -> None:
        if self._stop.is_set():
            raise _Stopped

    # -- writing ------------------------------------------------------------

    def _write_pending(self, file: IndexFile) -> None:
        """All that is pending, in one transaction, once it is durable."""
        with self._store.journal.lock:
            taken, self._pending = self._pending, Pending(most_values=self._options.most_values)
            mark = self._position()
            self._busy_since = taken.since
        if taken.is_empty and mark == self._mark:
            self._busy_since = None
            return
        try:
            self._check_space()
            with file.transaction():
                for changes in self._resolved(taken):
                    file.write(changes)
                    if time.monotonic() > self._give_up_at:
                        raise _Stopped
                self._commit_mark(file, mark)
        except BaseException:
            with self._store.journal.lock:
                taken.absorb(self._pending)
                self._pending = taken
            raise
        self._mark = mark
        self._busy_since = None

    def _resolved(self, taken: Pending) -> Iterator[Changes]:
        """What to write, in chunks; what is not at hand is read from the store."""
        jobs = iter(taken.jobs.items())
        while some := dict(islice(jobs, CHUNK * 4)):
            again = [job_id for job_id, row in some.items() if row is REREAD]
            for start in range(0, len(again), CHUNK):
                with self._store.journal.lock:
                    some |= {job_id: find_row(self._store, job_id) for job_id in again[start : start + CHUNK]}
            yield Changes(some, {})
        for table, rows in taken.tables.items():
            if REREAD in rows.values():
                with self._store.journal.lock:
                    found = self._store.memory.table(table)
                    rows = {key: found.get(key) if row is REREAD else row for key, row in rows.items()}
            yield Changes({}, {table: rows})

    def _commit_mark(self, file: IndexFile, mark: Mark) -> None:
        """Readers never see what a crash could take back, in the owner's memory alone so far."""
        self._await_durable()
        file.put_mark(store=mark.store, generation=mark.generation, through=mark.through)

    def _await_durable(self) -> None:
        journal = self._store.journal
        generation, sequence = self._store.durable_sequence()
        while journal.through < sequence and self._store.durable_sequence()[0] == generation:
            if journal.closed or journal.tail.poisoned:
                raise _Stopped
            time.sleep(_DURABLE_POLL_S)  # a batch is on its way to the disk; whoever waits for it writes it

    def _check_space(self) -> None:
        found = os.statvfs(self._path.parent)
        if found.f_bavail * found.f_frsize < self._options.reserve_bytes:
            raise _NotNow("the file system is nearly full")

    # -- the -wal file ------------------------------------------------------

    def _keep_small(self, file: IndexFile) -> None:
        """Checkpoint; where a reader holds too much up, write nothing more until it is done."""
        size, now = file.wal_bytes, time.monotonic()
        if size < min(CHECKPOINT_BYTES, self._options.wal_bytes):
            self._held_since = None
            return
        if size < self._options.wal_bytes and now < self._next_checkpoint_at:
            return
        if file.checkpoint():
            self._held_since = None
            return
        self._next_checkpoint_at = now + self._options.retry_s
        if size >= self._options.wal_bytes:
            self._wait_for_reader(now)

    def _wait_for_reader(self, now: float) -> None:
        if self._held_since is None:
            self._held_since = now
        if now - self._held_since >= self._options.reader_patience_s:
            self._held_since = None
            self._replace("a reader has held a transaction open for too long")
        raise _NotNow("a reader holds a transaction open")
