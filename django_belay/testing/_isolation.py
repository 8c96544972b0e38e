"""What a worker's own connection gives a job, made up for on the connection of a test.

In a worker a job runs in autocommit: a failed statement spoils nothing after it, and
``on_commit`` callbacks run. In a test's transaction a failed statement aborts the whole
transaction, and nothing ever commits.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from django.db import connections
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.transaction import TransactionManagementError

from django_belay.db import CallersTransaction

logger = logging.getLogger("django_belay.testing")


@contextmanager
def job_on_a_tests_connection() -> Iterator[None]:
    """Around a job: its failed statement costs its own changes, and its callbacks run.

    A connection that is in no transaction is left alone: there all is as in a worker.
    """
    guards = [
        _Guard(connection) for connection in connections.all(initialized_only=True) if _joined(connection)
    ]
    try:
        yield
    except BaseException:
        for guard in guards:
            guard.leave()
        raise
    broken = [guard.alias for guard in guards if guard.leave()]
    if broken:
        raise TransactionManagementError(
            f"the job went on after an error of the database {broken[0]!r}. In a worker it could; in a test's "
            "transaction what it did is lost. Put transaction.atomic() around the statement that may fail, "
            "or test the job in a TransactionTestCase"
        )


class _Guard:
    """A savepoint before a job, and the callbacks that were registered before it."""

    def __init__(self, connection: BaseDatabaseWrapper) -> None:
        self._connection = connection
        self.alias = connection.alias
        self._savepoint: str = connection.savepoint() or ""  # None only outside of atomic blocks
        self._callbacks = len(connection.run_on_commit)

    def leave(self) -> bool:
        """Give the savepoint back; whether the job's changes were lost with a failed statement."""
        connection = self._connection
        if not connection.in_atomic_block:
            return False  # the job closed it, and with it the transaction
        if _is_aborted(connection):
            connection.needs_rollback = False
            connection.savepoint_rollback(self._savepoint)
            del connection.run_on_commit[self._callbacks :]
            return True
        connection.savepoint_commit(self._savepoint)
        if not CallersTransaction(self.alias).is_in_callers_transaction():
            self._run_callbacks()
        return False

    def _run_callbacks(self) -> None:
        """Those of the job only; the test's own are for ``captureOnCommitCallbacks``."""
        waiting: list[Any] = self._connection.run_on_commit
        while len(waiting) > self._callbacks:
            _, callback, is_robust = waiting.pop(self._callbacks)
            _call(callback, is_robust)


def _joined(connection: BaseDatabaseWrapper) -> bool:
    return connection.in_atomic_block and not connection.closed_in_transaction


def _is_aborted(connection: BaseDatabaseWrapper) -> bool:
    if connection.needs_rollback:
        return True
    if connection.vendor != "postgresql" or connection.connection is None:
        return False
    return bool(connection.connection.info.transaction_status.name == "INERROR")


def _call(callback: Callable[[], Any], is_robust: bool) -> None:
    try:
        callback()
    except Exception:
        if not is_robust:
            raise
        logger.exception("the robust on_commit callback %r failed", callback)
