"""``isolation="process"``: a job in a process of its own, which can be killed.

A thread of the child waits for each such process, so it counts as any job's slot. The
process reads and writes steps and events over its own connection, makes the ack, and
sends it here to be written.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from multiprocessing.connection import Connection
from typing import Any

from django_belay.contract.job import Job
from django_belay.engine.context import JobContext
from django_belay.engine.forkserver import ANSWER, KILL, REQUEST, RUN
from django_belay.engine.isolated_run import IsolatedRun
from django_belay.engine.protocol import Channel
from django_belay.engine.runner import Runner
from django_belay.engine.services import Services
from django_belay.engine.telemetry import worker_log
from django_belay.engine.watch import Watch
from django_belay.exceptions import BelayError, LeaseLost, Shutdown, Timeout
from django_belay.storage.base import Ack

Spawn = Callable[[], "tuple[subprocess.Popen[bytes], Channel]"]

# For the fork server to load the project, too.
START_S = 60.0
STATUS_S = 5.0


class ProcessDied(BelayError):
    """The process of a job with ``isolation="process"`` ended before the job did."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Assignment:
    """What a job's process gets to know."""

    job: Job
    claimed_at: datetime
    memory_bytes: int | None


class Isolation:
    """Runs isolated jobs; its fork server starts early and again when it died."""

    def __init__(self, services: Services, runner: Runner, watch: Watch, spawn: Spawn) -> None:
        self._services = services
        self._watch = watch
        self._runner = runner
        self._spawn = spawn
        self._lock = threading.Lock()
        self._server: _Server | None = None

    def start_early(self) -> None:
        """Start the server now if any job will need it: loading the project takes its time."""
        if any(definition.options.is_isolated for definition in self._services.registry):
            with contextlib.suppress(OSError):  # tried again by the first job
                self._running_server()

    def execute(self, run: IsolatedRun) -> list[Ack]:
        """Run the job to its end, or its process's; blocks."""
        started = time.perf_counter()
        died: BaseException | None = None
        try:
            answer = self._run_in_process(run)
        except (EOFError, OSError) as error:
            answer, died = [], error
        if died is None or run.pending is LeaseLost:
            run.end()
            return answer
        context = JobContext(run, self._services)
        failure = self._why(run)
        ack = self._runner.conclude(run, context, lambda: _raise(failure), started=started)
        return [] if ack is None else [ack]

    def _run_in_process(self, run: IsolatedRun) -> list[Ack]:
        server = self._running_server()
        ours, theirs = socket.socketpair()
        with theirs, Connection(ours.detach()) as connection:
            token = server.fork(theirs)
            run.attach(connection, lambda: server.kill(token))
            try:
                connection.send(
                    Assignment(
                        job=run.job,
                        claimed_at=run.claimed_at,
                        memory_bytes=run.definition.options.memory_bytes,
                    )
                )
                theirs.close()  # or the end of the process would never be seen
                self._await_start(run, connection)
                answer: list[Ack] = connection.recv()
                return answer
            finally:
                run.detach()
                run.status = server.status_of(token)

    def _await_start(self, run: IsolatedRun, connection: Connection) -> None:
        """The time limit is the job's: it runs from the moment at which its code does."""
        if not connection.poll(START_S):
            raise TimeoutError(f"no process for the job within {START_S:.0f} s")
        connection.recv()
        timeout_s = run.definition.options.timeout
        if timeout_s is not None:
            self._watch.add(run, timeout_s)

    def _why(self, run: IsolatedRun) -> BaseException:
        if run.pending is Shutdown:
            return Shutdown()
        if run.pending is Timeout:
            return Timeout(
                f"over its timeout of {run.definition.options.timeout:g} s; its process was killed"
            )
        return ProcessDied(f"the job's process {_shown(run.status)} before the job ended")

    def _running_server(self) -> _Server:
        with self._lock:
            if self._server is None or self._server.is_gone:
                self._server = _Server(*self._spawn())
            return self._server


class _Server:
    """The child's side of a fork server."""

    def __init__(self, process: subprocess.Popen[bytes], channel: Channel) -> None:
        self._process = process
        self._control = channel.end
        self._tokens = itertools.count(1)
        self._sending = threading.Lock()
        self._changed = threading.Condition()
        self._statuses: dict[int, int] = {}
        self.is_gone = False
        threading.Thread(target=self._read, name="belay-forkserver", daemon=True).start()

    def fork(self, end: socket.socket) -> int:
        """Ask for a process that runs a job over this socket; its token."""
        token = next(self._tokens)
        with self._sending:
            socket.send_fds(self._control, [REQUEST.pack(RUN, token)], [end.fileno()])
        return token

    def kill(self, token: int) -> None:
        """Kill the process of a token, unless it has ended."""
        with self._sending, contextlib.suppress(OSError):
            self._control.sendall(REQUEST.pack(KILL, token))

    def status_of(self, token: int) -> int | None:
        """The wait status of a process that has ended; ``None`` when nobody knows."""
        with self._changed:
            self._changed.wait_for(lambda: token in self._statuses or self.is_gone, STATUS_S)
            return self._statuses.pop(token, None)

    def _read(self) -> None:
        data = b""
        try:
            while chunk := self._control.recv(4096):
                data += chunk
                while len(data) >= ANSWER.size:
                    token, status = ANSWER.unpack_from(data)
                    data = data[ANSWER.size :]
                    self._note(token, status)
        except OSError:
            pass
        with self._changed:
            self.is_gone = True
            self._changed.notify_all()
        self._process.wait()
        worker_log.warning("the fork server of isolated jobs has ended; the next such job starts another")

    def _note(self, token: int, status: int) -> None:
        with self._changed:
            self._statuses[token] = status
            self._changed.notify_all()


def _shown(status: int | None) -> str:
    if status is None:
        return "ended"
    if status == -1:
        return "could not be started"
    code = os.waitstatus_to_exitcode(status)
    if code >= 0:
        return f"ended with exit code {code}"
    name = signal.Signals(-code).name
    hint = "; the system kills so what takes too much memory" if name == "SIGKILL" else ""
    return f"was killed by {name}{hint}"


def _raise(error: BaseException) -> Any:
    raise error
