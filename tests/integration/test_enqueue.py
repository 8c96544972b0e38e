"""Enqueueing: the caller's transaction, duplicates, bulk, inputs, options."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from random import Random
from typing import Any
from uuid import UUID

import pytest
from asgiref.sync import async_to_sync
from django.db import connection, connections, transaction
from django.test import override_settings
from django.test.utils import CaptureQueriesContext

from django_belay import Unique, client
from django_belay.contract.encryption import decrypt
from django_belay.db import postgres
from django_belay.deferred import Deferred
from django_belay.exceptions import (
    ConfigurationError,
    InvalidInput,
    JobNotFound,
    PayloadTooLarge,
    SchemaMissing,
    StillDeferred,
    Unavailable,
    UnknownKind,
)
from django_belay.signals import job_enqueued
from django_belay.storage.postgres.store import PostgresStore
from django_belay.testing import override_belay
from tests.app import jobs
from tests.integration.looking import count, is_at, rows

committed = pytest.mark.django_db(transaction=True)
in_a_test = pytest.mark.django_db


def seen_by_others(job_id: int) -> bool:
    """Whether another connection sees the job."""
    session = postgres.worker_session(pool_size=1)
    try:
        return bool(session.run("get_job", {"id": job_id}))
    finally:
        session.close()


class Undo(Exception):
    """Rolls a transaction back."""


# -- transactions ----------------------------------------------------------------


@pytest.mark.postgres
@committed
def test_a_rollback_removes_the_job() -> None:
    with pytest.raises(Undo), transaction.atomic():  # noqa: PT012
        job = jobs.echo.enqueue(1)
        assert job.refresh().state == "ready"
        raise Undo
    with pytest.raises(JobNotFound):
        job.refresh()


@pytest.mark.postgres
@committed
def test_others_see_the_job_after_the_commit() -> None:
    with transaction.atomic():
        job = jobs.echo.enqueue(1)
        assert not seen_by_others(job.id)
    assert seen_by_others(job.id)


@pytest.mark.postgres
@committed
def test_outside_a_transaction_the_job_is_committed_at_once() -> None:
    assert seen_by_others(jobs.echo.enqueue(1).id)


@pytest.mark.postgres
@in_a_test
def test_enqueueing_is_one_statement(django_assert_num_queries: Any) -> None:
    with django_assert_num_queries(1) as captured:
        jobs.echo.enqueue(1)
    assert "belay_jobs" in captured.captured_queries[0]["sql"]


@committed
def test_a_duplicate_leaves_the_transaction_usable_and_names_its_holder() -> None:
    first = jobs.once.enqueue(7)
    with CaptureQueriesContext(connection) as queries, transaction.atomic():
        again = jobs.once.enqueue(7, note="again")
        other = jobs.echo.enqueue(1)
    assert (again.id, again.duplicate, first.duplicate) == (first.id, True, False)
    assert other.refresh().state == "ready"
    assert not [query for query in queries if "SAVEPOINT" in query["sql"]]


@in_a_test
def test_a_key_is_free_again_after_the_end() -> None:
    first = jobs.once.enqueue(7)
    first.cancel()
    second = jobs.once.enqueue(7)
    assert second.id != first.id
    assert not second.duplicate


@committed
def test_enqueue_on_commit_waits_for_the_commit() -> None:
    with transaction.atomic():
        deferred = jobs.echo.enqueue_on_commit(1)
        with pytest.raises(StillDeferred):
            deferred.get()
        assert not rows()
    assert deferred.get().refresh().job.input == {"value": 1}


@committed
def test_enqueue_on_commit_checks_at_the_call_and_forgets_after_a_rollback() -> None:
    with pytest.raises(InvalidInput), transaction.atomic():  # noqa: PT012
        deferred = jobs.echo.enqueue_on_commit(1)
        jobs.echo.enqueue_on_commit()
    assert not deferred.is_done
    assert not rows()
    assert jobs.echo.enqueue_on_commit(2).get().job.input == {"value": 2}


@committed
def test_enqueue_on_commit_asks_no_database_that_is_not_in_use() -> None:
    """A replica that is away, or an alias that a test may not touch."""
    connections.settings["belay_away"] = {**connections.settings["default"], "HOST": "/nowhere"}
    try:
        with transaction.atomic():
            deferred = jobs.echo.enqueue_on_commit(1)
            assert not deferred.is_done
        assert deferred.get().refresh().state == "ready"
    finally:
        del connections.settings["belay_away"]
        if hasattr(connections._connections, "belay_away"):
            del connections["belay_away"]


@pytest.fixture
def jobs_elsewhere() -> Iterator[None]:
    """The jobs' database is another alias than the business rows'."""
    settings = connections.settings["belay_other"] = connections.settings["default"]
    other = connections["belay_other"]
    # Django's tests let nobody connect to an alias that they were not told of before.
    del connections.settings["belay_other"]
    other.ensure_connection()
    connections.settings["belay_other"] = settings
    with override_settings(BELAY={"STORAGE": {"OPTIONS": {"database": "belay_other"}}}):
        yield
    other.close()
    del connections["belay_other"], connections.settings["belay_other"]


@pytest.mark.postgres
@committed
@pytest.mark.usefixtures("jobs_elsewhere")
def test_jobs_in_another_database_follow_the_commit_of_the_business_rows() -> None:
    with pytest.raises(Undo), transaction.atomic():  # noqa: PT012
        kept = jobs.echo.enqueue(1)
        forgotten = jobs.echo.enqueue_on_commit(2)
        raise Undo
    assert kept.refresh().state == "ready"
    assert not forgotten.is_done
    with transaction.atomic():
        later = jobs.echo.enqueue_on_commit(3)
        assert not later.is_done
        answer = kept.cancel()
        assert kept.refresh().state == "cancelled"
    assert not isinstance(answer, Deferred)
    assert later.get().refresh().job.input == {"value": 3}
    with transaction.atomic(using="belay_other"):
        waiting = jobs.echo.enqueue_on_commit(4)
        assert not waiting.is_done
    assert waiting.is_done


@committed
def test_async_twins() -> None:
    async_to_sync(use_async_twins)()


async def use_async_twins() -> None:
    job = await jobs.echo.aenqueue(5)
    report = await jobs.echo.aenqueue_many([{"value": 1}, {"value": 2}])
    found = await client.aget(job.id)
    assert found.job.input == {"value": 5}
    assert len(report) == 2
    assert (await job.acancel()).done
    assert (await job.arefresh()).state == "cancelled"


# -- many ------------------------------------------------------------------------


@committed
def test_many_inputs_go_in_chunks_with_a_report(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(postgres, "CHUNK", 100)
    held = jobs.once.enqueue(3)
    order = [*range(249, -1, -1), 17]
    report = jobs.once.enqueue_many({"order_id": n} for n in order)
    assert len(report) == 251
    assert len(report.new_ids) == 249
    assert [(found.index, found.job_id == held.id) for found in report.duplicates if found.index == 246] == [
        (246, True)
    ]
    assert report.duplicates[-1].index == 250
    assert report.ids[250] == report.ids[249 - 17]
    keys = {one.id: one.unique_key for one in rows()}
    assert [keys[job_id] for job_id in report.ids] == [f"receipt:{n}" for n in order]


@committed
def test_many_is_all_or_nothing() -> None:
    with pytest.raises(InvalidInput, match=r"inputs\[1\]\.value\.a"):
        jobs.echo.enqueue_many([{"value": 1}, {"value": {"a": float("nan")}}])
    with pytest.raises(InvalidInput, match=r"inputs\[1\]"):
        jobs.echo.enqueue_many([{"value": 1}, 5])  # type: ignore[list-item]
    assert not rows()
    assert len(jobs.echo.enqueue_many([])) == 0


@pytest.mark.postgres
@committed
def test_a_chunk_that_fails_takes_the_others_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(postgres, "CHUNK", 2)
    insert, calls = PostgresStore.insert_jobs, []

    def fail_later(store: PostgresStore, rows: Any, *, now: datetime) -> Any:
        calls.append(rows)
        if len(calls) == 2:
            raise Unavailable("away")
        return insert(store, rows, now=now)

    monkeypatch.setattr(PostgresStore, "insert_jobs", fail_later)
    with pytest.raises(Unavailable):
        jobs.echo.enqueue_many([{"value": n} for n in range(4)])
    assert len(calls) == 2
    assert not rows()


@pytest.mark.postgres
@committed
def test_two_callers_with_the_same_keys_in_other_orders_do_not_deadlock(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(postgres, "CHUNK", 3)
    monkeypatch.setattr(postgres, "atomically", once_only)
    barrier, failures = threading.Barrier(2), []

    def enqueue(order: list[int]) -> None:
        try:
            barrier.wait(10)
            jobs.once.enqueue_many([{"order_id": n} for n in order])
        except Exception as error:
            failures.append(error)
        finally:
            connection.close()

    for _ in range(5):
        orders = [list(range(60)), list(range(59, -1, -1))]
        threads = [threading.Thread(target=enqueue, args=(order,)) for order in orders]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
    assert failures == []
    assert count() == 60


def once_only(session: postgres.DjangoSession, operation: Callable[[Any], Any]) -> Any:
    """No second try, which would hide a deadlock."""
    with session.transaction() as open_transaction:
        return operation(open_transaction)


# -- inputs ----------------------------------------------------------------------


@in_a_test
@pytest.mark.parametrize(
    ("value", "path"),
    [
        ("a\0b", "input.value"),
        ({"deep": ["x", "\ud800"]}, r"input.value.deep\[1\]"),
        ([float("inf")], r"input.value\[0\]"),
        (2**64, "input.value"),
        ({"a": object()}, "input.value.a"),
        ({1: 2}, "input.value"),
    ],
)
def test_what_cannot_be_stored_is_refused_with_its_path(value: Any, path: str) -> None:
    with pytest.raises(InvalidInput, match=path):
        jobs.echo.enqueue(value)
    assert not rows()


@in_a_test
@pytest.mark.parametrize("unique", [lambda key: key, lambda key: Unique(key, within=timedelta(days=1))])
def test_a_unique_key_fits_into_its_index(unique: Callable[[str], Any]) -> None:
    """Random text: what repeats itself would be compressed."""
    random = Random(7)
    key = "".join(chr(random.randrange(0x4E00, 0x9FFF)) for _ in range(666))
    assert jobs.echo.using(unique=unique(key)).enqueue(1).state == "ready"
    with pytest.raises(InvalidInput, match="2,000"):
        jobs.echo.using(unique=unique(key + "√")).enqueue(1)
    with pytest.raises(InvalidInput, match="2,000"):
        client.enqueue_job("No.Such", unique=unique(key + "√"))


@in_a_test
def test_arguments_are_matched_with_the_signature() -> None:
    for args, kwargs, named in [
        ((), {}, "order_id"),
        ((), {"order_id": 1, "colour": "red"}, "colour"),
        ((), {"order_id": "one"}, "order_id"),
        ((1, True, 3), {}, "positional"),
    ]:
        with pytest.raises(InvalidInput, match=named):
            jobs.send_receipt.enqueue(*args, **kwargs)
    assert not rows()


@in_a_test
def test_ceilings_are_named() -> None:
    with pytest.raises(PayloadTooLarge, match="MAX_INPUT_BYTES") as caught:
        jobs.echo.enqueue("x" * 262_144)
    assert caught.value.limit == 262_144
    with override_belay(MAX_INPUT_BYTES=20, MAX_DEPTH=3):
        jobs.echo.enqueue("x" * 8)
        with pytest.raises(PayloadTooLarge):
            jobs.echo.enqueue("x" * 9)
        with pytest.raises(InvalidInput, match="deeper"):
            jobs.echo.enqueue([[1]])


@in_a_test
def test_typed_arguments_travel_both_ways() -> None:
    arguments: dict[str, Any] = {
        "at": datetime(2026, 5, 1, 12, 0, 0, 123456, tzinfo=UTC),
        "amount": Decimal("12.50"),
        "reference": UUID(int=5),
        "every": timedelta(days=-1, microseconds=1),
    }
    job = jobs.typed.enqueue(**arguments)
    assert jobs.typed.definition.codec.decode(job.job.input) == arguments


@in_a_test
def test_an_encrypted_input_is_not_stored_in_the_clear() -> None:
    job = jobs.secret.enqueue("hunter2")
    assert list(job.job.input) == ["$enc"]
    assert "hunter2" not in str(job.job.input)
    from django.conf import settings

    assert decrypt(job.job.input, settings.BELAY["ENCRYPTION_KEYS"]) == b'{"token":"hunter2"}'
    with override_belay(ENCRYPTION_KEYS=[]), pytest.raises(ConfigurationError, match="ENCRYPTION_KEYS"):
        jobs.secret.enqueue("hunter2")


# -- options ---------------------------------------------------------------------


@in_a_test
def test_options_become_columns() -> None:
    row = jobs.costly.using(
        priority=-5, max_attempts=3, partition_key=lambda url: url[:4], run_after=timedelta(hours=1),
        meta={"team": "ads"},
    ).enqueue("http://x").job  # fmt: skip
    assert (row.queue, row.priority, row.max_attempts, row.partition_key) == ("ai", -5, 3, "http")
    assert (row.budget_usd_micros, row.budget_tokens, row.meta) == (500_000, 1000, {"team": "ads"})
    assert is_at(row.ready_at, row.inserted_at + timedelta(hours=1))
    assert (row.state, row.attempt, row.errors, row.spent_tokens, row.cancel_requested) == (
        "ready", 0, [], 0, False,
    )  # fmt: skip
    assert jobs.echo.enqueue(1).job.max_attempts == 20


@in_a_test
def test_unique_scopes() -> None:
    from django_belay import Unique

    windowed = jobs.echo.using(unique=Unique("k", within=timedelta(hours=1))).enqueue(1).job
    assert windowed.unique_mode == "window"
    assert windowed.unique_key
    assert windowed.unique_key.startswith("k@")
    always = jobs.echo.using(unique=Unique("k", scope="always"))
    assert always.enqueue(1).job.unique_mode == "always"
    assert always.enqueue(2).duplicate
    keyless = jobs.echo.using(unique=lambda value: None).enqueue(1)
    assert keyless.job.unique_key is None
    with pytest.raises(InvalidInput, match="unique"):
        jobs.echo.using(unique=lambda value: 3).enqueue(1)
    with pytest.raises(InvalidInput, match=r"unique.*NUL"):
        jobs.echo.using(unique="a\0").enqueue(1)


@in_a_test
def test_an_instant_beyond_the_calendar_is_refused() -> None:
    with pytest.raises(InvalidInput, match="run_after"):
        jobs.echo.using(run_after=timedelta(days=10_000_000)).enqueue(1)


# -- by kind ---------------------------------------------------------------------


@in_a_test
def test_foreign_kinds_are_enqueued_as_they_are() -> None:
    job = client.enqueue_job("MyApp.Mailer", {"to": "x"}, queue="elixir", priority=2, unique="u")
    assert (job.job.kind, job.job.input, job.job.queue, job.job.priority) == (
        "MyApp.Mailer", {"to": "x"}, "elixir", 2,
    )  # fmt: skip
    assert client.enqueue_job("MyApp.Mailer", unique="u").duplicate
    with pytest.raises(InvalidInput, match=r"input\.to"):
        client.enqueue_job("MyApp.Mailer", {"to": "\0"})
    with pytest.raises(UnknownKind, match=r"belay_testapp\.echo"):
        client.enqueue_job("belay_testapp.ecko", foreign=False)
    with pytest.raises(ConfigurationError, match="timeout"):
        client.enqueue_job("MyApp.Mailer", timeout=3)


@in_a_test
def test_own_kinds_are_checked_and_keep_their_options() -> None:
    job = client.enqueue_job("belay_testapp.send_receipt", {"order_id": 3})
    assert (job.job.queue, job.job.max_attempts) == ("mail", 5)
    with pytest.raises(InvalidInput, match="order_id"):
        client.enqueue_job("belay_testapp.send_receipt", {"order_id": "x"})


# -- around ----------------------------------------------------------------------


@in_a_test
def test_the_signal_tells_new_jobs_by_kind() -> None:
    told: list[tuple[str, list[int]]] = []

    def listen(sender: str, job_ids: list[int], **_: Any) -> None:
        told.append((sender, job_ids))

    job_enqueued.connect(listen)
    try:
        job = jobs.once.enqueue(1)
        jobs.once.enqueue(1)
        report = jobs.once.enqueue_many([{"order_id": 1}, {"order_id": 2}])
    finally:
        job_enqueued.disconnect(listen)
    assert told == [(jobs.once.kind, [job.id]), (jobs.once.kind, report.new_ids)]


@pytest.mark.postgres
@in_a_test
def test_a_database_without_tables_is_refused_with_the_mend(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(postgres, "_checked", set())
    with connection.cursor() as cursor:
        cursor.execute("ALTER TABLE belay_meta RENAME TO other_meta")
    with pytest.raises(SchemaMissing, match="belay_migrate"):
        jobs.echo.enqueue(1)


@pytest.mark.postgres
@in_a_test
@override_settings(BELAY={"STORAGE": {"OPTIONS": {"database": "nowhere"}}})
def test_a_database_that_is_not_there_is_named() -> None:
    with pytest.raises(ConfigurationError, match="nowhere"):
        jobs.echo.enqueue(1)
