"""The worker's own connections: a bounded psycopg pool with every wait bounded."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import psycopg
from psycopg import IsolationLevel
from psycopg_pool import ConnectionPool, PoolTimeout

from django_belay.exceptions import Unavailable
from django_belay.storage.postgres.bounded import BoundedConnection
from django_belay.storage.postgres.rows import register_loaders
from django_belay.storage.postgres.session import Params, Rows, atomically, retried, translated
from django_belay.storage.postgres.statements import is_unprepared, statement

# psycopg-pool warns at every failed reconnection; the storage reports it once as Unavailable.
logging.getLogger("psycopg.pool").setLevel(logging.ERROR)

TCP_KEEPALIVE: Mapping[str, Any] = {
    "keepalives": 1,
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 30_000,
}


@dataclass(slots=True, kw_only=True, frozen=True)
class PoolOptions:
    """How the worker connects; durations in seconds.

    ``prepare=False`` keeps to unnamed statements for old transaction poolers.
    """

    size: int = 4
    prepare: bool = True
    statement_timeout_s: float = 30.0
    connect_timeout_s: float = 10.0
    application_name: str = "belay"


class PoolSession:
    """A :class:`~django_belay.storage.postgres.session.Session` over a pool of its own."""

    def __init__(self, connect_params: Mapping[str, Any], options: PoolOptions | None = None) -> None:
        """Open lazily; ``connect_params`` are psycopg's (no pool is made for a bad host)."""
        self._options = options or PoolOptions()
        self._last_failure: Exception | None = None
        self._pool: ConnectionPool[BoundedConnection] = ConnectionPool(
            connection_class=self._connection_class(),
            kwargs=_connection_kwargs(connect_params, self._options),
            min_size=0,
            max_size=self._options.size,
            timeout=self._options.connect_timeout_s,
            reconnect_timeout=self._options.connect_timeout_s,
            configure=self._configure,
            open=True,
        )

    def run(self, name: str, params: Params | None = None) -> Rows:
        return retried(self, lambda: self._run(name, params))

    def _run(self, name: str, params: Params | None) -> Rows:
        with translated(), self._connection() as connection:
            return _execute(connection, name, params)

    def run_together(self, names: Sequence[str], params: Params) -> list[Rows]:
        return atomically(self, lambda transaction: [transaction.run(name, params) for name in names])

    @contextmanager
    def transaction(self) -> Iterator[_PoolTransaction]:
        with translated(), self._connection() as connection, connection.transaction():
            yield _PoolTransaction(connection)

    def is_joined(self) -> bool:
        return False

    def pause(self, seconds: float) -> None:
        time.sleep(seconds)

    def close(self) -> None:
        self._pool.close(timeout=1.0)

    @contextmanager
    def _connection(self) -> Iterator[psycopg.Connection[tuple[Any, ...]]]:
        try:
            with self._pool.connection() as connection:
                yield connection
        except PoolTimeout as error:
            raise Unavailable(
                f"no PostgreSQL connection within {self._options.connect_timeout_s:g} s: {self._why()}"
            ) from error

    def _connection_class(self) -> type[BoundedConnection]:
        """Connections that leave behind why they could not be made: the pool tells nobody."""
        session = self

        class Told(BoundedConnection):
            @classmethod
            def connect(cls, *args: Any, **kwargs: Any) -> Any:
                try:
                    connection = super().connect(*args, **kwargs)
                except Exception as error:
                    session._last_failure = error
                    raise
                session._last_failure = None
                return connection

        return Told

    def _why(self) -> str:
        failure = self._last_failure
        if failure is None:
            return "all of the pool's are in use, or the server does not answer"
        return " ".join(str(failure).split())[:500]

    def _configure(self, connection: BoundedConnection) -> None:
        connection.answer_within_s = self._options.statement_timeout_s
        register_loaders(connection)
        connection.isolation_level = IsolationLevel.READ_COMMITTED
        connection.prepare_threshold = 5 if self._options.prepare else None


@dataclass(slots=True)
class _PoolTransaction:
    connection: psycopg.Connection[tuple[Any, ...]]

    def run(self, name: str, params: Params | None = None) -> Rows:
        return _execute(self.connection, name, params)


def _execute(connection: psycopg.Connection[tuple[Any, ...]], name: str, params: Params | None) -> Rows:
    prepare = False if is_unprepared(name) else None
    cursor = connection.execute(statement(name), params, prepare=prepare)
    return cursor.fetchall() if cursor.description else []


def _connection_kwargs(connect_params: Mapping[str, Any], options: PoolOptions) -> dict[str, Any]:
    params = {
        key: value
        for key, value in connect_params.items()
        if key not in ("cursor_factory", "context", "prepare_threshold", "autocommit")
    }
    params.setdefault("connect_timeout", max(1, round(options.connect_timeout_s)))
    return {**TCP_KEEPALIVE, "application_name": options.application_name, **params, "autocommit": True}
