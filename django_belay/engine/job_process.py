"""What runs in the process of an isolated job."""

from __future__ import annotations

import contextlib
import logging
import os
import re
import socket
import threading
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path

from django_belay.engine.isolation import Assignment
from django_belay.engine.run import Interruption, Run
from django_belay.engine.runner import Runner
from django_belay.engine.services import Services
from django_belay.exceptions import Shutdown, Timeout

INTERRUPTIONS: dict[str, Interruption] = {"Timeout": Timeout, "Shutdown": Shutdown}
GATE_S = 1.0


def run_job(end: socket.socket, make_services: Callable[[], Services]) -> None:
    """Run one job and send its ack; the process ends afterwards."""
    connection = Connection(end.detach())
    assignment: Assignment = connection.recv()
    services = make_services()
    job = assignment.job
    run = Run(job, services.registry.get(job.kind), claimed_at=assignment.claimed_at)
    if assignment.memory_bytes is not None:
        limit_memory(assignment.memory_bytes)
    threading.Thread(target=_obey, args=(connection, run, services), daemon=True).start()
    connection.send("started")
    ack = Runner(services).execute(run)
    connection.send([] if ack is None else [ack])
    with contextlib.suppress(Exception):
        logging.shutdown()


def limit_memory(memory_bytes: int) -> None:
    """Let this process allocate so much more than it holds now; the next allocation fails.

    It counts what the process may write to (``RLIMIT_DATA``), as Linux does; elsewhere the
    system decides what it counts.
    """
    import resource

    _, most = resource.getrlimit(resource.RLIMIT_DATA)
    limit = data_bytes() + memory_bytes
    if most != resource.RLIM_INFINITY:
        limit = min(limit, most)
    resource.setrlimit(resource.RLIMIT_DATA, (limit, most))


def data_bytes() -> int:
    """What ``RLIMIT_DATA`` counts of this process now; 0 where it cannot be told."""
    with contextlib.suppress(OSError):
        found = re.search(r"^VmData:\s+(\d+) kB", Path("/proc/self/status").read_text(), re.MULTILINE)
        return int(found[1]) * 1024 if found else 0
    return 0


def _obey(connection: Connection, run: Run, services: Services) -> None:
    try:
        while True:
            reason = INTERRUPTIONS[connection.recv()]
            if reason is Shutdown:
                # What is handed back may run elsewhere at once: nothing more is written here.
                services.gate.close(GATE_S)
            run.interrupt(reason)
    except (EOFError, OSError):
        os._exit(1)  # nobody waits for the end of this job any more
