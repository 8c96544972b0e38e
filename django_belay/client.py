"""The client: enqueue by kind, find jobs, and act on them by id.

Everything runs on the caller's connection to the storage's database. Own jobs are
enqueued through their functions (:mod:`django_belay.jobs`); by kind go the jobs of
other SDKs, and input that comes as JSON.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from datetime import datetime
from typing import Any

from asgiref.sync import sync_to_async

from django_belay import _enqueue, conf
from django_belay._control import (
    cancel,
    check_id,
    check_number,
    check_text,
    clear_signal,
    get_events,
    get_row,
    get_steps,
    retry,
    signal,
    signals,
    steer,
)
from django_belay._operate import erase_payload, freeze, move, reschedule, unfreeze
from django_belay._options import OF_THE_ROW, check_name, merge
from django_belay._replay import replay
from django_belay._twins import twin
from django_belay._waiting import aawait_result, await_result
from django_belay.contract.job import JSON
from django_belay.contract.json_value import dump_jsonb
from django_belay.contract.state import STATES, State
from django_belay.db import storage_for_client
from django_belay.exceptions import InvalidInput
from django_belay.handles import Duplicate, EnqueueReport, JobHandle, StepRecord
from django_belay.registry import JobOptions, registry
from django_belay.storage.base import JobFilter, QueueStats

__all__ = [
    "Duplicate",
    "EnqueueReport",
    "JobHandle",
    "StepRecord",
    "aawait_result",
    "acancel",
    "aclear_signal",
    "aenqueue_job",
    "aerase_payload",
    "afreeze",
    "aget",
    "aget_events",
    "aget_row",
    "aget_steps",
    "alist_jobs",
    "amove",
    "areplay",
    "areschedule",
    "aretry",
    "asignal",
    "asignals",
    "astats",
    "asteer",
    "aunfreeze",
    "await_result",
    "cancel",
    "clear_signal",
    "enqueue_job",
    "erase_payload",
    "freeze",
    "get",
    "get_events",
    "get_row",
    "get_steps",
    "list_jobs",
    "move",
    "replay",
    "reschedule",
    "retry",
    "signal",
    "signals",
    "stats",
    "steer",
    "unfreeze",
]

MAX_LISTED = 10_000


def enqueue_job(
    kind: str, input: Mapping[str, JSON] | None = None, *, foreign: bool = True, **options: Any
) -> JobHandle:
    """Enqueue a job by its kind, in the caller's transaction.

    A kind that is registered here has its input checked against its signature and its
    own options as defaults. Another SDK's is taken as it is.

    Args:
        input: The job's input as a JSON object.
        foreign: ``False`` refuses kinds that are not registered here.
        options: As ``.using()`` takes: ``queue``, ``priority``, ``unique``, …

    Raises:
        UnknownKind: With ``foreign=False``.
        InvalidInput: The input does not fit the signature, or cannot be stored.
        PayloadTooLarge: It is over ``MAX_INPUT_BYTES``.

    Contract: §5; rules 7-11.
    """
    check_name("kind", kind)
    definition = registry.find(kind) if foreign else registry.get(kind)
    now = conf.clock().now()
    given = {} if input is None else input
    where = f"enqueue_job({kind!r})"
    if definition is not None:
        merged = merge(definition.options, options, where=where, allowed=OF_THE_ROW)
        job = _enqueue.CallMaker(definition, merged, now).make((), definition.codec.decode(given))
    else:
        merged = merge(JobOptions(), options, where=where, allowed=OF_THE_ROW)
        job = _enqueue.row_maker(kind, merged, now=now).make(*_encode_foreign(given))
    return JobHandle.of_insertion(_enqueue.insert_one(job, now))


def _encode_foreign(given: Mapping[str, JSON]) -> tuple[dict[str, JSON], bytes]:
    if not isinstance(given, Mapping):
        raise InvalidInput(f"is a {type(given).__name__}; an input is a JSON object", path="input")
    value = dict(given)
    return value, dump_jsonb(value, path="input", max_depth=conf.get().max_depth)


async def aenqueue_job(
    kind: str, input: Mapping[str, JSON] | None = None, *, foreign: bool = True, **options: Any
) -> JobHandle:
    """As :func:`enqueue_job`."""
    return await sync_to_async(enqueue_job)(kind, input, foreign=foreign, **options)


def get(job_id: int) -> JobHandle:
    """The handle of a job, read now.

    Raises:
        JobNotFound: No job has this id.

    Contract: §10, client.
    """
    return JobHandle.of_job(get_row(job_id))


async def aget(job_id: int) -> JobHandle:
    """As :func:`get`."""
    return await sync_to_async(get)(job_id)


def list_jobs(
    *,
    ids: Collection[int] | None = None,
    states: Collection[State] | None = None,
    queue: str | None = None,
    kind: str | None = None,
    workflow_id: str | None = None,
    parent_id: int | None = None,
    since: datetime | None = None,
    before_id: int | None = None,
    limit: int = 100,
) -> list[JobHandle]:
    """Jobs for which every given part holds, newest first; ``before_id`` goes on below an id.

    Raises:
        InvalidInput: A part is of another type, or nothing that a row could hold.

    Contract: §3 ``belay_jobs``; rule 4.
    """
    check_number("limit", limit, least=-(2**63), most=2**63 - 1)
    wanted = job_filter(
        ids=ids, states=states, queue=queue, kind=kind, workflow_id=workflow_id,
        parent_id=parent_id, since=since, before_id=before_id,
    )  # fmt: skip
    rows = storage_for_client().storage.list_jobs(wanted, limit=max(1, min(limit, MAX_LISTED)))
    return [JobHandle.of_job(row) for row in rows]


def job_filter(
    *,
    ids: Collection[int] | None = None,
    states: Collection[State] | None = None,
    queue: str | None = None,
    kind: str | None = None,
    workflow_id: str | None = None,
    parent_id: int | None = None,
    since: datetime | None = None,
    before_id: int | None = None,
) -> JobFilter:
    """A checked filter; see :func:`list_jobs`."""
    ids = None if ids is None else list(ids)
    unknown = [state for state in states or () if state not in STATES]
    if unknown:
        raise InvalidInput(
            f"has no {', '.join(map(repr, unknown))}; known: {', '.join(STATES)}", path="states"
        )
    for what, text in (("queue", queue), ("kind", kind), ("workflow_id", workflow_id)):
        if text is not None:
            check_text(what, text)
    for job_id in (*(ids or ()), *(() if parent_id is None else (parent_id,))):
        check_id(job_id)
    if before_id is not None:
        check_number("before_id", before_id, least=0, most=2**63 - 1)
    if since is not None and not isinstance(since, datetime):
        raise InvalidInput(f"is a {type(since).__name__}; give a datetime", path="since")
    return JobFilter(
        ids=ids, states=states, queue=queue, kind=kind, workflow_id=workflow_id,
        parent_id=parent_id, since=since, before_id=before_id,
    )  # fmt: skip


def stats() -> list[QueueStats]:
    """Counts of each queue's jobs by state, and the age of its oldest ready one.

    Contract: §4.
    """
    return storage_for_client().storage.queue_stats(now=conf.clock().now())


# -- async twins -----------------------------------------------------------------

acancel = twin(cancel)
aclear_signal = twin(clear_signal)
aerase_payload = twin(erase_payload)
afreeze = twin(freeze)
aget_events = twin(get_events)
aget_row = twin(get_row)
aget_steps = twin(get_steps)
alist_jobs = twin(list_jobs)
amove = twin(move)
areplay = twin(replay)
areschedule = twin(reschedule)
aretry = twin(retry)
asignal = twin(signal)
asignals = twin(signals)
astats = twin(stats)
asteer = twin(steer)
aunfreeze = twin(unfreeze)
