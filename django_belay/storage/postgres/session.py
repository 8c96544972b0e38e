"""Where statements run: the worker's own pool, or the caller's Django connection.

The storage is written against these two protocols. ``PoolSession`` stands in
:mod:`django_belay.storage.postgres.pool`, the session over Django's connection in
``django_belay.db``.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Protocol, TypeAlias, TypeVar

import psycopg
from psycopg import errors as pg

from django_belay.exceptions import Conflict, Contended, SchemaMissing, StorageError, Unavailable

Params: TypeAlias = Mapping[str, Any]
Rows: TypeAlias = list[tuple[Any, ...]]
T = TypeVar("T")

MAX_TRIES = 8


class Transaction(Protocol):
    """An open transaction."""

    def run(self, name: str, params: Params | None = None) -> Rows:
        """Execute ``sql/<name>.sql`` and return all its rows."""
        ...


class Session(Protocol):
    """A source of connections; safe to share between threads."""

    def run(self, name: str, params: Params | None = None) -> Rows:
        """Execute one statement: in the caller's open transaction, else committed on its own."""
        ...

    def run_together(self, names: Sequence[str], params: Params) -> list[Rows]:
        """Execute statements in one transaction, sent at once where the driver can; rows of each.

        Every statement sees what was committed before it began, as in ``transaction``.
        """
        ...

    def transaction(self) -> AbstractContextManager[Transaction]:
        """A READ COMMITTED transaction of its own, or a savepoint-free part of the caller's."""
        ...

    def is_joined(self) -> bool:
        """Whether a caller's transaction is open: then nothing here may be tried again."""
        ...

    def pause(self, seconds: float) -> None:
        """Wait before a whole operation is tried again."""
        ...

    def close(self) -> None: ...


def atomically(session: Session, operation: Callable[[Transaction], T]) -> T:
    """Run ``operation`` in a transaction; as a whole again after a deadlock or serialization failure.

    Inside a caller's transaction it runs once: what failed there takes the whole
    transaction with it.

    Raises:
        Unavailable: The database cannot be reached, or tries ran out.
    """

    def whole() -> T:
        with session.transaction() as transaction:
            return operation(transaction)

    return retried(session, whole)


def retried(session: Session, operation: Callable[[], T]) -> T:
    """Run ``operation``; again after a deadlock or serialization failure, unless a caller's transaction is open.

    A statement alone needs it too: it has the isolation level that the database gives by
    default, and under REPEATABLE READ waiting for a row that changes fails.
    """
    for attempt in range(1, MAX_TRIES + 1):
        try:
            return operation()
        except Contended:
            if session.is_joined() or attempt == MAX_TRIES:
                raise
            session.pause(_contention_delay(attempt))
    raise AssertionError("unreachable")


def _contention_delay(attempt: int) -> float:
    """Seconds to wait after the n-th try, at random and longer each time."""
    return random.uniform(0, 0.01 * 2**attempt)  # noqa: S311 - spreads contenders, no secret


_UNAVAILABLE = (
    psycopg.InterfaceError,
    pg.QueryCanceled,
    pg.ReadOnlySqlTransaction,
    pg.IdleInTransactionSessionTimeout,
    pg.InFailedSqlTransaction,
)

# Operational errors to the driver, but of the statement alone: trying again never helps, and an
# acknowledger would take one for an outage.
_BEYOND_LIMITS = (pg.ProgramLimitExceeded, pg.StatementTooComplex, pg.TooManyColumns, pg.TooManyArguments)


@contextmanager
def translated() -> Iterator[None]:
    """Turn driver errors into this package's, once, at the edge of the adapter."""
    try:
        yield
    except (pg.DeadlockDetected, pg.SerializationFailure, pg.LockNotAvailable) as error:
        raise Contended(f"other transactions hold what this one needs: {_first_line(error)}") from error
    except pg.UndefinedTable as error:
        raise SchemaMissing(
            f"{_first_line(error)}; run 'manage.py belay_migrate' (or 'migrate') on this database"
        ) from error
    except pg.UniqueViolation as error:
        raise Conflict(_first_line(error)) from error
    except _BEYOND_LIMITS as error:
        raise StorageError(f"PostgreSQL refused: {_first_line(error)}") from error
    except (psycopg.OperationalError, *_UNAVAILABLE) as error:
        raise Unavailable(f"PostgreSQL cannot serve this now: {_first_line(error)}") from error
    except psycopg.Error as error:
        raise StorageError(f"PostgreSQL refused: {_first_line(error)}") from error


def _first_line(error: BaseException) -> str:
    """A driver's message without its DETAIL lines, which may quote row values."""
    text = str(error).strip()
    return text.splitlines()[0] if text else type(error).__name__
