"""Where ``now`` comes from: the engine and the client ask a clock and pass the answer down (§2)."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Protocol


class Clock(Protocol):
    """Tells the time as an aware datetime in UTC; safe to ask from any thread."""

    def now(self) -> datetime: ...


class SystemClock:
    """The machine's clock; keep it within seconds of true time (§2, clock rule)."""

    def now(self) -> datetime:
        return datetime.now(UTC)
