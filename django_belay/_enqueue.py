"""From a job's arguments and options to a row, and the insert in the caller's transaction."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from django_belay import conf
from django_belay.contract.job import NewJob
from django_belay.db import ClientStorage, storage_for_client
from django_belay.engine.rows import Decode, RowMaker
from django_belay.registry import JobDefinition, JobOptions
from django_belay.signals import job_enqueued
from django_belay.storage.base import Inserted
from django_belay.storage.postgres.session import atomically

#: Rows of one insert; more gain nothing and hold more memory.
CHUNK = 5_000


def row_maker(kind: str, options: JobOptions, *, now: datetime, decode: Decode = dict) -> RowMaker:
    """A maker of rows that holds them to the settings."""
    return RowMaker(kind, options, limits=conf.get(), now=now, decode=decode)


class CallMaker:
    """Makes rows of calls of a registered job: arguments in, rows out."""

    def __init__(self, definition: JobDefinition, options: JobOptions, now: datetime) -> None:
        self._codec = definition.codec
        self._max_depth = conf.get().max_depth
        self._rows = row_maker(definition.kind, options, now=now, decode=definition.codec.decode)

    def make(self, args: Sequence[Any], kwargs: Mapping[str, Any], path: str = "input") -> NewJob:
        """The row of a call.

        Raises:
            InvalidInput: The arguments do not fit the signature, or cannot be stored.
            PayloadTooLarge: The input is over ``MAX_INPUT_BYTES``.
        """
        value, data = self._codec.encode_json(args, kwargs, path=path, max_depth=self._max_depth)
        return self._rows.make(value, data, path=path)


# -- inserting -------------------------------------------------------------------


def insert_one(job: NewJob, now: datetime) -> Inserted:
    """Insert a row in the caller's transaction, or on its own."""
    found = storage_for_client()
    (inserted,) = found.storage.insert_jobs([job], now=now)
    announce([job], [inserted])
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
    inserted = dict(zip(order, answers, strict=True))
    by_index = [inserted[index] for index in range(len(jobs))]
    announce(jobs, by_index)
    return by_index


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


def announce(jobs: Sequence[NewJob], inserted: Sequence[Inserted]) -> None:
    """Send ``job_enqueued`` for the rows that were inserted, once a kind and queue."""
    if not job_enqueued.receivers:
        return
    pairs = [(job, answer.job_id) for job, answer in zip(jobs, inserted, strict=True) if not answer.duplicate]
    for kind, queue in Counter((job.kind, job.queue) for job, _ in pairs):
        ids = [job_id for job, job_id in pairs if (job.kind, job.queue) == (kind, queue)]
        job_enqueued.send_robust(sender=kind, job_ids=ids, queue=queue)
