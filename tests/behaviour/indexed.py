"""What a journal's inspection index shows beside what its store holds, both through their public faces."""

from __future__ import annotations

import json
import sqlite3
import time
from contextlib import closing
from dataclasses import fields
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from django_belay.contract.job import Job
from django_belay.storage.base import JobFilter
from django_belay.storage.journal.store.store import JournalStore

JSON = frozenset({"input", "meta", "errors", "wf_deps", "wf_ignore", "payload", "opts"})
COLUMNS = tuple(field.name for field in fields(Job))
PATIENCE_S = 60.0

Rows = dict[str, list[tuple[Any, ...]]]


def shown(path: Path) -> Rows:
    """Every row that a reader of the index finds."""
    address = f"file:{path}?mode=ro"
    with closing(sqlite3.connect(address, uri=True, isolation_level=None)) as connection:
        connection.execute("BEGIN")
        return {
            "jobs": _read(connection, "SELECT * FROM belay_jobs ORDER BY id", COLUMNS),
            "steps": _read(
                connection,
                "SELECT * FROM belay_steps ORDER BY job_id, seq",
                ("job_id", "seq", "name", "value", "usd_micros", "tokens", "inserted_at"),
            ),
            "events": _read(
                connection,
                "SELECT * FROM belay_events ORDER BY job_id, seq",
                ("job_id", "seq", "payload", "inserted_at"),
            ),
            "queues": _read(connection, "SELECT * FROM belay_queues ORDER BY name", ("name", "opts")),
            "crons": _read(
                connection, "SELECT * FROM belay_crons ORDER BY name", ("name", "expression", "worker")
            ),
        }


def held(store: JournalStore) -> Rows:
    """The same of the store."""
    jobs = store.list_jobs(JobFilter(), limit=10**7)[::-1]
    steps = [step for job in jobs for step in store.get_steps(job.id)]
    events = [event for job in jobs for event in store.list_events(job.id)]
    return {
        "jobs": [tuple(getattr(job, name) for name in COLUMNS) for job in jobs],
        "steps": [
            (one.job_id, one.seq, one.name, one.value, one.usd_micros, one.tokens, one.inserted_at)
            for one in steps
        ],
        "events": [(one.job_id, one.seq, one.payload, one.inserted_at) for one in events],
        "queues": [
            (queue.name, queue.opts) for queue in store.list_queues() if queue.updated_at and queue.opts
        ],
        "crons": [(cron.name, cron.expression, cron.kind) for cron in store.list_crons()],
    }


def mark_of(path: Path) -> tuple[str, int] | None:
    """Generation and sequence that the index is at."""
    try:
        with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as connection:
            row = connection.execute("SELECT generation, through FROM belay_index").fetchone()
    except sqlite3.Error:
        return None
    return None if row is None else (row[0], row[1])


def wait_until_shown(store: JournalStore, path: Path) -> None:
    """Return once the index has seen everything that the store holds by now."""
    deadline = time.monotonic() + PATIENCE_S
    wanted = store.durable_sequence()
    while True:
        mark = mark_of(path)
        # Renewals and pruning stand at no sequence of their own: there the lag tells.
        if mark is not None and mark[0] == wanted[0] and mark[1] >= wanted[1] and not store.index_lag():
            return
        assert time.monotonic() < deadline, f"the index is at {mark}, the store at {wanted}"
        time.sleep(0.005)  # the index is written by a thread of its own


def _read(connection: sqlite3.Connection, query: str, columns: tuple[str, ...]) -> list[tuple[Any, ...]]:
    cursor = connection.execute(query)
    names = [column[0] for column in cursor.description]
    found = [dict(zip(names, row, strict=True)) for row in cursor]
    return [tuple(_value(name, row[name]) for name in columns) for row in found]


def _value(name: str, value: Any) -> Any:
    if value is None:
        return None
    if name in JSON:
        return json.loads(value)
    if name.endswith("_at") or name in ("lease_until", "cron_slot"):
        return datetime.fromisoformat(value).replace(tzinfo=UTC)
    return bool(value) if name == "cancel_requested" else value
