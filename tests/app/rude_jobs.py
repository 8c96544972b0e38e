"""Jobs that leave their thread and process in a worse state than they found them."""

from __future__ import annotations

import os
import sys
import threading

from django.db import connection, transaction

from django_belay import job
from tests.app.worker_jobs import await_file, note


@job(queue="work", max_attempts=1)
def leaves_a_transaction_open(ctx) -> None:
    """Enters ``atomic()`` and never leaves it."""
    transaction.atomic().__enter__()
    with connection.cursor() as cursor:
        cursor.execute("SELECT 1")


@job(queue="work", max_attempts=1)
def leaves_autocommit_off(ctx) -> None:
    transaction.set_autocommit(False)


@job(queue="work", max_attempts=1)
def breaks_its_connection(ctx) -> None:
    """Closes the socket beneath Django's connection."""
    connection.ensure_connection()
    os.close(connection.connection.fileno())
    connection.connection.pgconn.finish()


@job(queue="work", max_attempts=1)
def asks_the_database(ctx, name: str) -> int:
    """Works only on a connection in order."""
    note(f"{name}.threads", threading.current_thread().name)
    with transaction.atomic(durable=True), connection.cursor() as cursor:
        cursor.execute("SELECT 1")
        return cursor.fetchone()[0]


@job(queue="work", max_attempts=1)
def leaves_a_thread(ctx, name: str) -> None:
    """Starts a thread that an interpreter waits for at its end, and that never ends."""
    note(f"{name}.started", str(os.getpid()))
    threading.Thread(target=await_file, args=(f"{name}.never", 600.0), daemon=False).start()


@job(queue="work", max_attempts=1)
def closes_its_streams(ctx, name: str) -> None:
    note(f"{name}.started", str(os.getpid()))
    sys.stdout.close()
    sys.stderr.close()


@job(queue="work", max_attempts=1)
def forks_and_both_return(ctx, name: str) -> None:
    """Forgets that the process it forked must not come back."""
    pid = os.fork()
    if pid:
        note(f"{name}.forked", str(pid))
    else:
        note(f"{name}.fork", str(os.getpid()))
