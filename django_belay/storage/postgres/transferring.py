"""An installation's rows on PostgreSQL, whole: see :mod:`django_belay.storage.transferring`."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from typing import Any, Final

from django_belay.contract.envelope import Opaque
from django_belay.contract.job import JSON
from django_belay.exceptions import StorageError
from django_belay.storage.base import CronRow
from django_belay.storage.postgres import runtime
from django_belay.storage.postgres.rows import job_from_row
from django_belay.storage.postgres.session import Params, Rows, Session, Transaction
from django_belay.storage.transferring import BYTES, TABLES, Row, instant, plain, row_of, unpacked

#: Jobs that are read at once, with what belongs to them.
PAGE: Final = 1_000
# The least bigint but one: a literal of the least cannot be written.
_BELOW_ALL: Final = -(2**63 - 1)


class PostgresRows:
    """Reads by a session; writes in one transaction that the caller holds open.

    Args:
        session: Where rows are read.
        transaction: Where they are written.
    """

    def __init__(self, session: Session, transaction: Transaction | None = None) -> None:
        self._session = session
        self._run: Callable[[str, Params | None], Rows] = (
            session.run if transaction is None else transaction.run
        )

    def count(self) -> dict[str, int]:
        [counts] = self._run("dump_counts", None)
        return dict(zip(TABLES, counts, strict=True))

    def running(self) -> int:
        [(running,)] = self._run("dump_running", None)
        return int(running)

    def alive(self, *, since: datetime) -> list[str]:
        return [node.incarnation for node in runtime.list_nodes(self._session) if node.beat_at >= since]

    def dump(self, table: str) -> Iterator[Row]:
        dumps: dict[str, Callable[[], Iterator[Row]]] = {
            "jobs": self._jobs,
            "steps": self._steps,
            "events": self._events,
            "signals": self._signals,
            "rate": lambda: self._all("dump_rate", ("bucket", "window_start", "count")),
            "queues": lambda: self._all(
                "dump_queues", ("name", "opts", "paused", "paused_nodes", "updated_at")
            ),
            "crons": self._crons,
            "slots": lambda: self._all("dump_slots", ("name", "slot", "fired_at")),
        }
        return dumps[table]()

    def _jobs(self) -> Iterator[Row]:
        after = _BELOW_ALL
        while rows := self._run("dump_jobs", {"after": after, "limit": PAGE}):
            jobs = [job_from_row(row) for row in rows]
            yield from (row_of(job) for job in jobs)
            after = jobs[-1].id

    def _of_jobs(self, statement: str) -> Iterator[tuple[Any, ...]]:
        after = _BELOW_ALL
        while ids := [row[0] for row in self._run("dump_ids", {"after": after, "limit": PAGE})]:
            yield from self._run(statement, {"ids": ids})
            after = ids[-1]

    def _steps(self) -> Iterator[Row]:
        # A job's steps are numbered without gaps, whatever a foreign SDK left.
        job_id, seq = None, 0
        for row in self._of_jobs("dump_steps"):
            seq = seq + 1 if row[0] == job_id else 1
            job_id = row[0]
            yield {
                "job_id": job_id,
                "seq": seq,
                "name": row[2],
                "value": plain(row[3]),
                "usd_micros": row[4],
                "tokens": row[5],
                "inserted_at": plain(row[6]),
            }

    def _events(self) -> Iterator[Row]:
        for job_id, seq, payload, inserted_at in self._of_jobs("dump_events"):
            where = f"event {seq} of job {job_id}"
            yield {
                "job_id": job_id,
                "seq": seq,
                "payload": _known(payload, where),
                "inserted_at": plain(inserted_at),
            }

    def _signals(self) -> Iterator[Row]:
        scope = name = ""
        while rows := self._run("dump_signals", {"scope": scope, "name": name, "limit": PAGE}):
            for scope, name, payload, inserted_at in rows:
                where = f"signal {name!r} of {scope!r}"
                yield {
                    "scope": scope,
                    "name": name,
                    "payload": _known(payload, where),
                    "inserted_at": plain(inserted_at),
                }

    def _all(self, statement: str, columns: Sequence[str]) -> Iterator[Row]:
        for row in self._run(statement, None):
            named = zip(columns, row, strict=True)
            yield {name: _known(plain(value), f"{statement} {row[0]!r}") for name, value in named}

    def _crons(self) -> Iterator[Row]:
        for cron in runtime.list_crons(self._session):
            where = f"cron entry {cron.name!r}"
            yield {
                "name": cron.name,
                "expression": cron.expression,
                "kind": cron.kind,
                "input": _known(cron.input, where),
                "opts": _known(cron.opts, where),
                "paused": cron.paused,
                "timezone": cron.timezone,
                "catch_up": cron.catch_up,
                "updated_at": plain(cron.updated_at),
            }

    # -- taking -------------------------------------------------------------

    def load(self, table: str, rows: Sequence[Row], *, now: datetime) -> None:
        if table == "queues":
            for row in rows:
                self._load_queue(row, now)
        elif table == "crons":
            for row in rows:
                self._load_cron(row, now)
        elif rows:
            self._run(f"load_{table}", {"rows": _text([_stored(table, row) for row in rows])})

    def _load_queue(self, row: Row, now: datetime) -> None:
        at = instant(row["updated_at"]) or now
        if row["opts"] is not None:
            self._run("put_queue", {"name": row["name"], "opts": _text(row["opts"]), "now": at})
        if row["paused"]:
            self._run("set_queue_paused", {"name": row["name"], "paused": True, "now": at})
        for node in row["paused_nodes"]:
            self._run("pause_queue_on_node", {"name": row["name"], "node": node, "now": at})

    def _load_cron(self, row: Row, now: datetime) -> None:
        cron = CronRow(**{**row, "updated_at": None})
        params = {name: getattr(cron, name) for name in ("name", "expression", "kind", "paused")}
        params |= {"timezone": cron.timezone, "catch_up": cron.catch_up}
        params |= {"input": _text(cron.input), "opts": _text(cron.opts)}
        self._run("put_cron", {**params, "now": instant(row["updated_at"]) or now})

    def finish(self, *, now: datetime) -> None:
        self._run("load_sequence", None)


def _known(value: JSON, where: str) -> JSON:
    if isinstance(value, Opaque):
        raise StorageError(f"{where} holds what cannot be moved ({value.reason}); mend or delete the row")
    return value


def _stored(table: str, row: Row) -> Row:
    """A row as ``json_populate_recordset`` takes it: bytes in hexadecimal."""
    column = BYTES.get(table)
    if column is None or row[column] is None:
        return row
    data = unpacked(row[column])
    assert data is not None
    return {**row, column: f"\\x{data.hex()}"}


def _text(value: JSON) -> str:
    return json.dumps(value, ensure_ascii=False)
