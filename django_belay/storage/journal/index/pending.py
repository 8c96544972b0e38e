"""What has changed since the index was last written: the newest state of each row, none between."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from typing import Any, Final

from django_belay.storage.journal.store.row import Row

from .rows import TABLES, TableRow

#: Rows whose values are held; with more only their ids are, and they are read again.
MOST_VALUES: Final = 8192


class _Reread:
    """Stands for a row that has to be read from the store."""


REREAD: Final[Any] = _Reread()


class Pending:
    """Changes as they come, under the owner's lock."""

    def __init__(self, *, most_values: int = MOST_VALUES) -> None:
        self._most_values = most_values
        self._values = 0
        self.jobs: dict[int, Row | None] = {}
        self.tables: dict[str, dict[str, TableRow | None]] = {table: {} for table in TABLES}
        #: When the oldest of them came, by the monotonic clock; ``None``: there are none.
        self.since: float | None = None

    def note(
        self,
        sequence: int,
        rows: Mapping[int, Row | None],
        tables: Mapping[str, Mapping[str, dict[str, Any] | None]],
    ) -> None:
        """An observer of the store."""
        if self.since is None:
            self.since = time.monotonic()
        self.jobs.update(rows)
        self._values += len(rows)
        for table, changed in tables.items():
            if table in TABLES:
                self.tables[table].update(changed)
                self._values += len(changed)
        if self._values > self._most_values:
            self._drop_values()

    def note_ids(self, job_ids: Iterable[int]) -> None:
        """Have these jobs read again."""
        self.jobs.update(dict.fromkeys(job_ids, REREAD))
        if self.jobs and self.since is None:
            self.since = time.monotonic()

    def _drop_values(self) -> None:
        """Fallen behind: hold no rows that the store holds anyway, or has on disk."""
        self._values = 0
        self.jobs = dict.fromkeys(self.jobs, REREAD)
        self.tables = {table: dict.fromkeys(rows, REREAD) for table, rows in self.tables.items()}

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to write."""
        return not self.jobs and not any(self.tables.values())

    def absorb(self, later: Pending) -> None:
        """What came since counts, where it says something."""
        self.jobs.update(later.jobs)
        for table, rows in later.tables.items():
            self.tables[table].update(rows)
        self._values += later._values
        if self.since is None:
            self.since = later.since
        if self._values > self._most_values:
            self._drop_values()
