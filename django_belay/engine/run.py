"""One execution of a claimed job, and how it is interrupted.

A thread cannot be killed. It can be given an asynchronous exception, which is only
safe while it executes the job's own code: inside a driver call it would arrive late or
leave a connection in use. So a run knows whether it is in user code, and both the
flag and the delivery happen under the run's lock; everywhere else the interrupt waits
for the next border between engine and job.
"""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any

from django_belay.contract.job import Job, Lease, Step
from django_belay.exceptions import LeaseLost, Shutdown, Timeout
from django_belay.registry import JobDefinition

# Only these are raised from outside; each can be built without arguments.
Interruption = type[Timeout] | type[LeaseLost] | type[Shutdown]

_set_async_exc: Callable[..., int] = ctypes.pythonapi.PyThreadState_SetAsyncExc


class Run:
    """A claimed job in a thread: its fence, its definition, its interrupts.

    Attributes:
        claimed_at: The claim's ``now``; equal to ``started_at`` on a first run (rule 17).
        journal: The job's steps where they were read with those of others, before the run began.
    """

    __slots__ = (
        "_ended",
        "_in_user_code",
        "_lock",
        "_pending",
        "_process_id",
        "_sent",
        "_thread_id",
        "claimed_at",
        "definition",
        "job",
        "journal",
        "lease",
    )

    def __init__(self, job: Job, definition: JobDefinition, *, claimed_at: datetime) -> None:
        self.job = job
        self.definition = definition
        self.lease = Lease.of(job)
        self.claimed_at = claimed_at
        self.journal: Sequence[Step] | None = None
        self._lock = threading.Lock()
        self._process_id = os.getpid()
        self._thread_id = 0
        self._in_user_code = False
        self._pending: Interruption | None = None
        self._sent = False
        self._ended = False

    @property
    def is_first(self) -> bool:
        """Whether no run was before this one, so that no step can be journaled (rule 17).

        ``started_at`` decides. A clock that stands still, as in tests, may give two claims
        one instant; then whatever an earlier run can have left behind speaks against it.
        """
        job = self.job
        return (
            job.started_at == self.claimed_at
            and job.attempt == 1
            and not job.errors
            and (job.ready_at is None or job.ready_at < self.claimed_at)
        )

    @property
    def has_ended(self) -> bool:
        return self._ended

    @property
    def is_interrupted(self) -> bool:
        """Whether it was told to stop."""
        return self._pending is not None

    @property
    def leases(self) -> Sequence[Lease]:
        """What it holds: one job, or those of a chunk."""
        return (self.lease,)

    # -- called by the run's own thread ----------------------------------------

    def begin(self) -> None:
        """Enter user code for the first time; raises what is pending."""
        self._thread_id = threading.get_ident()
        self.enter_user_code()

    def enter_user_code(self) -> None:
        """From here on an interrupt is delivered at once; raises what came before."""
        self._allow()
        if self._pending is not None:
            self.leave_user_code()

    def leave_user_code(self) -> None:
        """From here on an interrupt waits; raises the one that is pending."""
        self._forbid()
        if self._pending is not None:
            raise self._pending

    def end(self) -> None:
        """The job's code has returned or raised; nothing is delivered any more. Never raises twice."""
        with self._lock:
            self._ended = True
        self._forbid()

    def end_fork(self) -> None:
        """End a process that the job forked and let come back: the job's end is its parent's."""
        if self._is_forked():
            os._exit(1)

    def check(self) -> None:
        """Raise the interrupt that is pending, if any."""
        if self._pending is not None:
            raise self._pending

    def engine(self) -> _EngineCall:
        """A block of engine code within the job's; interrupts wait for its borders."""
        return _EngineCall(self)

    def uninterrupted(self) -> _Uninterrupted:
        """A block of engine code that no interrupt keeps from its end."""
        return _Uninterrupted(self)

    def user_code(self) -> _UserCode:
        """A block of the job's code within an engine block."""
        return _UserCode(self)

    # -- called by other threads ---------------------------------------------------

    def interrupt(self, reason: Interruption) -> bool:
        """Make the run stop: at once in user code, else at the next border.

        The first reason stays; calling again sends it again, to a job that swallowed it.

        Returns:
            Whether the run had not ended yet.
        """
        with self._lock:
            if self._ended:
                return False
            if self._pending is None:
                self._pending = reason
            if self._in_user_code:
                self._sent = True
                _set_async_exc(ctypes.c_ulong(self._thread_id), ctypes.py_object(self._pending))
            return True

    def _is_forked(self) -> bool:
        return os.getpid() != self._process_id

    # -- the flag --------------------------------------------------------------------

    def _allow(self) -> None:
        if threading.get_ident() == self._thread_id:
            with self._lock:
                self._in_user_code = True

    def _forbid(self) -> None:
        # A thread that the job itself started may call the engine too; the flag is not its own.
        if threading.get_ident() != self._thread_id:
            return
        with self._lock:
            self._in_user_code = False
            if self._sent:
                # Sent, perhaps not delivered yet: take it back, it is raised in order instead.
                self._sent = False
                _set_async_exc(ctypes.c_ulong(self._thread_id), None)


class _EngineCall:
    """Leaves user code and enters it again; a pending interrupt is raised at both borders."""

    __slots__ = ("_run",)

    def __init__(self, run: Run) -> None:
        self._run = run

    def __enter__(self) -> None:
        if self._run._is_forked():
            raise RuntimeError(
                "a process that a job forked cannot use its ctx: the connections are its parent's"
            )
        self._run.leave_user_code()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: Any) -> None:
        if error is None:
            self._run.enter_user_code()
        else:
            self._run._allow()  # the error itself is what the job sees next


class _Uninterrupted:
    """Engine code that must run to its end, such as a commit; raises at no border."""

    __slots__ = ("_run",)

    def __init__(self, run: Run) -> None:
        self._run = run

    def __enter__(self) -> None:
        self._run._forbid()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: Any) -> None:
        self._run._allow()


class _UserCode:
    """The job's code within engine code."""

    __slots__ = ("_run",)

    def __init__(self, run: Run) -> None:
        self._run = run

    def __enter__(self) -> None:
        self._run.enter_user_code()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: Any) -> None:
        self._run._forbid()
