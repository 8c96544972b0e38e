"""The embedded server with real processes: what it keeps, what it leaves, and who stops it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import psutil
import psycopg
import pytest

from django_belay.testing import embedded
from django_belay.testing.postgres import PostgresServer, find_postgres

pytestmark = pytest.mark.postgres

ROOT = Path(__file__).resolve().parents[2]
# Starts a server, says where, and waits to be killed.
HOLDER = """
import sys, time
from django_belay.testing.postgres import find_postgres
server = find_postgres("embedded")
print(server.parameters["host"], flush=True)
time.sleep(60)
"""


@pytest.fixture
def holder() -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER], cwd=ROOT, stdout=subprocess.PIPE, text=True
    ) as process:
        yield process
        process.kill()


def base_of(server: PostgresServer) -> Path:
    return Path(server.parameters["host"])


def postmaster_of(base: Path) -> psutil.Process:
    return psutil.Process(int((base / "data" / "postmaster.pid").read_text().splitlines()[0]))


def runs(process: psutil.Process) -> bool:
    # A machine without an init process that reaps keeps the ended server as a zombie.
    return process.is_running() and process.status() != psutil.STATUS_ZOMBIE


def test_server_is_durable_and_takes_many_connections() -> None:
    with find_postgres("embedded") as server, psycopg.connect(server.url) as connection:
        shown = [
            connection.execute(f"SHOW {name}").fetchone()
            for name in ("fsync", "full_page_writes", "synchronous_commit", "max_connections")
        ]
        assert shown == [("on",), ("on",), ("on",), ("200",)]
        assert connection.info.server_version == server.server_version


def test_immediate_restart_loses_connections_and_no_commit() -> None:
    with find_postgres("embedded") as server:
        with psycopg.connect(server.dsn) as connection:
            connection.execute("CREATE TABLE kept AS SELECT 1 AS one")
            connection.commit()
            before = postmaster_of(base_of(server)).pid
            server.restart("immediate")
            with pytest.raises(psycopg.OperationalError):
                connection.execute("SELECT 1")
        assert postmaster_of(base_of(server)).pid != before
        with psycopg.connect(server.dsn) as connection:
            assert connection.execute("SELECT one FROM kept").fetchone() == (1,)


def test_stop_ends_the_server_and_deletes_its_data() -> None:
    server = find_postgres("embedded")
    base, postmaster = base_of(server), postmaster_of(base_of(server))
    server.stop()
    server.stop()  # a second time changes nothing
    assert not base.exists()
    assert not runs(postmaster)


def test_only_its_user_may_enter_the_directory() -> None:
    with find_postgres("embedded") as server:
        assert base_of(server).stat().st_mode & 0o777 == 0o700


def test_sigterm_stops_the_server_and_ends_the_process(holder: subprocess.Popen[str]) -> None:
    assert holder.stdout is not None
    base = Path(holder.stdout.readline().strip())
    postmaster = postmaster_of(base)
    holder.send_signal(signal.SIGTERM)
    assert holder.wait(timeout=30) == -signal.SIGTERM
    assert not runs(postmaster)
    assert not base.exists()


def test_next_start_removes_what_a_killed_process_left(holder: subprocess.Popen[str]) -> None:
    assert holder.stdout is not None
    left = Path(holder.stdout.readline().strip())
    postmaster = postmaster_of(left)
    holder.kill()
    holder.wait()
    assert runs(postmaster)
    with find_postgres("embedded") as running, find_postgres("embedded") as another:
        assert not left.exists()
        assert not runs(postmaster)
        # What is in use is no leftover.
        assert runs(postmaster_of(base_of(running)))
        assert base_of(running) != base_of(another)


def test_kept_server_is_shared_and_outlives_its_users_data() -> None:
    name = uuid.uuid4().hex
    first = find_postgres("embedded", keep_as=name)
    base = base_of(first)
    try:
        second = find_postgres("embedded", keep_as=name)
        assert base_of(second) == base
        postmaster = postmaster_of(base)
        with psycopg.connect(first.dsn) as connection:
            connection.execute("CREATE TABLE kept AS SELECT 1 AS one")
        first.stop()
        assert runs(postmaster)  # the other one uses it
        second.stop()
        assert not runs(postmaster)
        with find_postgres("embedded", keep_as=name) as third, psycopg.connect(third.dsn) as connection:
            assert connection.execute("SELECT one FROM kept").fetchone() == (1,)
    finally:
        embedded.shutil.rmtree(base)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can run a server as somebody else")
def test_root_runs_a_copy_of_binaries_that_nobody_cannot_reach(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    real = embedded.find_installation()
    hidden = tmp_path / "hidden"
    hidden.mkdir(mode=0o700)
    for name in (real.parent.name, f"{real.parent.name}.libs"):
        if (real.parents[1] / name).exists():
            (hidden / name).symlink_to(real.parents[1] / name)
    monkeypatch.setattr(embedded, "find_installation", lambda: hidden / real.parent.name / real.name)
    with find_postgres("embedded") as server:
        postmaster = postmaster_of(base_of(server))
        assert Path(postmaster.exe()).is_relative_to(base_of(server) / "wheel")
        assert postmaster.uids().effective == embedded.server_account().uid
    assert hidden.stat().st_mode & 0o777 == 0o700
