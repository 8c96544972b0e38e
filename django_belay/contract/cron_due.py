"""Which slots to fire now: what is due, what was missed, how much of it is caught up.

Contract: §8.5; rule 35.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Literal, TypeAlias

from django_belay.contract.cron import Schedule

CatchUp: TypeAlias = Literal["latest", "all", "none"]

CATCH_UP: tuple[CatchUp, ...] = ("latest", "all", "none")

#: Missed slots older than this are not caught up.
MAX_AGE = timedelta(days=7)
#: With ``all``, so many of an entry's missed slots at most, the newest ones.
MAX_CAUGHT_UP = 100


def due_slots(
    schedule: Schedule, *, since: datetime, on_time_since: datetime, now: datetime, catch_up: CatchUp
) -> list[datetime]:
    """The slots to fire, oldest first.

    Slots later than ``on_time_since`` are fired all. Of those before it, which nobody was
    there to fire, ``all`` takes the newest ``MAX_CAUGHT_UP``, ``none`` takes none, and
    ``latest`` takes the newest where nothing is due on time.

    Args:
        since: The newest slot that is settled; only later ones count.
        on_time_since: From when on slots are on time.
    """
    since = max(since, now - MAX_AGE)
    on_time: list[datetime] = []
    missed: list[datetime] = []
    for slot in schedule.until(now):
        if slot <= since:
            break
        if slot > on_time_since:
            on_time.append(slot)
        elif len(missed) < _most_missed(catch_up, has_on_time=bool(on_time)):
            missed.append(slot)
        else:
            break
    return [*reversed(missed), *reversed(on_time)]


def _most_missed(catch_up: CatchUp, *, has_on_time: bool) -> int:
    match catch_up:
        case "all":
            return MAX_CAUGHT_UP
        case "none":
            return 0
        case "latest":
            return 0 if has_on_time else 1
