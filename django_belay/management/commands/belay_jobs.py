"""``manage.py belay_jobs``: list and show jobs, and change them by id or by filter."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from django_belay import bulk, client
from django_belay.contract.state import INCOMPLETE, TERMINAL, State, sources
from django_belay.deferred import Deferred
from django_belay.exceptions import JobNotFound
from django_belay.handles import JobHandle
from django_belay.management import report
from django_belay.storage.base import Controlled, JobFilter

COLUMNS = ("id", "state", "kind", "queue", "priority", "attempt", "inserted", "ready", "last error")
PAGE = 500
MOST_EVENTS = 10_000


class Command(BaseCommand):
    """Lists jobs, shows one with its journal, and changes some."""

    help = (
        "List and show jobs; retry, cancel, reschedule, move, freeze, unfreeze and erase them. "
        "--format json gives every column, values decoded."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        actions = parser.add_subparsers(dest="action", required=True)
        listing = actions.add_parser("list", help="Jobs, newest first.")
        report.add_filters(listing)
        listing.add_argument("--limit", type=report.at_least_one, default=50)
        listing.add_argument(
            "--before", type=int, metavar="ID", help="Go on below this id ('next' of a listing)."
        )
        report.add_format(listing)
        showing = actions.add_parser("show", help="One job with its steps and events.")
        showing.add_argument("id", type=int)
        report.add_format(showing)
        for name, action in ACTIONS.items():
            changing = actions.add_parser(name, help=f"{action.help} Give ids, or filters.")
            changing.add_argument("ids", type=int, nargs="*", metavar="ID")
            report.add_filters(changing)
            changing.add_argument("--limit", type=report.at_least_one, help="At most so many jobs.")
            changing.add_argument("--dry-run", action="store_true", help="Only say which jobs are meant.")
            report.add_format(changing)
            for flag, settings in action.flags.items():
                changing.add_argument(flag, **settings)

    def handle(self, *args: Any, **options: Any) -> None:
        with report.command_errors():
            if options["action"] in ACTIONS:
                self._change(options, ACTIONS[options["action"]])
            else:
                getattr(self, f"_{options['action']}")(options)

    # -- reporting -----------------------------------------------------------------

    def _list(self, options: dict[str, Any]) -> None:
        given = report.filters(options)
        limit = min(options["limit"], client.MAX_LISTED)
        jobs = [handle.job for handle in client.list_jobs(**given, before_id=options["before"], limit=limit)]
        cursor = jobs[-1].id if len(jobs) == limit else None
        report.write_items(
            self.stdout, options["format"], "jobs", jobs,
            facts=report.job_facts, columns=COLUMNS, row=_row, next=cursor,
        )  # fmt: skip
        if cursor is not None and options["format"] == "text":
            self.stdout.write(f"more: --before {cursor}")

    def _show(self, options: dict[str, Any]) -> None:
        handle = client.get(options["id"])
        facts = report.job_facts(handle.job)
        steps, events = handle.steps(), handle.events(limit=MOST_EVENTS)
        if options["format"] != "text":
            self.stdout.write(report.dump({"job": facts, "steps": steps, "events": events}))
            return
        for name, value in facts.items():
            self.stdout.write(f"{name:<18} {report.printable(value)}")
        if steps:
            self.stdout.write("\nsteps")
            rows = [(step.seq, step.name, step.usd, step.tokens, step.value) for step in steps]
            report.write_table(self.stdout, ("seq", "name", "usd", "tokens", "value"), rows)
        if events:
            self.stdout.write("\nevents")
            stream = [(event.seq, event.inserted_at, event.payload) for event in events]
            report.write_table(self.stdout, ("seq", "at", "payload"), stream)

    # -- changing ------------------------------------------------------------------

    def _change(self, options: dict[str, Any], action: Action) -> None:
        given = report.filters(options)
        if options["ids"] and given:
            raise CommandError("give ids or filters, not both")
        if not options["ids"] and not given:
            raise CommandError("give ids, or filters such as --state failed --kind shop.send_receipt")
        if options["ids"]:
            answers = self._by_id(options, action)
        elif options["dry_run"]:
            answers = self._meant(options, action, given)
        else:
            answers = self._by_filter(options, action, given)
        written = report.write_answers(
            self.stdout, options["format"], "jobs", answers, facts=_Answer.facts, line=_Answer.line
        )
        missing = [answer.id for answer in written if answer.state is None]
        if missing:
            raise CommandError(f"no such job: {', '.join(map(str, missing))}")

    def _by_id(self, options: dict[str, Any], action: Action) -> Iterator[_Answer]:
        for job_id in dict.fromkeys(options["ids"]):
            try:
                handle = client.get(job_id)
            except JobNotFound:
                yield _Answer(job_id, "skipped", "no such job", None)
                continue
            if options["dry_run"]:
                yield _foreseen(handle, action)
            else:
                yield _answer_of(handle, lambda handle: action.one(handle, options))

    def _meant(self, options: dict[str, Any], action: Action, given: dict[str, Any]) -> Iterator[_Answer]:
        given.setdefault("states", sorted(action.states))
        left, before = options["limit"], None
        while left is None or left > 0:
            size = PAGE if left is None else min(PAGE, left)
            page = client.list_jobs(**given, before_id=before, limit=size)
            yield from (_foreseen(handle, action) for handle in page)
            if len(page) < size:
                return
            left, before = None if left is None else left - len(page), page[-1].id

    def _by_filter(self, options: dict[str, Any], action: Action, given: dict[str, Any]) -> Iterator[_Answer]:
        for answer in action.many(bulk.where(**given), options):
            yield _answered(answer)


class _Answer:
    """What became of one job."""

    def __init__(self, job_id: int, what: str, reason: str | None, state: str | None) -> None:
        self.id, self.what, self.reason, self.state = job_id, what, reason, state

    def facts(self) -> dict[str, Any]:
        return {"id": self.id, "what": self.what, "reason": self.reason, "state": self.state}

    def line(self) -> str:
        return f"{self.id} {self.what}{f': {self.reason}' if self.reason else ''}"


def _foreseen(handle: JobHandle, action: Action) -> _Answer:
    if handle.state not in action.states:
        return _Answer(handle.id, "skipped", f"state is {handle.state}", handle.state)
    return _Answer(handle.id, "would be done", None, handle.state)


def _answer_of(
    handle: JobHandle, change: Callable[[JobHandle], Controlled | Deferred[Controlled]]
) -> _Answer:
    try:
        answer = change(handle)
    except JobNotFound:
        return _Answer(handle.id, "skipped", "no such job", None)
    if isinstance(answer, Deferred):  # the command runs inside a caller's transaction
        return _Answer(handle.id, "done after commit", None, handle.state)
    return _answered(answer)


def _answered(answer: Controlled) -> _Answer:
    if not answer.done:
        return _Answer(answer.job_id, "skipped", answer.reason, answer.state)
    return _Answer(answer.job_id, "requested" if answer.requested else "done", None, answer.state)


# -- actions ---------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Action:
    """What can be done to jobs from a shell.

    Attributes:
        states: Of the jobs that a filter without ``--state`` means.
        one: Do it to one job.
        many: Do it to all that fit.
        flags: Arguments of this action alone.
    """

    help: str
    states: frozenset[State]
    one: Callable[[JobHandle, Any], Controlled | Deferred[Controlled]]
    many: Callable[[JobFilter, Any], Iterator[Controlled]]
    flags: dict[str, dict[str, Any]] = field(default_factory=dict)


def _at(options: dict[str, Any]) -> datetime:
    return report.parse_instant("--at", options["at"])


ACTIONS = {
    "retry": Action(
        help="Run failed or cancelled jobs again.",
        states=sources("retry"),
        one=lambda handle, options: handle.retry(),
        many=lambda jobs, options: bulk.retry(jobs, limit=options["limit"]),
    ),
    "cancel": Action(
        help="Cancel jobs.",
        states=INCOMPLETE,
        one=lambda handle, options: handle.cancel(options["reason"], tree=options["tree"]),
        many=lambda jobs, options: bulk.cancel(
            jobs, reason=options["reason"], tree=options["tree"], limit=options["limit"]
        ),
        flags={
            "--reason": {"default": ""},
            "--tree": {"action": "store_true", "help": "Their descendants, too."},
        },
    ),
    "reschedule": Action(
        help="Let ready jobs run, or waiting ones time out, at another time.",
        states=bulk.DUE,
        one=lambda handle, options: handle.reschedule(_at(options)),
        many=lambda jobs, options: bulk.reschedule(jobs, _at(options), limit=options["limit"]),
        flags={
            "--at": {
                "required": True,
                "metavar": "WHEN",
                "help": "now, +90m, +2h, +7d, 2026-05-01 or an ISO instant.",
            }
        },
    ),
    "move": Action(
        help="Give jobs that do not run another queue or priority.",
        states=bulk.MOVABLE,
        one=lambda handle, options: handle.move(queue=options["to_queue"], priority=options["to_priority"]),
        many=lambda jobs, options: bulk.move(
            jobs, queue=options["to_queue"], priority=options["to_priority"], limit=options["limit"]
        ),
        flags={"--to-queue": {"metavar": "QUEUE"}, "--to-priority": {"type": int, "metavar": "N"}},
    ),
    "freeze": Action(
        help="Keep ready and waiting jobs from running until they are unfrozen.",
        states=sources("freeze"),
        one=lambda handle, options: handle.freeze(),
        many=lambda jobs, options: bulk.freeze(jobs, limit=options["limit"]),
    ),
    "unfreeze": Action(
        help="Let frozen jobs go on.",
        states=sources("unfreeze"),
        one=lambda handle, options: handle.unfreeze(),
        many=lambda jobs, options: bulk.unfreeze(jobs, limit=options["limit"]),
    ),
    "erase": Action(
        help="Overwrite input, result, step values, events and error texts of ended jobs.",
        states=TERMINAL,
        one=lambda handle, options: handle.erase_payload(),
        many=lambda jobs, options: bulk.erase_payload(jobs, limit=options["limit"]),
    ),
}


def _row(job: Any) -> tuple[Any, ...]:
    attempt = f"{job.attempt}/{job.max_attempts}"
    return (
        job.id, job.state, job.kind, job.queue, job.priority, attempt, job.inserted_at, job.ready_at,
        _last_error(job.errors),
    )  # fmt: skip


def _last_error(errors: Any) -> str | None:
    last = errors[-1] if isinstance(errors, list) and errors else None
    if not isinstance(last, dict):
        return None
    return str(last.get("error", last.get("reason", "")))[:60]
