"""The example project as its readers run it: its own tests, and the demo with real processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import psutil
import psycopg
import pytest

from django_belay.testing.postgres import PostgresServer
from tests.integration.workers import eventually

ROOT = Path(__file__).resolve().parents[2]
TIMEOUT_S = 120
Demo = subprocess.Popen[str]

# Totals that the jobs write wrong, as a bug in the fan-in would.
WRONG_TOTALS = """
CREATE FUNCTION one_too_many() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    NEW.terms := NEW.terms + 1;
    RETURN NEW;
END $$;
CREATE TRIGGER one_too_many BEFORE UPDATE ON codesearch_indexversion
    FOR EACH ROW EXECUTE FUNCTION one_too_many();
"""


@pytest.fixture
def example_url(postgres_server: PostgresServer) -> Iterator[str]:
    """The URL of an empty database."""
    name = f"belay_example_{uuid4().hex[:8]}"
    with psycopg.connect(postgres_server.dsn, autocommit=True) as connection:
        connection.execute(f'CREATE DATABASE "{name}"')
        yield PostgresServer(
            source="url",
            dsn=psycopg.conninfo.make_conninfo(postgres_server.dsn, dbname=name),
            server_version=postgres_server.server_version,
            stop_server=lambda: None,
        ).url
        connection.execute(f'DROP DATABASE "{name}" WITH (FORCE)')


@pytest.fixture(params=["postgres", "journal"])
def example(request: pytest.FixtureRequest, tmp_path: Path) -> dict[str, str]:
    """The environment of an example project on one of the storages."""
    if request.param == "journal":
        return {"BELAY_EXAMPLE_VAR": str(tmp_path)}
    return {"DATABASE_URL": request.getfixturevalue("example_url")}


def start(example: dict[str, str], *arguments: str) -> Demo:
    environment = {**os.environ, "BELAY_NO_VENV": "1", "PYTHONUNBUFFERED": "1"}
    for name in ("DATABASE_URL", "DJANGO_SETTINGS_MODULE", "BELAY_TEST_DATABASE_URL"):
        environment.pop(name, None)
    environment.update(example)
    return subprocess.Popen(
        [sys.executable, "-m", "example_project", *arguments],
        cwd=ROOT,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def finish(process: Demo) -> str:
    try:
        return process.communicate(timeout=TIMEOUT_S)[0]
    finally:
        for left in [process, *psutil.Process(process.pid).children()] if process.poll() is None else []:
            left.kill()


def read_until(process: Demo, text: str) -> str:
    assert process.stdout is not None
    read = ""
    for line in process.stdout:
        read += line
        if text in line:
            return read
    raise AssertionError(f"{text!r} was not said:\n{read}")


def workers_of(process: Demo) -> list[psutil.Process]:
    """Its worker processes and theirs."""
    return psutil.Process(process.pid).children(recursive=True)


def test_a_storage_that_is_none_is_refused(tmp_path: Path) -> None:
    for arguments, said in (
        (["--storage", "redis"], "one of journal, postgres"),
        (["--storage=journal", "--postgres=embedded"], "leave out one"),
    ):
        process = start({"BELAY_EXAMPLE_VAR": str(tmp_path)}, "check", *arguments)
        assert said in finish(process)
        assert process.returncode == 1


def runs(process: psutil.Process) -> bool:
    # A machine without an init process that reaps keeps what has ended as a zombie.
    return process.is_running() and process.status() != psutil.STATUS_ZOMBIE


def test_its_own_tests_pass(example: dict[str, str]) -> None:
    process = start(example, "test", "example_project", "--noinput")
    said = finish(process)
    assert process.returncode == 0, said
    assert "Found 0 test" not in said


@pytest.mark.slow  # a lane of .ci/run does the same
def test_demo_shows_every_part_and_succeeds(example: dict[str, str]) -> None:
    process = start(example, "demo")
    said = finish(process)
    assert process.returncode == 0, said
    for part in (
        "1  Fan out",
        "kill -9",
        "came from the journal",
        "2  Approve",
        "3  Refresh",
        "is published",
    ):
        assert part in said
    assert said.count("ok: ") == 2
    assert "read 4 of" in said


def test_demo_fails_where_the_totals_differ(example_url: str) -> None:
    migrated = start({"DATABASE_URL": example_url}, "migrate", "-v0")
    assert finish(migrated) == ""
    with psycopg.connect(example_url, autocommit=True) as connection:
        connection.execute(WRONG_TOTALS)
    process = start({"DATABASE_URL": example_url}, "demo", "--no-kill")
    said = finish(process)
    assert process.returncode == 1, said
    assert "the totals differ" in said
    assert "2  Approve" not in said


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_interrupted_demo_leaves_nothing_running(
    example: dict[str, str], number: signal.Signals, code: int
) -> None:
    process = start(example, "demo", "--no-kill")
    read_until(process, "1  Fan out")
    # Two supervisors, each with a child.
    started = eventually(lambda: found if len(found := workers_of(process)) >= 4 else None)
    process.send_signal(number)
    said = finish(process)
    assert process.returncode == code, said
    assert "Traceback" not in said
    assert [left for left in started if runs(left)] == []


def test_demo_whose_worker_cannot_be_killed_is_refused(example_url: str) -> None:
    process = start({"DATABASE_URL": example_url}, "demo", "--workers", "1")
    assert "two are needed" in finish(process)
    assert process.returncode == 1
