"""``manage.py belay_signal``: put a signal into an inbox, list an inbox, clear a signal."""

from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from django_belay import client
from django_belay.contract.job import Signal
from django_belay.management import report
from django_belay.management.delivery import add_payload, deliver, target_of

COLUMNS = ("name", "sent", "payload")


class Command(BaseCommand):
    """Sends, lists and clears signals of a job, a workflow or any scope."""

    help = "Send a signal to a job (its id), a workflow (wf:ID) or any scope; list and clear signals."

    def add_arguments(self, parser: CommandParser) -> None:
        actions = parser.add_subparsers(dest="action", required=True)
        sending = actions.add_parser("send", help="Put a signal into an inbox and wake who waits for it.")
        self._add_target(sending)
        sending.add_argument("name")
        add_payload(sending)
        listing = actions.add_parser("list", help="What is in an inbox.")
        self._add_target(listing)
        clearing = actions.add_parser("clear", help="Remove a signal from an inbox.")
        self._add_target(clearing)
        clearing.add_argument("name")
        clearing.add_argument("--dry-run", action="store_true", help="Only say whether it is there.")
        for action in (sending, listing, clearing):
            report.add_format(action)

    def _add_target(self, parser: CommandParser) -> None:
        parser.add_argument("target", metavar="TARGET", help="A job's id, or a scope such as wf:ID.")

    def handle(self, *args: Any, **options: Any) -> None:
        with report.command_errors():
            getattr(self, f"_{options['action']}")(target_of(options["target"]), options)

    def _send(self, target: int | str, options: dict[str, Any]) -> None:
        deliver(self.stdout, options, lambda payload: client.signal(target, options["name"], payload))

    def _list(self, target: int | str, options: dict[str, Any]) -> None:
        report.write_items(
            self.stdout,
            options["format"],
            "signals",
            client.signals(target),
            facts=_facts,
            columns=COLUMNS,
            row=lambda signal: (signal.name, signal.inserted_at, report.dump(signal.payload)),
        )

    def _clear(self, target: int | str, options: dict[str, Any]) -> None:
        name = options["name"]
        if options["dry_run"]:
            is_there = name in [signal.name for signal in client.signals(target)]
        else:
            is_there = bool(client.clear_signal(target, name))
        if not is_there:
            raise CommandError(f"there is no signal {name!r} in the inbox of {target}")
        what = "would be cleared" if options["dry_run"] else "cleared"
        if options["format"] == "text":
            self.stdout.write(f"signal {report.printable(name)} of {report.printable(target)} {what}")
        else:
            self.stdout.write(report.dump({"target": target, "name": name, "what": what}))


def _facts(signal: Signal) -> dict[str, Any]:
    return {
        "scope": signal.scope,
        "name": signal.name,
        "payload": signal.payload,
        "inserted_at": signal.inserted_at,
    }
