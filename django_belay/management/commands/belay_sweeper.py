"""``manage.py belay_sweeper``: the sweeper alone, for deployments that run it apart."""

from __future__ import annotations

import signal
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from django_belay import conf, db
from django_belay.engine.loop import Loop
from django_belay.engine.services import Services
from django_belay.engine.sweeper import Sweeper
from django_belay.engine.telemetry import sweeper_log
from django_belay.exceptions import SchemaError, Unavailable
from django_belay.management import report
from django_belay.registry import registry


class Command(BaseCommand):
    help = (
        "Takes back expired leases, mends lost wake-ups and prunes old rows: one pass, or a loop. "
        "Every worker does this as well; any number may run."
    )
    requires_system_checks = ["belay"]

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--loop", action="store_true", help="go on until SIGTERM")
        parser.add_argument("--interval", type=float, metavar="S", help="seconds between passes of the loop")
        report.add_format(parser)

    def handle(self, *args: Any, **given: Any) -> None:
        options = conf.worker_options()
        interval_s = options.sweep_interval_s if given["interval"] is None else given["interval"]
        if interval_s <= 0:
            raise CommandError(f"--interval: {interval_s} is not above 0")
        storage = db.storage_for_worker(pool_size=1, application_name="belay-sweeper")
        sweeper = Sweeper(Services(storage=storage, clock=conf.clock(), registry=registry, options=options))
        try:
            if given["loop"]:
                self._loop(sweeper, interval_s)
                return
            storage.check_schema()
            changed = sweeper.turn()
        except (SchemaError, Unavailable) as error:
            raise CommandError(str(error)) from error
        finally:
            storage.close()
        is_text = given["format"] == "text"
        self.stdout.write(
            f"one pass: {changed} rows changed" if is_text else report.dump({"changed": changed})
        )

    def _loop(self, sweeper: Sweeper, interval_s: float) -> None:
        signals: list[int] = []
        for number in (signal.SIGTERM, signal.SIGINT):
            # Only an append: a handler may interrupt the main thread under any lock.
            signal.signal(number, lambda received, _frame: signals.append(received))
        loop = Loop("sweep", sweeper.turn, interval_s=interval_s, log=sweeper_log)
        loop.start()
        while not signals:
            if loop.join(0.5):
                raise CommandError("the sweep loop has died")
        loop.stop()
        loop.join(5.0)
