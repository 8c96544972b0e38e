"""What every test may use: a PostgreSQL, Django on it, clean belay_* tables, the shared fixtures.

The server is started by the first test that needs a database, one for each xdist worker: a test may
restart its server without another worker noticing.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from django.apps import AppConfig
from django.db import connections
from django.db.models.signals import post_migrate

from django_belay.testing.plugin import (  # noqa: F401 - fixtures; in a checkout no entry point finds them
    allow_index,
    belay_assert_enqueued,
    belay_assert_not_enqueued,
    belay_clock,
    belay_crons,
    belay_drain,
    belay_inline,
    belay_own_journal,
)
from django_belay.testing.postgres import SOURCES, PostgresNotFound, PostgresServer, find_postgres

ROOT = Path(__file__).resolve().parent.parent

# What the tests start with ``python -m example_project`` runs in this environment, whichever it is.
os.environ.setdefault("BELAY_NO_VENV", "1")


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("belay", "django_belay")
    group.addoption(
        "--postgres",
        choices=SOURCES,
        help="the PostgreSQL to use; by default a URL from the environment, else a container, else embedded",
    )
    group.addoption("--run-slow", action="store_true", help="also run the tests marked slow")
    group.addoption(
        "--belay-storage",
        choices=("postgres", "journal"),
        default="postgres",
        help="journal: run tests/integration on the journal and SQLite; without what is PostgreSQL's own",
    )
    group.addoption(
        "--belay-wakeups",
        choices=("on", "off"),
        default="on",
        help="off: workers live by polling alone; every test must pass so too",
    )


def pytest_configure(config: pytest.Config) -> None:
    wanted, found = config.getoption("--belay-storage"), os.environ.get("BELAY_TEST_STORAGE", "postgres")
    if "journal" in (wanted, found) and wanted != found:
        raise pytest.UsageError("write the option as --belay-storage=journal: settings read it from there")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    allow_index(items)
    if config.getoption("--belay-storage") == "journal":
        skip_postgres = pytest.mark.skip(reason="of PostgreSQL alone")
        for item in items:
            asked = getattr(item, "fixturenames", ())
            if item.get_closest_marker("postgres") or "postgres_server" in asked:
                item.add_marker(skip_postgres)
    if config.getoption("--run-slow"):
        return
    skip = pytest.mark.skip(reason="slow; run with --run-slow")
    for item in items:
        if item.get_closest_marker("slow"):
            item.add_marker(skip)


# -- the database ---------------------------------------------------------------


@pytest.fixture(scope="session")
def postgres_server(request: pytest.FixtureRequest) -> Iterator[PostgresServer]:
    """The server that the tests' database is on."""
    try:
        server = find_postgres(request.config.getoption("--postgres"))
    except PostgresNotFound as error:
        if hasattr(request.config, "workerinput"):  # xdist takes an exit of a worker for a crash
            raise
        # The same for every test that needs a database: say it once.
        pytest.exit(f"no PostgreSQL for the tests: {error}", returncode=3)
    request.config.stash[SERVER_KEY] = server
    with server:
        yield server


SERVER_KEY = pytest.StashKey[PostgresServer]()


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    if server := config.stash.get(SERVER_KEY, None):
        terminalreporter.write_line(f"Tests ran on {server}")


@pytest.fixture(scope="session")
def django_db_modify_db_settings(
    request: pytest.FixtureRequest, django_db_modify_db_settings_parallel_suffix: None
) -> None:
    """Point Django at the server; pytest-django has made the test database's name by now."""
    if request.config.getoption("--belay-storage") == "journal":
        return
    found = request.getfixturevalue("postgres_server").django_settings()
    settings = connections.settings["default"]
    settings.update({key: found[key] for key in ("HOST", "PORT", "USER", "PASSWORD")})
    settings["OPTIONS"] = {**settings.get("OPTIONS", {}), **found["OPTIONS"]}


TRUNCATE_WAITS = "20s"


def empty_belay_tables(sender: AppConfig, using: str, **_: Any) -> None:
    """Empty our tables with the flush after a transactional test.

    ``flush`` skips unmanaged tables but sends ``post_migrate``, after the ``transactional_db`` fixture,
    the marker and ``TransactionTestCase`` alike.
    """
    if sender.label != "belay" or connections[using].vendor != "postgresql":
        return
    with connections[using].cursor() as cursor:
        cursor.execute(
            r"SELECT relname FROM pg_class WHERE relkind IN ('r', 'p') AND pg_table_is_visible(oid)"
            r" AND relname LIKE 'belay\_%%' AND relname NOT LIKE 'belay\_testapp\_%%'"
            r" AND relname NOT LIKE '%%\_meta'",  # what the schema's version stands in
            (),
        )
        if tables := ", ".join(f'"{name}"' for (name,) in cursor.fetchall()):
            # A connection that a test left in a transaction would block this for ever.
            cursor.execute(f"SET lock_timeout = '{TRUNCATE_WAITS}'; TRUNCATE {tables}; RESET lock_timeout")


post_migrate.connect(empty_belay_tables)


# -- options and files ------------------------------------------------------------


@pytest.fixture
def belay_wakeups(request: pytest.FixtureRequest) -> bool:
    """Whether workers in this run may be woken by notifications."""
    return request.config.getoption("--belay-wakeups") == "on"


@pytest.fixture(scope="session")
def shared_fixtures() -> Path:
    """The directory with the contract's test vectors, which live outside this repository."""
    return find_shared_fixtures()


def find_shared_fixtures() -> Path:
    """That directory; without it the test is skipped, in CI it fails."""
    named = os.environ.get("BELAY_SHARED_FIXTURES")
    directory = Path(named) if named else ROOT.parent / "shared" / "fixtures"
    if directory.is_dir():
        return directory
    reason = f"no contract fixtures at {directory}; set BELAY_SHARED_FIXTURES to their directory"
    if os.environ.get("CI"):
        pytest.fail(reason)
    pytest.skip(reason)
