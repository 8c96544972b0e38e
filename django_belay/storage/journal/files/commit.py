"""Group commit: what many submit goes out in one write and one sync, one batch after the other.

The place of a record is the ticket: whoever submitted through sequence N is answered when
everything through N is durable. While one batch is on its way to the disk the next one gathers.
A thread that waits writes what has gathered for all others, when nobody does yet. A loop that may not
block follows instead: a thread of the journal's own writes then, and tells it once a batch.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import TypeAlias

from .filesystem import Room
from .tail import Run

Told: TypeAlias = Callable[[int, BaseException | None], None]

logger = logging.getLogger("django_belay.journal")


@dataclass(frozen=True, slots=True)
class _Batch:
    """What one thread writes for all that submitted before it."""

    runs: list[Run]
    through: int
    mark: int


class GroupCommit:
    """Batches on their way to the disk, and who waits for them.

    Nothing here takes the owner's lock, so that whoever holds it may wait.

    Args:
        write: Carries out what was planned, in order; makes it durable.
        settled: Called after each batch that was written, by the thread that wrote it.
        check: Raises when nothing may be written any more.
    """

    def __init__(
        self,
        write: Callable[[list[Run]], None],
        room: Room,
        *,
        through: int,
        settled: Callable[[], None],
        check: Callable[[], None],
    ) -> None:
        self._write = write
        self._room = room
        self._settled = settled
        self._check = check
        self._mutex = threading.Lock()
        self._runs: list[Run] = []
        self._planned = through
        self._mark = room.mark
        self.through = through
        self.turn = 0
        self.last_write_s: float | None = None
        self._writing = False
        self._waiters: list[_Waiter] = []
        self._followers: list[Told] = []
        self._writer: threading.Thread | None = None
        self._baton = threading.Lock()
        self._baton.acquire()
        self._failure: BaseException | None = None
        self._stopped = False

    # -- submitting, in the order of the plan: under the owner's lock ------------

    def add(self, runs: list[Run], through: int) -> None:
        """Put what was planned, through this sequence, behind what has gathered."""
        with self._mutex:
            for run in runs:
                if self._runs and self._runs[-1].segment_id == run.segment_id:
                    self._runs[-1].frames.extend(run.frames)
                else:
                    self._runs.append(run)
            self._planned = through
            self._mark = self._room.mark
            if self._writer is not None and not self._writing:
                self._writing = True
                self._baton.release()

    def restart(self, through: int) -> None:
        """Go on behind another sequence, with nothing gathered and nobody writing."""
        with self._mutex:
            self.through = self._planned = through
            self.turn += 1

    @property
    def is_idle(self) -> bool:
        """Whether everything submitted was written and nobody writes."""
        with self._mutex:
            return not self._writing and not self._runs

    # -- waiting ------------------------------------------------------------

    def wait(self, sequence: int, turn: int) -> None:
        """Return once everything through ``sequence`` is durable; write it when nobody does.

        Args:
            turn: How often there had been a :meth:`restart` when the sequence was planned. Whatever was
                planned before the last one is durable, and its number says nothing any more.
        """
        while self.turn == turn and self.through < sequence:
            self._check()
            task = self._enlist(sequence, turn)
            if isinstance(task, _Waiter):
                self._block(task)
            elif task is not None:
                self._lead(task)

    def follow(self, told: Told) -> Callable[[], None]:
        """Be told after each batch through which sequence everything is durable, or why it failed.

        From the first call on a thread of this journal writes whatever gathers, without being
        asked. ``told`` runs in the thread that wrote; it must be quick and must not raise. Call the
        answer to be told no more.
        """
        with self._mutex:
            self._followers = [*self._followers, told]
            if self._writer is None:
                self._writer = threading.Thread(target=self._serve, name="belay-journal-writer", daemon=True)
                self._writer.start()
                if self._runs and not self._writing:
                    self._writing = True
                    self._baton.release()

        def leave() -> None:
            with self._mutex:
                self._followers = [one for one in self._followers if one is not told]

        return leave

    def close(self) -> None:
        """End the writing thread, once it has finished what it is at."""
        with self._mutex:
            self._stopped = True
            if self._baton.locked():
                self._baton.release()
        if self._writer is not None and self._writer is not threading.current_thread():
            self._writer.join()

    # -- turns --------------------------------------------------------------

    def _enlist(self, sequence: int, turn: int) -> _Batch | _Waiter | None:
        """A batch to write, a place among those who wait, or None when it is done."""
        with self._mutex:
            if self.turn != turn or self.through >= sequence:
                return None
            if self._failure is not None:
                raise self._failure
            if self._writing or self._writer is not None:
                waiter = _Waiter(sequence)
                self._waiters.append(waiter)
                return waiter
            self._writing = True
            return self._take()

    def _take(self) -> _Batch:
        runs, self._runs = self._runs, []
        return _Batch(runs, self._planned, self._mark)

    def _block(self, waiter: _Waiter) -> None:
        try:
            waiter.gate.acquire()
        except BaseException:  # interrupted: whoever was to be woken by this thread must not sleep on
            with self._mutex:
                if waiter in self._waiters:
                    self._waiters.remove(waiter)
                    raise
                called = self._call_next()
            _wake(called)
            raise
        finally:
            _wake(waiter.following)

    def _lead(self, batch: _Batch) -> None:
        """Write one batch, then wake who waited for it and one who goes on."""
        failure: BaseException | None = None
        began = time.monotonic()
        try:
            self._write(batch.runs)
            self.last_write_s = time.monotonic() - began
            self._room.settle(batch.mark)
        except BaseException as error:
            failure = error
            raise
        finally:
            self._finish(batch, failure)

    def _finish(self, batch: _Batch, failure: BaseException | None) -> None:
        with self._mutex:
            self._writing = False
            self._failure = failure
            if failure is None:
                self.through = batch.through
            waiting, self._waiters = self._waiters, []
            # After a failure everyone looks for himself.
            done = [one for one in waiting if failure is not None or one.sequence <= batch.through]
            self._waiters = [one for one in waiting if failure is None and one.sequence > batch.through]
            _link(done)
            called = self._call_next()
            followers = self._followers
        _wake(called)
        for told in followers:
            try:
                told(self.through, failure)
            except Exception:
                logger.exception("Whoever follows the journal raised; it may miss what is durable")
        _wake(done[0] if done else None)
        if failure is None:
            self._settled()

    def _call_next(self) -> _Waiter | None:
        """Whose turn it is now to write what has gathered; under the mutex."""
        if self._writing or self._failure is not None or self._stopped:
            return None
        if self._writer is not None:
            if self._runs:
                self._writing = True
                self._baton.release()
            return None
        return self._waiters.pop(0) if self._waiters else None

    def _serve(self) -> None:
        """The writing thread: each time the baton is its own, it writes what has gathered."""
        while True:
            self._baton.acquire()
            if self._stopped:
                return
            with self._mutex:
                batch = self._take()
            try:
                self._lead(batch)
            except Exception as error:
                logger.error("The journal could not be written: %s", error)


class _Waiter:
    """A thread that waits for a batch, and the one it wakes when it is woken itself."""

    __slots__ = ("following", "gate", "sequence")

    def __init__(self, sequence: int) -> None:
        self.sequence = sequence
        self.following: _Waiter | None = None
        self.gate = threading.Lock()
        self.gate.acquire()


def _link(waiters: list[_Waiter]) -> None:
    """Let each wake the next. Woken all at once they queue for the interpreter's lock, which costs
    half as much again as all else that an append of one record costs."""
    for waiter, following in pairwise(waiters):
        waiter.following = following


def _wake(waiter: _Waiter | None) -> None:
    if waiter is not None:
        waiter.gate.release()
