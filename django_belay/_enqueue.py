"""From a job's arguments and options to a row, and the insert in the caller's transaction."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from django_belay import conf
from django_belay.contract.encryption import encrypt
from django_belay.contract.job import NewJob, UniqueMode
from django_belay.contract.json_value import check_json
from django_belay.contract.uniqueness import window_key
from django_belay.db import ClientStorage, storage_for_client
from django_belay.exceptions import InvalidInput, PayloadTooLarge
from django_belay.registry import JobDefinition, JobOptions
from django_belay.signals import job_enqueued
from django_belay.storage.base import Inserted
from django_belay.storage.postgres.session import atomically

#: Rows of one insert; more gain nothing and hold more memory.
CHUNK = 5_000
#: Of a unique key: an index entry holds 2,704 bytes, and a window adds its number.
MAX_KEY_BYTES = 2_000


Decode = Callable[[dict[str, Any]], Mapping[str, Any]]


class RowMaker:
    """Makes rows of one kind, with one set of options, at one instant.

    What all rows share is worked out once: ``enqueue_many`` makes 100,000 of them.
    """

    def __init__(self, kind: str, options: JobOptions, *, now: datetime, decode: Decode = dict) -> None:
        """``decode`` gives back the arguments that callables among the options want."""
        self._settings = conf.get()
        self._options = options
        self._now = now
        self._decode = decode
        budget = options.budget
        self._shared: dict[str, Any] = {
            "kind": kind,
            "queue": options.queue,
            "meta": dict(options.meta),
            "priority": options.priority,
            "max_attempts": options.max_attempts or self._settings.max_attempts,
            "ready_at": _ready_at(options.run_after, now),
            "budget_usd_micros": budget.usd_micros if budget else None,
            "budget_tokens": budget.tokens if budget else None,
        }
        self._is_plain = options.unique is None and options.partition_key is None and not options.encrypted

    def make(self, value: dict[str, Any], data: bytes, *, path: str = "input") -> NewJob:
        """The row of an input and its JSON, both checked.

        Raises:
            PayloadTooLarge: The input is over ``MAX_INPUT_BYTES``.
            InvalidInput: A callable's unique or partition key cannot be stored.
        """
        if len(data) > self._settings.max_input_bytes:
            limit = self._settings.max_input_bytes
            raise PayloadTooLarge(path, size=len(data), limit=limit, setting='BELAY["MAX_INPUT_BYTES"]')
        if self._is_plain:
            return NewJob(input=value, **self._shared)
        options = self._options
        unique_key, unique_mode = self._unique(value)
        return NewJob(
            input=encrypt(data, self._settings.encryption_keys) if options.encrypted else value,
            partition_key=self._text("partition_key", options.partition_key, value),
            unique_key=unique_key,
            unique_mode=unique_mode,
            **self._shared,
        )

    def _unique(self, value: dict[str, Any]) -> tuple[str | None, UniqueMode | None]:
        unique = self._options.unique
        key = None if unique is None else self._text("unique", unique.key, value)
        if unique is None or key is None:
            return None, None
        if unique.within is not None:
            return window_key(key, window=unique.within, now=self._now), "window"
        return key, unique.scope

    def _text(self, name: str, key: str | Callable[..., str] | None, value: dict[str, Any]) -> str | None:
        """A key given as text or by a callable; a callable may return ``None`` for "no key"."""
        if callable(key):
            key = key(**self._decode(value))
            if key is not None and not (isinstance(key, str) and key):
                raise InvalidInput(
                    f"the callable returned {type(key).__name__}; give a text or None", path=name
                )
        if key is not None:
            check_json(key, path=name)
            if name == "unique" and (size := len(key.encode())) > MAX_KEY_BYTES:
                raise InvalidInput(
                    f"has {size:,} bytes as UTF-8; {MAX_KEY_BYTES:,} are allowed: give a hash of it",
                    path=name,
                )
        return key


class CallMaker:
    """Makes rows of calls of a registered job: arguments in, rows out."""

    def __init__(self, definition: JobDefinition, options: JobOptions, now: datetime) -> None:
        self._codec = definition.codec
        self._max_depth = conf.get().max_depth
        self._rows = RowMaker(definition.kind, options, now=now, decode=definition.codec.decode)

    def make(self, args: Sequence[Any], kwargs: Mapping[str, Any], path: str = "input") -> NewJob:
        """The row of a call.

        Raises:
            InvalidInput: The arguments do not fit the signature, or cannot be stored.
            PayloadTooLarge: The input is over ``MAX_INPUT_BYTES``.
        """
        value, data = self._codec.encode_json(args, kwargs, path=path, max_depth=self._max_depth)
        return self._rows.make(value, data, path=path)


def _ready_at(run_after: datetime | timedelta | None, now: datetime) -> datetime | None:
    if run_after is None:
        return None
    try:
        return now + run_after if isinstance(run_after, timedelta) else run_after.astimezone(UTC)
    except OverflowError:
        raise InvalidInput(f"{run_after!r} is beyond the year 9999", path="run_after") from None


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
