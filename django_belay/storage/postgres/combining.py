"""One statement for what many threads ask at the same time (§8.2).

A hundred jobs in one process journal their steps from a hundred threads. A statement for each is a
commit for each, and a hand-over between threads for each; a statement for all that wait costs both
once.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from contextlib import suppress
from typing import Generic, TypeVar

Q = TypeVar("Q")
A = TypeVar("A")

#: Statements on their way at a time, each behind a slow one. One alone gathers the most: jobs of one claim
#: start together and ask together from then on.
WIDTH = 4
#: A statement that takes longer, behind a lock or a slow disk, holds up no others.
SLOW_S = 0.05
#: Questions in one statement.
MOST = 100


class Alone(Exception):
    """In place of an answer: this one would have held up the others, and is asked again by itself."""


class Combiner(Generic[Q, A]):
    """Answers questions of many threads, alone where there is one, together where they pile up.

    A thread asks at once where no statement is on its way. Whoever comes later waits for one to end,
    or to be slow; the first of those who wait then asks for all of them.

    Args:
        one: Answers one question, however long it takes.
        many: Answers some in one transaction, in their order, an exception in place of an answer that
            could not be given. Where it raises, or for an answer says ``Alone``, ``one`` is asked.
        key: Questions with the same key are never asked together.
    """

    def __init__(
        self,
        one: Callable[[Q], A],
        many: Callable[[Sequence[Q]], Sequence[A | Exception]],
        *,
        key: Callable[[Q], Hashable],
    ) -> None:
        self._one = one
        self._many = many
        self._key = key
        self._lock = threading.Lock()
        self._flying = 0
        self._waiting: deque[_Request[Q, A]] = deque()

    def ask(self, question: Q) -> A:
        """The answer, or what ``one`` raises."""
        request = self._enlist(question)
        try:
            while not request.gate.acquire(timeout=SLOW_S):
                self._send_next()
        except BaseException:  # interrupted: nobody may wait for what this thread would have asked
            self._leave(request)
            raise
        if request.batch is not None:
            self._lead(request.batch)
        return request.taken() if request.is_answered else self._one(question)

    def _enlist(self, question: Q) -> _Request[Q, A]:
        """A place among those who wait; where nobody has to, at their head with the gate open."""
        request: _Request[Q, A] = _Request(question)
        with self._lock:
            if self._flying or self._waiting:
                self._waiting.append(request)
            else:
                self._flying += 1
                request.batch = [request]
                request.gate.release()
        return request

    def _lead(self, batch: Sequence[_Request[Q, A]]) -> None:
        """Ask for a whole batch, as its first."""
        try:
            # Where it fails, each asks alone and meets what it must.
            with suppress(Exception):
                self._answer(batch)
        finally:
            for other in batch[1:]:
                other.gate.release()
            self._land()

    def _answer(self, batch: Sequence[_Request[Q, A]]) -> None:
        answers = self._many([one.question for one in batch])
        for one, answer in zip(batch, answers, strict=True):
            one.answer = answer
            one.is_answered = not isinstance(answer, Alone)

    def _leave(self, request: _Request[Q, A]) -> None:
        """Give up a place; of a batch that was to be led each asks alone."""
        with self._lock:
            if request in self._waiting:
                self._waiting.remove(request)
                return
            batch = request.batch
        if batch is not None:
            for other in batch[1:]:
                other.gate.release()
            self._land()

    def _land(self) -> None:
        """A statement has come back."""
        with self._lock:
            self._flying -= 1
        self._send_next()

    def _send_next(self) -> None:
        """Let the first of those who wait ask for them."""
        with self._lock:
            if not self._waiting or self._flying >= WIDTH:
                return
            self._flying += 1
            leader = self._waiting[0]
            leader.batch = self._take()
        leader.gate.release()

    def _take(self) -> list[_Request[Q, A]]:
        taken: dict[Hashable, _Request[Q, A]] = {}
        left: deque[_Request[Q, A]] = deque()
        for request in self._waiting:
            key = self._key(request.question)
            if len(taken) < MOST and key not in taken:
                taken[key] = request
            else:
                left.append(request)
        self._waiting = left
        return list(taken.values())


class _Request(Generic[Q, A]):
    """A question of a thread that sleeps until somebody has asked it."""

    __slots__ = ("answer", "batch", "gate", "is_answered", "question")

    def __init__(self, question: Q) -> None:
        self.question = question
        self.gate = threading.Lock()
        self.gate.acquire()
        self.batch: list[_Request[Q, A]] | None = None
        self.answer: A | Exception | None = None
        self.is_answered = False

    def taken(self) -> A:
        """The answer; raises one that is an exception."""
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer  # type: ignore[return-value]
