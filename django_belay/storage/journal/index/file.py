"""The SQLite file of the index, as its only writer sees it."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

from django_belay.storage.journal.store.row import Row

from . import statements
from .rows import TABLES, TableRow, job_columns, key_columns
from .statements import FORMAT, statement

#: A checkpoint moves what has gathered in the -wal file into the index itself.
CHECKPOINT_BYTES: Final = 16 * 2**20
BUSY_MS: Final = 500
_KEPT: Final = frozenset(
    {sqlite3.SQLITE_FULL, sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_NOMEM}
)
_PASSING: Final = _KEPT | {sqlite3.SQLITE_IOERR, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_PERM}


class Mark(NamedTuple):
    """Of which store the index is, and through which record."""

    format: int
    store: str
    generation: str
    through: int


@dataclass(frozen=True, slots=True)
class Changes:
    """Rows to write, by id and by table and key; ``None`` for what is gone."""

    jobs: dict[int, Row | None]
    tables: dict[str, dict[str, TableRow | None]]


def is_passing(error: sqlite3.Error) -> bool:
    """Whether the file may be as good as ever once the cause is gone: no space, no memory, a lock."""
    return _code_of(error) in _PASSING


def is_kept(error: sqlite3.Error) -> bool:
    """Whether the connection is as good as ever, too."""
    return _code_of(error) in _KEPT


def _code_of(error: sqlite3.Error) -> int:
    """SQLite's primary result code; that of a damaged file where there is none."""
    return getattr(error, "sqlite_errorcode", sqlite3.SQLITE_CORRUPT) & 0xFF


def remove(path: Path) -> None:
    """Remove an index with what belongs to it; the -wal first, which another file must never get."""
    for name in (f"{path}-wal", f"{path}-shm", str(path)):
        Path(name).unlink(missing_ok=True)


class IndexFile:
    """A connection that writes. One thread at a time; the file is made when it is missing.

    Raises:
        sqlite3.Error: From every method; :func:`is_passing` tells what to do about it.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        try:
            os.chmod(path, 0o600)
            self._set_up()
            self._left_as = self._look()
        except BaseException:
            self._connection.close()
            raise

    def _set_up(self) -> None:
        for pragma in (
            f"busy_timeout = {BUSY_MS}",
            "journal_mode = WAL",
            "synchronous = NORMAL",
            "wal_autocheckpoint = 0",
            f"journal_size_limit = {CHECKPOINT_BYTES}",
            "cache_size = -16384",
        ):
            self._connection.execute(f"PRAGMA {pragma}").fetchall()

    def close(self) -> None:
        """Close without a word about what is wrong with the file."""
        with suppress(sqlite3.Error):
            self._connection.close()

    # -- what it is ---------------------------------------------------------

    def is_whole(self) -> bool:
        """Whether SQLite finds the file sound; reads all of it."""
        found = self._connection.execute("PRAGMA quick_check(1)").fetchone()
        return bool(found == ("ok",))

    @property
    def is_in_place(self) -> bool:
        """Whether the file still stands where readers look for it."""
        return self.path.exists() and os.stat(self.path).st_ino == self._left_as[0]

    @property
    def is_untouched(self) -> bool:
        """Whether nobody else has written to it; its pages here would not show that."""
        return self._look() == self._left_as

    def _look(self) -> tuple[int, ...]:
        """Inode, size and time of the file, which a checkpoint alone writes, and SQLite's own count of
        what other connections have committed."""
        found = os.stat(self.path)
        (version,) = self._connection.execute("PRAGMA data_version").fetchone()
        return found.st_ino, found.st_size, found.st_mtime_ns, version

    def read_mark(self) -> Mark | None:
        """What the index holds; ``None`` where it holds nothing yet."""
        try:
            row = self._connection.execute(statement("read_mark")).fetchone()
        except sqlite3.OperationalError as error:
            if "no such" in str(error):
                return None
            raise
        return None if row is None else Mark(*row)

    @property
    def wal_bytes(self) -> int:
        """The size of what readers and the index have between them."""
        try:
            return os.stat(f"{self.path}-wal").st_size
        except FileNotFoundError:
            return 0

    # -- writing ------------------------------------------------------------

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """All or nothing for readers."""
        self._connection.execute("BEGIN IMMEDIATE")
        try:
            yield
            self._connection.execute("COMMIT")
        except BaseException:
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")
            raise

    def make_tables(self) -> None:
        """Empty tables in place of all that is there."""
        found = self._connection.execute(
            "SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite%'"
        ).fetchall()
        for (name,) in found:
            quoted = name.replace('"', '""')
            self._connection.execute(f'DROP TABLE "{quoted}"')
        for text in statements.schema():
            self._connection.execute(text)

    def make_lookups(self) -> None:
        """The indexes, over rows that are there."""
        for text in statements.lookups():
            self._connection.execute(text)

    def put_mark(self, *, store: str, generation: str, through: int) -> None:
        """Say what the index holds with this transaction."""
        self._connection.execute(statement("put_mark"), (FORMAT, store, generation, through))

    def write(self, changes: Changes) -> None:
        """Bring rows to where they are now."""
        put = [job_columns(row) for row in changes.jobs.values() if row is not None]
        if put:
            self._connection.executemany(statement("put_jobs"), put)
        gone = [(job_id,) for job_id, row in changes.jobs.items() if row is None]
        for table, rows in changes.tables.items():
            self._write_table(table, rows)
        if gone:
            for name in ("drop_jobs", "drop_steps_of_jobs", "drop_events_of_jobs"):
                self._connection.executemany(statement(name), gone)

    def _write_table(self, table: str, rows: dict[str, TableRow | None]) -> None:
        columns_of = TABLES[table]
        put, gone = [], []
        for key, row in rows.items():
            columns = None if row is None else columns_of(key, row)
            if columns is None:
                gone.append(key_columns(table, key))
            else:
                put.append(columns)
        if put:
            self._connection.executemany(statement(f"put_{table}"), put)
        if gone:
            self._connection.executemany(statement(f"drop_{table}"), gone)

    def checkpoint(self) -> bool:
        """Move what was written into the file and empty the -wal; whether no reader was in the way of it."""
        busy, _, _ = self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
        self._left_as = self._look()
        return not busy
