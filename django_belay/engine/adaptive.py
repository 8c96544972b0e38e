"""Limits that follow the work: ``limit: {min, max}`` of a queue (§3).

A process starts at the least. The limit doubles while rounds come back full, that is while
every free slot of the queue got a row, and halves with each round that found none.
"""

from __future__ import annotations

from collections.abc import Mapping

from django_belay.engine.options import QueueOptions


class AdaptiveLimits:
    """How many jobs of each queue this process runs at a time, now. For the claim loop alone."""

    def __init__(self) -> None:
        self._current: dict[str, int] = {}

    def of(self, queues: Mapping[str, QueueOptions]) -> dict[str, int]:
        """The limit in force of each queue; bounds that changed at run time hold at once."""
        return {name: self._bounded(name, queue) for name, queue in queues.items()}

    def note_round(
        self, name: str, queue: QueueOptions, *, room: int, asked: int, got: int, is_idle: bool
    ) -> None:
        """Learn from a round.

        Args:
            room: How many more jobs the limit let the queue run.
            asked: How many were asked for; less than the room where slots were short.
            is_idle: Whether the queue had no claimable row. A limited queue that admitted
                none may have many.
        """
        if queue.min_limit is None:
            return
        now = self._bounded(name, queue)
        if got and got >= asked >= room:
            self._current[name] = min(now * 2, queue.limit)
        elif is_idle:
            self._current[name] = max(now // 2, queue.min_limit)

    def _bounded(self, name: str, queue: QueueOptions) -> int:
        if queue.min_limit is None or queue.min_limit >= queue.limit:
            return queue.limit
        return min(max(self._current.get(name, queue.min_limit), queue.min_limit), queue.limit)
