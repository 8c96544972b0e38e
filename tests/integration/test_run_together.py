"""A transaction in one round trip (§8.1; rules 10, 19)."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest
from django.db import connection, transaction

from django_belay import client
from django_belay.db import storage_for_client
from django_belay.exceptions import JobNotFound, StorageError
from tests.app import jobs
from tests.integration.worker import park

pytestmark = pytest.mark.postgres

committed = pytest.mark.django_db(transaction=True)


@committed
def test_a_signal_is_one_round_trip() -> None:
    client.signal("orders", "go", 1)
    sent: list[bool] = []

    def note(execute: Any, sql: str, params: Any, many: bool, context: Any) -> Any:
        sent.append(connection.connection.info.pipeline_status == psycopg.pq.PipelineStatus.ON)
        return execute(sql, params, many, context)

    with connection.execute_wrapper(note):
        client.signal("orders", "go", 2)
    assert sent == [True] * 4  # BEGIN, the lock, the signal, COMMIT
    assert [signal.payload for signal in client.signals("orders")] == [2]


@committed
def test_a_signal_to_a_job_that_is_gone_writes_nothing() -> None:
    with pytest.raises(JobNotFound):
        client.signal(2**40, "go", 1)
    with transaction.atomic(), pytest.raises(JobNotFound):
        client.signal(2**40, "go", 1)
    assert client.signals(2**40) == []


@committed
def test_it_wakes_and_says_whom() -> None:
    job = jobs.echo.enqueue(1)
    park("go")
    assert job.signal("go", "50 %s; % -- '") == [job.id]
    assert [signal.payload for signal in job.signals()] == ["50 %s; % -- '"]
    assert not connection.in_atomic_block


@committed
def test_a_failure_leaves_no_transaction_open() -> None:
    session = storage_for_client().session
    params: dict[str, Any] = {"lock": "x", "scope": "orders", "name": "go", "payload": "{", "now": None,
                              "job_id": None, "workflow_id": None, "to_job": False}  # fmt: skip
    with pytest.raises(StorageError):
        session.run_together(["lock_scope", "put_signal"], params)
    assert connection.connection.info.transaction_status == psycopg.pq.TransactionStatus.IDLE
    assert client.signals("orders") == []
    client.signal("orders", "go", 1)


@committed
def test_inside_a_transaction_it_is_a_part_of_it() -> None:
    with transaction.atomic():
        client.signal("orders", "go", 1, join=True)
        transaction.set_rollback(True)
    assert client.signals("orders") == []


@committed
def test_a_driver_that_binds_at_the_server_sends_one_after_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(storage_for_client().session.__class__, "_prepares", lambda self: False)
    job = jobs.echo.enqueue(1)
    park("go")
    assert job.signal("go", 1) == [job.id]
