"""Building the index anew from the store, while the store goes on."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any, Final

from django_belay.storage.journal.store.row import Row
from django_belay.storage.journal.store.store import JournalStore

from .file import Changes, IndexFile
from .rows import TABLES

#: Rows read at one go under the owner's lock: some milliseconds, when they come from the segments.
CHUNK: Final = 64


def fill(file: IndexFile, store: JournalStore, *, pace: Callable[[], None]) -> None:
    """Write every row of the store into empty tables, within the caller's transaction.

    What changes meanwhile may be written in either state: the caller notes changes from before the
    first row is read and writes them afterwards.

    Args:
        pace: Called between chunks; raises to give up.
    """
    with store.journal.lock:
        newest_first = store.memory.newest_first()
        first = list(islice(newest_first, 1))
        keys = {table: list(store.memory.table(table)) for table in TABLES}
    # Rows that come in ascending order fill their pages. Jobs that come meanwhile are above the first.
    job_ids = array("Q", first)
    job_ids.extend(newest_first)
    for start in range(len(job_ids) - 1, -1, -CHUNK):
        with store.journal.lock:
            some = job_ids[max(start - CHUNK + 1, 0) : start + 1]
            jobs = {job_id: find_row(store, job_id) for job_id in reversed(some)}
        file.write(Changes({job_id: row for job_id, row in jobs.items() if row is not None}, {}))
        pace()
    for table, its_keys in keys.items():
        for chunk in _chunks(its_keys):
            with store.journal.lock:
                found = store.memory.table(table)
                rows: dict[str, Any] = {
                    key: found[key] for key in chunk if _is_shown(store, table, found.get(key))
                }
            file.write(Changes({}, {table: rows}))
            pace()


def find_row(store: JournalStore, job_id: int) -> Row | None:
    """A job's row; ``None`` for one that is past its retention or went with a compaction. Under the lock."""
    memory = store.memory
    row = memory.view.open.get(job_id)
    if row is not None:
        return row
    key = memory.ids.key_of(job_id)
    if key is None or not memory.state.has_job(key):
        return None
    return memory.find(job_id)


def _is_shown(store: JournalStore, table: str, row: dict[str, Any] | None) -> bool:
    """Steps and events go with their job."""
    if row is None:
        return False
    return table not in ("steps", "events") or store.memory.has(row["job_id"])


def _chunks(keys: list[str]) -> Iterator[list[str]]:
    for start in range(0, len(keys), CHUNK):
        yield keys[start : start + CHUNK]
