"""The run of an ``async def`` job: a task of the process's event loop."""

from __future__ import annotations

import asyncio
from typing import Any

from django_belay.engine.run import Interruption, Run


class AsyncRun(Run):
    """Interrupted by cancelling its task, and only while that is in the job's own code.

    Calls of its context run in other threads; they raise what is pending at their borders,
    as those of an ordinary run do.
    """

    __slots__ = ("_loop", "_task")

    _loop: asyncio.AbstractEventLoop | None
    _task: asyncio.Task[Any] | None

    def attach(self, loop: asyncio.AbstractEventLoop, task: asyncio.Task[Any]) -> None:
        """The task that runs it. Called in the loop, before user code starts."""
        self._loop, self._task = loop, task

    def begin(self) -> None:
        """Enter user code; raises what is pending. Called in the loop, as ``leave`` is."""
        self.check()
        self._in_user_code = True

    def leave(self) -> None:
        """No user code runs in the task any more; an interrupt cancels nothing from here on."""
        self._in_user_code = False

    def interrupt(self, reason: Interruption) -> bool:
        """Cancel the task, if its job is running; calling again cancels again."""
        with self._lock:
            if self._ended:
                return False
            if self._pending is None:
                self._pending = reason
        if self._in_user_code and self._loop is not None:
            self._loop.call_soon_threadsafe(self._cancel)
        return True

    def _cancel(self) -> None:
        if self._in_user_code and self._task is not None:
            self._task.cancel()

    def _allow(self) -> None:
        """The flag belongs to the task, not to the threads of engine calls."""

    def _forbid(self) -> None:
        """As ``_allow``."""
