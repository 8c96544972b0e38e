"""What every test of a Storage's promises may use: ``store``, once for each adapter, and ``clock``.

PostgreSQL tests run on a database of their own, reached by a pool like a worker's, so that
real concurrent connections can be used; nothing here goes through Django.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg import sql

from django_belay.contract.notification import PokePolicy
from django_belay.engine.clock import SystemClock
from django_belay.storage.base import Storage
from django_belay.storage.journal.files.initialise import initialise
from django_belay.storage.journal.files.journal import JournalOptions, open_journal
from django_belay.storage.journal.format.manifest import Retention
from django_belay.storage.journal.serving.remote import RemoteStore
from django_belay.storage.journal.store.store import JournalStore
from django_belay.storage.postgres import schema
from django_belay.storage.postgres.pool import PoolOptions, PoolSession
from django_belay.storage.postgres.store import PostgresStore
from django_belay.testing.clock import SimClock
from django_belay.testing.postgres import PostgresServer
from tests.behaviour.recovering import RecoveringStore
from tests.behaviour.running import Workbench
from tests.behaviour.serving import served
from tests.behaviour.supervised import MakeChild, Supervised

DATABASE = "belay_behaviour"


@pytest.fixture
def clock() -> SimClock:
    return SimClock()


# What a test asks for that only PostgreSQL has: rows to spoil, locks to hold, plans to read.
POSTGRES_ALONE = frozenset({"behaviour_params", "connection", "make_postgres_store", "postgres_server"})


# What needs one owner for the whole test: threads that work beside it, or what it holds in memory.
OWNER_ALONE = frozenset({"make_child", "one_owner"})


@pytest.fixture
def one_owner() -> None:
    """Asked for by tests that a new owner each time would make endless, and by those of what an owner keeps
    in memory: a pruned job's bytes go by compaction alone."""


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run every test of ``store`` on each storage that has what it asks for."""
    if "store" in metafunc.fixturenames:
        asked = set(metafunc.definition.fixturenames)
        storages = ["postgres"] if POSTGRES_ALONE & asked else ["postgres", "journal", "remote"]
        if "journal" in storages and not OWNER_ALONE & asked:
            storages.append("recovering")
        metafunc.parametrize("store", storages, indirect=True)


@pytest.fixture
def store(request: pytest.FixtureRequest) -> Storage:
    """A storage with empty tables."""
    return request.getfixturevalue(f"{request.param}_store")


@pytest.fixture
def own_journal(tmp_path: Path, clock: SimClock) -> Callable[[], JournalStore]:
    """Opens one journal anew each time; its owner is this process."""
    root = str(tmp_path / "store")
    initialise(root, now_ms=0, retention=Retention(), durability="write", validated_filesystem=True)
    options = JournalOptions(durability="write", validated_filesystem=True, writer="inline")
    return lambda: JournalStore(open_journal(root, options), now=clock.now())


@pytest.fixture
def journal_store(own_journal: Callable[[], JournalStore]) -> Iterator[JournalStore]:
    store = own_journal()
    yield store
    store.close()


@pytest.fixture
def recovering_store(own_journal: Callable[[], JournalStore]) -> Iterator[RecoveringStore]:
    store = RecoveringStore(own_journal)
    yield store
    store.close()


@pytest.fixture
def remote_store(own_journal: Callable[[], JournalStore]) -> Iterator[RemoteStore]:
    """The journal through its owner's socket; a path of its own, for a socket's may hold 108 bytes."""
    with (
        tempfile.TemporaryDirectory(prefix="belay-") as directory,
        served(own_journal(), Path(directory) / "s") as store,
    ):
        yield store


# -- a worker's child ---------------------------------------------------------------


@pytest.fixture
def make_child(store: Storage) -> Iterator[MakeChild]:
    """Makes children whose kind ``k`` is the given function; keywords are worker options."""
    made: list[Supervised] = []

    def make(
        function: Callable[..., Any],
        definition: dict[str, Any] | None = None,
        *,
        once: bool = False,
        **options: Any,
    ) -> Supervised:
        clock: Any = SystemClock()
        bench = Workbench(store, clock, **{"busy_poll_s": 0.01, "idle_poll_s": 0.05, **options})
        bench.define(function, **definition or {})
        made.append(Supervised(bench, once=once))
        return made[-1]

    yield make
    for one in made:
        one.stop()


# -- PostgreSQL -------------------------------------------------------------------


@pytest.fixture(scope="session")
def behaviour_params(postgres_server: PostgresServer) -> Iterator[dict[str, str]]:
    """psycopg's parameters of a migrated database that belongs to these tests alone."""
    maintenance = postgres_server.parameters
    name = sql.Identifier(DATABASE)
    with psycopg.connect(**maintenance, autocommit=True) as connection:
        connection.execute(sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(name))
        connection.execute(sql.SQL("CREATE DATABASE {}").format(name))
    params = {**maintenance, "dbname": DATABASE}
    with psycopg.connect(**params, autocommit=True) as connection:
        schema.migrate(connection)
    yield params
    with psycopg.connect(**maintenance, autocommit=True) as connection:
        connection.execute(sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(name))


@pytest.fixture
def connection(behaviour_params: dict[str, str]) -> Iterator[psycopg.Connection[Any]]:
    """A connection beside the store's, in autocommit, to look at rows and to spoil them."""
    with psycopg.connect(**behaviour_params, autocommit=True) as connection:
        yield connection


@pytest.fixture
def empty_tables(connection: psycopg.Connection[Any]) -> None:
    rows = connection.execute(
        r"SELECT relname FROM pg_class WHERE relkind = 'r' AND relname LIKE 'belay\_%'"
        r" AND relname <> 'belay_meta' AND pg_table_is_visible(oid)"
    ).fetchall()
    tables = sql.SQL(", ").join(sql.Identifier(name) for (name,) in rows)
    connection.execute("SET lock_timeout = '20s'")
    connection.execute(sql.SQL("TRUNCATE {}").format(tables))


@pytest.fixture
def make_postgres_store(
    behaviour_params: dict[str, str], empty_tables: None
) -> Iterator[Callable[..., PostgresStore]]:
    """Makes stores with a pool each; options are those of ``PoolOptions``."""
    sessions: list[PoolSession] = []

    def make(*, poke: PokePolicy | None = None, **options: Any) -> PostgresStore:
        session = PoolSession(behaviour_params, PoolOptions(**{"size": 8, **options}))
        sessions.append(session)
        return PostgresStore(session, poke=poke, listen_params=behaviour_params)

    yield make
    for session in sessions:
        session.close()


@pytest.fixture
def postgres_store(make_postgres_store: Callable[..., PostgresStore]) -> PostgresStore:
    return make_postgres_store()
