"""The belay_* tables: what makes them, and whether this version can work with them (§1, §3)."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import Any, Final, TypeAlias

import psycopg
from psycopg.pq import TransactionStatus

from django_belay.contract.admission import Partition
from django_belay.exceptions import ContractTooNew, SchemaError, SchemaMissing, SchemaTooOld, Unavailable
from django_belay.storage.postgres.partition import index_name, index_script
from django_belay.storage.postgres.session import Session

CONTRACT_MAJOR: Final = 1
NEWEST_VERSION: Final = 3
MINIMUM_VERSION: Final = 3

NO_PARTITIONS: Final[Mapping[str, Partition]] = {}

LOCK_NAME: Final = "belay_x_migrate"
LOCK_TRIES_S: Final = 600.0
LOCK_POLL_S: Final = 0.2

Connection: TypeAlias = psycopg.Connection[Any]

_INDEXED: Final = re.compile(r"^CREATE INDEX \S+\s+ON (\w+) ", re.MULTILINE)

_MIGRATE_HINT = "run 'manage.py belay_migrate' (or 'migrate') on this database"


@dataclass(slots=True, kw_only=True, frozen=True)
class Step:
    """One thing to apply; ``builds`` names the index that ``script`` creates."""

    title: str
    script: str
    builds: str | None = None
    is_invalid: bool = False


# -- the check at start-up ------------------------------------------------------


def check(session: Session) -> None:
    """Refuse tables that this version cannot work with.

    Raises:
        SchemaMissing: There are none.
        SchemaTooOld: They are older than ``MINIMUM_VERSION``, or this SDK's own are missing.
        ContractTooNew: They speak a higher major of the contract.

    Contract: §1; rule 1.
    """
    [(has_meta, has_local, database)] = session.run("find_schema")
    if not has_meta:
        raise SchemaMissing(f"database {database!r} has no belay_* tables; {_MIGRATE_HINT}")
    [(version, major)] = session.run("read_meta")
    _refuse_major(database, major)
    if version is None or version < MINIMUM_VERSION:
        raise SchemaTooOld(
            f"database {database!r} has schema migration {version or 0}, at least {MINIMUM_VERSION} is needed; "
            f"{_MIGRATE_HINT}"
        )
    if not has_local:
        raise SchemaTooOld(
            f"database {database!r} has schema migration {version} but lacks this SDK's own tables or indexes "
            "(belay_x_*); run 'manage.py belay_migrate' on it ('migrate' has run already and does nothing more)"
        )


def _refuse_major(database: str, major: int) -> None:
    if major > CONTRACT_MAJOR:
        raise ContractTooNew(
            f"database {database!r} speaks wire contract {major}, this version of django-belay knows "
            f"{CONTRACT_MAJOR}; upgrade django-belay"
        )


# -- migrating --------------------------------------------------------------------


def migrate(
    connection: Connection, *, plan: bool = False, partitions: Mapping[str, Partition] = NO_PARTITIONS
) -> list[str]:
    """Bring the tables up to date; whoever made them, no row of a job is touched.

    Idempotent, and one at a time in a database. Outside a transaction, indexes on
    tables with rows are built concurrently; inside one they are refused.

    Args:
        plan: Change nothing; say what would run.
        partitions: Queues whose claims get an index by key (see :mod:`.partition`).

    Returns:
        What was applied, or would be, in order.

    Raises:
        ContractTooNew: The database speaks a higher major; nothing was changed.
        Unavailable: Another migration held the lock for ten minutes.

    Contract: §1, §3; rules 1, 2.
    """
    if plan:
        return [step.title for step in pending(connection, partitions)]
    with _locked(connection):
        steps = pending(connection, partitions)
        for step in steps:
            _apply(connection, step)
    return [step.title for step in steps]


def pending(connection: Connection, partitions: Mapping[str, Partition] = NO_PARTITIONS) -> list[Step]:
    """What is still to be applied, in order; reads the catalog only."""
    steps = [*_pending_wire(connection), *_pending_local(connection)]
    for queue, partition in partitions.items():
        script = index_script(queue, partition, connection)
        steps += _pending_index(
            connection, index_name(queue, partition), script, f" (keys of queue {queue!r})"
        )
    return steps


def _pending_wire(connection: Connection) -> list[Step]:
    found = _found_version(connection)
    scripts = _scripts("wire")
    steps = [
        Step(title=f"wire migration {int(name[:4])} ({name[5:]})", script=text)
        for name, text in scripts.items()
        if name != "0000_meta" and int(name[:4]) > (found or 0)
    ]
    if found is None:
        steps.insert(0, Step(title="table belay_meta", script=scripts["0000_meta"]))
    return steps


def _found_version(connection: Connection) -> int | None:
    """The migration the database stands at; ``None`` without ``belay_meta``."""
    if not _exists(connection, "belay_meta"):
        return None
    version, major, database = _one(
        connection,
        "SELECT COALESCE(max(m.version), 0), COALESCE(max((to_jsonb(m) ->> 'contract_major')::int), 1), "
        "current_database()::text FROM belay_meta AS m",
    )
    _refuse_major(database, major)
    return int(version)


def _pending_local(connection: Connection) -> list[Step]:
    steps: list[Step] = []
    for name, text in _scripts("local").items():
        if name == "tables":
            missing = [table for table in LOCAL_TABLES if not _exists(connection, table)]
            if missing:
                steps.append(Step(title=f"own tables {', '.join(missing)}", script=text))
        elif name.startswith("storage_"):
            if not _has_options(connection, name.removeprefix("storage_"), text):
                steps.append(
                    Step(title=f"storage parameters of {name.removeprefix('storage_')}", script=text)
                )
        else:
            steps += _pending_index(connection, name, text)
    return steps


LOCAL_TABLES: Final = (
    "belay_x_nodes", "belay_x_cron_slots", "belay_x_waiters", "belay_x_queues", "belay_x_queue_pauses",
    "belay_x_crons",
)  # fmt: skip


def _pending_index(connection: Connection, name: str, text: str, note: str = "") -> list[Step]:
    if not _exists(connection, name):
        return [Step(title=f"own index {name}{note}", script=text, builds=name)]
    (is_valid,) = _one(
        connection,
        "SELECT i.indisvalid FROM pg_catalog.pg_index AS i WHERE i.indexrelid = to_regclass(%(name)s::text)",
        name=name,
    )
    if is_valid:
        return []
    return [Step(title=f"own index {name}{note} (invalid: again)", script=text, builds=name, is_invalid=True)]


def _has_options(connection: Connection, table: str, text: str) -> bool:
    if not _exists(connection, table):
        return False
    (found,) = _one(
        connection,
        "SELECT c.reloptions FROM pg_catalog.pg_class AS c WHERE c.oid = to_regclass(%(name)s::text)",
        name=table,
    )
    inside = text[text.index("(", text.index("SET")) + 1 : text.rindex(")")]
    wanted = {"".join(option.split()) for option in inside.split(",")}
    return wanted <= set(found or ())


# -- applying -----------------------------------------------------------------------


def _apply(connection: Connection, step: Step) -> None:
    if step.builds is not None:
        _build(connection, step, step.builds)
        return
    with nullcontext() if _in_transaction(connection) else connection.transaction():
        connection.execute(step.script.encode(), prepare=False)


def _build(connection: Connection, step: Step, index: str) -> None:
    """Build an index: concurrently where the table has rows, since writers would wait otherwise."""
    table = _INDEXED.search(step.script)[1]  # type: ignore[index]
    (has_rows,) = _one(connection, f"SELECT EXISTS (SELECT FROM {table})")  # noqa: S608 - a packaged name
    if not has_rows:
        if step.is_invalid:
            connection.execute(f"DROP INDEX {index}".encode())
        connection.execute(step.script.encode(), prepare=False)
        return
    if _in_transaction(connection):
        raise SchemaError(
            f"index {index} is missing and {table} has rows: it can only be built outside a transaction; "
            "run 'manage.py belay_migrate'"
        )
    if step.is_invalid:
        connection.execute(f"DROP INDEX CONCURRENTLY {index}".encode(), prepare=False)
    concurrently = step.script.replace("CREATE INDEX ", "CREATE INDEX CONCURRENTLY ", 1)
    connection.execute(concurrently.encode(), prepare=False)


@contextmanager
def _locked(connection: Connection) -> Iterator[None]:
    """Hold the migration's lock on this very connection.

    Tried and tried again rather than waited for: a waiting statement holds a snapshot,
    and a concurrent build waits for every snapshot to end, so the two would deadlock.
    """
    if _in_transaction(connection):
        _one(connection, "SELECT pg_advisory_xact_lock(hashtextextended(%(name)s::text, 0))", name=LOCK_NAME)
        yield
        return
    _wait_for_lock(connection)
    try:
        yield
    finally:
        if not connection.closed:
            _one(connection, "SELECT pg_advisory_unlock(hashtextextended(%(name)s::text, 0))", name=LOCK_NAME)


def _wait_for_lock(connection: Connection) -> None:
    give_up_at = time.monotonic() + LOCK_TRIES_S
    ask = "SELECT pg_try_advisory_lock(hashtextextended(%(name)s::text, 0))"
    while not _one(connection, ask, name=LOCK_NAME)[0]:
        if time.monotonic() > give_up_at:
            raise Unavailable(
                f"another process has been migrating for {LOCK_TRIES_S / 60:.0f} minutes (advisory lock "
                f"{LOCK_NAME!r}); let it end, or end it, and run this again"
            )
        time.sleep(LOCK_POLL_S)


def _in_transaction(connection: Connection) -> bool:
    return not connection.autocommit or connection.info.transaction_status != TransactionStatus.IDLE


def _exists(connection: Connection, relation: str) -> bool:
    (found,) = _one(connection, "SELECT to_regclass(%(name)s::text) IS NOT NULL", name=relation)
    return bool(found)


def _one(connection: Connection, query: str, **params: object) -> tuple[Any, ...]:
    row: tuple[Any, ...] | None = connection.execute(query.encode(), params or None, prepare=False).fetchone()
    assert row is not None
    return row


# -- the packaged scripts -------------------------------------------------------------


@cache
def _scripts(folder: str) -> dict[str, str]:
    """The scripts of a folder by name, in the order they are applied: tables, then the rest by name."""
    root = files("django_belay.storage.postgres").joinpath("schema", folder)
    named = {_stem(entry): entry for entry in root.iterdir() if entry.name.endswith(".sql")}
    ordered = sorted(named, key=lambda name: (name != "tables", name))
    return {name: named[name].read_text(encoding="utf-8") for name in ordered}


def _stem(entry: Traversable) -> str:
    return entry.name.removesuffix(".sql")
