"""PostgreSQL: the client's statements run on the caller's own Django connection, a worker's in a pool.

:class:`DjangoSession` is a storage session over ``connections[alias]``. Statements go
through Django's cursor, so that ``assertNumQueries`` and the debug log see them, and an
insert joins the transaction that the caller has open (rule 10).
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from datetime import datetime
from functools import lru_cache
from threading import Lock
from typing import Any

import psycopg
from django.core.signals import setting_changed
from django.db import Error as DjangoDatabaseError
from django.db import connections, transaction
from psycopg.conninfo import conninfo_to_dict

from django_belay import conf
from django_belay.contract.job import NewJob
from django_belay.contract.workflow_graph import duplicate_member, id_taken
from django_belay.db.client_storage import Insertion, Then
from django_belay.db.transactions import CallersTransaction
from django_belay.exceptions import ConfigurationError
from django_belay.storage.base import Inserted, Storage
from django_belay.storage.postgres.locks import lock
from django_belay.storage.postgres.pool import PoolOptions, PoolSession
from django_belay.storage.postgres.rows import register_loaders
from django_belay.storage.postgres.session import (
    Params,
    Rows,
    Session,
    Transaction,
    atomically,
    retried,
    translated,
)
from django_belay.storage.postgres.statements import is_unprepared, statement
from django_belay.storage.postgres.store import PostgresStore

#: A statement is prepared when it comes for the third time on a connection.
PREPARE_AFTER = 2

_BEGIN = "BEGIN ISOLATION LEVEL READ COMMITTED"


class DjangoSession(CallersTransaction):
    """A :class:`~django_belay.storage.postgres.session.Session` over a Django connection.

    Safe to share between threads: each has a connection of its own in ``connections``.

    Args:
        prepare: Prepare statements that come again on a connection.
    """

    def __init__(self, alias: str, *, prepare: bool = False) -> None:
        super().__init__(alias)
        self._prepare = prepare

    def run(self, name: str, params: Params | None = None) -> Rows:
        return retried(self, lambda: self._run(name, params))

    def _run(self, name: str, params: Params | None) -> Rows:
        with translated(), _driver_errors(), self._cursor(is_unprepared(name)) as cursor:
            cursor.execute(statement(name), params)
            return cursor.fetchall() if cursor.description else []

    @contextmanager
    def _cursor(self, is_unprepared: bool = False) -> Iterator[Any]:
        """Django's cursor, or one in its wrappers that binds on the server: planning costs more than most
        statements, and only a bound one can be prepared."""
        connection = self.connection
        if not self._prepares():
            with connection.cursor() as cursor:
                register_loaders(cursor.cursor)
                yield cursor
            return
        raw: psycopg.Connection[Any] = connection.connection
        bound = psycopg.Cursor(raw)
        register_loaders(bound)
        before, raw.prepare_threshold = raw.prepare_threshold, None if is_unprepared else PREPARE_AFTER
        try:
            with connection._prepare_cursor(bound) as cursor:  # type: ignore[attr-defined]
                yield cursor
        finally:
            raw.prepare_threshold = before

    def _prepares(self) -> bool:
        """Whether statements may be prepared on this thread's connection, which is open then.

        A database that Django is told to keep server-side cursors away from sits behind a pooler that
        gives each transaction another connection. Where Django logs its queries, they are to be read with
        their values.
        """
        connection = self.connection
        is_pooled = connection.settings_dict.get("DISABLE_SERVER_SIDE_CURSORS")
        if not self._prepare or is_pooled or connection.queries_logged:
            return False
        connection.close_if_health_check_failed()
        connection.ensure_connection()
        return True

    def run_together(self, names: Sequence[str], params: Params) -> list[Rows]:
        if self.is_joined() or not (self._prepares() and psycopg.capabilities.has_pipeline()):
            return atomically(self, lambda transaction: [transaction.run(name, params) for name in names])
        return retried(self, lambda: self._run_as_one(names, params))

    def _run_as_one(self, names: Sequence[str], params: Params) -> list[Rows]:
        """A whole transaction in one round trip; PostgreSQL gives each of its statements its own snapshot."""
        cursors: list[Any] = []
        try:
            with translated(), _driver_errors(), ExitStack() as stack:
                begin = stack.enter_context(self._cursor())
                stack.enter_context(self.connection.connection.pipeline())
                begin.execute(_BEGIN)
                for name in names:
                    cursors.append(stack.enter_context(self._cursor(is_unprepared(name))))
                    cursors[-1].execute(statement(name), params)
                begin.execute("COMMIT")
                return [cursor.fetchall() for cursor in cursors]
        except BaseException:
            self._abandon()
            raise

    def _abandon(self) -> None:
        """Roll back what a failed statement left open; a connection that is gone rolled back by itself."""
        with suppress(psycopg.Error):
            self.connection.connection.rollback()

    @contextmanager
    def transaction(self) -> Iterator[Transaction]:
        joins = self.is_joined()
        with translated(), _driver_errors(), transaction.atomic(using=self.alias, savepoint=False):
            if not joins:
                self.run("set_read_committed")
            yield self

    def pause(self, seconds: float) -> None:
        time.sleep(seconds)

    def close(self) -> None:
        """Leave the connection alone: it is the caller's."""

    @contextmanager
    def durable(self) -> Iterator[None]:
        """The outermost transaction of this thread's connection, READ COMMITTED (rule 31).

        Raises:
            ConfigurationError: A transaction is open already.
        """
        if self.is_in_callers_transaction():
            raise ConfigurationError(
                f"an atomic step opens the outermost transaction on the database {self.alias!r}, but one is "
                "open already: the job's row would stay locked and block its lease's renewal. "
                "Leave the atomic() block before ctx.step(…, atomic=True)"
            )
        joins = self.is_joined()
        with transaction.atomic(using=self.alias, durable=True):
            if not joins:
                self.run("set_read_committed")
            yield


class _UncountedSession(DjangoSession):
    """Beneath Django's cursor: the schema's check must not disturb a caller's query counts."""

    def _run(self, name: str, params: Params | None) -> Rows:
        connection = self.connection
        with translated(), _driver_errors():
            connection.ensure_connection()
            with connection.connection.cursor() as cursor:
                register_loaders(cursor)
                cursor.execute(statement(name), params)
                return cursor.fetchall() if cursor.description else []


@contextmanager
def _driver_errors() -> Iterator[None]:
    """Give the adapter the driver's error back that Django wrapped."""
    try:
        yield
    except DjangoDatabaseError as error:
        if isinstance(error.__cause__, psycopg.Error):
            raise error.__cause__ from None
        raise  # Django's own, such as TransactionManagementError


class DjangoStore(PostgresStore):
    """The PostgreSQL storage where a Django connection to the same database is at hand."""

    def __init__(self, session: Session, *, alias: str, **options: Any) -> None:
        super().__init__(session, **options)
        self._django = DjangoSession(alias)

    @contextmanager
    def atomic_step(self) -> Iterator[Storage]:
        """The storage on this thread's Django connection, in its outermost transaction (rule 31)."""
        with self._django.durable():
            yield PostgresStore(self._django, poke=self.poke)


# -- storages --------------------------------------------------------------------


#: Rows of one insert; more gain nothing and hold more memory.
CHUNK = 5_000


class PostgresClient:
    """The storage over the caller's own connection: what it writes is part of the caller's transaction."""

    def __init__(self, storage: Storage, session: DjangoSession) -> None:
        self.storage = storage
        self.session = session

    def insert(self, jobs: Sequence[NewJob], *, now: datetime, then: Then) -> Insertion:
        """Chunk by chunk in one transaction.

        Rows go in the order of their unique keys, so that two callers with the same keys do
        not deadlock (rule 9); a transaction of our own is tried again as a whole.
        """
        order = _key_order(jobs)
        answers = (
            self._insert_chunks(jobs, order, now)
            if len(jobs) <= CHUNK
            else atomically(self.session, lambda _: self._insert_chunks(jobs, order, now))
        )
        inserted = dict(zip(order, answers, strict=True))
        by_index = [inserted[index] for index in range(len(jobs))]
        then(by_index)
        return Insertion(by_index)

    def _insert_chunks(self, jobs: Sequence[NewJob], order: Sequence[int], now: datetime) -> list[Inserted]:
        answers: list[Inserted] = []
        for start in range(0, len(order), CHUNK):
            chunk = [jobs[index] for index in order[start : start + CHUNK]]
            answers.extend(self.storage.insert_jobs(chunk, now=now))
        return answers

    def insert_workflow(
        self, jobs: Sequence[NewJob], *, workflow_id: str, now: datetime, then: Then
    ) -> Insertion:
        """In one statement; whoever catches the refusal goes on in a transaction without our rows."""

        def work(_: object = None) -> list[Inserted]:
            return self._insert_members(jobs, workflow_id, now)

        if self.session.is_joined():
            with transaction.atomic(using=self.session.alias):  # a savepoint
                inserted = work()
        else:
            inserted = atomically(self.session, work)
        then(inserted)
        return Insertion(inserted)

    def _insert_members(self, jobs: Sequence[NewJob], workflow_id: str, now: datetime) -> list[Inserted]:
        with self.session.transaction() as opened:
            # Two that are given the same id: the second waits here, and then sees the first.
            lock(opened, workflows=[workflow_id])
            if self.storage.workflow_states(workflow_id):
                raise id_taken(workflow_id)
            inserted = self.storage.insert_jobs(jobs, now=now)
        for job, answer in zip(jobs, inserted, strict=True):
            if answer.duplicate:
                raise duplicate_member(job, answer.job_id, answer.state)
        return inserted

    def is_uncommitted(self, job_id: int) -> bool:
        """Asked of the row's own transaction id."""
        return self.session.run("is_uncommitted", {"id": job_id}) == [(True,)]


def _key_order(jobs: Sequence[NewJob]) -> Sequence[int]:
    indexes = range(len(jobs))
    if all(job.unique_key is None for job in jobs):
        return indexes
    return sorted(indexes, key=lambda index: jobs[index].unique_key or "")


_checked: set[tuple[str, str, str]] = set()
_checking = Lock()


def storage_for_client() -> PostgresClient:
    """The storage over the caller's own connection; its schema was checked once (§1).

    Raises:
        ConfigurationError: ``BELAY`` does not fit.
        SchemaError: The database is not one that this version can work with.
    """
    found = _client_storage()
    _check_schema_once(found.session.alias)
    return found


def storage_for_worker(*, pool_size: int = 4, application_name: str = "belay") -> Storage:
    """A storage over a pool of its own, for the caller to close.

    ``pool_size`` gives way to the option of that name.
    """
    options = conf.get().postgres
    session = worker_session(pool_size=pool_size, application_name=application_name)
    return _postgres_store(session, options, combines=True)


@contextmanager
def storage_for_supervisor(*, pool_size: int, application_name: str) -> Iterator[Storage]:
    """As :func:`storage_for_worker`; closed in the end."""
    storage = storage_for_worker(pool_size=pool_size, application_name=application_name)
    try:
        yield storage
    finally:
        storage.close()


def worker_session(*, pool_size: int = 4, application_name: str = "belay") -> PoolSession:
    """A pool with the connection parameters of the storage's Django database."""
    options = conf.get().postgres
    return PoolSession(
        connect_params(options.database),
        PoolOptions(
            size=options.pool_size or pool_size,
            prepare=options.prepare,
            statement_timeout_s=options.statement_timeout,
            connect_timeout_s=options.connect_timeout,
            application_name=application_name,
        ),
    )


def connect_params(alias: str) -> dict[str, Any]:
    """psycopg's parameters of a Django database, in the role that Django takes there."""
    connection = postgres_connection(alias)
    params = dict(connection.get_connection_params())
    if role := connection.settings_dict["OPTIONS"].get("assume_role"):
        escaped = re.sub(r"([\\\s])", r"\\\1", role)
        params["options"] = f"{params.get('options', '')} -c role={escaped}".strip()
    return params


def postgres_connection(alias: str) -> Any:
    """This thread's connection of an alias.

    Raises:
        ConfigurationError: No such database, or not PostgreSQL.
    """
    path = 'BELAY["STORAGE"]["OPTIONS"]["database"]'
    if alias not in connections:
        raise ConfigurationError(
            f"{path}: there is no database {alias!r}; DATABASES has {', '.join(sorted(connections))}"
        )
    connection = connections[alias]
    if connection.vendor != "postgresql":
        raise ConfigurationError(
            f"{path}: the database {alias!r} is {connection.vendor}; name a PostgreSQL one, "
            'or use the journal: {"BACKEND": "django_belay.storage.journal"}'
        )
    return connection


@lru_cache(maxsize=1)
def _client_storage() -> PostgresClient:
    found = conf.get()
    postgres_connection(found.postgres.database)
    session = DjangoSession(found.postgres.database, prepare=found.postgres.prepare)
    return PostgresClient(_postgres_store(session, found.postgres), session)


def _forget(*, setting: str, **_: Any) -> None:
    if setting in ("BELAY", "DATABASES"):
        _client_storage.cache_clear()


setting_changed.connect(_forget, dispatch_uid="django_belay.db.postgres")


def _check_schema_once(alias: str) -> None:
    settings: Mapping[str, Any] = connections[alias].settings_dict
    database = (alias, str(settings.get("HOST")), str(settings.get("NAME")))
    if database in _checked:
        return
    with _checking:
        _postgres_store(_UncountedSession(alias), conf.get().postgres).check_schema()
        _checked.add(database)


def _postgres_store(
    session: Session, options: conf.PostgresOptions, *, combines: bool = False
) -> DjangoStore:
    return DjangoStore(
        session,
        combines=combines,
        alias=options.database,
        poke=conf.poke_policy(),
        listen_params=listen_params(options),
    )


def listen_params(options: conf.PostgresOptions) -> dict[str, Any] | None:
    """psycopg's parameters of a direct connection to LISTEN on; ``None`` with ``NOTIFY`` off (§9.2)."""
    if conf.get().notify == "off":
        return None
    if options.listen_dsn is not None:
        return dict(conninfo_to_dict(options.listen_dsn))
    return connect_params(options.database)
