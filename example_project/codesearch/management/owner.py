"""Who serves the journal, for a demo that kills it."""

from __future__ import annotations

import os
import signal
import socket
import struct
from contextlib import suppress
from pathlib import Path

from django.conf import settings

from django_belay.exceptions import Unavailable
from django_belay.storage.journal.serving.place import Place


def journal() -> Path | None:
    """The journal's directory; ``None`` where jobs are in PostgreSQL."""
    storage = settings.BELAY.get("STORAGE")
    return None if storage is None else Path(storage["OPTIONS"]["directory"])


def owner_pid() -> int | None:
    """The process that serves the journal; ``None`` where there is none."""
    directory = journal()
    if directory is None or not Place(directory).has_owner():
        return None
    with suppress(OSError, Unavailable), Place(directory).connect(5.0) as connection:
        credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
        return int(struct.unpack("3i", credentials)[0])
    return None


def end_owner(*, but: int | None) -> None:
    """Ask who serves the journal to end, unless it is one that did so before."""
    pid = owner_pid()
    if pid is not None and pid != but:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGTERM)
