"""A journal's rows in the forms that Django's SQLite backend reads, in the columns of the statements."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any, Final

import orjson

from django_belay.contract import json_value
from django_belay.storage.journal.store.instants import to_instant
from django_belay.storage.journal.store.row import Row, unpack

#: Milliseconds of the first and the last instant that the models show (``fields.EARLIEST``, ``LATEST``).
EARLIEST_MS: Final = -62_135_424_000_000
LATEST_MS: Final = 253_402_041_600_000


def json_text(value: Any) -> str:
    """JSON in one form for equal values: compact, keys sorted. ``exact`` compares texts on SQLite."""
    if not value and (value == {} or value == []) and type(value) in (dict, list):
        return "{}" if type(value) is dict else "[]"
    try:
        return orjson.dumps(value, option=orjson.OPT_SORT_KEYS).decode()
    except TypeError:  # an integer beyond 64 bits
        return json_value.dumps(value).decode()


def instant_text(ms: int | None) -> str | None:
    """As Django writes an aware instant: in UTC, with six decimals or none."""
    if ms is None:
        return None
    seconds, rest = divmod(min(max(ms, EARLIEST_MS), LATEST_MS), 1000)
    text = _second_text(seconds)
    return f"{text}.{rest:03d}000" if rest else text


@lru_cache(maxsize=4096)
def _second_text(seconds: int) -> str:
    return to_instant(seconds * 1000).replace(tzinfo=None).isoformat(" ")


def job_columns(row: Row) -> tuple[Any, ...]:
    """The parameters of ``put_jobs``."""
    return (
        row["id"],
        row["kind"],
        row["queue"],
        row["state"],
        json_text(row["input"]),
        json_text(row["meta"]),
        row["priority"],
        row["attempt"],
        row["max_attempts"],
        row["partition_key"],
        instant_text(row["ready_at"]),
        instant_text(row["lease_until"]),
        row["leased_by"],
        row["await_scope"],
        row["await_name"],
        row["workflow_id"],
        row["wf_name"],
        json_text(row["wf_deps"]),
        json_text(row["wf_ignore"]),
        row["cron_name"],
        instant_text(row["cron_slot"]),
        row["unique_key"],
        row["unique_mode"],
        row["parent_id"],
        row["budget_usd_micros"],
        row["budget_tokens"],
        row["spent_usd_micros"],
        row["spent_tokens"],
        unpack(row["result"]),
        json_text(row["errors"]),
        row["cancel_requested"],
        instant_text(row["inserted_at"]),
        instant_text(row["started_at"]),
        instant_text(row["finished_at"]),
    )


# -- tables: a key and its row, None where the wire table has none ------------------------

TableRow = dict[str, Any]


def _step(_: str, row: TableRow) -> tuple[Any, ...]:
    return (
        row["job_id"],
        row["seq"],
        row["name"],
        unpack(row["value"]),
        row["usd_micros"],
        row["tokens"],
        instant_text(row["inserted_at"]),
    )


def _event(_: str, row: TableRow) -> tuple[Any, ...]:
    return row["job_id"], row["seq"], json_text(row["payload"]), instant_text(row["inserted_at"])


def _signal(_: str, row: TableRow) -> tuple[Any, ...]:
    return row["scope"], row["name"], json_text(row["payload"]), instant_text(row["inserted_at"])


def _rate(_: str, row: TableRow) -> tuple[Any, ...]:
    return row["bucket"], row["window_start"], row["count"]


def _queue(name: str, row: TableRow) -> tuple[Any, ...] | None:
    """A queue that is only paused has no row of ``belay_queues`` (rule 2)."""
    return None if row["opts"] is None else (name, json_text(row["opts"]), instant_text(row["updated_at"]))


def _cron(name: str, row: TableRow) -> tuple[Any, ...]:
    return (
        name,
        row["expression"],
        row["kind"],
        json_text(row["input"]),
        json_text(row["opts"]),
        row["paused"],
        instant_text(row["updated_at"]),
    )


TABLES: Final[dict[str, Callable[[str, TableRow], tuple[Any, ...] | None]]] = {
    "steps": _step, "events": _event, "signals": _signal, "rate": _rate, "queues": _queue, "crons": _cron,
}  # fmt: skip


def key_columns(table: str, key: str) -> tuple[Any, ...]:
    """The parameters of ``drop_<table>``."""
    if table in ("steps", "events"):
        job_id, _, seq = key.partition("/")
        return int(job_id), int(seq)
    if table in ("signals", "rate"):
        first, _, second = key.rpartition("\0") if table == "rate" else key.partition("\0")
        return first, int(second) if table == "rate" else second
    return (key,)
