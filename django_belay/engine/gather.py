"""Jobs of a chunk kind on their way into one call (rule 12)."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from django_belay.contract.job import Lease
from django_belay.engine.run import Interruption, Run


class ChunkRun(Run):
    """One call over many claimed jobs, each with its own fence."""

    __slots__ = ("members",)

    def __init__(self, members: list[Run]) -> None:
        first = members[0]
        super().__init__(first.job, first.definition, claimed_at=first.claimed_at)
        self.members = members

    @property
    def leases(self) -> list[Lease]:
        return [member.lease for member in self.members]

    def interrupt_member(self, job_id: int, leased_by: str, reason: Interruption) -> None:
        """One job's lease is gone; the call stops when it has no other."""
        for member in self.members:
            if (member.job.id, member.lease.leased_by) == (job_id, leased_by):
                member.interrupt(reason)
        if all(member.is_interrupted for member in self.members):
            self.interrupt(reason)


@dataclass(slots=True)
class _Open:
    """A call that still takes jobs."""

    size: int
    due_at: float
    members: list[Run] = field(default_factory=list)


class Gatherer:
    """Collects claimed jobs into calls: full ones are due at once, others after their time.

    For the claim loop alone, but for :meth:`interrupt`. Jobs are under their lease while
    they wait here, so no call waits longer than half of one.
    """

    def __init__(self, *, longest_s: float, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._longest_s = longest_s
        self._monotonic = monotonic
        self._open: dict[tuple[str, str], _Open] = {}
        self._full: list[ChunkRun] = []

    def add(self, run: Run) -> bool:
        """Put a job into its kind's call; whether that opened one, which takes a slot."""
        key = (run.job.queue, run.definition.kind)
        is_new = key not in self._open
        if is_new:
            chunk: Any = run.definition.options.chunk
            due_at = self._monotonic() + min(chunk.gather, self._longest_s)
            self._open[key] = _Open(size=chunk.size, due_at=due_at)
        found = self._open[key]
        found.members.append(run)
        if len(found.members) >= found.size:
            self._full.append(ChunkRun(self._open.pop(key).members))
        return is_new

    def due(self, *, all_: bool = False) -> list[ChunkRun]:
        """The calls to start now, each once."""
        now = self._monotonic()
        ripe = [key for key, found in self._open.items() if all_ or found.due_at <= now]
        calls = [*self._full, *(ChunkRun(self._open.pop(key).members) for key in ripe)]
        self._full = []
        return calls

    def room(self, queue: str) -> int:
        """How many more jobs of a queue the open calls take."""
        return sum(one.size - len(one.members) for (name, _), one in self._open.items() if name == queue)

    def next_s(self) -> float | None:
        """Seconds until a call is due; ``None`` when nothing is gathered."""
        if self._full:
            return 0.0
        if not self._open:
            return None
        return max(min(one.due_at for one in self._open.values()) - self._monotonic(), 0.0)

    def interrupt(self, job_id: int, leased_by: str, reason: Interruption) -> None:
        """A job whose lease is gone is left out of its call; for any thread."""
        for found in list(self._open.values()):
            for member in list(found.members):
                if (member.job.id, member.lease.leased_by) == (job_id, leased_by):
                    member.interrupt(reason)
