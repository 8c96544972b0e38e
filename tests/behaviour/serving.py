"""An owner behind a real socket, in a thread of the test's process."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

from django_belay.storage.journal.serving.remote import RemoteStore
from django_belay.storage.journal.serving.server import Server
from django_belay.storage.journal.store.store import JournalStore


class Serving:
    """A store that is served; :meth:`dial` reaches it."""

    def __init__(self, store: JournalStore, path: Path) -> None:
        self.store = store
        self.path = path
        path.unlink(missing_ok=True)
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        listener.bind(str(path))
        listener.listen(64)
        self.server = Server(store, listener, epoch=os.urandom(8).hex())
        self._thread = threading.Thread(target=self.server.serve, name="served", daemon=True)
        self._thread.start()

    def dial(self, timeout_s: float) -> socket.socket:
        """A connection to the owner."""
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            connection.settimeout(timeout_s)
            connection.connect(str(self.path))
        except BaseException:
            connection.close()
            raise
        return connection

    def stop(self) -> None:
        """End the server; the store stays open."""
        self.server.stop()
        self._thread.join()


@contextlib.contextmanager
def served(store: JournalStore, path: Path) -> Iterator[RemoteStore]:
    """The store through a socket, closed at the end."""
    serving = Serving(store, path)
    remote = RemoteStore(serving.dial, patience_s=30.0)
    try:
        yield remote
    finally:
        remote.close()
        serving.stop()
        store.close()
