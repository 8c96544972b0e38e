"""What an operator does to a job that waits or has ended; public through :mod:`django_belay.client`.

As cancel and retry, these follow the commit inside ``atomic()`` and return a ``Deferred`` then.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta

from django_belay import conf
from django_belay._control import after_commit, check_id, check_number
from django_belay._options import check_name
from django_belay.db import storage_for_client
from django_belay.deferred import Deferred
from django_belay.exceptions import ConfigurationError, InvalidInput, JobNotFound
from django_belay.storage.base import Controlled, Storage

Answer = Controlled | Deferred[Controlled]

_PRIORITY = 2**31


def reschedule(job_id: int, at: datetime | timedelta, *, join: bool = False) -> Answer:
    """Let a ready job run at another time, or move the deadline of a waiting one.

    Args:
        at: An aware instant, or how long from now; one that is past means now. For a job that waits
            for a signal, now means: time out now.

    Returns:
        As :func:`django_belay.client.cancel`; nothing is done unless the job is ready or awaiting.

    Contract: rule 38.
    """
    ready_at = instant_of(at)
    return _do(
        job_id,
        lambda storage, now: storage.reschedule(job_id, ready_at=ready_at, now=now),
        what="rescheduling",
        join=join,
    )


def move(job_id: int, *, queue: str | None = None, priority: int | None = None, join: bool = False) -> Answer:
    """Give a job that does not run another queue or priority.

    Contract: rule 38.
    """
    check_move(queue, priority)
    return _do(
        job_id,
        lambda storage, now: storage.move(job_id, queue=queue, priority=priority, now=now),
        what="moving",
        join=join,
    )


def freeze(job_id: int, *, join: bool = False) -> Answer:
    """Keep a ready or waiting job from running until :func:`unfreeze`; it keeps its place.

    Contract: rule 5.
    """
    return _do(job_id, lambda storage, now: storage.freeze(job_id, now=now), what="freezing", join=join)


def unfreeze(job_id: int, *, join: bool = False) -> Answer:
    """Let a frozen job go on: ready, or waiting unless its signal came meanwhile.

    Contract: rules 5, 23.
    """
    return _do(job_id, lambda storage, now: storage.unfreeze(job_id, now=now), what="unfreezing", join=join)


def erase_payload(job_id: int, *, join: bool = False) -> Answer:
    """Overwrite what an ended job's author or user wrote: input, meta, result, step values, events,
    error texts and signals. Shape, numbers and times stay.

    For requests under privacy law. Backups and a server's log are yours to clean.
    """
    return _do(job_id, lambda storage, now: storage.erase_payload(job_id, now=now), what="erasing", join=join)


def _do(
    job_id: int, operation: Callable[[Storage, datetime], Controlled], *, what: str, join: bool
) -> Answer:
    check_id(job_id)

    def work() -> Controlled:
        answer = operation(storage_for_client().storage, conf.clock().now())
        if answer.state is None:
            raise JobNotFound(job_id)
        return answer

    return after_commit(work, what=f"{what} job {job_id}", join=join)


def instant_of(at: datetime | timedelta) -> datetime:
    """An instant from itself, or from how long it is until then.

    Raises:
        InvalidInput: Naive, beyond the calendar, or something else.
    """
    try:
        found = conf.clock().now() + at if isinstance(at, timedelta) else at
        if isinstance(found, datetime) and found.utcoffset() is not None:
            return found.astimezone(UTC)
    except OverflowError:
        pass
    raise InvalidInput(f"is {at!r:.60}; give a datetime with a time zone, or a timedelta", path="at")


def check_move(queue: str | None, priority: int | None) -> None:
    """Refuse a move that names nothing, or what no row can hold.

    Raises:
        InvalidInput: Says which.
    """
    if queue is None and priority is None:
        raise InvalidInput("give a queue, a priority, or both", path="move")
    if queue is not None:
        try:
            check_name("queue", queue)
        except ConfigurationError as error:
            raise InvalidInput(str(error), path="queue") from None
    if priority is not None:
        check_number("priority", priority, least=-_PRIORITY, most=_PRIORITY - 1)
