"""``manage.py belay_cron``: look at schedules and change them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, TypeAlias

from django.core.management.base import BaseCommand, CommandError, CommandParser

from django_belay import schedules
from django_belay.contract.cron_due import CATCH_UP
from django_belay.exceptions import BelayError
from django_belay.handles import JobHandle
from django_belay.management import report
from django_belay.schedules import Schedule

Change: TypeAlias = Callable[[str], object]
#: Why an entry is left alone.
Skip: TypeAlias = Callable[[Schedule], str | None]

COLUMNS = ("name", "expression", "zone", "kind", "catch up", "from", "last", "next", "problem")
ROW_OPTIONS = ("queue", "priority", "max_attempts", "partition_key")


class Command(BaseCommand):
    """Lists schedules, sets them up, pauses, resumes, deletes and runs them."""

    help = "List schedules and change them: put, pause, resume, delete, run; next shows coming slots."

    def add_arguments(self, parser: CommandParser) -> None:
        actions = parser.add_subparsers(dest="action", required=True)
        report.add_format(actions.add_parser("list", help="Every schedule of settings and rows."))
        _add_put(actions.add_parser("put", help="Set a schedule up, or change it."))
        for name, text in (
            ("pause", "Fire no more slots."),
            ("resume", "Fire slots again from now on."),
            ("delete", "Delete what was set at run time; an entry of the settings counts again."),
            ("run", "Enqueue its job now; no slot is used up."),
        ):
            changing = actions.add_parser(name, help=text)
            changing.add_argument("names", nargs="+", metavar="NAME")
            _add_change(changing)
        coming = actions.add_parser("next", help="The next slots.")
        coming.add_argument("name", metavar="NAME")
        coming.add_argument("--limit", type=report.at_least_one, default=5, help="How many slots.")
        report.add_format(coming)

    def handle(self, *args: Any, **options: Any) -> None:
        with report.command_errors():
            getattr(self, f"_{options['action']}")(options)

    # -- reporting -----------------------------------------------------------------

    def _list(self, options: dict[str, Any]) -> None:
        report.write_items(
            self.stdout,
            options["format"],
            "schedules",
            schedules.list(),
            facts=_facts,
            columns=COLUMNS,
            row=_row,
        )

    def _next(self, options: dict[str, Any]) -> None:
        schedule = schedules.get(options["name"])
        slots = schedules.next_runs(schedule.name, count=options["limit"])
        if options["format"] == "json":
            facts = {"name": schedule.name, "paused": schedule.paused, "next": slots}
            self.stdout.write(report.dump(facts))
            return
        if schedule.paused and options["format"] == "text":
            self.stdout.write(f"{report.printable(schedule.name)} is paused; resumed, it runs at")
        for slot in slots:
            text = options["format"] == "text"
            self.stdout.write(report.printable(slot) if text else report.dump({"next": slot}))

    # -- changing ------------------------------------------------------------------

    def _put(self, options: dict[str, Any]) -> None:
        row = {name: options[name] for name in ROW_OPTIONS if options[name] is not None}
        if options["meta"] is not None:
            row["meta"] = report.parse_object("--meta", options["meta"])
        put = schedules.check if options["dry_run"] else schedules.put
        schedule = put(
            options["name"],
            options["expression"],
            options["kind"],
            report.parse_object("--input", options["input"]),
            timezone=options["timezone"],
            catch_up=options["catch_up"],
            paused=options["paused"],
            **row,
        )
        if options["format"] == "text":
            what = "would be put" if options["dry_run"] else "put"
            self.stdout.write(f"{report.printable(schedule.name)} {what}, next {_next(schedule)}")
        else:
            self.stdout.write(report.dump({"dry_run": options["dry_run"], "schedule": _facts(schedule)}))

    def _pause(self, options: dict[str, Any]) -> None:
        self._change(options, schedules.pause, skip=lambda one: "paused already" if one.paused else None)

    def _resume(self, options: dict[str, Any]) -> None:
        self._change(options, schedules.resume, skip=lambda one: None if one.paused else "not paused")

    def _delete(self, options: dict[str, Any]) -> None:
        self._change(options, schedules.delete, skip=_of_settings_alone)

    def _run(self, options: dict[str, Any]) -> None:
        self._change(options, schedules.run_now, skip=lambda _: None)

    def _change(self, options: dict[str, Any], change: Change, *, skip: Skip) -> None:
        names = dict.fromkeys(options["names"])
        answers = report.write_answers(
            self.stdout,
            options["format"],
            "schedules",
            (_answer(name, change, skip, is_dry=options["dry_run"]) for name in names),
            facts=_Answer.facts,
            line=_Answer.line,
        )
        failed = [answer for answer in answers if answer.has_failed]
        if failed:
            raise CommandError("; ".join(f"{answer.name}: {answer.reason}" for answer in failed))


@dataclass(slots=True, kw_only=True, frozen=True)
class _Answer:
    """What became of one schedule."""

    name: str
    what: str
    reason: str | None = None
    job_id: int | None = None
    has_failed: bool = False

    def facts(self) -> dict[str, Any]:
        job = {} if self.job_id is None else {"job_id": self.job_id}
        return {"name": self.name, "what": self.what, "reason": self.reason, **job}

    def line(self) -> str:
        more = f": {self.reason}" if self.reason else f": job {self.job_id}" if self.job_id else ""
        return report.printable(f"{self.name} {self.what}{more}")


def _answer(name: str, change: Change, skip: Skip, *, is_dry: bool) -> _Answer:
    try:
        reason = skip(schedules.get(name))
        if reason is not None:
            return _Answer(name=name, what="skipped", reason=reason)
        if is_dry:
            return _Answer(name=name, what="would be done")
        result = change(name)
    except BelayError as error:
        return _Answer(name=name, what="skipped", reason=str(error), has_failed=True)
    return _Answer(name=name, what="done", job_id=result.id if isinstance(result, JobHandle) else None)


def _of_settings_alone(schedule: Schedule) -> str | None:
    if schedule.origin != "settings":
        return None
    return 'stands in BELAY["CRONS"] alone; remove it there, or pause it'


def _add_put(parser: CommandParser) -> None:
    parser.add_argument("name", metavar="NAME")
    parser.add_argument("expression", metavar="EXPRESSION", help="Five fields, or @hourly, @daily, …")
    parser.add_argument("kind", metavar="KIND", help="The kind of a registered job.")
    parser.add_argument("--input", default="{}", metavar="JSON", help="The job's arguments, an object.")
    parser.add_argument("--timezone", metavar="ZONE", help="Such as Europe/Berlin; by default UTC.")
    parser.add_argument("--catch-up", choices=CATCH_UP, help="Which missed slots are fired.")
    state = parser.add_mutually_exclusive_group()
    state.add_argument("--paused", action="store_const", const=True, help="Put it, and do not fire it yet.")
    state.add_argument("--active", dest="paused", action="store_const", const=False)
    parser.add_argument("--queue")
    parser.add_argument("--priority", type=int)
    parser.add_argument("--max-attempts", type=int)
    parser.add_argument("--partition-key")
    parser.add_argument("--meta", metavar="JSON", help="An object.")
    _add_change(parser)


def _add_change(parser: CommandParser) -> None:
    parser.add_argument("--dry-run", action="store_true", help="Only say what would be done.")
    report.add_format(parser)


def _facts(schedule: Schedule) -> dict[str, Any]:
    """All but the input: who may see a schedule may not see what its jobs hold."""
    return {name: value for name, value in asdict(schedule).items() if name != "input"}


def _row(schedule: Schedule) -> tuple[object, ...]:
    return (
        schedule.name, schedule.expression, schedule.timezone, schedule.kind, schedule.catch_up,
        schedule.origin, schedule.last_slot, _next(schedule), schedule.problem,
    )  # fmt: skip


def _next(schedule: Schedule) -> str:
    return "paused" if schedule.paused else report.printable(schedule.next_run)
