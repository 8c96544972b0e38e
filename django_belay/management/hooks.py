"""Django's side of a job's run: connection hygiene and signals."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

from asgiref.sync import SyncToAsync, ThreadSensitiveContext, sync_to_async
from django.db import connections
from django.db.backends.base.base import BaseDatabaseWrapper

from django_belay._run_signals import signal_hooks
from django_belay.engine.clock import Clock
from django_belay.engine.telemetry import Hooks


def refresh_connections() -> None:
    """What ``close_old_connections`` and ``reset_queries`` do, in one pass over this thread's connections.

    Without it a connection that the server has closed fails every later job of its
    thread, and the query log grows under ``DEBUG``.
    """
    for connection in connections.all(initialized_only=True):
        connection.queries_log.clear()
        if connection.in_atomic_block:
            _discard(connection)
        else:
            connection.close_if_unusable_or_obsolete()


def _discard(connection: BaseDatabaseWrapper) -> None:
    """Roll back what a job left open; Django keeps such a connection in its block for good."""
    try:
        connection.close()
    finally:
        del connections[connection.alias]


def worker_hooks(clock: Clock) -> Hooks:
    """The hooks of a process that runs jobs."""
    return replace(
        signal_hooks(clock),
        before_job=refresh_connections,
        after_job=refresh_connections,
        thread_ended=connections.close_all,
        around_async=own_sync_thread,
    )


@asynccontextmanager
async def own_sync_thread() -> AsyncIterator[None]:
    """``sync_to_async`` of an async job runs in a thread of the job's own, with its own connections.

    In asgiref's one thread for everybody the ORM calls of all jobs would wait for each other.
    The thread starts with the first such call. What it still does when the job is cancelled
    is waited for: no end is written for code that runs.
    """
    async with ThreadSensitiveContext() as context:
        try:
            yield
        finally:
            if context in SyncToAsync.context_to_thread_executor:
                await sync_to_async(connections.close_all)()
