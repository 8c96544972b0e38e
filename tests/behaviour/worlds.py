"""Worlds for histories: PostgreSQL, the journal, and the journal with a new owner before each operation."""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import psycopg
from psycopg import sql

from django_belay.contract.notification import PokePolicy
from django_belay.storage.base import Storage
from django_belay.storage.journal.files.initialise import initialise
from django_belay.storage.journal.files.journal import JournalOptions, open_journal
from django_belay.storage.journal.format.manifest import Retention
from django_belay.storage.journal.store.store import JournalStore
from django_belay.storage.postgres import schema
from django_belay.storage.postgres.pool import PoolOptions, PoolSession
from django_belay.storage.postgres.store import PostgresStore
from django_belay.testing.clock import SimClock
from tests.behaviour.comparing import Side, World
from tests.behaviour.recovering import RecoveringStore

#: Above what any payload holds, so that an id is known in a text.
FIRST_ID = 900_000_000


class Worlds:
    """Makes worlds with empty storages, one after the other.

    Args:
        connection: To a migrated database that is nobody else's, in autocommit.
        session: A pool on the same database.
        root: A directory for journals.
        recovering: Whether the recovering journal takes part; it costs as much as the other two.
    """

    def __init__(
        self, connection: psycopg.Connection, session: PoolSession, root: Path, *, recovering: bool = True
    ) -> None:
        self._connection = connection
        self._session = session
        self._root = root
        self._recovering = recovering
        self._numbers = itertools.count()
        self._stores: list[Storage] = []
        self.made = 0

    def make(self) -> World:
        self.made += 1
        clock = SimClock()
        self._empty()
        postgres: Storage = PostgresStore(self._session, poke=PokePolicy(mode="off"))
        journal = self._journal(clock)
        sides = [Side("postgres", postgres, lambda: postgres), Side("journal", journal, lambda: journal)]
        if self._recovering:
            path = self._new_store()
            recovering = RecoveringStore(lambda: self._open(path, clock))
            self._stores.append(recovering)
            sides.append(Side("recovering", recovering, lambda: recovering.owner))
        return World(sides, clock)

    def end(self, world: World) -> None:
        """Close what the world's storages hold."""
        while self._stores:
            self._stores.pop().close()
        for path in self._root.iterdir():
            shutil.rmtree(path)

    def _journal(self, clock: SimClock) -> Storage:
        store = self._open(self._new_store(), clock)
        self._stores.append(store)
        return store

    def _new_store(self) -> str:
        path = str(self._root / f"store-{next(self._numbers)}")
        initialise(path, now_ms=0, retention=Retention(), durability="write", validated_filesystem=True)
        return path

    def _open(self, path: str, clock: SimClock) -> JournalStore:
        options = JournalOptions(durability="write", validated_filesystem=True, writer="inline")
        return JournalStore(open_journal(path, options), now=clock.now())

    def _empty(self) -> None:
        rows = self._connection.execute(
            r"SELECT relname FROM pg_class WHERE relkind = 'r' AND relname LIKE 'belay\_%'"
            r" AND relname <> 'belay_meta' AND pg_table_is_visible(oid)"
        ).fetchall()
        verb = "TRUNCATE {}" if self.made % 50 == 1 else "DELETE FROM {}"
        for (name,) in rows:
            self._connection.execute(sql.SQL(verb).format(sql.Identifier(name)))
        self._connection.execute(
            "SELECT setval(pg_get_serial_sequence('belay_jobs', 'id'), %s, false)", (FIRST_ID,)
        )


@contextmanager
def worlds(params: Mapping[str, str], root: Path, *, recovering: bool = True) -> Iterator[Worlds]:
    """Worlds on a database that is there and empty; it is migrated."""
    root.mkdir(exist_ok=True)
    session = PoolSession(params, PoolOptions(size=2))
    try:
        with psycopg.connect(**params, autocommit=True) as connection:  # type: ignore[arg-type]
            schema.migrate(connection)
            yield Worlds(connection, session, root, recovering=recovering)
    finally:
        session.close()
