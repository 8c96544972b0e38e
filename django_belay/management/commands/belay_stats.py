"""``manage.py belay_stats``: the queues in numbers, and who works."""

from __future__ import annotations

import dataclasses
from typing import Any

from django.core.management.base import BaseCommand, CommandParser

from django_belay import client
from django_belay.db import storage_for_client
from django_belay.management import report

COLUMNS = (
    "queue",
    "ready",
    "scheduled",
    "running",
    "awaiting",
    "held",
    "paused",
    "failed",
    "oldest_ready_at",
)


class Command(BaseCommand):
    """Counts jobs by queue and state, and lists the worker processes."""

    help = "Count jobs by queue and state, and list the worker processes that were seen lately."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--queue", help="Only this queue.")
        report.add_format(parser)

    def handle(self, *args: Any, **options: Any) -> None:
        with report.command_errors():
            queues = [queue for queue in client.stats() if options["queue"] in (None, queue.queue)]
            nodes = storage_for_client().storage.list_nodes()
        if options["format"] == "json":
            self.stdout.write(report.dump({"queues": queues, "nodes": nodes}))
        elif options["format"] == "jsonl":
            for queue in queues:
                self.stdout.write(report.dump(dataclasses.asdict(queue)))
        else:
            rows = [[getattr(queue, name) for name in COLUMNS] for queue in queues]
            if rows:
                report.write_table(self.stdout, [name.replace("_", " ") for name in COLUMNS], rows)
            else:
                self.stdout.write(
                    "no jobs that wait, run or have failed; belay_jobs list shows those that ended"
                )
            processes = "process was" if len(nodes) == 1 else "processes were"
            self.stdout.write(f"\n{len(nodes)} worker {processes} seen lately")
            for node in nodes:
                self.stdout.write(
                    f"{report.printable(node.incarnation)}  claimed {report.printable(node.claimed_at)}  "
                    f"seen {report.printable(node.beat_at)}"
                )
