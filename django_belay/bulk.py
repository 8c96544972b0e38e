"""Operations on all jobs that fit a filter, batch by batch.

Each function gives its answers as they come, some hundred jobs at a time, each batch committed
on its own: whoever stops listening stops the work, and what was done stays done. Called again with
the same filter it goes on with what is left::

    for answer in bulk.retry(bulk.where(states=["failed"], kind="shop.send_receipt")):
        print(answer.job_id, answer.state, answer.reason)
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields, replace
from datetime import datetime, timedelta
from typing import Any

from django_belay import conf
from django_belay._control import check_text
from django_belay._operate import check_move, instant_of
from django_belay._twins import twin, twin_of_iterator
from django_belay.client import job_filter
from django_belay.contract.state import INCOMPLETE, STATES, TERMINAL, State, sources
from django_belay.db import storage_for_client
from django_belay.exceptions import ConfigurationError, InvalidInput
from django_belay.storage.base import Controlled, JobFilter, Storage

__all__ = [
    "acancel",
    "acount",
    "aerase_payload",
    "afreeze",
    "amove",
    "areschedule",
    "aretry",
    "aunfreeze",
    "cancel",
    "count",
    "erase_payload",
    "freeze",
    "move",
    "reschedule",
    "retry",
    "unfreeze",
    "where",
]

#: Jobs in one batch.
BATCH = 500

#: What can be moved, and what can be rescheduled (rule 38).
MOVABLE = frozenset[State]({"ready", "awaiting", "held", "paused"})
DUE = frozenset[State]({"ready", "awaiting"})


def where(**parts: Any) -> JobFilter:
    """Which jobs are meant: every given part must hold.

    Args:
        parts: As of :func:`django_belay.client.list_jobs`: ``ids``, ``states``, ``queue``, ``kind``,
            ``workflow_id``, ``parent_id``, ``since``. ``before_id`` leaves out what is newer.

    Raises:
        InvalidInput: A part does not fit, or none was given: all jobs are never meant by accident.
    """
    found = job_filter(**parts)
    if all(getattr(found, field.name) is None for field in fields(found)):
        raise InvalidInput("give at least one part, such as states or kind", path="where")
    return found


def retry(jobs: JobFilter, *, limit: int | None = None) -> Iterator[Controlled]:
    """Run failed and cancelled jobs again, dependencies before dependents.

    Contract: §8.6; rules 9, 34.
    """
    ids = list(_ids(jobs, sources("retry"), limit))
    # All at once: a dependency may stand anywhere. The storage commits them some hundred at a time.
    yield from _storage().retry_many(ids, now=conf.clock().now()) if ids else ()


def cancel(
    jobs: JobFilter, *, reason: str = "", tree: bool = False, limit: int | None = None
) -> Iterator[Controlled]:
    """Cancel jobs, or ask running ones to stop; with ``tree`` their descendants, too.

    Contract: §8.6.
    """
    check_text("reason", reason)
    said = reason or "cancelled"

    def cancel_some(storage: Storage, some: Sequence[int], now: datetime) -> list[Controlled]:
        if not tree:
            return storage.cancel_many(some, reason=said, now=now)
        return [
            answer
            for job_id in some
            for answer in storage.request_cancel(job_id, reason=said, tree=True, now=now)
        ]

    yield from _batches(_ids(jobs, INCOMPLETE, limit), cancel_some)


def reschedule(
    jobs: JobFilter, at: datetime | timedelta, *, limit: int | None = None
) -> Iterator[Controlled]:
    """Let ready jobs run at another time, or move the deadlines of waiting ones (rule 38)."""
    ready_at = instant_of(at)
    yield from _each(
        jobs, DUE, limit, lambda storage, job_id, now: storage.reschedule(job_id, ready_at=ready_at, now=now)
    )


def move(
    jobs: JobFilter, *, queue: str | None = None, priority: int | None = None, limit: int | None = None
) -> Iterator[Controlled]:
    """Give jobs that do not run another queue or priority (rule 38)."""
    check_move(queue, priority)
    yield from _each(
        jobs,
        MOVABLE,
        limit,
        lambda storage, job_id, now: storage.move(job_id, queue=queue, priority=priority, now=now),
    )


def freeze(jobs: JobFilter, *, limit: int | None = None) -> Iterator[Controlled]:
    """Keep ready and waiting jobs from running (rule 5)."""
    yield from _each(
        jobs, sources("freeze"), limit, lambda storage, job_id, now: storage.freeze(job_id, now=now)
    )


def unfreeze(jobs: JobFilter, *, limit: int | None = None) -> Iterator[Controlled]:
    """Let frozen jobs go on (rules 5, 23)."""
    yield from _each(
        jobs, sources("unfreeze"), limit, lambda storage, job_id, now: storage.unfreeze(job_id, now=now)
    )


def erase_payload(jobs: JobFilter, *, limit: int | None = None) -> Iterator[Controlled]:
    """Overwrite what ended jobs' authors and users wrote."""
    yield from _each(
        jobs, TERMINAL, limit, lambda storage, job_id, now: storage.erase_payload(job_id, now=now)
    )


def count(jobs: JobFilter, states: frozenset[State] | None = None, *, limit: int | None = None) -> int:
    """How many jobs fit, of the given states if any; for a confirmation before the work."""
    return sum(1 for _ in _ids(jobs, states or frozenset(STATES), limit))


# -- batches --------------------------------------------------------------------


def _each(
    jobs: JobFilter,
    states: frozenset[State],
    limit: int | None,
    operation: Callable[[Storage, int, datetime], Controlled],
) -> Iterator[Controlled]:
    def do_some(storage: Storage, some: Sequence[int], now: datetime) -> list[Controlled]:
        return [operation(storage, job_id, now) for job_id in some]

    yield from _batches(_ids(jobs, states, limit), do_some)


def _batches(
    ids: Iterator[int] | Sequence[int],
    operation: Callable[[Storage, Sequence[int], datetime], list[Controlled]],
) -> Iterator[Controlled]:
    batch: list[int] = []
    for job_id in ids:
        batch.append(job_id)
        if len(batch) == BATCH:
            yield from operation(_storage(), batch, conf.clock().now())
            batch = []
    if batch:
        yield from operation(_storage(), batch, conf.clock().now())


def _ids(jobs: JobFilter, states: frozenset[State], limit: int | None) -> Iterator[int]:
    """Ids of the jobs that fit, newest first, a page at a time.

    What the filter says of states goes before what the operation can change: whoever names a state gets
    an answer for each job in it.
    """
    wanted = jobs if jobs.states is not None or jobs.ids is not None else replace(jobs, states=states)
    left = limit
    while left is None or left > 0:
        size = BATCH if left is None else min(BATCH, left)
        page = _storage().list_jobs(wanted, limit=size)
        yield from (job.id for job in page)
        if len(page) < size:
            return
        wanted = replace(wanted, before_id=page[-1].id)
        left = None if left is None else left - size


def _storage() -> Storage:
    found = storage_for_client()
    if found.session.is_in_callers_transaction():
        raise ConfigurationError(
            "operations on many jobs commit batch by batch, so they cannot be part of a transaction: "
            "leave the atomic() block, or change the jobs one by one"
        )
    return found.storage


# -- async twins ----------------------------------------------------------------

acount = twin(count)
acancel = twin_of_iterator(cancel, batch=BATCH)
aerase_payload = twin_of_iterator(erase_payload, batch=BATCH)
afreeze = twin_of_iterator(freeze, batch=BATCH)
amove = twin_of_iterator(move, batch=BATCH)
areschedule = twin_of_iterator(reschedule, batch=BATCH)
aretry = twin_of_iterator(retry, batch=BATCH)
aunfreeze = twin_of_iterator(unfreeze, batch=BATCH)
