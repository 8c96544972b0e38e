"""What a chunk job sees of its run: one ``ctx`` for many jobs."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, NoReturn, TypeAlias

from django_belay.contract.job import JSON, Job
from django_belay.engine.debits import Debits
from django_belay.engine.run import Run
from django_belay.engine.services import Services
from django_belay.engine.telemetry import job_facts
from django_belay.exceptions import Cancel, Fail, Snooze


@dataclass(frozen=True, slots=True)
class Result:
    """A job of the chunk succeeded with this value."""

    value: Any


#: How one job of a chunk ended: with a value, or as if it had raised.
Ending: TypeAlias = Result | BaseException


class ChunkContext:
    """The run of a chunk, from inside it. Jobs are named by their index in the items.

    What is said about a job by ``succeed``, ``fail_item``, ``snooze_item`` or
    ``cancel_item`` stays, also when the call raises afterwards or returns something else.

    Attributes:
        jobs: The rows as they were claimed, in the order of the items.
        kind: The name the function is registered under.
        job: The first of the jobs; its id stands in the log records of the call.
    """

    __slots__ = ("_debits", "_endings", "_run", "_services", "id", "job", "jobs", "kind")

    def __init__(self, run: Run, jobs: Sequence[Job], services: Services) -> None:
        self.jobs = tuple(jobs)
        self.job = run.job
        self.id = run.job.id
        self.kind = run.job.kind
        self._run = run
        self._services = services
        self._endings: dict[int, Ending] = {}
        self._debits: Debits | None = None

    @property
    def log(self) -> logging.LoggerAdapter[logging.Logger]:
        """The logger of the job's module, with the facts of the first job."""
        logger = logging.getLogger(self._run.definition.function.__module__)
        return logging.LoggerAdapter(logger, {**job_facts(self.job), "belay_chunk": len(self.jobs)})

    # -- one job -----------------------------------------------------------------------

    def succeed(self, index: int, result: JSON = None) -> None:
        """One job is done, whatever becomes of the others."""
        self._decide(index, Result(result))

    def fail_item(self, index: int, error: BaseException | str) -> None:
        """One job ends as if it alone had raised: with its backoff and what attempts it has left.

        A text fails it for good, as ``ctx.fail`` does in an ordinary job.
        """
        self._decide(index, error if isinstance(error, BaseException) else Fail(str(error)))

    def cancel_item(self, index: int, reason: str) -> None:
        """One job ends as cancelled."""
        self._decide(index, Cancel(reason))

    def snooze_item(self, index: int, delay: float | timedelta) -> None:
        """One job runs again after ``delay`` (seconds or a timedelta); the attempt does not count."""
        self._decide(index, self._snooze(delay))

    def _decide(self, index: int, ending: Ending) -> None:
        if type(index) is not int or not 0 <= index < len(self.jobs):
            raise IndexError(f"item {index!r:.40}: the chunk has items 0 to {len(self.jobs) - 1}")
        self._endings[index] = ending

    # -- all of them -------------------------------------------------------------------

    def debit(self, amount: int, *, resource: str | None = None) -> bool:
        """As :meth:`JobContext.debit`, for the whole call: the estimates of all its jobs are given back."""
        if self._debits is None:
            self._debits = Debits(self._run, self._services, jobs=len(self.jobs))
        return self._debits.debit(amount, resource=resource)

    def cancel(self, reason: str) -> NoReturn:
        """End every job that is not decided as cancelled."""
        raise Cancel(reason)

    def fail(self, reason: str) -> NoReturn:
        """End every job that is not decided as failed, whatever attempts are left."""
        raise Fail(reason)

    def snooze(self, delay: float | timedelta) -> NoReturn:
        """Run every job that is not decided again after ``delay``."""
        raise self._snooze(delay)

    def _snooze(self, delay: float | timedelta) -> Snooze:
        wait = delay if isinstance(delay, timedelta) else timedelta(seconds=delay)
        return Snooze(self._services.clock.now() + max(wait, timedelta(0)))

    # -- the end -----------------------------------------------------------------------

    def endings(self, returned: object) -> list[Ending]:
        """How each job ended, from what was decided and what the call returned.

        Raises:
            TypeError: It returned neither ``None``, a list as long as the items, nor a
                mapping by job id.
        """
        said = self._said(returned)
        return [self._endings.get(index, ending) for index, ending in enumerate(said)]

    def endings_after(self, error: BaseException) -> list[Ending]:
        """How each job ended when the call raised."""
        return [self._endings.get(index, error) for index in range(len(self.jobs))]

    def _said(self, returned: object) -> list[Ending]:
        if returned is None:
            return [Result(None)] * len(self.jobs)
        if isinstance(returned, Mapping):
            return [_ending(returned.get(job.id, _NOTHING)) for job in self.jobs]
        if isinstance(returned, list | tuple) and len(returned) == len(self.jobs):
            return [_ending(value) for value in returned]
        found = f"{len(returned)} values" if isinstance(returned, list | tuple) else type(returned).__name__
        raise TypeError(
            f"{self.kind} returned {found} for {len(self.jobs)} jobs: return None, a list with one value "
            "for each item, or a mapping from job id to value"
        )

    def __repr__(self) -> str:
        return f"<ChunkContext of {self.kind}, {len(self.jobs)} jobs>"


_NOTHING = object()


def _ending(value: object) -> Ending:
    if value is _NOTHING:
        # Forgotten is not done: it gets another attempt.
        return LookupError("the chunk returned a mapping that does not name this job")
    return value if isinstance(value, BaseException) else Result(value)
