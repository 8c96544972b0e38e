"""The store as its server uses it: nothing waits, and a request that comes again is not applied again."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime
from typing import Any, TypeVar

from django_belay.storage.base import Ack, AckResult, NewStep, Stale, StepWritten

from . import answered, ending, job_journal
from .answered import Call
from .instants import floor_ms
from .store import JournalStore
from .unit import Unit

T = TypeVar("T")


class ServedStore(JournalStore):
    """The same store as another, for one loop that must not block.

    Its operations return before their records are durable; the loop holds their answers until
    :meth:`durable_sequence` as it was then is durable.
    """

    def __init__(self, store: JournalStore) -> None:
        self.journal = store.journal
        self.hub = store.hub
        self.memory = store.memory
        self._nodes = store._nodes
        self.index_lag = lambda: store.index_lag()  # set when there is an index, perhaps later
        self._call: Call | None = None

    @contextmanager
    def calling(self, call: Call) -> Iterator[None]:
        """Whose request is applied meanwhile: its answers are kept, and found again."""
        self._call = call
        try:
            yield
        finally:
            self._call = None

    def forget_answers(self, *, now: datetime) -> None:
        """Drop those of clients that were idle for an hour."""

        def forget(unit: Unit) -> None:
            for key in answered.idle_keys(self.memory.table(answered.TABLE), now_ms=floor_ms(now)):
                unit.drop(answered.TABLE, key)

        self._apply("forget_answers", now, forget)

    def _wait(self) -> None:
        """The loop does."""

    def _apply(self, name: str, now: datetime, operation: Callable[[Unit], T]) -> T:
        call = self._call
        if call is None:
            return super()._apply(name, now, operation)
        key = call.next_key()
        if call.is_resent:
            with self.journal.lock:
                known = answered.find(self.memory.table(answered.TABLE), key, call.request)
            if known is not None:
                told: T = known.answer
                return told

        def keeping(unit: Unit) -> T:
            answer = operation(unit)
            unit.client, unit.request = call.client, call.request
            unit.answer = (key, answered.row_of(call.request, answer, at=unit.at))
            return answer

        return super()._apply(name, now, keeping)

    def _end(self, unit: Unit, ack: Ack) -> AckResult:
        """An end that the owner before has written is told by its token."""
        answer = super()._end(unit, ack)
        if isinstance(answer, Stale) and self._call is not None and self._call.is_resent:
            return ending.find_written(unit, ack) or answer
        return answer

    def put_step(self, job_id: int, step: NewStep, *, now: datetime) -> StepWritten:
        def put(unit: Unit) -> StepWritten:
            return replace(job_journal.put_step(unit, job_id, step), value=None)  # no answer holds a value

        written = self._write("put_step", now, put)
        if written.inserted:
            return replace(written, value=step.value)
        there: Any = self.find_step(job_id, step.name)
        return replace(written, value=there.value)
