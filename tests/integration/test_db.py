"""Connections: the client's over Django's, the worker's own."""

from __future__ import annotations

from collections.abc import Iterator

import psycopg
import pytest
from django.db import connection
from django.test import override_settings

from django_belay import client, conf
from django_belay.contract.outcome import Failed
from django_belay.db import postgres
from django_belay.exceptions import ConfigurationError, StorageError
from tests.app import jobs
from tests.integration.worker import park, run

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.postgres]


@pytest.fixture
def server_side_binding() -> Iterator[None]:
    """Parameters bound by the server, whose types it must be told."""
    options = connection.settings_dict["OPTIONS"]
    connection.close()
    options["server_side_binding"] = True
    yield
    connection.close()
    del options["server_side_binding"]


@pytest.mark.usefixtures("server_side_binding")
def test_everything_works_with_parameters_bound_by_the_server() -> None:
    job = jobs.once.enqueue(1)
    assert jobs.once.enqueue(1).duplicate
    park("go")
    assert job.signal("go") == [job.id]
    run(Failed(error={"error": "x"}))
    job.retry()
    job.cancel("no need")
    assert len(jobs.echo.enqueue_many([{"value": n} for n in range(3)]).ids) == 3
    assert [found.state for found in client.list_jobs(kind=job.job.kind)] == ["cancelled"]
    assert client.stats()[0].ready == 3


def test_the_workers_pool_follows_the_options() -> None:
    options = {"pool_size": 3, "statement_timeout": 2, "connect_timeout": 7, "prepare": False}
    with override_settings(BELAY={"STORAGE": {"OPTIONS": options}}):
        session = postgres.worker_session(application_name="belay tests")
    try:
        found = session._options
        assert (found.size, found.statement_timeout_s, found.connect_timeout_s) == (3, 2.0, 7.0)
        assert not found.prepare
        assert session.run("read_clock")
    finally:
        session.close()


def test_listening_has_a_dsn_of_its_own() -> None:
    direct = {"listen_dsn": "host=direct dbname=x port=5432"}
    with override_settings(BELAY={"STORAGE": {"OPTIONS": direct}}):
        assert postgres.listen_params(conf.get().postgres) == {
            "host": "direct",
            "dbname": "x",
            "port": "5432",
        }
    with override_settings(BELAY={"NOTIFY": "off"}):
        assert postgres.listen_params(conf.get().postgres) is None
    found = postgres.listen_params(conf.get().postgres)
    assert found is not None
    assert found["dbname"] == connection.settings_dict["NAME"]


def test_a_database_of_another_kind_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    postgres._client_storage.cache_clear()
    monkeypatch.setattr(connection, "vendor", "sqlite")
    with pytest.raises(ConfigurationError, match="PostgreSQL"):
        jobs.echo.enqueue(1)


def test_the_drivers_errors_come_as_ours() -> None:
    session = postgres.DjangoSession("default")
    with connection.cursor() as cursor:
        cursor.execute("ALTER TABLE belay_jobs RENAME COLUMN kind TO sort")
    try:
        with pytest.raises(StorageError):
            session.run("get_job", {"id": 1})
    finally:
        with connection.cursor() as cursor:
            cursor.execute("ALTER TABLE belay_jobs RENAME COLUMN sort TO kind")


@pytest.fixture
def assumed_role() -> Iterator[str]:
    """A role that Django takes after connecting, its name in need of quotes."""
    role, options = "belay owner", connection.settings_dict["OPTIONS"]
    with connection.cursor() as cursor:
        cursor.execute(f'DROP ROLE IF EXISTS "{role}"')
        cursor.execute(f'CREATE ROLE "{role}"')
    options["assume_role"] = role
    yield role
    del options["assume_role"]
    with connection.cursor() as cursor:
        cursor.execute(f'DROP ROLE "{role}"')


def test_a_workers_connections_take_the_role_that_djangos_take(assumed_role: str) -> None:
    with psycopg.connect(**postgres.connect_params("default")) as own:
        row = own.execute("SELECT current_user::text").fetchone()
    assert row == (assumed_role,)
