"""Inline mode: what is enqueued runs at once, in the calling process."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from unittest import mock

from django_belay import _enqueue
from django_belay.contract.job import NewJob
from django_belay.storage.base import Inserted
from django_belay.testing._drain import drain, is_draining


@contextmanager
def run_inline(*, raise_failures: bool = True) -> Iterator[None]:
    """Within the block an enqueue is followed by ``drain()`` before it returns.

    The job is stored, claimed and acknowledged as in production: its input travels as JSON,
    it runs on the caller's connection and in the caller's transaction. Jobs that a job
    enqueues run after it. What is not due yet, or is to be retried later, stays where it is.

    Args:
        raise_failures: ``enqueue()`` raises what the job raised. Otherwise it ends or is
            retried later, as in production.
    """
    announce = _enqueue.announce

    def announce_and_run(jobs: Sequence[NewJob], inserted: Sequence[Inserted]) -> Any:
        announce(jobs, inserted)
        if not is_draining():
            drain(raise_failures=raise_failures)

    with mock.patch.object(_enqueue, "announce", announce_and_run):
        yield
