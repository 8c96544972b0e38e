"""Waiting for the inspection index to show what the client has done."""

from __future__ import annotations

import time
from typing import Any, Final

from django.db import connections

from django_belay import conf
from django_belay.db import storage_for_client
from django_belay.storage.journal.index.statements import FORMAT, statement

_POLL_S: Final = 0.01


def wait_for_index(timeout_s: float = 2.0) -> bool:
    """Wait until the models show everything that was acknowledged so far.

    An action of the admin calls it before it answers with a page. With PostgreSQL there is nothing to
    wait for.

    Args:
        timeout_s: How long at most; the index is usually a tenth of a second behind.

    Returns:
        Whether they show it; false where the time was over, or where nobody writes the index.

    Raises:
        ConfigurationError: ``DATABASES`` has no database for the index.
        Unavailable: The journal has no owner, and none could be started.
    """
    journal = conf.get().journal
    if journal is None:
        return True
    storage: Any = storage_for_client().storage
    deadline = time.monotonic() + timeout_s
    generation, sequence = storage.durable_sequence()
    while True:
        mark = _read_mark(journal.index_database)
        if mark is not None and mark[0] == generation and mark[1] >= sequence:
            return True
        if time.monotonic() >= deadline:
            return False
        time.sleep(_POLL_S)  # the index is another process's; its file says how far it is
        if mark is not None and mark[0] != generation:
            # A compaction came between; everything before it is durable in the new generation.
            generation, sequence = storage.durable_sequence()


def _read_mark(alias: str) -> tuple[str, int] | None:
    with connections[alias].cursor() as cursor:
        cursor.execute(statement("read_mark"))
        row = cursor.fetchone()
    return None if row is None or row[0] != FORMAT else (row[2], row[3])
