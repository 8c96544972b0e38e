"""PostgreSQL and the journal through the same random histories; ``python -m soak.compare`` runs thousands."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import run_state_machine_as_test
from psycopg import sql

from django_belay.testing.postgres import PostgresServer
from tests.behaviour.histories import machine_of
from tests.behaviour.worlds import Worlds, worlds

DATABASE = "belay_same_outcomes"

# About 20 seconds; each history runs on three storages.
HISTORIES = settings(
    max_examples=40,
    stateful_step_count=25,
    deadline=None,
    database=None,
    report_multiple_bugs=False,
    suppress_health_check=list(HealthCheck),
)


@pytest.fixture
def made(postgres_server: PostgresServer, tmp_path: Path) -> Iterator[Worlds]:
    maintenance = postgres_server.parameters
    name = sql.Identifier(DATABASE)
    with psycopg.connect(**maintenance, autocommit=True) as connection:
        connection.execute(sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(name))
        connection.execute(sql.SQL("CREATE DATABASE {}").format(name))
        with worlds({**maintenance, "dbname": DATABASE}, tmp_path / "journals") as made:
            yield made
        connection.execute(sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(name))


def test_every_storage_comes_to_the_same(made: Worlds) -> None:
    run_state_machine_as_test(machine_of(made.make, made.end), settings=HISTORIES)  # type: ignore[no-untyped-call]
    assert made.made >= HISTORIES.max_examples
