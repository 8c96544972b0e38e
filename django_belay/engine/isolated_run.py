"""The run of an isolated job, as the child that waits for its process sees it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

from django_belay.engine.run import Interruption, Run
from django_belay.exceptions import LeaseLost


class IsolatedRun(Run):
    """Asked to stop first, so that its ``finally`` blocks run; killed when asked again.

    A lost lease kills at once: another process runs the job by now.
    """

    __slots__ = ("_connection", "_kill", "_times", "status")

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._connection: Connection | None = None
        self._kill: Callable[[], None] | None = None
        self._times = 0
        self.status: int | None = None

    @property
    def pending(self) -> Interruption | None:
        """Why it is to stop."""
        return self._pending

    def attach(self, connection: Connection, kill: Callable[[], None]) -> None:
        """Its process runs from here on."""
        with self._lock:
            self._connection, self._kill = connection, kill
        if self._pending is not None:
            self.interrupt(self._pending)

    def detach(self) -> None:
        """Its process has answered or is gone."""
        with self._lock:
            self._connection = self._kill = None

    def interrupt(self, reason: Interruption) -> bool:
        """Tell the process; kill it when it was told before."""
        if self._kill is None:
            return super().interrupt(reason)
        with self._lock:
            if self._ended:
                return False
            if self._pending is None:
                self._pending = reason
            self._times += 1
            connection, kill = self._connection, self._kill
            if connection is None or kill is None:
                return True
            if self._times > 1 or self._pending is LeaseLost:
                kill()
            else:
                with contextlib.suppress(OSError):
                    connection.send(self._pending.__name__)
        return True
