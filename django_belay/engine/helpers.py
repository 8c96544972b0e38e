"""A few threads that do the blocking work of the event loop: storage calls, hooks."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future
from queue import SimpleQueue
from typing import Any, TypeVar

from django_belay.engine.telemetry import Hooks, call_hook

T = TypeVar("T")


class Helpers:
    """Threads shared by all async jobs of a process, started as they are needed.

    They are daemons, unlike those of an executor of the standard library: a call that hangs
    must not keep a stopping process alive.
    """

    def __init__(self, size: int, hooks: Hooks) -> None:
        self._size = size
        self._hooks = hooks
        self._calls: SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._lock = threading.Lock()
        self._busy = 0

    async def call(self, function: Callable[[], T]) -> T:
        """What the function gives, called in a thread.

        A cancelled caller waits for the call all the same: engine work under way, such as
        the writing of a step, is over before the job's end is written.
        """
        future = asyncio.wrap_future(self._submit(function))
        cancelled: asyncio.CancelledError | None = None
        while True:
            try:
                value = await asyncio.shield(future)
            except asyncio.CancelledError as error:
                cancelled = error
                if not future.done():
                    continue
                future.exception()  # seen: the cancellation is what the job gets
                raise
            if cancelled is not None:
                raise cancelled
            return value

    def stop(self) -> None:
        """Let the threads end after the calls they have."""
        for _ in self._threads:
            self._calls.put(None)

    def _submit(self, function: Callable[[], T]) -> Future[T]:
        future: Future[T] = Future()
        with self._lock:
            self._busy += 1
            if self._busy > len(self._threads) < self._size:
                thread = threading.Thread(
                    target=self._work, name=f"belay-async-{len(self._threads) + 1}", daemon=True
                )
                thread.start()
                self._threads.append(thread)
        self._calls.put((future, function))
        return future

    def _work(self) -> None:
        try:
            while (call := self._calls.get()) is not None:
                self._perform(*call)
                del call
        finally:
            call_hook(self._hooks.thread_ended)

    def _perform(self, future: Future[Any], function: Callable[[], Any]) -> None:
        call_hook(self._hooks.before_job)
        try:
            value = function()
        except BaseException as error:
            future.set_exception(error)
        else:
            future.set_result(value)
        finally:
            call_hook(self._hooks.after_job)
            with self._lock:
                self._busy -= 1
