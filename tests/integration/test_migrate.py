"""``migrate`` and ``belay_migrate`` run the same DDL."""

from __future__ import annotations

import io
import json

import pytest
from django.core.management import CommandError, call_command
from django.db import connection

pytestmark = pytest.mark.postgres


def belay_migrate(*args: str) -> str:
    out = io.StringIO()
    call_command("belay_migrate", *args, stdout=out)
    return out.getvalue()


@pytest.mark.django_db
def test_migrate_has_made_tables_and_indexes_in_the_test_database() -> None:
    with connection.cursor() as cursor:
        cursor.execute("SELECT max(version), max(contract_major) FROM belay_meta")
        assert cursor.fetchone() == (3, 1)
        cursor.execute("SELECT to_regclass('belay_x_jobs_ready_idx') IS NOT NULL")
        assert cursor.fetchone() == (True,)


@pytest.mark.django_db(transaction=True)
def test_belay_migrate_after_migrate_has_nothing_to_do() -> None:
    assert "nothing to do" in belay_migrate()
    assert json.loads(belay_migrate("--plan", "--format", "json"))["steps"] == []


@pytest.mark.django_db(transaction=True)
def test_plan_says_what_would_run_and_changes_nothing() -> None:
    with connection.cursor() as cursor:
        cursor.execute("DROP INDEX belay_x_jobs_failed_idx")
    try:
        assert belay_migrate("--plan") == "would apply own index belay_x_jobs_failed_idx\n"
        assert belay_migrate("--plan") == "would apply own index belay_x_jobs_failed_idx\n"
    finally:
        assert belay_migrate() == "applied own index belay_x_jobs_failed_idx\n"


@pytest.mark.django_db(transaction=True)
def test_a_higher_contract_major_is_a_command_error_that_names_both() -> None:
    with connection.cursor() as cursor:
        cursor.execute("INSERT INTO belay_meta (version, contract_major) VALUES (4, 2)")
    try:
        with pytest.raises(CommandError, match=r"speaks wire contract 2.* knows 1"):
            belay_migrate()
    finally:
        with connection.cursor() as cursor:
            cursor.execute("DELETE FROM belay_meta WHERE version = 4")


def test_an_unknown_alias_is_refused_with_the_known_ones() -> None:
    with pytest.raises(CommandError, match="no database 'other' in DATABASES; there are: default"):
        belay_migrate("--database", "other")
