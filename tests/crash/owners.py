"""Owners of a directory as processes of their own, and clients that check what they were told."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path

from django_belay.contract.job import Lease, NewJob
from django_belay.contract.outcome import Succeeded
from django_belay.storage.base import Ack, Applied, ClaimRound, Demand, NewStep
from django_belay.storage.journal.serving.dialing import Dialer
from django_belay.storage.journal.serving.place import Place
from django_belay.storage.journal.serving.remote import RemoteStore

ROOT = Path(__file__).resolve().parents[2]
SERVE = Path(__file__).with_name("serve_owner.py")
LEASE = timedelta(seconds=30)


def owner_of(place: Place) -> int:
    """The process that serves a directory now. Raises OSError."""
    with place.connect(5.0) as connection:
        raw = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    return int(struct.unpack("3i", raw)[0])


class Owners:
    """Starts owners of a directory, and knows which of its processes are left."""

    def __init__(
        self, directory: Path, *, durability: str = "write", idle_exit_s: float = 60.0, **options: object
    ) -> None:
        self.place = Place(directory)
        self._command = [
            sys.executable, str(SERVE), str(directory), durability, str(idle_exit_s), json.dumps(options),
        ]  # fmt: skip
        self.processes: list[subprocess.Popen[bytes]] = []
        self._lock = threading.Lock()

    def start(self) -> None:
        """What a :class:`Dialer` is given."""
        log = self.place.open_log()
        process = subprocess.Popen(
            self._command, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )  # fmt: skip
        os.close(log)
        with self._lock:
            for one in self.processes:
                one.poll()
            self.processes.append(process)

    @property
    def started(self) -> int:
        return len(self.processes)

    def dial(self, *, connections: int = 2, patience_s: float = 30.0) -> RemoteStore:
        """A client with connections of its own."""
        return RemoteStore(
            Dialer(self.place, start=self.start), connections=connections, patience_s=patience_s
        )

    def pid(self) -> int:
        """Who serves now."""
        return owner_of(self.place)

    def kill(self, number: int = signal.SIGKILL) -> int:
        """Send the owner a signal; its process id."""
        pid = self.pid()
        os.kill(pid, number)
        return pid

    def wait_for_end(self, pid: int) -> int:
        """The exit code of an owner that was started here."""
        [process] = [one for one in self.processes if one.pid == pid]
        return process.wait(timeout=30)

    def log(self) -> str:
        return self.place.log.read_text()

    def end(self) -> None:
        """End what is left of the processes that were started here."""
        for process in self.processes:
            if process.poll() is None:
                process.terminate()
        for process in self.processes:
            try:
                process.wait(timeout=20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


@contextlib.contextmanager
def owners_of(directory: Path, **options: object) -> Iterator[Owners]:
    owners = Owners(directory, **options)  # type: ignore[arg-type]
    try:
        yield owners
    finally:
        owners.end()


@dataclass(slots=True)
class Told:
    """What a client was told, for ever."""

    inserted: list[int] = field(default_factory=list)
    ended: dict[int, bytes] = field(default_factory=dict)
    followed: list[int] = field(default_factory=list)
    events: list[int] = field(default_factory=list)
    tokens: int = 0
    debits: int = 0


class Client(threading.Thread):
    """Works without pause through a connection of its own; one request is always in flight.

    Attributes:
        answered_at: When the last request that was sent after :meth:`mark` was answered.
        error: What a request raised; none may.
    """

    def __init__(self, owners: Owners, number: int, seed: int) -> None:
        super().__init__(name=f"client-{number}", daemon=True)
        self.told = Told()
        self.error: BaseException | None = None
        self.number = number
        self.done = 0
        self._store = owners.dial()
        self._rng = random.Random(seed * 1000 + number)
        self._queue = f"queue-{number}"
        self._ending = threading.Event()
        self._free = threading.Event()
        self._free.set()
        self._idle = threading.Event()

    def run(self) -> None:
        try:
            now = datetime.now(UTC)
            [own] = self._store.insert_jobs([NewJob(kind="own", queue="own", priority=1)], now=now)
            self.own = own.job_id
            while not self._ending.is_set():
                if not self._free.is_set():
                    self._idle.set()
                    self._free.wait()
                    self._idle.clear()
                self._rng.choice([self._insert, self._work, self._work, self._note, self._spend])()
                self.done += 1
        except BaseException as error:
            self.error = error
        finally:
            self._idle.set()
            self._store.close()

    def pause(self) -> None:
        """Return once nothing is in flight."""
        self._free.clear()
        self._idle.wait(timeout=60)

    def go_on(self) -> None:
        self._free.set()

    def stop(self) -> None:
        self._ending.set()
        self._free.set()
        self.join(timeout=60)
        assert not self.is_alive()

    def _insert(self) -> None:
        jobs = [NewJob(kind="k", queue=self._queue) for _ in range(self._rng.randrange(1, 4))]
        for inserted in self._store.insert_jobs(jobs, now=datetime.now(UTC)):
            assert not inserted.duplicate
            self.told.inserted.append(inserted.job_id)

    def _work(self) -> None:
        now = datetime.now(UTC)
        round_ = ClaimRound(leased_by=f"{self.name}:{self.done}", lease_until=now + LEASE)
        claimed = self._store.claim(round_, demands=[Demand(queue=self._queue, take=2)], now=now)
        for job in claimed.jobs:
            result = f'"{self.name} {self.done}"'.encode()
            following = (NewJob(kind="following", input={"after": job.id}),) * self._rng.randrange(2)
            ack = Ack(lease=Lease.of(job), outcome=Succeeded(result), enqueue=following)
            answer = self._store.ack(ack, now=datetime.now(UTC))
            assert isinstance(answer, Applied), answer
            assert job.id not in self.told.ended
            self.told.ended[job.id] = result
            self.told.followed += [job.id] * len(following)

    def _note(self) -> None:
        number = len(self.told.events) + 1
        seq = self._store.append_event(self.own, {"n": number}, now=datetime.now(UTC))
        assert seq == number, (seq, number)
        self.told.events.append(number)

    def _spend(self) -> None:
        tokens = self._rng.randrange(1, 10)
        if self._rng.random() < 0.5:
            step = NewStep(name="s", value=b"1", tokens=tokens)
            self._store.put_step(self.own, step, now=datetime.now(UTC))
            self.told.tokens += tokens
        else:
            bucket = f"bucket-{self.number}"
            self._store.debit_rate(bucket, amount=tokens, period_s=10**9, now=datetime.now(UTC))
            self.told.debits += tokens
