"""Inserting jobs (§5)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from typing import Any

from django_belay.contract.job import NewJob
from django_belay.contract.notification import Poke, PokePolicy, encode_hint
from django_belay.exceptions import Conflict
from django_belay.storage.base import Inserted
from django_belay.storage.postgres.rows import json_text
from django_belay.storage.postgres.session import Params, Rows, Session, Transaction, atomically

# How often a row is offered whose key was held when it was inserted and free when its
# holder was looked for (rule 8). Each turn means that a holder ended in between.
MAX_ROUNDS = 10
# PostgreSQL refuses a payload of 8000 bytes, and with it the enqueue.
MAX_PAYLOAD_BYTES = 7999

_OPTIONAL = (
    "partition_key", "ready_at", "workflow_id", "wf_name", "wf_deps", "wf_ignore", "cron_name",
    "cron_slot", "unique_key", "unique_mode", "parent_id", "budget_usd_micros", "budget_tokens",
)  # fmt: skip

_Run = Callable[[str, Params], Rows]


def insert_jobs(
    session: Session, jobs: Sequence[NewJob], *, poke: PokePolicy, now: datetime
) -> list[Inserted]:
    """Insert rows, all or none, and answer each by its index.

    One row costs one round trip; its statement is a transaction of its own.

    Raises:
        Conflict: A row without key and cron slot was skipped (rule 7), or the holder
            of a key could not be found in ``MAX_ROUNDS`` turns.

    Contract: §5; rules 7-9, 11.
    """
    if not jobs:
        return []
    pokes = poke.due(_ready_queues(jobs, now), now=now)
    if len(jobs) == 1:
        return _insert(session.run, jobs, pokes=pokes, now=now)
    return atomically(session, lambda transaction: insert_in(transaction, jobs, pokes=pokes, now=now))


def insert_in(
    transaction: Transaction, jobs: Sequence[NewJob], *, pokes: Sequence[str], now: datetime
) -> list[Inserted]:
    """Insert rows as part of a transaction; ``pokes`` are the queues to poke when it commits."""
    return _insert(transaction.run, jobs, pokes=pokes, now=now)


def due_pokes(jobs: Iterable[NewJob], *, poke: PokePolicy, now: datetime) -> list[str]:
    """The queues that inserting ``jobs`` should poke now (rule 11)."""
    return poke.due(_ready_queues(jobs, now), now=now)


def _ready_queues(jobs: Iterable[NewJob], now: datetime) -> set[str]:
    return {
        job.queue for job in jobs if job.state == "ready" and (job.ready_at is None or job.ready_at <= now)
    }


def _insert(run: _Run, jobs: Sequence[NewJob], *, pokes: Sequence[str], now: datetime) -> list[Inserted]:
    answers: dict[int, Inserted] = {}
    left = list(range(len(jobs)))
    for _ in range(MAX_ROUNDS):
        rows = run("insert_jobs", _params([jobs[n] for n in left], pokes=pokes, now=now))
        for n, (job_id, added, holder_id, holder_state, _) in zip(left, rows, strict=True):
            if added:
                answers[n] = Inserted(job_id=job_id, state=jobs[n].state)
            elif holder_id is not None:
                answers[n] = Inserted(job_id=holder_id, state=holder_state, duplicate=True)
            elif not _is_keyed(jobs[n]):
                raise Conflict(_skipped(jobs[n], job_id))
        left = [n for n in left if n not in answers]
        if not left:
            return [answers[n] for n in range(len(jobs))]
    raise Conflict(
        f"{len(left)} jobs were neither inserted nor is the holder of their key to be seen after "
        f"{MAX_ROUNDS} turns, the first one with key {_key(jobs[left[0]])!r}; nothing was inserted. If it "
        "happens again, compare the sequence of belay_jobs.id with the table's highest id"
    )


def _params(jobs: Sequence[NewJob], *, pokes: Sequence[str], now: datetime) -> dict[str, Any]:
    payloads = {queue: encode_hint(Poke(queue)) for queue in pokes}
    fitting = {queue: text for queue, text in payloads.items() if len(text.encode()) <= MAX_PAYLOAD_BYTES}
    return {
        "rows": json_text([_row(job) for job in jobs]),
        "poked": list(fitting),
        "pokes": list(fitting.values()),
        "now": now,
    }


def _row(job: NewJob) -> dict[str, Any]:
    row = {
        "kind": job.kind,
        "queue": job.queue,
        "input": job.input,
        "meta": job.meta,
        "state": job.state,
        "priority": job.priority,
        "max_attempts": job.max_attempts,
    }
    for name in _OPTIONAL:
        value = getattr(job, name)
        if value is not None and value != ():
            row[name] = value
    return row


def _is_keyed(job: NewJob) -> bool:
    return job.unique_key is not None or job.cron_name is not None


def _key(job: NewJob) -> str | None:
    return job.unique_key if job.unique_key is not None else job.cron_name


def _skipped(job: NewJob, job_id: int) -> str:
    return (
        f"a row of kind {job.kind!r} with neither unique key nor cron slot was skipped: id {job_id} is taken, "
        "so the sequence of belay_jobs.id stands behind its table (as after a restore); nothing was inserted. "
        "Set it right with setval(pg_get_serial_sequence('belay_jobs', 'id'), <the table's highest id>)"
    )
