"""Counts of running jobs: threads report ends, the claim loop does the sums."""

from __future__ import annotations

import threading
from collections import deque


class Slots:
    """Which queues' jobs occupy the threads of a process.

    ``release`` may be called by any thread and costs an append; everything else belongs
    to the claim loop. Hundreds of short jobs would otherwise fight for one lock.
    """

    def __init__(self) -> None:
        self.running: dict[str, int] = {}
        self.total = 0
        self.ended = 0
        self._ends: deque[str] = deque()
        self._wake = threading.Event()
        self._wake_after = 0

    def take(self, queue: str) -> None:
        self.running[queue] = self.running.get(queue, 0) + 1
        self.total += 1

    def release(self, queue: str) -> None:
        """A job of this queue has ended."""
        self._ends.append(queue)
        if 0 < self._wake_after <= len(self._ends):
            self._wake.set()

    def settle(self) -> None:
        """Count the ends that were reported."""
        while self._ends:
            queue = self._ends.popleft()
            self.running[queue] -= 1
            self.total -= 1
            self.ended += 1

    def wait(self, timeout_s: float, *, ends: int) -> bool:
        """Wait until so many jobs have ended, or a poke; whether there was either."""
        self._wake_after = ends
        if 0 < ends <= len(self._ends):
            self._wake.set()
        woken = self._wake.wait(timeout_s)
        self._wake_after = 0
        self._wake.clear()
        return woken

    def poke(self) -> None:
        """Let the claim loop turn now."""
        self._wake.set()
