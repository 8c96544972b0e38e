"""How a process divides its free slots between its queues (rule 12)."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence


def share_slots(
    free: int, rooms: Sequence[tuple[str, int]], *, quiet: Collection[str] = ()
) -> dict[str, int]:
    """Slots for each queue: equal shares, what a queue cannot use going to the others.

    A queue that was empty lately is asked for one row only, so that it does not keep
    slots from the others; where slots are too few for all, the first queues get them.

    Args:
        rooms: Queues in the order of this round, with how many more each may run.
    """
    open_queues = [(queue, room) for queue, room in rooms if room > 0]
    if quiet and not all(queue in quiet for queue, _ in open_queues):
        open_queues = [(queue, 1 if queue in quiet else room) for queue, room in open_queues]
    shares: dict[str, int] = {}
    left = dict(open_queues)
    while free > 0 and left:
        part = max(free // len(left), 1)
        for queue in list(left):
            given = min(part, left[queue], free)
            if given:
                shares[queue] = shares.get(queue, 0) + given
            free -= given
            left[queue] -= given
            if not left[queue]:
                del left[queue]
    return shares


def rotate(queues: Sequence[str], turn: int) -> list[str]:
    """The queues, starting at another one each turn."""
    if not queues:
        return []
    start = turn % len(queues)
    return [*queues[start:], *queues[:start]]


def rooms_of(
    limits: Mapping[str, int], running: Mapping[str, int], order: Sequence[str]
) -> list[tuple[str, int]]:
    """How many more jobs each queue may run in this process, in the given order."""
    return [(queue, limits[queue] - running.get(queue, 0)) for queue in order]
