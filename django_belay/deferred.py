"""What a call inside ``atomic()`` returns when its work waits for the commit (rule 10)."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Generic, Self, TypeVar

from django.db import transaction

from django_belay.exceptions import StillDeferred

T = TypeVar("T")

logger = logging.getLogger("django_belay.client")


class Deferred(Generic[T]):
    """A result that is there once the transaction has committed.

    When it rolls back the work is never done and the result never comes. The work is a
    callback of the commit: a process that dies in between does not do it.
    """

    def __init__(self, work: Callable[[], T], what: str) -> None:
        self._work = work
        self._what = what
        self._value: T | None = None
        self._error: Exception | None = None
        self._is_done = False

    @classmethod
    def until_commit(cls, work: Callable[[], T], *, using: str, what: str) -> Self:
        """Do ``work`` after the commit of the transaction open on ``using``."""
        deferred = cls(work, what)
        transaction.on_commit(deferred.run, using=using)
        return deferred

    @property
    def is_done(self) -> bool:
        """Whether the commit has come and the work was tried."""
        return self._is_done

    def get(self) -> T:
        """What the work gave.

        Raises:
            StillDeferred: The transaction has not committed, or was rolled back.
            BelayError: What the work raised.
        """
        if not self._is_done:
            raise StillDeferred(
                f"{self._what} happens after the commit of the transaction that was open at the call; "
                "it has not come, or the transaction was rolled back"
            )
        if self._error is not None:
            raise self._error
        return self._value  # type: ignore[return-value]

    def run(self) -> None:
        """Do the work, once."""
        if self._is_done:
            return  # in a TestCase the work does not wait for a commit that never comes
        try:
            self._value = self._work()
        except Exception as error:
            # The commit stands and other callbacks wait: the error is for whoever asks, and the log.
            self._error = error
            logger.exception("%s failed after its transaction's commit", self._what)
        self._is_done = True

    def __repr__(self) -> str:
        state = "failed" if self._error else "done" if self._is_done else "waits for the commit"
        return f"<Deferred {self._what}: {state}>"


class JoiningDeferred(Deferred[T]):
    """Work that would be part of the caller's transaction where the storage is in its database."""
