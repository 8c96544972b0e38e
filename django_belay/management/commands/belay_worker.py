"""``manage.py belay_worker``: runs jobs until it is told to stop."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from django_belay import conf, db, schedules
from django_belay.engine.options import WorkerOptions
from django_belay.engine.queue_table import QueueTable
from django_belay.engine.services import Services
from django_belay.engine.spawn import open_standard_files, spawn
from django_belay.engine.supervisor import Supervisor, WorkPlan
from django_belay.exceptions import ConfigurationError, SchemaError, Unavailable
from django_belay.management.child import Overrides
from django_belay.registry import registry

MIB = 1024 * 1024


class Command(BaseCommand):
    help = (
        "Runs jobs. SIGTERM or Ctrl-C stops claiming, lets running jobs finish within SHUTDOWN_GRACE and "
        "hands the rest back; a second signal ends at once. SIGUSR1 stops claims in this worker, SIGUSR2 lets them go on."
    )
    requires_system_checks = ["belay"]

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument(
            "--queue",
            action="append",
            default=[],
            metavar="NAME[=LIMIT]",
            help="serve this queue only (repeatable), with so many jobs at once in a process; "
            "by default all queues of the settings",
        )
        parser.add_argument("--processes", type=int, metavar="N", help="processes that run jobs")
        parser.add_argument("--concurrency", type=int, metavar="N", help="threads of a process")
        parser.add_argument(
            "--max-jobs", type=int, metavar="N", help="replace a process that has run so many jobs"
        )
        parser.add_argument(
            "--max-rss", type=int, metavar="MB", help="replace a process that holds so much memory"
        )
        parser.add_argument("--reload", action="store_true", help="restart processes when code changes")
        parser.add_argument(
            "--until-empty",
            action="store_true",
            help="end when no job of the queues is due, running or to be tried again; "
            "scheduled and waiting jobs stay",
        )
        parser.add_argument("--once", action="store_true", help="claim one round, run it, end")

    def handle(self, *args: Any, **given: Any) -> None:
        for name in ("processes", "concurrency", "max_jobs", "max_rss"):
            if given[name] is not None and given[name] < 1:
                raise CommandError(f"--{name.replace('_', '-')}: {given[name]} is not at least 1")
        overrides = Overrides(
            queues=dict(parse_queue(text) for text in given["queue"]),
            concurrency=given["concurrency"],
            processes=given["processes"],
            once=given["once"],
        )
        plan = WorkPlan(
            max_jobs=given["max_jobs"],
            max_rss_bytes=given["max_rss"] * MIB if given["max_rss"] else None,
            until_empty=given["until_empty"],
            once=given["once"],
            reload=given["reload"],
        )
        try:
            serves = announcement(overrides.apply(conf.worker_options()))
            say = self._say if given["verbosity"] > 0 else lambda _text: None
            say(serves)
            code = supervise(overrides, plan, say=say)
        except (ConfigurationError, SchemaError, Unavailable) as error:
            raise CommandError(str(error)) from error
        if code:
            sys.exit(code)

    def _say(self, text: str) -> None:
        with suppress(OSError):  # the terminal may be gone; the worker goes on
            self.stderr.write(text, str)  # it is no error: not in red


def announcement(options: WorkerOptions) -> str:
    """What a worker says when it starts: what it serves, and how to stop it."""
    queues = ", ".join(f"{name} ({queue.limit} at a time)" for name, queue in sorted(options.queues.items()))
    rows = ", queues of belay_queues" if options.serves_rows else ""
    processes = "1 process" if options.processes == 1 else f"{options.processes} processes"
    return (
        f"belay_worker serves {queues}{rows} in {processes}. Ctrl-C stops it: running jobs have "
        f"{options.shutdown_grace_s:g} s to finish; Ctrl-C again ends it at once."
    )


def supervise(
    overrides: Overrides, plan: WorkPlan, *, say: Callable[[str], object] = lambda _text: None
) -> int:
    """Run a supervisor to its end; the exit code."""
    open_standard_files()
    options = overrides.apply(conf.worker_options())
    with db.storage_for_supervisor() as storage:
        services = Services(
            storage=storage,
            clock=conf.clock(),
            registry=registry,
            options=options,
            queues=QueueTable(options, reports=True),
        )
        arguments = ("-m", "django_belay.management.child", overrides.dumps())
        scheduler = schedules.make_scheduler(storage, clock=services.clock)
        return Supervisor(services, lambda: spawn(arguments), plan, cron_tick=scheduler.tick, say=say).run()


def parse_queue(text: str) -> tuple[str, int | None]:
    """``NAME`` or ``NAME=LIMIT``."""
    name, has_limit, limit = text.partition("=")
    if not name:
        raise CommandError(f"--queue {text!r}: give NAME or NAME=LIMIT")
    if not has_limit:
        return name, None
    if not (limit.isascii() and limit.isdigit() and int(limit) >= 1):
        raise CommandError(f"--queue {text!r}: the limit is a whole number of at least 1")
    return name, int(limit)
