"""The belay_* tables: contract §1, §3; rules 1, 2."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from importlib.resources import files
from typing import Any

import psycopg
import pytest
from psycopg import sql

from django_belay.exceptions import ContractTooNew, SchemaError, SchemaMissing, SchemaTooOld
from django_belay.storage.postgres import schema
from django_belay.storage.postgres.pool import PoolSession
from django_belay.testing.postgres import PostgresServer

pytestmark = pytest.mark.postgres

Connection = psycopg.Connection[Any]
DATABASE = "belay_schema"


@pytest.fixture
def params(postgres_server: PostgresServer) -> Iterator[dict[str, str]]:
    """An empty database."""
    name = sql.Identifier(DATABASE)
    with psycopg.connect(**postgres_server.parameters, autocommit=True) as connection:
        connection.execute(sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(name))
        connection.execute(sql.SQL("CREATE DATABASE {}").format(name))
        yield {**postgres_server.parameters, "dbname": DATABASE}
        connection.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(name))


@pytest.fixture
def connection(params: dict[str, str]) -> Iterator[Connection]:
    with psycopg.connect(**params, autocommit=True) as connection:
        yield connection


@pytest.fixture
def session(params: dict[str, str]) -> Iterator[PoolSession]:
    session = PoolSession(params)
    yield session
    session.close()


def make_wire(connection: Connection, version: int) -> None:
    """The wire tables as an SDK of that migration leaves them, with a job in them."""
    scripts = files("django_belay.storage.postgres").joinpath("schema", "wire")
    for script in sorted(scripts.iterdir(), key=lambda entry: entry.name):
        if int(script.name[:4]) <= version:
            connection.execute(script.read_text().encode())
    connection.execute(
        "INSERT INTO belay_jobs (kind, queue, inserted_at) SELECT 'MyApp.Mailer', 'default', '2030-01-01Z' "
        "FROM generate_series(1, 50)"
    )


def rows_of(connection: Connection) -> list[Any]:
    """Every row with its physical place and writer: equal only if no row was touched."""
    return connection.execute("SELECT j.ctid, j.xmin, j.* FROM belay_jobs AS j ORDER BY j.id").fetchall()


def catalog(connection: Connection) -> list[Any]:
    return (
        connection.execute(
            "SELECT c.relname, c.relkind, c.reloptions::text, pg_get_indexdef(i.indexrelid), i.indisvalid "
            "FROM pg_class AS c LEFT JOIN pg_index AS i ON i.indexrelid = c.oid "
            r"WHERE c.relname LIKE 'belay\_%' ORDER BY 1"
        ).fetchall()
        + connection.execute(
            "SELECT table_name, column_name, data_type, is_nullable, column_default FROM information_schema.columns "
            r"WHERE table_name LIKE 'belay\_%' ORDER BY 1, ordinal_position"
        ).fetchall()
    )


# -- making


def test_3_an_empty_database_gets_everything_and_a_second_run_does_nothing(
    connection: Connection, session: PoolSession
) -> None:
    planned = schema.migrate(connection, plan=True)
    assert connection.execute("SELECT to_regclass('belay_meta')").fetchone() == (None,)
    assert schema.migrate(connection) == planned
    assert schema.migrate(connection) == []
    schema.check(session)
    assert connection.execute("SELECT version, contract_major FROM belay_meta ORDER BY 1").fetchall() == [
        (1, 1),
        (2, 1),
        (3, 1),
    ]


def test_3_the_wire_indexes_have_their_normative_names_and_definitions(connection: Connection) -> None:
    schema.migrate(connection)
    found = dict(
        connection.execute(
            "SELECT indexname, indexdef FROM pg_indexes WHERE tablename = 'belay_jobs'"
        ).fetchall()
    )
    for name, columns, unique in (
        ("belay_jobs_claim_idx", "(queue, priority, ready_at, id) WHERE (state = 'ready'::text)", False),
        ("belay_jobs_await_due_idx", "(queue, ready_at) WHERE ((state = 'awaiting'::text) AND (ready_at IS NOT NULL))", False),
        ("belay_jobs_await_wake_idx", "(await_scope, await_name) WHERE (state = 'awaiting'::text)", False),
        ("belay_jobs_lease_idx", "(lease_until) WHERE (state = 'running'::text)", False),
        ("belay_jobs_workflow_idx", "(workflow_id) WHERE (workflow_id IS NOT NULL)", False),
        ("belay_jobs_parent_idx", "(parent_id) WHERE (parent_id IS NOT NULL)", False),
        ("belay_jobs_prune_idx", "(state, finished_at) WHERE (finished_at IS NOT NULL)", False),
        ("belay_jobs_cron_slot_idx", "(cron_name, cron_slot) WHERE (cron_name IS NOT NULL)", True),
        ("belay_jobs_unique_incomplete_idx", "(unique_key) WHERE ((unique_key IS NOT NULL) AND (unique_mode = 'incomplete'::text) AND", True),
        ("belay_jobs_unique_window_idx", "(unique_key) WHERE ((unique_key IS NOT NULL) AND (unique_mode = ANY (ARRAY['window'::text, 'always'::text])))", True),
    ):  # fmt: skip
        assert columns in found[name], found[name]
        assert ("UNIQUE" in found[name]) == unique


@pytest.mark.parametrize("version", [1, 2, 3])
def test_rule_2_a_database_of_the_elixir_sdk_is_adopted_without_touching_a_row(
    connection: Connection, session: PoolSession, params: dict[str, str], version: int
) -> None:
    make_wire(connection, version)
    before = rows_of(connection)
    done = schema.migrate(connection)
    assert rows_of(connection) == before
    assert sum(title.startswith("wire migration") for title in done) == 3 - version
    schema.check(session)
    adopted = catalog(connection)
    connection.execute("DROP SCHEMA public CASCADE; CREATE SCHEMA public")
    schema.migrate(connection)
    assert catalog(connection) == adopted


def test_rule_2_wire_tables_have_no_column_of_ours(connection: Connection) -> None:
    make_wire(connection, 3)
    columns = "SELECT table_name, column_name FROM information_schema.columns WHERE table_schema = 'public'"
    before = set(connection.execute(columns.encode()).fetchall())
    schema.migrate(connection)
    added = set(connection.execute(columns.encode()).fetchall()) - before
    assert added
    assert all(table.startswith("belay_x_") for table, _ in added)


# -- versions


@pytest.mark.parametrize("version", [4, 99])
def test_rule_1_a_newer_migration_of_a_known_major_is_tolerated(
    connection: Connection, session: PoolSession, version: int
) -> None:
    make_wire(connection, 3)
    connection.execute("INSERT INTO belay_meta VALUES (%s, 1)", (version,))
    connection.execute("ALTER TABLE belay_jobs ADD COLUMN of_tomorrow text")
    assert all(title.startswith(("own ", "storage ")) for title in schema.migrate(connection))
    schema.check(session)


def test_rule_1_a_higher_major_is_refused_and_nothing_is_changed(
    connection: Connection, session: PoolSession
) -> None:
    make_wire(connection, 3)
    connection.execute("INSERT INTO belay_meta VALUES (4, 2)")
    before = catalog(connection)
    for refuse in (lambda: schema.migrate(connection), lambda: schema.check(session)):
        with pytest.raises(ContractTooNew, match=r"speaks wire contract 2.* knows 1; upgrade django-belay"):
            refuse()
    assert catalog(connection) == before


def test_1_a_database_without_tables_is_refused_with_what_to_do(session: PoolSession) -> None:
    with pytest.raises(
        SchemaMissing, match=r"'belay_schema' has no belay_\* tables; run 'manage.py belay_migrate'"
    ):
        schema.check(session)


@pytest.mark.parametrize("version", [1, 2])
def test_1_an_older_migration_is_refused_with_found_and_needed(
    connection: Connection, session: PoolSession, version: int
) -> None:
    make_wire(connection, version)
    with pytest.raises(SchemaTooOld, match=rf"has schema migration {version}, at least 3 is needed; run"):
        schema.check(session)


def test_1_missing_tables_of_our_own_are_refused(connection: Connection, session: PoolSession) -> None:
    make_wire(connection, 3)
    with pytest.raises(SchemaTooOld, match=r"lacks this SDK's own tables or indexes"):
        schema.check(session)


# -- indexes beside writers


def test_rule_2_an_index_on_rows_is_built_beside_an_open_writer(
    connection: Connection, params: dict[str, str]
) -> None:
    """A plain build would wait for the writer, and every later writer for the build."""
    make_wire(connection, 3)
    failures: list[Exception] = []
    with psycopg.connect(**params) as writer, psycopg.connect(**params, autocommit=True) as later:
        writer.execute("INSERT INTO belay_jobs (kind, queue, inserted_at) VALUES ('k', 'q', '2030-01-01Z')")
        later.execute("SET lock_timeout = '5s'")
        thread = threading.Thread(target=migrate_into, args=(params, failures))
        thread.start()
        wait_for_build(later)
        later.execute("INSERT INTO belay_jobs (kind, queue, inserted_at) VALUES ('k', 'q', '2030-01-01Z')")
        writer.commit()
        thread.join(60)
    assert failures == []
    assert schema.migrate(connection) == []


def wait_for_build(connection: Connection) -> None:
    for _ in range(5000):
        row = connection.execute(
            "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() "
            "AND query LIKE '%CREATE INDEX%' AND state = 'active' AND wait_event_type = 'Lock' "
            "AND pid <> pg_backend_pid()"
        ).fetchone()
        if row and row[0]:
            return
    raise AssertionError("no build waits for the writer")


def migrate_into(params: dict[str, str], failures: list[Exception]) -> None:
    try:
        with psycopg.connect(**params, autocommit=True) as connection:
            schema.migrate(connection)
    except Exception as error:
        failures.append(error)


@pytest.mark.parametrize("version", [0, 3], ids=["empty", "with rows"])
def test_rule_2_migrations_at_the_same_time_do_not_disturb_each_other(
    connection: Connection, params: dict[str, str], version: int
) -> None:
    if version:
        make_wire(connection, version)
    failures: list[Exception] = []
    threads = [threading.Thread(target=migrate_into, args=(params, failures)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert failures == []
    assert schema.migrate(connection) == []
    assert connection.execute("SELECT count(*) FROM belay_meta").fetchone() == (3,)


@pytest.mark.parametrize("rows", [True, False])
def test_rule_2_an_invalid_index_is_dropped_and_built_again(
    connection: Connection, session: PoolSession, rows: bool
) -> None:
    schema.migrate(connection)
    if rows:
        connection.execute(
            "INSERT INTO belay_jobs (kind, queue, inserted_at) VALUES ('k', 'q', '2030-01-01Z')"
        )
    connection.execute(
        "UPDATE pg_index SET indisvalid = false WHERE indexrelid = 'belay_x_jobs_ready_idx'::regclass"
    )
    assert schema.migrate(connection) == ["own index belay_x_jobs_ready_idx (invalid: again)"]
    assert schema.migrate(connection) == []


def test_rule_2_inside_a_transaction_an_empty_table_is_indexed_and_one_with_rows_refused(
    connection: Connection,
) -> None:
    with connection.transaction():
        schema.migrate(connection)
    assert schema.migrate(connection) == []
    connection.execute("INSERT INTO belay_jobs (kind, queue, inserted_at) VALUES ('k', 'q', '2030-01-01Z')")
    connection.execute("DROP INDEX belay_x_jobs_ready_idx")
    with pytest.raises(SchemaError, match="only be built outside a transaction"), connection.transaction():
        schema.migrate(connection)
    assert schema.migrate(connection) == ["own index belay_x_jobs_ready_idx"]


def test_the_migrations_lock_is_released(connection: Connection) -> None:
    schema.migrate(connection)
    assert connection.execute("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'").fetchone() == (0,)


def test_vacuum_comes_often_enough(connection: Connection) -> None:
    schema.migrate(connection)
    row = connection.execute("SELECT reloptions FROM pg_class WHERE oid = 'belay_jobs'::regclass").fetchone()
    assert row is not None
    assert {"autovacuum_vacuum_scale_factor=0.01", "autovacuum_vacuum_cost_delay=0"} <= set(row[0])
