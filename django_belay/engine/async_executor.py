"""The event loop of a process: every ``async def`` job is a task of it, never a thread."""

from __future__ import annotations

import asyncio
import inspect
import sys
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from contextvars import Context
from typing import Any

from django_belay.engine.async_context import AsyncJobContext
from django_belay.engine.async_run import AsyncRun
from django_belay.engine.context import JobContext
from django_belay.engine.helpers import Helpers
from django_belay.engine.middleware import with_middleware
from django_belay.engine.runner import Runner
from django_belay.engine.services import Services
from django_belay.engine.telemetry import worker_log
from django_belay.storage.base import Ack

MAX_HELPERS = 8
STOP_S = 1.0


class AsyncExecutor:
    """Runs async jobs in one loop, whose thread starts with the first of them."""

    def __init__(
        self,
        services: Services,
        runner: Runner,
        *,
        ended: Callable[[AsyncRun, Sequence[Ack]], None],
        failed: Callable[[AsyncRun, BaseException], Sequence[Ack]],
    ) -> None:
        self._services = services
        self._runner = runner
        self._ended = ended
        self._failed = failed
        self._helpers = Helpers(min(services.options.concurrency, MAX_HELPERS), services.hooks)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._asked_at: float | None = None

    def start(self, run: AsyncRun) -> None:
        """Hand a run to the loop. Called by the claim loop, which has taken a slot for it."""
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
            self._thread = threading.Thread(target=self._serve, name="belay-event-loop", daemon=True)
            self._thread.start()
        self._loop.call_soon_threadsafe(self._spawn, run)

    def stop(self) -> None:
        """End the loop; tasks that are left are abandoned, their jobs handed back by now."""
        self._helpers.stop()
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._loop.stop)

    def join(self) -> bool:
        """Whether the loop has ended."""
        if self._thread is None:
            return True
        self._thread.join(STOP_S)
        return not self._thread.is_alive()

    # -- a loop that is blocked ----------------------------------------------------------

    def blocked_s(self) -> float:
        """For how long the loop has not answered; asks it again when it has."""
        if self._loop is None or not self._tasks:
            self._asked_at = None
            return 0.0
        if self._asked_at is None:
            self._asked_at = time.monotonic()
            self._loop.call_soon_threadsafe(self._answer)
            return 0.0
        return time.monotonic() - self._asked_at

    def where(self) -> str:
        """The stack of the loop's thread, to say what blocks it."""
        frame = sys._current_frames().get(self._thread.ident or 0) if self._thread else None
        return "".join(traceback.format_stack(frame)[-4:]) if frame else ""

    def _answer(self) -> None:
        self._asked_at = None

    # -- in the loop ---------------------------------------------------------------------

    def _serve(self) -> None:
        assert self._loop is not None
        asyncio.set_event_loop(self._loop)
        self._loop.run_forever()

    def _spawn(self, run: AsyncRun) -> None:
        assert self._loop is not None
        task = self._loop.create_task(self._run(run), context=Context())
        run.attach(self._loop, task)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _run(self, run: AsyncRun) -> None:
        acks: Sequence[Ack]
        try:
            ack = await self._execute(run)
            acks = [] if ack is None else [ack]
        except BaseException as error:
            worker_log.critical("job %s: the engine failed around it", run.job.id, exc_info=True)
            acks = self._failed(run, error)
        self._ended(run, acks)

    async def _execute(self, run: AsyncRun) -> Ack | None:
        context = JobContext(run, self._services)
        early = await self._helpers.call(lambda: self._runner.before(run, context))
        if early is not None:
            return early
        started = time.perf_counter()
        result: Any = None
        failure: BaseException | None = None
        try:
            result = await self._perform(run, context)
        except BaseException as error:
            failure = error
        run.end()
        return await self._helpers.call(
            lambda: self._runner.conclude(run, context, lambda: _give(result, failure), started=started)
        )

    async def _perform(self, run: AsyncRun, context: JobContext) -> Any:
        """The job's code within its surroundings, which it leaves before its end is written."""
        async with AsyncExitStack() as stack:
            if self._services.hooks.around_async is not None:
                await stack.enter_async_context(self._services.hooks.around_async())
            return await self._in_user_code(run, context)

    async def _in_user_code(self, run: AsyncRun, context: JobContext) -> Any:
        definition = run.definition
        kwargs = definition.codec.decode(self._runner.plain_input(run.job))
        arguments = (AsyncJobContext(context, self._helpers.call),) if definition.takes_context else ()
        call = with_middleware(
            lambda _context: definition.function(*arguments, **kwargs), self._services.options.middleware
        )
        run.begin()
        try:
            value = call(context)
            while inspect.isawaitable(value):
                value = await value
            return value
        except asyncio.CancelledError:
            run.check()  # what it was cancelled for
            raise
        finally:
            run.leave()
            _forget_cancellations()


def _forget_cancellations() -> None:
    """What follows in this task is the engine's, and not cancelled."""
    task = asyncio.current_task()
    while task is not None and task.cancelling():
        task.uncancel()


def _give(result: Any, failure: BaseException | None) -> Any:
    if failure is not None:
        raise failure
    return result
