"""``manage.py belay_enqueue``: enqueue one job by its kind."""

from __future__ import annotations

import sys
from datetime import timedelta
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.utils.dateparse import parse_datetime
from django.utils.timezone import is_naive, make_aware

from django_belay import client
from django_belay.management import report


class Command(BaseCommand):
    """Enqueues a job; its input is checked as in a call."""

    help = "Enqueue one job by its kind and print its id."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("kind")
        parser.add_argument(
            "--input", default="{}", metavar="JSON", help="A JSON object; '-' reads standard input."
        )
        parser.add_argument("--queue")
        parser.add_argument("--priority", type=int, help="Lower runs first.")
        parser.add_argument("--max-attempts", type=int)
        parser.add_argument("--unique", metavar="KEY")
        parser.add_argument("--run-after", metavar="WHEN", help="An ISO instant, or seconds from now.")
        parser.add_argument("--meta", metavar="JSON")
        parser.add_argument("--foreign", action="store_true", help="Take a kind that no app here registers.")
        report.add_format(parser)

    def handle(self, *args: Any, **options: Any) -> None:
        text = sys.stdin.read() if options["input"] == "-" else options["input"]
        with report.command_errors():
            job = client.enqueue_job(
                options["kind"],
                report.parse_object("--input", text),
                foreign=options["foreign"],
                **_chosen(options),
            )
        if options["format"] == "text":
            self.stdout.write(f"{job.id} {job.state}{' duplicate' if job.duplicate else ''}")
        else:
            self.stdout.write(report.dump({"id": job.id, "state": job.state, "duplicate": job.duplicate}))


def _chosen(options: dict[str, Any]) -> dict[str, Any]:
    names = ("queue", "priority", "max_attempts", "unique")
    chosen = {name: options[name] for name in names if options[name] is not None}
    if options["meta"] is not None:
        chosen["meta"] = report.parse_object("--meta", options["meta"])
    if options["run_after"] is not None:
        chosen["run_after"] = _instant(options["run_after"])
    return chosen


def _instant(text: str) -> Any:
    if text.isascii() and text.isdigit() and len(text) <= 9:
        return timedelta(seconds=int(text))
    try:
        instant = parse_datetime(text)
    except ValueError:
        instant = None
    if instant is None:
        raise CommandError(f"--run-after {text!r}: give an ISO instant such as 2026-05-01T12:00Z, or seconds")
    return make_aware(instant) if is_naive(instant) else instant
