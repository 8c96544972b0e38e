"""``python -m django_belay.management.child OVERRIDES SOCKET``: a worker's process that runs jobs.

Started by the supervisor as a fresh interpreter; sets Django up and runs the engine's child.
"""

from __future__ import annotations

import _thread
import contextlib
import json
import logging
import os
import signal
import socket
import sys
import threading
import time
from dataclasses import asdict, dataclass, field, replace
from types import FrameType
from typing import Any

from django_belay.engine.crew import EXIT_CONFIG
from django_belay.engine.options import WorkerOptions
from django_belay.engine.protocol import Channel
from django_belay.engine.spawn import open_standard_files

logger = logging.getLogger("django_belay.worker")

# Besides claims and acks, steps of many threads share the pool; each waits its turn.
MAX_POOL = 12

# What an interpreter may take to end once its work is done; what jobs left may hold it up for ever.
EXIT_S = 5.0


@dataclass(slots=True, kw_only=True, frozen=True)
class Overrides:
    """What the command line changes of the settings, as it travels to a child."""

    queues: dict[str, int | None] = field(default_factory=dict)
    concurrency: int | None = None
    processes: int | None = None
    once: bool = False

    def apply(self, options: WorkerOptions) -> WorkerOptions:
        """The options with the overrides over them."""
        options = options.with_queues(self.queues)
        changes: dict[str, Any] = {}
        if self.concurrency is not None:
            changes["concurrency"] = self.concurrency
        if self.processes is not None:
            changes["processes"] = self.processes
        return replace(options, **changes)

    def dumps(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def loads(cls, text: str) -> Overrides:
        return cls(**json.loads(text))


def main(arguments: list[str]) -> int:
    """Run one child to its end; the exit code."""
    open_standard_files()
    overrides = Overrides.loads(arguments[0])
    channel = Channel(socket.socket(fileno=int(arguments[1])))
    # Ctrl-C reaches the whole process group; the supervisor decides what it means.
    signal.signal(signal.SIGINT, signal.SIG_IGN)

    import django
    from django.core.exceptions import ImproperlyConfigured

    from django_belay.exceptions import ConfigurationError

    try:
        django.setup()
        return _run(channel, overrides)
    except (ConfigurationError, ImproperlyConfigured):
        logger.exception("this process cannot start")
        return EXIT_CONFIG


def _run(channel: Channel, overrides: Overrides) -> int:
    from django_belay import conf, db
    from django_belay.engine.child import Child, new_incarnation
    from django_belay.engine.services import Services
    from django_belay.engine.spawn import spawn
    from django_belay.management.hooks import worker_hooks
    from django_belay.registry import registry

    options = overrides.apply(conf.worker_options())
    clock = conf.clock()
    services = Services(
        storage=db.storage_for_worker(
            pool_size=min(options.concurrency, MAX_POOL - 3) + 3, application_name="belay-child"
        ),
        clock=clock,
        registry=registry,
        options=options,
        hooks=worker_hooks(clock),
    )
    isolated = ("-m", "django_belay.management.isolated", overrides.dumps())
    child = Child(
        services,
        channel,
        incarnation=new_incarnation(options.node_name),
        once=overrides.once,
        spawn_isolated=lambda: spawn(isolated),
    )

    def leave(_number: int, _frame: FrameType | None) -> None:
        # A handler interrupts the main thread wherever it is, perhaps under a lock that this needs.
        _thread.start_new_thread(child.leave, (options.shutdown_grace_s,))

    signal.signal(signal.SIGTERM, leave)
    code = 1
    try:
        ended_in_order = child.run()
        code = 0
    finally:
        threading.Thread(target=_end_late, args=(code,), name="belay-exit", daemon=True).start()
    if not ended_in_order:
        # A thread still runs a job; an orderly exit would wait for it, or crash in it.
        _end_now(code)
    services.storage.close()
    return code


def _end_late(code: int) -> None:
    """End the process if the interpreter does not: it waits for threads that jobs left."""
    time.sleep(EXIT_S)
    left = [t.name for t in threading.enumerate() if not t.daemon and t is not threading.main_thread()]
    logger.warning("this process is ended although jobs left threads in it: %s", ", ".join(left) or "none")
    _end_now(code)


def _end_now(code: int) -> None:
    with contextlib.suppress(Exception):
        logging.shutdown()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):  # a job may have closed it
            stream.flush()
    os._exit(code)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
