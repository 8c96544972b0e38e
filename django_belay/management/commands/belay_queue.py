"""``manage.py belay_queue``: list queues, set and forget their options, pause and resume them."""

from __future__ import annotations

import dataclasses
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from django_belay import queues
from django_belay.contract import queue_opts
from django_belay.management import report
from django_belay.queues import QueueInfo

COLUMNS = ("queue", "paused", "limit", "global limit", "rate", "partition", "set by", "problems")


class Command(BaseCommand):
    """Sets queues at run time; every worker takes it up at its next sync."""

    help = "List queues, set their options at run time, pause and resume them."

    def add_arguments(self, parser: CommandParser) -> None:
        actions = parser.add_subparsers(dest="action", required=True)
        listing = actions.add_parser("list", help="Queues of the settings and of the table.")
        report.add_format(listing)
        putting = self._changing(
            actions, "put", "Set a queue's options; what is not given goes back to the settings."
        )
        putting.add_argument(
            "--limit", metavar="N|MIN-MAX", help="Jobs at a time in one process; a range adapts."
        )
        putting.add_argument("--global-limit", type=int, metavar="N", help="Jobs at a time in all processes.")
        putting.add_argument("--rate", metavar="ALLOWED/SECONDS", help="Units in a sliding window: 100/60.")
        putting.add_argument("--resource", help="Name of a rate that several queues share.")
        putting.add_argument("--estimate", type=int, metavar="UNITS", help="Units a job takes of the rate.")
        putting.add_argument(
            "--partition", metavar="input:KEY|meta:KEY", help="Count the limit by this field."
        )
        putting.add_argument("--opts", metavar="JSON", help="All options as one JSON object instead.")
        self._changing(actions, "delete", "Forget what was set at run time, a pause included.")
        for name, text in (("pause", "Stop claims; running jobs go on."), ("resume", "Let claims go on.")):
            self._changing(actions, name, text).add_argument(
                "--node", metavar="NODE", help="Only on workers with this NODE_NAME; by default on all."
            )

    def _changing(self, actions: Any, name: str, text: str) -> CommandParser:
        parser: CommandParser = actions.add_parser(name, help=text)
        parser.add_argument("name", metavar="QUEUE")
        parser.add_argument("--dry-run", action="store_true", help="Only check and say what would be done.")
        report.add_format(parser)
        return parser

    def handle(self, *args: Any, **options: Any) -> None:
        with report.command_errors():
            getattr(self, f"_{options['action']}")(options)

    # -- actions -----------------------------------------------------------------------

    def _list(self, options: dict[str, Any]) -> None:
        report.write_items(
            self.stdout, options["format"], "queues", queues.list(), facts=_facts, columns=COLUMNS, row=_row
        )

    def _put(self, options: dict[str, Any]) -> None:
        stored = queues.check(options["name"], _opts(options))
        if not options["dry_run"]:
            queues.put(options["name"], **stored)
        self._say(options, "set", opts=stored)

    def _delete(self, options: dict[str, Any]) -> None:
        before = queues.get(options["name"])
        if before.opts is None:
            raise CommandError(f"nothing was set at run time for queue {options['name']!r}")
        if not options["dry_run"]:
            queues.delete(options["name"])
        self._say(options, "deleted", opts=before.opts)

    def _pause(self, options: dict[str, Any]) -> None:
        name, node = options["name"], options["node"]
        queues.get(name) if options["dry_run"] else queues.pause(name, node=node)
        self._say(options, "paused" if node is None else f"paused on node {node}")

    def _resume(self, options: dict[str, Any]) -> None:
        name, node = options["name"], options["node"]
        info = queues.get(name) if options["dry_run"] else queues.resume(name, node=node)
        if info.is_paused and not options["dry_run"]:
            where = "in the settings, too: BELAY['QUEUES']" if node is None else "for every node"
            raise CommandError(f"queue {info.name!r} is still paused {where}")
        if info.paused_nodes and node is None and not options["dry_run"]:
            self.stderr.write(f"still paused on {', '.join(info.paused_nodes)}: resume it there with --node")
        self._say(options, "resumed" if node is None else f"resumed on node {node}")

    def _say(self, options: dict[str, Any], what: str, **facts: Any) -> None:
        name = options["name"]
        what = f"would be {what}" if options["dry_run"] else what
        if options["format"] != "text":
            self.stdout.write(report.dump({"queue": name, "what": what, **facts}))
            return
        told = f": {report.dump(facts['opts'])}" if "opts" in facts else ""
        self.stdout.write(f"queue {report.printable(name)} {what}{told}")


# -- arguments -------------------------------------------------------------------------


def _opts(options: dict[str, Any]) -> dict[str, Any]:
    """The options that the flags give, as :func:`django_belay.queues.put` takes them."""
    flags = {
        "limit": _limit(options["limit"]),
        "global_limit": options["global_limit"],
        "rate": _rate(options),
        "partition": _partition(options["partition"]),
    }
    given = {key: value for key, value in flags.items() if value is not None}
    if options["opts"] is None:
        return given
    if given:
        raise CommandError("give --opts or the single flags, not both")
    return report.parse_object("--opts", options["opts"])


def _number(flag: str, text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise CommandError(f"{flag}: {text!r} is no whole number") from None


def _limit(text: str | None) -> object:
    if text is None:
        return None
    least, dash, most = text.partition("-")
    if not dash or not least:
        return _number("--limit", text)
    return {"min": _number("--limit", least), "max": _number("--limit", most)}


def _rate(options: dict[str, Any]) -> object:
    if options["rate"] is None:
        if options["resource"] is not None or options["estimate"] is not None:
            raise CommandError("--resource and --estimate belong to --rate ALLOWED/SECONDS")
        return None
    allowed, _, period = options["rate"].partition("/")
    rate = {"allowed": _number("--rate", allowed), "period": _number("--rate", period)}
    extra = {key: options[key] for key in ("resource", "estimate") if options[key] is not None}
    return {**rate, **extra}


def _partition(text: str | None) -> object:
    if text is None:
        return None
    column, _, key = text.partition(":")
    return [column, key]


# -- reporting -------------------------------------------------------------------------


def _facts(info: QueueInfo) -> dict[str, Any]:
    facts = dataclasses.asdict(info)
    return {**facts, "effective": queue_opts.to_json(info.effective)}


def _row(info: QueueInfo) -> tuple[Any, ...]:
    told = queue_opts.to_json(info.effective)
    sources = [
        name for name, is_so in (("settings", info.in_settings), ("row", info.opts is not None)) if is_so
    ]
    return (
        info.name,
        "yes" if info.is_paused else ", ".join(info.paused_nodes) or "no",
        *(told.get(key) for key in queue_opts.KEYS),
        " + ".join(sources),
        "; ".join(info.problems) or None,
    )
