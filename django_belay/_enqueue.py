"""From a job's arguments and options to a row, and the insert with the caller's transaction."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from django_belay import conf
from django_belay.contract.job import NewJob
from django_belay.db import Insertion, storage_for_client
from django_belay.engine.rows import Decode, RowMaker
from django_belay.registry import JobDefinition, JobOptions
from django_belay.signals import job_enqueued
from django_belay.storage.base import Inserted


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


def insert_one(job: NewJob, now: datetime) -> Insertion:
    """Insert a row with the caller's transaction, or on its own."""
    return insert_many([job], now)


def insert_many(jobs: Sequence[NewJob], now: datetime) -> Insertion:
    """Insert all rows or none, with the caller's transaction; answers by index."""
    if not jobs:
        return Insertion([])
    return storage_for_client().insert(jobs, now=now, then=lambda inserted: announce(jobs, inserted))


def announce(jobs: Sequence[NewJob], inserted: Sequence[Inserted]) -> None:
    """Send ``job_enqueued`` for the rows that were inserted, once a kind and queue."""
    if not job_enqueued.receivers:
        return
    pairs = [(job, answer.job_id) for job, answer in zip(jobs, inserted, strict=True) if not answer.duplicate]
    for kind, queue in Counter((job.kind, job.queue) for job, _ in pairs):
        ids = [job_id for job, job_id in pairs if (job.kind, job.queue) == (kind, queue)]
        job_enqueued.send_robust(sender=kind, job_ids=ids, queue=queue)
