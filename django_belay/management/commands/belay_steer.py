"""``manage.py belay_steer``: give a job guidance that its ``ctx.steering()`` reads."""

from __future__ import annotations

from typing import Any

from django.core.management.base import BaseCommand, CommandParser

from django_belay import client
from django_belay.management import report
from django_belay.management.delivery import add_payload, deliver


class Command(BaseCommand):
    """Gives a job guidance; the latest stays until it is replaced or cleared."""

    help = "Give a job guidance. 'belay_signal clear ID $steer' takes it back."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("id", type=int)
        add_payload(parser)
        report.add_format(parser)

    def handle(self, *args: Any, **options: Any) -> None:
        with report.command_errors():
            deliver(self.stdout, options, lambda payload: client.steer(options["id"], payload))
