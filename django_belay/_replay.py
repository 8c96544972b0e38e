"""Replays through the caller's connections, in transactions that are rolled back."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from django.db import connections, transaction

from django_belay import conf
from django_belay._control import check_id, get_row
from django_belay.contract.erasure import refuse_erased
from django_belay.db import storage_for_client
from django_belay.engine.replay import Replay
from django_belay.engine.replay import replay as replay_job
from django_belay.engine.services import Services
from django_belay.registry import registry


def replay(job_id: int) -> Replay:
    """Run today's code of a job against its recorded journal, and say where the two part ways.

    Nothing is written: a step, wait, spawn or sleep that is not in the journal ends the replay before
    it happens, events and debits are dropped, and every Django database is in a transaction that is
    rolled back. What the code does elsewhere between its steps, such as a request to another
    service, it does here, too. The calling thread runs the code; a job with ``isolation="process"`` gets no
    process of its own.

    Raises:
        JobNotFound: No job has this id.
        UnknownKind: No job of its kind is registered here.
        NotReplayable: A chunk job has no journal.
        PayloadErased: Its input and its steps' values are there no more.
        ForeignReservedStep: Another SDK has begun the job; it is the one to finish it.
    """
    job = get_row(check_id(job_id))
    refuse_erased(job.id, job.input)
    services = Services(
        storage=storage_for_client().storage,
        clock=conf.clock(),
        registry=registry,
        options=conf.worker_options(),
    )
    with _rolled_back():
        return replay_job(job, services)


@contextmanager
def _rolled_back() -> Iterator[None]:
    """A transaction on every database, none of which commits."""
    with ExitStack() as stack:
        for alias in connections:
            stack.enter_context(transaction.atomic(using=alias))
            stack.callback(transaction.set_rollback, True, using=alias)
        yield
