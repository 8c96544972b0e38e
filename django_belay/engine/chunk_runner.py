"""Executes a chunk: one call over many jobs, an end for each (§6, chunked execution)."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextvars import Context
from typing import TYPE_CHECKING, Any

from django_belay.contract import envelope
from django_belay.contract.outcome import Failed, Outcome, Succeeded
from django_belay.engine.chunk_context import ChunkContext, Ending, Result
from django_belay.engine.context import JobContext
from django_belay.engine.gather import ChunkRun
from django_belay.engine.middleware import with_middleware
from django_belay.engine.run import Run
from django_belay.engine.services import Services
from django_belay.engine.telemetry import call_hook
from django_belay.storage.base import Ack

if TYPE_CHECKING:
    from django_belay.engine.runner import Runner


class ChunkRunner:
    """The chunk half of a :class:`Runner`."""

    def __init__(self, runner: Runner, services: Services) -> None:
        self._runner = runner
        self._services = services

    def execute(self, run: ChunkRun) -> list[Ack]:
        """Call the function over the chunk; the acks of the jobs whose lease still holds."""
        hooks = self._services.hooks
        members = [member for member in run.members if not member.is_interrupted]
        call_hook(hooks.before_job)
        try:
            for member in members:
                call_hook(hooks.job_started, JobContext(member, self._services))
            return self._execute(run, members)
        finally:
            run.end()
            call_hook(hooks.after_job)

    def _execute(self, run: ChunkRun, members: Sequence[Run]) -> list[Ack]:
        started = time.perf_counter()
        inputs = [self._decode(member) for member in members]
        # A job whose input does not fit spoils no other.
        acks = [
            self._conclude(member, value, started)
            for member, value in zip(members, inputs, strict=True)
            if isinstance(value, BaseException)
        ]
        good = [
            (member, value.value)
            for member, value in zip(members, inputs, strict=True)
            if isinstance(value, Result)
        ]
        if good:
            endings = self._call(run, good)
            acks += [
                self._conclude(member, ending, started)
                for (member, _), ending in zip(good, endings, strict=True)
            ]
        return [ack for ack in acks if ack is not None]

    def _decode(self, member: Run) -> Ending:
        try:
            definition = member.definition
            fields = definition.codec.decode(self._runner.plain_input(member.job))
            return Result(fields if definition.item_type is None else definition.item_type(**fields))
        except Exception as error:
            return error

    def _call(self, run: ChunkRun, good: Sequence[tuple[Run, Any]]) -> list[Ending]:
        context = ChunkContext(run, [member.job for member, _ in good], self._services)
        try:
            returned = Context().run(self._begin, run, context, [value for _, value in good])
            run.end()
            return context.endings(returned)
        except BaseException as error:
            run.end()
            return context.endings_after(error)

    def _begin(self, run: ChunkRun, context: ChunkContext, items: list[Any]) -> Any:
        arguments = (context, items) if run.definition.takes_context else (items,)
        call = with_middleware(
            lambda _context: run.definition.function(*arguments), self._services.options.middleware
        )
        try:
            run.begin()
            # Middleware gets the chunk's context where it gets a job's otherwise.
            return call(context)  # type: ignore[arg-type]
        finally:
            run.end()
            run.end_fork()

    def _conclude(self, member: Run, ending: Ending, started: float) -> Ack | None:
        """The ack of one job; ``None`` when it lost its lease meanwhile."""
        member_lost = member.is_interrupted
        member.end()
        if member_lost:
            return None
        outcome, error = self._outcome(member, ending)
        self._runner.finished(JobContext(member, self._services), outcome, started, error)
        if outcome is None:
            return None
        follow_ups = self._runner.follow_ups(member, outcome) if type(outcome) is Failed else ()
        return Ack(lease=member.lease, outcome=outcome, enqueue=follow_ups)

    def _outcome(self, member: Run, ending: Ending) -> tuple[Outcome | None, BaseException | None]:
        if isinstance(ending, BaseException):
            return self._runner.judge(member, ending), ending
        try:
            return Succeeded(None if ending.value is None else envelope.encode(ending.value)), None
        except Exception as error:
            return self._runner.judge(member, error), error
