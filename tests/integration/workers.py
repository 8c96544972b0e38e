"""Real worker processes on the tests' database, and waiting for what they do."""

from __future__ import annotations

import json
import os
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from django.conf import settings
from django.db import connections
from django.test import override_settings

from django_belay.db import scratch
from django_belay.exceptions import Unavailable
from django_belay.storage.journal.serving.place import Place

ROOT = Path(__file__).resolve().parents[2]

#: Cadences short enough for tests; a lease must outlast a busy machine's hiccups.
FAST = {
    "QUEUES": {"work": 20},
    "LEASE_TTL": 2,
    "BUSY_POLL": 0.01,
    "IDLE_POLL": 0.1,
    "SWEEP_INTERVAL": 0.2,
    "SYNC_INTERVAL": 0.2,
    "SHUTDOWN_GRACE": 5,
}


def eventually(condition: Callable[[], Any], *, timeout_s: float = 30.0, what: object = "") -> Any:
    """The first truthy answer; fails the test when none comes in time."""
    deadline = time.monotonic() + timeout_s
    while True:
        if answer := condition():
            return answer
        if time.monotonic() > deadline:
            said = what() if callable(what) else what
            raise AssertionError(f"not within {timeout_s:g} s: {said or condition}")
        time.sleep(0.02)  # polls other processes: there is nothing to be woken by


class Site:
    """The directory that jobs and tests share."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def lines(self, name: str) -> list[str]:
        file = self.path / name
        return file.read_text().splitlines() if file.exists() else []

    def release(self, name: str) -> None:
        (self.path / f"{name}.go").touch()

    def started(self, name: str, count: int = 1) -> list[str]:
        """Wait until so many runs have said that they started."""
        return eventually(
            lambda: lines if len(lines := self.lines(f"{name}.started")) >= count else None,
            what=f"{count} starts of {name}",
        )


class Worker:
    """A ``manage.py belay_worker`` of its own process group."""

    def __init__(
        self,
        site: Site,
        options: Mapping[str, Any],
        arguments: tuple[str, ...],
        database: Mapping[str, Any] | None = None,
    ) -> None:
        self.log_path = site.path / f"worker-{len(list(site.path.glob('worker-*.log'))) + 1}.log"
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("BELAY_TEST_PATH", "")]),
            "DJANGO_SETTINGS_MODULE": "tests.worker_settings",
            "BELAY_TEST_SITE": str(site.path),
            "BELAY_TEST_WORKER_DATABASE": json.dumps(_kept(database or connections["default"].settings_dict)),
            "BELAY_TEST_WORKER_OPTIONS": json.dumps({**FAST, **options}),
        }
        with self.log_path.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "django", "belay_worker", *arguments],
                cwd=ROOT,
                env=environment,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    @property
    def log(self) -> str:
        return self.log_path.read_text(errors="replace")

    def await_log(self, text: str, *, count: int = 1, timeout_s: float = 30.0) -> None:
        eventually(
            lambda: self.log.count(text) >= count, timeout_s=timeout_s, what=f"{text!r} in\n{self.log}"
        )

    def children(self) -> list[int]:
        """Process ids of the children, as the log names them."""
        import psutil

        return [child.pid for child in psutil.Process(self.process.pid).children()]

    def terminate(self) -> None:
        self.process.send_signal(signal.SIGTERM)

    def kill_all(self) -> None:
        """kill -9 for the whole group, as a machine's power switch would."""
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(timeout=10)

    def wait(self, timeout_s: float = 30.0) -> int:
        return self.process.wait(timeout=timeout_s)

    def end(self) -> None:
        """Leave nothing of the group running."""
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(timeout=10)


def _kept(settings: Mapping[str, Any]) -> dict[str, Any]:
    return {key: settings[key] for key in ("ENGINE", "NAME", "HOST", "PORT", "USER", "PASSWORD", "OPTIONS")}


StartWorker = Callable[..., Worker]


@contextmanager
def worker_site(path: Path) -> Iterator[tuple[Site, StartWorker]]:
    """A shared directory and a way to start workers, all of which are ended.

    On the journal they share a store there, with whoever owns it.
    """
    site = Site(path)
    workers: list[Worker] = []

    with journal_site(path) as storage:

        def start(*arguments: str, database: Mapping[str, Any] | None = None, **options: Any) -> Worker:
            worker = Worker(site, {**storage, **options}, arguments, database)
            workers.append(worker)
            return worker

        try:
            yield site, start
        finally:
            for worker in workers:
                worker.end()


@contextmanager
def journal_site(path: Path) -> Iterator[dict[str, Any]]:
    """The settings of a journal for this process and others; none where the tests run on PostgreSQL."""
    belay = settings.BELAY
    if "STORAGE" not in belay:
        yield {}
        return
    directory = path / "belay"
    options = {**belay["STORAGE"]["OPTIONS"], "directory": str(directory)}
    storage = {"STORAGE": {**belay["STORAGE"], "OPTIONS": options}}
    with override_settings(BELAY={**belay, **storage}):
        scratch.use(False)
        try:
            yield storage
        finally:
            scratch.use(True)
            end_owner(directory)


def owner_pid(directory: Path) -> int | None:
    """Who serves a journal; ``None`` for nobody."""
    place = Place(directory)
    if not place.has_owner():
        return None
    with place.connect(5.0) as connection:
        raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    return int(struct.unpack("3i", raw)[0])


def end_owner(directory: Path) -> None:
    """End who serves a journal, if somebody still does."""
    with suppress(ProcessLookupError, Unavailable):
        if (pid := owner_pid(directory)) is not None:
            os.kill(pid, signal.SIGTERM)
            eventually(lambda: not Place(directory).has_owner(), what=f"the end of owner {pid}")
