"""``python -m django_belay.management.isolated OVERRIDES SOCKET``: forks a process for each isolated job.

Started by a worker's child as a fresh interpreter.
"""

from __future__ import annotations

import signal
import socket
import sys

from django_belay.engine.forkserver import serve
from django_belay.management.child import Overrides

# A job's own thread, and the one that obeys interrupts.
POOL_SIZE = 2


def main(arguments: list[str]) -> int:
    """Serve until the child is gone."""
    overrides = Overrides.loads(arguments[0])
    control = socket.socket(fileno=int(arguments[1]))
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)  # the supervisor decides, and its child kills

    import django

    django.setup()
    from django.db import connections

    from django_belay import conf, db
    from django_belay.engine.job_process import run_job
    from django_belay.engine.services import Services
    from django_belay.management.hooks import worker_hooks
    from django_belay.registry import registry

    options = overrides.apply(conf.worker_options())
    clock = conf.clock()
    connections.close_all()  # a module may have asked something: a fork must not inherit the socket

    def make_services() -> Services:
        return Services(
            storage=db.storage_for_worker(pool_size=POOL_SIZE, application_name="belay-isolated"),
            clock=clock,
            registry=registry,
            options=options,
            hooks=worker_hooks(clock),
        )

    serve(control, lambda end: run_job(end, make_services))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
