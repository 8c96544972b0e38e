"""Moving an installation from PostgreSQL to a journal and back."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.db import connection
from django.test import override_settings
from django.utils import timezone

from django_belay import Workflow, client, queues, schedules
from django_belay.contract.outcome import Cancelled, Failed, Retried, Succeeded
from django_belay.db import storage_for_client
from django_belay.storage.base import NewStep
from django_belay.storage.transferring import INSTANTS, TABLES
from tests.app import jobs
from tests.integration.worker import claim, end, park, run

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.postgres]


@pytest.fixture
def on_the_journal(tmp_path: Path, settings: Any) -> Callable[[], Any]:
    """Settings that name a journal; its owner is whoever the command makes it."""
    options = {"directory": str(tmp_path / "belay"), "durability": "write", "validated_filesystem": True}

    @contextmanager
    def switched() -> Iterator[None]:
        storage = {"BACKEND": "django_belay.storage.journal", "OPTIONS": options}
        with override_settings(BELAY={**settings.BELAY, "STORAGE": storage}):
            yield

    return switched


def fill() -> None:
    """Something of everything, jobs in every state but running."""
    storage, now = storage_for_client().storage, timezone.now()
    jobs.echo.enqueue({"text": "ä\u2028", "number": 2**60, "list": [1, 1.5, None]})
    [run_first] = claim()
    storage.put_step(run_first.id, NewStep(name="s", value=b'{"a":1}', usd_micros=7, tokens=3), now=now)
    storage.put_step(run_first.id, NewStep(name="raw", value=b"\xff\x00"), now=now)
    storage.append_event(run_first.id, {"done": 1}, now=now)
    storage.append_event(run_first.id, ["again"], now=now)
    end(run_first, Succeeded(b"\x83etf"))
    for outcome in (
        Failed(error={"error": "E"}),
        Cancelled(reason="no"),
        Retried(error={"error": "again"}, ready_at=now + timedelta(hours=1)),
    ):
        jobs.echo.enqueue(1)
        run(outcome)
    jobs.echo.enqueue(2)
    parked = park("go")
    client.signal(parked.id, "other", {"x": 1})
    jobs.once.enqueue(order_id=7)
    flow = Workflow()
    flow.add("a", jobs.plain, 1)
    flow.add("b", jobs.plain, 2, deps=["a"], ignore=["cancelled"])
    flow.enqueue()
    queues.put("mail", limit=3)
    queues.pause("ai")
    storage.pause_queue("mail", node="n1", now=now)
    schedules.put("nightly", "0 3 * * *", jobs.plain, {"number": 1})
    storage.debit_rate("queue:mail", amount=3, period_s=60, now=now)


def move(*arguments: str) -> dict[str, Any]:
    out = StringIO()
    call_command("belay_journal", *arguments, "--format", "json", stdout=out)
    found: dict[str, Any] = json.loads(out.getvalue())
    return found


def rows_of(path: Path) -> dict[str, list[dict[str, Any]]]:
    found: dict[str, list[dict[str, Any]]] = {table: [] for table in TABLES}
    for line in map(json.loads, path.read_bytes().splitlines()):
        if "row" in line:
            found[line["table"]].append(line["row"])
    return found


def in_milliseconds(rows: dict[str, list[dict[str, Any]]]) -> dict[str, list[dict[str, Any]]]:
    def shortened(table: str, row: dict[str, Any]) -> dict[str, Any]:
        return {**row, **{name: _milliseconds(row[name], name) for name in INSTANTS[table]}}

    return {table: [shortened(table, row) for row in some] for table, some in rows.items()}


def _milliseconds(text: str | None, name: str) -> str | None:
    if text is None:
        return None
    at = datetime.fromisoformat(text)
    up = timedelta(microseconds=999) if name in ("ready_at", "lease_until") else timedelta()
    at += up
    return at.replace(microsecond=at.microsecond // 1000 * 1000).isoformat()


def empty_tables() -> None:
    with connection.cursor() as cursor:
        cursor.execute(
            "TRUNCATE belay_jobs, belay_steps, belay_events, belay_signals, belay_rate, belay_queues, belay_crons,"
            " belay_x_queues, belay_x_queue_pauses, belay_x_cron_slots, belay_x_crons"
        )


def test_there_and_back_nothing_is_lost(tmp_path: Path, on_the_journal: Callable[[], Any]) -> None:
    fill()
    first, second, third = (tmp_path / name for name in ("first", "second", "third"))
    counts = move("export", str(first))
    assert {counts[table] for table in ("jobs", "steps", "events", "signals")} != {0}
    with on_the_journal():
        assert move("import", str(first), "--dry-run")["jobs"] == counts["jobs"]
        assert move("export", str(tmp_path / "none"), "--dry-run")["jobs"] == 0
        assert move("import", str(first)) == {**counts, "storage": "django_belay.storage.journal"}
        moved = move("export", str(second))
    assert {table: moved[table] for table in TABLES} == {table: counts[table] for table in TABLES}
    assert in_milliseconds(rows_of(second)) == in_milliseconds(rows_of(first))
    empty_tables()
    move("import", str(second))
    move("export", str(third))
    assert rows_of(third) == rows_of(second)
    highest = max(row["id"] for row in rows_of(third)["jobs"])
    assert jobs.echo.enqueue("new").id > highest
    assert jobs.once.enqueue(order_id=7).duplicate


def test_what_is_loaded_runs(tmp_path: Path, on_the_journal: Callable[[], Any]) -> None:
    job = jobs.echo.enqueue(1)
    move("export", str(tmp_path / "file"))
    empty_tables()
    move("import", str(tmp_path / "file"))
    [claimed] = claim()
    assert (claimed.id, claimed.input) == (job.id, {"value": 1})


def refused(*arguments: str) -> str:
    with pytest.raises(CommandError) as caught:
        call_command("belay_journal", *arguments, stdout=StringIO())
    assert caught.value.returncode == 1
    return str(caught.value)


def test_a_storage_at_work_is_not_moved(tmp_path: Path) -> None:
    jobs.echo.enqueue(1)
    claim()
    assert "1 jobs are running" in refused("export", str(tmp_path / "file"))
    assert not (tmp_path / "file").exists()


def test_a_storage_that_is_not_empty_takes_nothing(tmp_path: Path) -> None:
    jobs.echo.enqueue(1)
    file = tmp_path / "file"
    move("export", str(file))
    assert "not empty (1 jobs)" in refused("import", str(file))
    assert "there already" in refused("export", str(file))


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda data: b"", "is empty"),
        (lambda data: b"not json\n", "no export"),
        (lambda data: b'{"format": "another"}\n', "no export"),
        (lambda data: data.replace(b'"version":1', b'"version":2', 1), "version 2"),
        (lambda data: b"".join(data.splitlines(keepends=True)[:-1]), "cut short"),
        (lambda data: data[: len(data) // 2], "damaged"),
        (lambda data: data.replace(b'"value":1', b'"value":7', 1), "damaged"),
        (lambda data: data.replace(b'"table":"jobs"', b'"table":"users"', 1), "no table that is known"),
        (lambda data: data + b"\n", "damaged"),
    ],
    ids=["empty", "text", "foreign", "version", "cut", "torn", "changed", "table", "more"],
)
def test_a_damaged_file_is_refused_and_nothing_is_written(
    tmp_path: Path, spoil: Callable[[bytes], bytes], said: str
) -> None:
    jobs.echo.enqueue(1)
    jobs.echo.enqueue(2)
    file = tmp_path / "file"
    move("export", str(file))
    empty_tables()
    file.write_bytes(spoil(file.read_bytes()))
    assert said in refused("import", str(file))
    assert client.list_jobs(limit=10) == []


def test_half_an_import_is_opened_by_nobody(
    tmp_path: Path, on_the_journal: Callable[[], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    from django_belay.storage.journal.store.transferring import JournalRows

    for number in range(3):
        jobs.echo.enqueue(number)
    file = tmp_path / "file"
    move("export", str(file))

    def die(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    with on_the_journal():
        with monkeypatch.context() as patch:
            patch.setattr(JournalRows, "finish", die)
            with pytest.raises(KeyboardInterrupt):
                move("import", str(file))
        assert "did not come to its end" in refused("export", str(tmp_path / "again"))


def test_a_failed_import_leaves_postgresql_empty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from django_belay.storage.postgres.transferring import PostgresRows

    jobs.echo.enqueue(1)
    file = tmp_path / "file"
    move("export", str(file))
    empty_tables()

    def die(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(PostgresRows, "finish", die)
    with pytest.raises(KeyboardInterrupt):
        move("import", str(file))
    assert client.list_jobs(limit=10) == []
