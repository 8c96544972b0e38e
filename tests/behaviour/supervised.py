"""A worker's child in the test's own process, and the supervisor's end of its channel."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable
from typing import Any

from django_belay.contract.job import NewJob
from django_belay.engine.child import Child
from django_belay.engine.protocol import Channel, Message
from django_belay.engine.queue_table import rows_to_json
from tests.behaviour.running import Workbench

DEADLINE_S = 20.0


class Supervised:
    """A child in a thread and the supervisor's end of its channel."""

    def __init__(self, bench: Workbench, *, once: bool = False) -> None:
        ours, theirs = socket.socketpair()
        self.bench = bench
        self.channel = Channel(ours)
        self.messages: list[Message] = []
        self.child = Child(bench.services, Channel(theirs), incarnation="bench:1", once=once)
        self._threads = [
            threading.Thread(target=self.child.run, daemon=True),
            threading.Thread(target=self._read, daemon=True),
        ]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def _read(self) -> None:
        try:
            while True:
                self.messages += self.channel.receive()
        except Exception:
            return

    def stop(self) -> None:
        if not self._threads[0].is_alive():
            return
        self.channel.send({"t": "stop", "grace": 0.2})
        self._threads[0].join(DEADLINE_S)
        assert not self._threads[0].is_alive()
        self.channel.close()

    def put_queue(self, name: str, **opts: Any) -> None:
        """A row of ``belay_queues``, told as the supervisor does at its next sync."""
        self.bench.storage.put_queue(name, opts, now=self.bench.clock.now())
        self.sync()

    def sync(self) -> None:
        self.channel.send({"t": "queues", "q": rows_to_json(self.bench.storage.list_queues(), node="node")})

    def add(self, queue: str = "default", **fields: Any) -> int:
        job = NewJob(**{"kind": "k", "queue": queue, **fields})
        [inserted] = self.bench.storage.insert_jobs([job], now=self.bench.clock.now())
        return inserted.job_id

    def state(self, job_id: int) -> str:
        return self.bench.storage.get_job(job_id).state


def eventually(condition: Callable[[], Any]) -> Any:
    deadline = time.monotonic() + DEADLINE_S
    while not (answer := condition()):
        assert time.monotonic() < deadline, "not in time"
        time.sleep(0.01)  # polls other threads and the storage
    return answer


MakeChild = Callable[..., Supervised]
