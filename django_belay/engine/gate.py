"""The write gate: what a stopping process closes before it hands its jobs back."""

from __future__ import annotations

import threading
from types import TracebackType

from django_belay.exceptions import Shutdown


class WriteGate:
    """Steps, signals and events of running jobs are written inside; a context manager.

    A job that is handed back may start elsewhere at once, so nothing of its old run
    may be written after the hand-back: closing waits for writes in flight and refuses
    every later one with ``Shutdown``.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._inside = 0
        self._is_closed = False

    def __enter__(self) -> None:
        with self._changed:
            if self._is_closed:
                raise Shutdown
            self._inside += 1

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._changed:
            self._inside -= 1
            if self._is_closed:
                self._changed.notify_all()

    def close(self, timeout_s: float) -> bool:
        """Refuse later writes; whether those in flight ended in time."""
        with self._changed:
            self._is_closed = True
            return self._changed.wait_for(lambda: self._inside == 0, timeout_s)
