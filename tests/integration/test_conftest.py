"""What ``tests/conftest.py`` promises to the tests."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from django.core.management import call_command
from django.db import OperationalError, connection, connections
from django.db.models.signals import post_migrate

from tests import conftest

pytestmark = pytest.mark.postgres

ROOT = Path(__file__).resolve().parents[2]
NO_SERVER = "postgresql://127.0.0.1:9/none"  # the discard port: nobody answers


def run_pytest(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    kept = {key: value for key, value in os.environ.items() if not key.endswith("DATABASE_URL")}
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-q", *arguments],
        cwd=ROOT,
        env=kept | variables,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


def count(table: str) -> int:
    with connection.cursor() as cursor:
        cursor.execute(f"SELECT count(*) FROM {table}")
        return cursor.fetchone()[0]


@pytest.fixture
def probe_tables(transactional_db: None) -> object:
    with connection.cursor() as cursor:
        cursor.execute("CREATE TABLE belay_x_probe AS SELECT 1 AS one")
        cursor.execute("CREATE TABLE belay_x_probe_meta AS SELECT 1 AS version")
    yield
    with connection.cursor() as cursor:
        cursor.execute("DROP TABLE belay_x_probe, belay_x_probe_meta")


def test_flush_empties_our_tables_but_not_the_schemas_version(probe_tables: object) -> None:
    call_command("flush", interactive=False, verbosity=0)
    assert (count("belay_x_probe"), count("belay_x_probe_meta")) == (0, 1)
    with connection.cursor() as cursor:
        cursor.execute("SHOW lock_timeout")
        assert cursor.fetchone() == ("0",)


def test_connection_left_in_a_transaction_fails_the_emptying_in_bounded_time(
    probe_tables: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(conftest, "TRUNCATE_WAITS", "200ms")
    left = connections.create_connection("default")
    try:
        left.set_autocommit(False)
        with left.cursor() as cursor:
            cursor.execute("SELECT * FROM belay_x_probe")
        with pytest.raises(OperationalError, match="lock timeout"):
            conftest.empty_belay_tables(sender=_Belay, using="default")
    finally:
        left.close()


class _Belay:
    label = "belay"


def test_emptying_is_connected() -> None:
    assert conftest.empty_belay_tables in [receiver() for _, receiver, *_ in post_migrate.receivers]


def test_tests_without_a_database_start_no_server() -> None:
    done = run_pytest("tests/unit/test_find_postgres.py", BELAY_TEST_DATABASE_URL=NO_SERVER)
    assert done.returncode == 0, done.stdout
    assert "Tests ran on" not in done.stdout


def test_server_that_was_asked_for_and_is_missing_ends_the_run_with_the_reason() -> None:
    here = f"{Path(__file__)}::test_flush_empties_our_tables_but_not_the_schemas_version"
    done = run_pytest("--postgres=url", here)
    assert done.returncode == 3
    assert "neither BELAY_TEST_DATABASE_URL nor DATABASE_URL is set" in done.stdout + done.stderr
    done = run_pytest(here, BELAY_TEST_DATABASE_URL=NO_SERVER)
    assert done.returncode == 3
    assert "127.0.0.1:9/none, which does not answer" in done.stdout + done.stderr


def test_missing_shared_fixtures_skip_and_fail_in_ci(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("BELAY_SHARED_FIXTURES", str(tmp_path))
    assert conftest.find_shared_fixtures() == tmp_path
    monkeypatch.setenv("BELAY_SHARED_FIXTURES", str(tmp_path / "none"))
    monkeypatch.delenv("CI", raising=False)
    with pytest.raises(pytest.skip.Exception, match="set BELAY_SHARED_FIXTURES"):
        conftest.find_shared_fixtures()
    monkeypatch.setenv("CI", "true")
    with pytest.raises(pytest.fail.Exception, match="set BELAY_SHARED_FIXTURES"):
        conftest.find_shared_fixtures()
