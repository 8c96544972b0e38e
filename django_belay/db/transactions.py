"""What the caller has open on a Django connection, of any database vendor (rule 10)."""

from __future__ import annotations

from django.db import connections
from django.db.backends.base.base import BaseDatabaseWrapper


class CallersTransaction:
    """The transaction that this thread's code may have open on a database.

    Safe to share between threads: each has a connection of its own in ``connections``.
    """

    def __init__(self, alias: str) -> None:
        self.alias = alias

    @property
    def connection(self) -> BaseDatabaseWrapper:
        """This thread's connection."""
        return connections[self.alias]

    def is_joined(self) -> bool:
        """Whether a transaction is open, a test's included: what fails in it fails for good."""
        return self.connection.in_atomic_block or not self.connection.get_autocommit()

    def is_in_callers_transaction(self) -> bool:
        """Whether the caller has a transaction open that will commit or roll back.

        The blocks that ``TestCase`` opens never commit; Django's ``durable`` check
        passes over them in the same way.
        """
        if not self.connection.in_atomic_block:
            return not self.connection.get_autocommit()
        blocks = self.connection.atomic_blocks
        return not (blocks and blocks[-1]._from_testcase)  # type: ignore[attr-defined]
