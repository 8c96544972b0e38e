"""``manage.py belay_replay``: today's code against the recorded journal of a job."""

from __future__ import annotations

import json
import sys
from typing import Any

from django.core.management.base import BaseCommand, CommandParser

from django_belay import client
from django_belay.engine.replay import Replay, as_facts
from django_belay.management import report

PARTED = 3


class Command(BaseCommand):
    """Replays a job in this process; exits with 3 where code and journal part ways."""

    help = (
        "Run today's code of a job against its recorded journal, writing nothing, and report: done, blocked "
        "at what is not recorded, or raised; and where code and journal part ways (exit status 3)."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("id", type=int)
        parser.add_argument("--format", choices=["text", "json"], default="text")

    def handle(self, *args: Any, **options: Any) -> None:
        with report.command_errors():
            found = client.replay(options["id"])
        if options["format"] == "json":
            self.stdout.write(
                json.dumps(json.loads(report.dump(as_facts(found))), indent=2, ensure_ascii=False)
            )
        else:
            for line in _lines(found):
                self.stdout.write(line)
        if not found.agrees:
            sys.exit(PARTED)


def _lines(found: Replay) -> list[str]:
    lines = [f"job {found.job_id} ({report.printable(found.kind)}), {found.state}"]
    lines.append(f"  read     {_names(found.read) or 'no step'}")
    lines.append(f"  {found.ending:<8} {_ending(found)}")
    if found.unread:
        lines.append(
            f"  unread   {_names(found.unread)}: in the journal, and today's code did not ask for it"
        )
    if found.out_of_order:
        recorded, read = map(report.printable, found.out_of_order)
        excuse = "" if found.is_ordered else "; steps of an async job may end in any order"
        lines.append(f"  order    the journal has {recorded} where today's code reads {read}{excuse}")
    if found.repeated:
        lines.append(f"  twice    {_names(found.repeated)}: asked for again in one run")
    if found.misfit:
        lines.append(f"  end      {found.misfit}, and today's code ends otherwise")
    lines.append("code and journal agree" if found.agrees else "code and journal part ways")
    if found.trace:
        lines += ["", *map(report.printable, found.trace.rstrip().splitlines())]
    return lines


def _ending(found: Replay) -> str:
    if found.blocked is not None:
        return f"at {report.printable(str(found.blocked))}"
    if found.error is not None:
        return report.printable(found.error)
    value = report.printable(found.value)
    if found.matches is None:
        return value
    return f"{value}, {'as recorded' if found.matches else 'which is not the recorded result'}"


def _names(names: list[str]) -> str:
    return ", ".join(map(report.printable, names))
