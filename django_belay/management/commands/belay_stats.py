"""``manage.py belay_stats``: the queues in numbers, who works, and how a journal stands."""

from __future__ import annotations

import dataclasses
from typing import Any

from django.core.management.base import BaseCommand, CommandParser

from django_belay import client, conf
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
    """Counts jobs by queue and state, lists the worker processes, and says how a journal stands."""

    help = (
        "Count jobs by queue and state, and list the worker processes that were seen lately. On a journal also: "
        "its generation, bytes and records, the last write, and how far the inspection index is behind."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--queue", help="Only this queue.")
        report.add_format(parser)

    def handle(self, *args: Any, **options: Any) -> None:
        with report.command_errors():
            queues = [queue for queue in client.stats() if options["queue"] in (None, queue.queue)]
            storage: Any = storage_for_client().storage
            nodes = storage.list_nodes()
            journal = None if conf.get().journal is None else storage.facts()
        if options["format"] == "json":
            self.stdout.write(report.dump({"queues": queues, "nodes": nodes, "journal": journal}))
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
            if journal is not None:
                self._write_journal(journal)

    def _write_journal(self, facts: dict[str, Any]) -> None:
        last, lag = facts["last_write_s"], facts["index_lag_s"]
        self.stdout.write(
            f"\njournal {facts['store_id']}, durability {facts['durability']}\n"
            f"  generation {facts['generation']}: {_mib(facts['base_bytes'])} of base, "
            f"{facts['segments']} segments of {_mib(facts['bytes'])}, {facts['last_sequence']:,} records\n"
            f"  jobs: {facts['jobs_open']:,} open, {facts['jobs_finished']:,} finished\n"
            f"  last write: {'none yet' if last is None else f'{1000 * last:.1f} ms, fsync included'}\n"
            f"  inspection index: {'nobody writes one' if lag is None else f'{lag:.2f} s behind'}"
        )


def _mib(size: int) -> str:
    return f"{size / 2**20:.1f} MiB"
