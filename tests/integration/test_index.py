"""The models read alike on both storages: on the journal from its inspection index."""

from __future__ import annotations

import os
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from django.core.management import call_command
from django.db import DatabaseError, OperationalError, connections, transaction
from django.test import TestCase, override_settings
from django.utils import timezone

from django_belay import models
from django_belay.contract.outcome import Failed, Succeeded
from django_belay.db import scratch
from django_belay.inspection import waiting
from django_belay.inspection.waiting import wait_for_index
from django_belay.models import Job
from django_belay.storage.base import NewStep
from django_belay.storage.journal.index.file import Changes, IndexFile, remove
from django_belay.storage.journal.store.row import COLUMNS
from django_belay.testing import BelayTestMixin
from tests.app import jobs
from tests.integration.worker import claim, run, storage

pytestmark = pytest.mark.django_db

on_the_journal = pytest.mark.skipif(
    os.environ.get("BELAY_TEST_STORAGE") != "journal", reason="of the journal alone"
)

DOCUMENTS: list[Any] = [
    {"tenant": "a", "n": 1, "tags": ["x", "y"], "deep": {"a": {"b": [1, 2, {"c": None}]}}},
    {"tenant": "b", "n": 1.5, "tags": [], "flag": True},
    {"tenant": "ä😀", "n": None, "tags": [["x"]], "flag": 1},
    ["x", {"k": "v"}, 3],
    "text",
    7,
    None,
]
ASKED: list[dict[str, Any]] = [
    {"input__contains": {"value": {"tenant": "a"}}},
    {"input__contains": {"value": {"deep": {"a": {"b": [2]}}}}},
    {"input__contains": {"value": {"deep": {"a": {"b": [{"c": None}]}}}}},
    {"input__contains": {"value": {"tags": []}}},
    {"input__contains": {"value": {"flag": True}}},
    {"input__contains": {"value": {"flag": 1}}},
    {"input__contains": {}},
    {"input__value__contains": {"tenant": "b"}},
    {"input__value__contains": ["x"]},
    {"input__value__contains": "x"},
    {"input__value__contains": "text"},
    {"input__value__contains": 7},
    {"input__value__tags__contains": ["y", "x"]},
    {"input__value__tags__contains": "x"},
    {"input__contained_by": {"value": "text", "other": 1}},
    {"input__value__contained_by": {"tenant": "b", "n": 1.5, "tags": [1], "flag": True}},
    {"input__value__contained_by": 7},
    {"input__has_key": "value"},
    {"input__value__has_key": "flag"},
    {"input__value__has_keys": ["flag", "n"]},
    {"input__value__has_any_keys": ["deep", "flag"]},
    {"input": {"value": DOCUMENTS[0]}},
    {"input__in": [{"value": 7}, {"value": "text"}]},
    {"input__value": {"n": 1, "tags": ["x", "y"], "deep": DOCUMENTS[0]["deep"], "tenant": "a"}},
    {"input__value": "text"},
    {"input__value": None},
    {"input__value__n": None},
    {"input__value__n__isnull": True},
    {"input__value__n__gt": 1},
    {"input__value__n__in": [1, 1.5]},
    {"input__value__tenant": "ä😀"},
    {"input__value__tenant__startswith": "ä"},
    {"input__value__tenant__icontains": "A"},
    {"input__value__tenant__iexact": "B"},
    {"input__value__tenant__regex": "^[ab]$"},
    {"input__value__deep__a__b__0": 1},
    {"input__value__2": 3},
]
FOUND: list[list[int]] = [
    [0], [0], [0], [0, 1, 2], [1], [2], [0, 1, 2, 3, 4, 5, 6], [1], [3], [3], [4], [5], [0], [0],
    [4], [1], [5], [0, 1, 2, 3, 4, 5, 6], [1, 2], [1, 2], [0, 1, 2], [0], [4, 5], [0], [4], [6], [2],
    [3, 4, 5, 6], [1], [0, 1], [2], [2], [0], [1], [0, 1], [0], [3],
]  # fmt: skip


def test_json_is_looked_up_alike_on_both_storages() -> None:
    ids = [jobs.echo.enqueue(document).id for document in DOCUMENTS]
    found = [
        sorted(ids.index(pk) for pk in Job.objects.filter(**asked).values_list("pk", flat=True))
        for asked in ASKED
    ]
    assert dict(zip(map(repr, ASKED), found, strict=True)) == dict(zip(map(repr, ASKED), FOUND, strict=True))


def test_every_kind_of_column_comes_as_its_own_type() -> None:
    job = jobs.echo.using(run_after=timedelta(hours=1)).enqueue({"n": 2**63, "s": "ü\u2028"})
    row = Job.objects.get()
    stored = job.refresh().job
    assert row.input == {"value": {"n": 2**63, "s": "ü\u2028"}}
    assert (row.ready_at, row.inserted_at) == (stored.ready_at, stored.inserted_at)
    assert row.ready_at.tzinfo is not None
    assert (row.started_at, row.result, row.parent_id) == (None, None, None)
    assert (row.wf_deps, row.errors, row.cancel_requested) == ([], [], False)
    assert Job.objects.filter(wf_deps=[], inserted_at=stored.inserted_at).count() == 1


def test_results_errors_steps_events_and_signals_are_read() -> None:
    job = jobs.echo.enqueue(1)
    now = timezone.now()
    (claimed,) = claim(take=1)
    step = NewStep(name="fetch", value=b"\x83raw\xff", usd_micros=3, tokens=4)
    storage().put_step(claimed.id, step, now=now)
    storage().append_event(job.id, {"at": 1}, now=now)
    storage().append_event(job.id, None, now=now)
    job.signal("go", {"to": "you"})
    row = Job.objects.get(pk=job.id)
    assert [(one.seq, one.name, bytes(one.value), one.tokens) for one in row.steps.all()] == [
        (1, "fetch", b"\x83raw\xff", 4)
    ]
    assert [(one.seq, one.payload) for one in row.events.all()] == [(1, {"at": 1}), (2, None)]
    assert models.Signal.objects.get(name="go").payload == {"to": "you"}
    assert (row.spent_usd_micros, row.spent_tokens) == (3, 4)
    storage().clear_signal(f"job:{job.id}", "go")
    assert not models.Signal.objects.filter(name="go").exists()


def test_queues_and_crons_come_and_go() -> None:
    now = timezone.now()
    storage().put_queue("ai", {"limit": 3}, now=now)
    storage().pause_queue("mail", now=now)
    assert [(queue.name, queue.opts) for queue in models.Queue.objects.all()] == [("ai", {"limit": 3})]
    storage().delete_queue("ai")
    assert not models.Queue.objects.exists()


def test_instants_are_compared_ordered_and_truncated() -> None:
    ids = [
        jobs.echo.using(run_after=datetime(2030, 1, day, 23, 30, 0, micros, tzinfo=UTC)).enqueue(day).id
        for day, micros in ((1, 0), (2, 1000), (3, 999000))
    ]
    after = Job.objects.filter(ready_at__gt=datetime(2030, 1, 2, 23, 30, tzinfo=UTC))
    assert sorted(after.values_list("pk", flat=True)) == ids[1:]
    assert list(Job.objects.order_by("ready_at").values_list("pk", flat=True)) == ids
    # Europe/Berlin: half past eleven in UTC is the day after.
    assert [day.day for day in Job.objects.dates("ready_at", "day")] == [2, 3, 4]
    assert Job.objects.filter(ready_at__date="2030-01-02").count() == 1


def test_a_transaction_of_the_index_sees_what_was_done_since() -> None:
    with transaction.atomic(using=Job.objects.db):
        assert not Job.objects.exists()
        job = jobs.echo.enqueue(1)
        assert Job.objects.get().state == "ready"
        run(Succeeded())
        assert Job.objects.get(pk=job.id).state == "succeeded"


def test_what_was_done_is_waited_for() -> None:
    jobs.echo.enqueue(1)
    run(Failed(error={"error": "x"}))
    assert wait_for_index(0.0)


@on_the_journal
def test_the_index_cannot_be_written() -> None:
    jobs.echo.enqueue(1)
    with connections["belay"].cursor() as cursor, pytest.raises(OperationalError, match="readonly"):
        cursor.execute("DELETE FROM belay_jobs")
    assert Job.objects.count() == 1


@on_the_journal
def test_migrate_names_who_makes_the_index() -> None:
    with pytest.raises(DatabaseError, match="inspection index"):
        call_command("migrate", database="belay", verbosity=0)


class AdminOfAProject(BelayTestMixin, TestCase):
    """As a project writes it: with nothing about the database of the models."""

    def test_a_job_is_listed_once_it_ran(self) -> None:
        jobs.echo.enqueue(1)
        assert Job.objects.get().state == "ready"
        self.drain()
        assert Job.objects.get().state == "succeeded"


@on_the_journal
def test_local_times_are_those_of_the_time_zone_without_use_tz() -> None:
    jobs.echo.using(run_after=datetime(2030, 1, 1, 12, 0, tzinfo=UTC)).enqueue(1)
    with override_settings(USE_TZ=False):
        local = datetime(2030, 1, 1, 13, 0)
        assert Job.objects.get().ready_at == local
        assert Job.objects.filter(ready_at=local).count() == 1


@pytest.mark.django_db(transaction=True)
def test_a_transactional_test_reads_the_index_too() -> None:
    jobs.echo.enqueue(1)
    assert Job.objects.count() == 1


@pytest.fixture
def index_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Where the models look for an index that is not the test's own."""
    path = tmp_path / "index.sqlite3"
    database = connections["belay"]
    monkeypatch.setitem(database.settings_dict, "NAME", str(path))
    scratch.use(False)
    yield path
    scratch.use(True)


@on_the_journal
def test_an_index_is_read_once_it_is_there_and_again_once_it_is_another(index_path: Path) -> None:
    assert list(Job.objects.all()) == []  # before the first owner
    index_path.touch()
    assert not Job.objects.exists()  # while the first owner makes it
    for kinds in (["a"], ["b", "c"]):
        fresh = index_path.with_name("fresh")
        remove(fresh)
        file = IndexFile(fresh)
        with file.transaction():
            file.make_tables()
            file.write(Changes({number: row_of_kind(number, kind) for number, kind in enumerate(kinds)}, {}))
        assert file.checkpoint()
        file.close()
        fresh.replace(index_path)
        assert list(Job.objects.order_by("pk").values_list("kind", flat=True)) == kinds


def row_of_kind(number: int, kind: str) -> Any:
    empty: dict[str, Any] = dict.fromkeys(COLUMNS)
    counts = dict.fromkeys(("priority", "attempt", "max_attempts", "spent_usd_micros", "spent_tokens"), 0)
    return {
        **empty,
        **counts,
        "id": number,
        "kind": kind,
        "queue": "q",
        "state": "ready",
        "inserted_at": 0,
        "cancel_requested": False,
    }


@on_the_journal
def test_a_damaged_index_is_an_error_of_the_database(index_path: Path) -> None:
    index_path.write_bytes(b"no database at all" * 500)
    with pytest.raises(DatabaseError, match="not a database"):
        Job.objects.count()


@pytest.mark.parametrize(
    ("positions", "is_reached"),
    [
        ([("g", 7)], True),
        ([("g", 8)], False),
        ([("f", 900)], False),
        ([("f", 900), ("g", 3)], True),  # a compaction came between
    ],
)
@on_the_journal
def test_the_index_is_waited_for_as_long_as_it_takes_and_no_longer(
    index_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    positions: list[tuple[str, int]],
    is_reached: bool,
) -> None:
    file = IndexFile(index_path)
    with file.transaction():
        file.make_tables()
        file.put_mark(store="s", generation="g", through=7)
    answers = iter([*positions, *positions[-1:] * 1000])
    owner = SimpleNamespace(durable_sequence=lambda: next(answers))
    monkeypatch.setattr(waiting, "storage_for_client", lambda: SimpleNamespace(storage=owner))
    assert wait_for_index(0.05) is is_reached
    file.close()
