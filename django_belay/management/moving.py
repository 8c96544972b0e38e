"""Moving an installation between storages: its rows to a file, and from a file into an empty storage."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Final

from django_belay import conf
from django_belay.exceptions import JournalLocked
from django_belay.storage import transfer_file
from django_belay.storage.transfer_file import Progress, TransferError
from django_belay.storage.transferring import Row, Transferable

#: A worker that has not been heard of for so long is no more.
ALIVE: Final = timedelta(seconds=60)
#: Rows that are loaded at once.
BATCH: Final = 500


def export(path: Path, *, is_dry: bool, progress: Progress) -> dict[str, int]:
    """Write the storage of the settings to a file; how many rows of each table.

    Raises:
        TransferError: Jobs run, or workers live, or the file is there already.
        JournalLocked: Another process serves the journal.
    """
    with _rows_of_settings(is_importing=False) as source:
        _check_quiet(source)
        if is_dry:
            return source.count()
        return transfer_file.write(path, source, storage=conf.get().backend, progress=progress)


def load(path: Path, *, is_dry: bool, progress: Progress) -> dict[str, int]:
    """Read a file into the storage of the settings, which has to be empty; how many rows of each table.

    The file is checked whole before anything is written. On PostgreSQL all of it is one transaction; a
    journal whose import was interrupted is not opened any more.

    Raises:
        TransferError: The file is damaged, the storage is not empty, or workers live.
        JournalLocked: Another process serves the journal.
    """
    counts = transfer_file.check(path)
    total, done = sum(counts.values()), 0
    with _rows_of_settings(is_importing=not is_dry) as target:
        _check_quiet(target)
        _check_empty(target)
        if is_dry:
            return counts
        now = conf.clock().now()
        for table, rows in _batches(path):
            target.load(table, rows, now=now)
            done += len(rows)
            progress(table, done, total)
        target.finish(now=now)
        found = target.count()
        if found != counts:
            raise TransferError(f"{counts} rows are in the file, {found} are in the storage now")
    return counts


def _batches(path: Path) -> Iterator[tuple[str, list[Row]]]:
    """Rows of one table at a time."""
    table, batch = "", list[Row]()
    for name, row in transfer_file.rows(path):
        if batch and (name != table or len(batch) == BATCH):
            yield table, batch
            batch = []
        table = name
        batch.append(row)
    if batch:
        yield table, batch


def _check_quiet(storage: Transferable) -> None:
    if running := storage.running():
        raise TransferError(
            f"{running:,} jobs are running: stop the workers, and wait until 'manage.py belay_sweeper --once' has "
            "taken back what was left"
        )
    if alive := storage.alive(since=conf.clock().now() - ALIVE):
        raise TransferError(
            f"workers live: {', '.join(sorted(alive))}; stop them, and try again in {ALIVE.seconds} seconds"
        )


def _check_empty(target: Transferable) -> None:
    there = {table: count for table, count in target.count().items() if count}
    if there:
        found = ", ".join(f"{count:,} {table}" for table, count in there.items())
        raise TransferError(f"the storage is not empty ({found}): import into a new one")


@contextmanager
def _rows_of_settings(*, is_importing: bool) -> Iterator[Transferable]:
    """The storage of the settings, for this process alone meanwhile."""
    options = conf.get().journal
    if options is None:
        with _postgres_rows() as rows:
            yield rows
        return
    from django_belay.db import reaching
    from django_belay.storage.journal.store.transferring import JournalRows

    if options.profile == "strict" and is_importing:
        raise TransferError(
            "a strict journal cannot take rows as they are: import into one of profile 'belay'"
        )
    place = reaching.place_of(options)
    try:
        owner = reaching.open_owner(place, options, wait_s=reaching.WAIT_S)
    except JournalLocked as error:
        raise TransferError(
            f"the journal {place.directory} is served by another process: stop workers and "
            "'belay_journal serve' first"
        ) from error
    with closing(owner):
        rows = JournalRows(owner.storage)
        if not is_importing:
            yield rows
            return
        _check_empty(rows)
        with place.importing():
            yield rows


@contextmanager
def _postgres_rows() -> Iterator[Transferable]:
    from django_belay.db.postgres import DjangoSession
    from django_belay.storage.postgres.transferring import PostgresRows

    session = DjangoSession(conf.get().postgres.database)
    with session.transaction() as transaction:
        transaction.run("load_begin")
        yield PostgresRows(session, transaction)
