"""The journal: what a client writes inside ``atomic()`` waits for the commit.

The journal is not the caller's database, so nothing can be part of the caller's transaction. Ids are
reserved at once; the rows are inserted by a callback of the commit. A process that dies between the
commit and the journal's write inserts nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from functools import lru_cache
from typing import Any, Protocol, cast

from django.core.signals import setting_changed

from django_belay import conf
from django_belay.contract.job import NewJob
from django_belay.contract.workflow_graph import id_taken
from django_belay.db import scratch
from django_belay.db.client_storage import Insertion, Then
from django_belay.db.transactions import CallersTransaction
from django_belay.deferred import JoiningDeferred
from django_belay.exceptions import ConfigurationError
from django_belay.storage.base import Inserted, Storage


class JournalStorage(Storage, Protocol):
    """The protocol, and inserting under ids that were reserved before."""

    def reserve_ids(self, count: int, *, now: datetime) -> list[int]:
        """Ids that no other job gets."""
        ...

    def insert_reserved(self, jobs: Sequence[NewJob], ids: Sequence[int], *, now: datetime) -> list[Inserted]:
        """Insert rows, all or none; sent again, it finds them there."""
        ...

    def insert_members(
        self, jobs: Sequence[NewJob], ids: Sequence[int], *, workflow_id: str, now: datetime
    ) -> list[Inserted]:
        """Insert a new workflow, or refuse it with ``InvalidWorkflow``."""
        ...


class _DeferredInsert(JoiningDeferred[list[Inserted]]):
    """Rows that are inserted after the commit, under the ids reserved for them."""

    job_ids: frozenset[int] = frozenset()


class JournalClient:
    """The journal as the client uses it."""

    def __init__(self, find: Callable[[], JournalStorage], session: CallersTransaction) -> None:
        self._find = find
        self.session = session

    @property
    def storage(self) -> JournalStorage:
        """The operations themselves."""
        return self._find()

    def insert(self, jobs: Sequence[NewJob], *, now: datetime, then: Then) -> Insertion:
        """At once, or after the caller's commit."""
        if not self.session.is_in_callers_transaction():
            answers = self.storage.insert_jobs(jobs, now=now)
            then(answers)
            return Insertion(answers)
        return self._insert_on_commit(
            jobs,
            lambda ids: self.storage.insert_reserved(jobs, ids, now=now),
            now=now,
            then=then,
            what=f"enqueueing {_summary(jobs)}",
        )

    def insert_workflow(
        self, jobs: Sequence[NewJob], *, workflow_id: str, now: datetime, then: Then
    ) -> Insertion:
        """At once, or after the caller's commit; whether the id is taken is looked at now as well."""

        def insert(ids: Sequence[int]) -> list[Inserted]:
            return self.storage.insert_members(jobs, ids, workflow_id=workflow_id, now=now)

        if not self.session.is_in_callers_transaction():
            answers = insert(self.storage.reserve_ids(len(jobs), now=now))
            then(answers)
            return Insertion(answers)
        if self.storage.workflow_states(workflow_id):
            raise id_taken(workflow_id)
        return self._insert_on_commit(
            jobs, insert, now=now, then=then, what=f"enqueueing workflow {workflow_id!r}"
        )

    def _insert_on_commit(
        self,
        jobs: Sequence[NewJob],
        insert: Callable[[Sequence[int]], list[Inserted]],
        *,
        now: datetime,
        then: Then,
        what: str,
    ) -> Insertion:
        ids = self.storage.reserve_ids(len(jobs), now=now)
        provisional = [
            Inserted(job_id=job_id, state=job.state, duplicate=None)
            for job_id, job in zip(ids, jobs, strict=True)
        ]

        def work() -> list[Inserted]:
            answers[:] = insert(ids)
            then(answers)
            return answers

        answers = provisional
        deferred = _DeferredInsert.until_commit(work, using=self.session.alias, what=what)
        deferred.job_ids = frozenset(ids)
        return Insertion(answers, deferred)

    def is_uncommitted(self, job_id: int) -> bool:
        """Whether its insert waits for the caller's commit."""
        waiting = _waiting(self.session)
        return any(isinstance(one, _DeferredInsert) and job_id in one.job_ids for one in waiting)

    def catch_up(self) -> None:
        """In a ``TestCase``, whose transaction never commits: do what the code under test has committed.

        On PostgreSQL those rows would be there, in the test's own transaction.
        """
        connection = self.session.connection
        if connection.run_on_commit and not self.session.is_in_callers_transaction():
            for deferred in _waiting(self.session):
                deferred.run()


def _waiting(session: CallersTransaction) -> list[JoiningDeferred[Any]]:
    """What waits for this thread's commit, in its order; what a savepoint took back is gone."""
    callbacks: list[Any] = session.connection.run_on_commit
    owners = [getattr(callback[1], "__self__", None) for callback in callbacks]
    return [owner for owner in owners if isinstance(owner, JoiningDeferred) and not owner.is_done]


def _summary(jobs: Sequence[NewJob]) -> str:
    return jobs[0].kind if len(jobs) == 1 else f"{len(jobs):,} jobs"


# -- storages --------------------------------------------------------------------


def storage_for_client() -> JournalClient:
    """The journal of the settings; in tests one of their own (see :mod:`django_belay.db.scratch`)."""
    found = _client_storage()
    found.catch_up()
    return found


def storage_for_worker(*, pool_size: int, application_name: str) -> Storage:
    """A storage that talks to the store's owner, for the caller to close."""
    if scratch.is_wanted():
        found: Storage = scratch.unclosed()
        return found
    from django_belay.db import reaching

    remote: Storage = reaching.remote_store(_options(), connections=pool_size)
    return remote


@contextmanager
def storage_for_supervisor(*, pool_size: int, application_name: str) -> Iterator[Storage]:
    """The store itself while the supervisor lives, or its owner's where there is one."""
    if scratch.is_wanted():
        raise ConfigurationError(
            "a worker's processes do not see the journal that a test has to itself: run its jobs with "
            "django_belay.testing.drain()"
        )
    from django_belay.db import reaching

    store: Any = reaching.SupervisedStore(_options())
    try:
        yield store
    finally:
        store.close()


@lru_cache(maxsize=1)
def _client_storage() -> JournalClient:
    return JournalClient(_find_storage, CallersTransaction(_options().transaction_alias))


def _find_storage() -> JournalStorage:
    return scratch.store() if scratch.is_wanted() else _store_of_this_process()


@lru_cache(maxsize=1)
def _store_of_this_process() -> JournalStorage:
    """What all threads share; how the owner is reached is decided once."""
    from django_belay.db import reaching, starting

    options = _options()
    is_startable = starting.why_not_started(options) is None
    store: JournalStorage = (
        reaching.remote_store(options) if is_startable else cast(Any, reaching.MomentaryOwner(options))
    )
    return store


def _options() -> conf.JournalOptions:
    options = conf.get().journal
    assert options is not None
    return options


def _forget(*, setting: str, **_: Any) -> None:
    if setting not in ("BELAY", "DATABASES"):
        return
    _client_storage.cache_clear()
    if _store_of_this_process.cache_info().currsize:
        _store_of_this_process().close()
        _store_of_this_process.cache_clear()


setting_changed.connect(_forget, dispatch_uid="django_belay.db.journal")
