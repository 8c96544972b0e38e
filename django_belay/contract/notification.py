"""Payloads on the NOTIFY channel and when to send a poke (§9.2, rule 11)."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Literal, TypeAlias

NotifyMode = Literal["auto", "always", "off"]


@dataclass(slots=True, frozen=True)
class Poke:
    """A queue may have a claimable row."""

    queue: str


@dataclass(slots=True, frozen=True)
class Ended:
    """A job that somebody waits for has ended."""

    job_id: int


Hint: TypeAlias = Poke | Ended


def encode_hint(hint: Hint) -> str:
    """The channel payload of a hint (§9.2)."""
    if isinstance(hint, Poke):
        return json.dumps({"t": "p", "q": hint.queue}, separators=(",", ":"), ensure_ascii=False)
    return json.dumps({"t": "r", "id": hint.job_id}, separators=(",", ":"))


def decode_hint(payload: str) -> Hint | None:
    """The hint in a channel payload; ``None`` for anything else, which is ignored."""
    try:
        value = json.loads(payload)
    except (ValueError, RecursionError):
        return None
    match value:
        case {"t": "p", "q": str(queue)}:
            return Poke(queue)
        case {"t": "r", "id": int(job_id)}:
            return Ended(job_id)
    return None


@dataclass(slots=True)
class PokePolicy:
    """Decides which queues a process pokes: at most one poke a queue an interval under ``auto``.

    Lost pokes cost latency only, so a poke whose transaction rolls back may
    suppress the next one. Threads may share a policy: the worst race pokes twice.
    """

    mode: NotifyMode = "auto"
    by_queue: Mapping[str, NotifyMode] = field(default_factory=dict)
    interval: timedelta = timedelta(milliseconds=25)
    _poked_at: dict[str, datetime] = field(default_factory=dict)

    def due(self, queues: Iterable[str], *, now: datetime) -> list[str]:
        """The queues to poke now, sorted; remembers that they were."""
        return [queue for queue in sorted(set(queues)) if self._is_due(queue, now)]

    def _is_due(self, queue: str, now: datetime) -> bool:
        mode = self.by_queue.get(queue, self.mode)
        if mode != "auto":
            return mode == "always"
        last = self._poked_at.get(queue)
        if last is not None and timedelta(0) <= now - last < self.interval:
            return False
        self._poked_at[queue] = now
        return True
