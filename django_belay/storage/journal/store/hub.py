"""Hints inside the owner: who is told that a queue has work or that a job has ended (§9)."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable

from django_belay.contract.notification import Ended, Hint, Poke

Subscriber = Callable[[list[Hint]], None]


class Hub:
    """Passes hints to subscribers. A hint about a queue that nobody has heard of yet is sent once."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._subscribers: list[Subscriber] = []
        self._waiters: dict[int, int] = {}

    def subscribe(self, subscriber: Subscriber) -> Callable[[], None]:
        """Send hints to a subscriber, which must be quick; call the answer to stop it."""
        with self._lock:
            self._subscribers.append(subscriber)

        def leave() -> None:
            with self._lock:
                self._subscribers = [one for one in self._subscribers if one is not subscriber]

        return leave

    def register_waiter(self, job_id: int, *, until_ms: int, now_ms: int) -> None:
        """Somebody waits for a job's end (rule 11); waits that are over are forgotten."""
        with self._lock:
            self._waiters[job_id] = max(until_ms, self._waiters.get(job_id, until_ms))
            if len(self._waiters) % 1_000 == 0:
                self._waiters = {one: until for one, until in self._waiters.items() if until >= now_ms}

    def publish(self, *, queues: Iterable[str], ended: Iterable[int]) -> None:
        """Tell everyone of queues with a claimable row, and of ended jobs that somebody waits for."""
        with self._lock:
            hints: list[Hint] = [Poke(queue) for queue in sorted(queues)]
            hints += [Ended(job_id) for job_id in ended if self._waiters.pop(job_id, None) is not None]
            subscribers = self._subscribers
        if hints:
            for subscriber in subscribers:
                subscriber(hints)


class HubListener:
    """A :class:`~django_belay.storage.base.Listener` in the owner's own process."""

    def __init__(self, hub: Hub) -> None:
        self._condition = threading.Condition()
        self._hints: dict[Hint, None] = {}
        self._is_new = True
        self._is_closed = False
        self._leave = hub.subscribe(self._take)

    def wait(self, timeout_s: float) -> list[Hint] | None:
        """Hints that came within the time; ``None`` the first time: what was before is unknown."""
        with self._condition:
            if self._is_new:
                self._is_new = False
                return None
            deadline = time.monotonic() + timeout_s
            while not self._hints and not self._is_closed:
                left = deadline - time.monotonic()
                if left <= 0:
                    break
                self._condition.wait(left)
            hints = list(self._hints)
            self._hints.clear()
            return hints

    def close(self) -> None:
        """Stop listening; a ``wait`` in another thread returns soon."""
        self._leave()
        with self._condition:
            self._is_closed = True
            self._condition.notify_all()

    def _take(self, hints: list[Hint]) -> None:
        with self._condition:
            self._hints.update(dict.fromkeys(hints))
            self._condition.notify_all()
