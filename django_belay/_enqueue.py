"""From a job's arguments and options to a row, and the insert in the caller's transaction."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

from django_belay import conf
from django_belay.contract.encryption import encrypt
from django_belay.contract.job import NewJob, UniqueMode
from django_belay.contract.json_value import check_json
from django_belay.contract.uniqueness import window_key
from django_belay.db import ClientStorage, storage_for_client
from django_belay.exceptions import InvalidInput, PayloadTooLarge
from django_belay.registry import JobDefinition, JobOptions, Unique
from django_belay.signals import job_enqueued
from django_belay.storage.base import Inserted
from django_belay.storage.postgres.session import atomically

#: Rows of one insert; more gain nothing and hold more memory.
CHUNK = 5_000


class Encoded(NamedTuple):
    """A checked input: the object, and its JSON."""

    value: dict[str, Any]
    data: bytes


def encode(definition: JobDefinition, args: Sequence[Any], kwargs: Mapping[str, Any], path: str) -> Encoded:
    """The arguments of a call as an input.

    Raises:
        InvalidInput: They do not fit the signature, or cannot be stored.
    """
    depth = conf.get().max_depth
    return Encoded(*definition.codec.encode_json(args, kwargs, path=path, max_depth=depth))


def new_job(
    kind: str,
    options: JobOptions,
    encoded: Encoded,
    *,
    now: datetime,
    path: str = "input",
    keywords: Callable[[dict[str, Any]], Mapping[str, Any]] = dict,
) -> NewJob:
    """A row to insert.

    Args:
        keywords: Gives back the arguments that callables among the options want.

    Raises:
        PayloadTooLarge: The input is over ``MAX_INPUT_BYTES``.
        InvalidInput: A callable's unique or partition key cannot be stored.
    """
    found = conf.get()
    if len(encoded.data) > found.max_input_bytes:
        raise PayloadTooLarge(
            path, size=len(encoded.data), limit=found.max_input_bytes, setting='BELAY["MAX_INPUT_BYTES"]'
        )
    unique_key, unique_mode = _unique(options.unique, encoded, keywords, now)
    budget = options.budget
    return NewJob(
        kind=kind,
        queue=options.queue,
        input=encrypt(encoded.data, found.encryption_keys) if options.encrypted else encoded.value,
        meta=dict(options.meta),
        priority=options.priority,
        max_attempts=options.max_attempts or found.max_attempts,
        partition_key=_text_of("partition_key", options.partition_key, encoded, keywords),
        ready_at=_ready_at(options.run_after, now),
        unique_key=unique_key,
        unique_mode=unique_mode,
        budget_usd_micros=budget.usd_micros if budget else None,
        budget_tokens=budget.tokens if budget else None,
    )


def _ready_at(run_after: datetime | timedelta | None, now: datetime) -> datetime | None:
    if run_after is None:
        return None
    try:
        return now + run_after if isinstance(run_after, timedelta) else run_after.astimezone(UTC)
    except OverflowError:
        raise InvalidInput(f"{run_after!r} is beyond the year 9999", path="run_after") from None


def _unique(
    unique: Unique | None,
    encoded: Encoded,
    keywords: Callable[[dict[str, Any]], Mapping[str, Any]],
    now: datetime,
) -> tuple[str | None, UniqueMode | None]:
    if unique is None:
        return None, None
    key = _text_of("unique", unique.key, encoded, keywords)
    if key is None:
        return None, None
    if unique.within is not None:
        return window_key(key, window=unique.within, now=now), "window"
    return key, unique.scope


def _text_of(
    name: str,
    key: str | Callable[..., str] | None,
    encoded: Encoded,
    keywords: Callable[[dict[str, Any]], Mapping[str, Any]],
) -> str | None:
    """A key given as text or by a callable; a callable may return ``None`` for "no key"."""
    if key is None:
        return None
    if callable(key):
        key = key(**keywords(encoded.value))
        if key is None:
            return None
        if not isinstance(key, str) or not key:
            raise InvalidInput(f"the callable returned {type(key).__name__}; give a text or None", path=name)
    check_json(key, path=name)
    return key


# -- inserting -------------------------------------------------------------------


def insert_one(job: NewJob, now: datetime) -> Inserted:
    """Insert a row in the caller's transaction, or on its own."""
    found = storage_for_client()
    (inserted,) = found.storage.insert_jobs([job], now=now)
    _announce([job], [inserted])
    return inserted


def insert_many(jobs: Sequence[NewJob], now: datetime) -> list[Inserted]:
    """Insert all rows or none, chunk by chunk in one transaction; answers by index.

    Rows go in the order of their unique keys, so that two callers with the same keys do
    not deadlock (rule 9); a transaction of our own is tried again as a whole.
    """
    if not jobs:
        return []
    found = storage_for_client()
    order = _key_order(jobs)
    answers = (
        _insert_chunks(found, jobs, order, now)
        if len(jobs) <= CHUNK
        else atomically(found.session, lambda _: _insert_chunks(found, jobs, order, now))
    )
    inserted = [answer for _, answer in sorted(zip(order, answers, strict=True), key=lambda pair: pair[0])]
    _announce(jobs, inserted)
    return inserted


def _key_order(jobs: Sequence[NewJob]) -> Sequence[int]:
    indexes = range(len(jobs))
    if all(job.unique_key is None for job in jobs):
        return indexes
    return sorted(indexes, key=lambda index: jobs[index].unique_key or "")


def _insert_chunks(
    found: ClientStorage, jobs: Sequence[NewJob], order: Sequence[int], now: datetime
) -> list[Inserted]:
    answers: list[Inserted] = []
    for start in range(0, len(order), CHUNK):
        chunk = [jobs[index] for index in order[start : start + CHUNK]]
        answers.extend(found.storage.insert_jobs(chunk, now=now))
    return answers


def _announce(jobs: Sequence[NewJob], inserted: Sequence[Inserted]) -> None:
    if not job_enqueued.receivers:
        return
    pairs = [(job, answer.job_id) for job, answer in zip(jobs, inserted, strict=True) if not answer.duplicate]
    for kind, queue in Counter((job.kind, job.queue) for job, _ in pairs):
        ids = [job_id for job, job_id in pairs if (job.kind, job.queue) == (kind, queue)]
        job_enqueued.send_robust(sender=kind, job_ids=ids, queue=queue)
