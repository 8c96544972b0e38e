"""``manage.py belay_jobs``: list, show, retry and cancel jobs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from django_belay import client
from django_belay.contract.state import INCOMPLETE
from django_belay.deferred import Deferred
from django_belay.exceptions import JobNotFound
from django_belay.handles import JobHandle
from django_belay.management import report
from django_belay.storage.base import Controlled

COLUMNS = ("id", "state", "kind", "queue", "priority", "attempt", "inserted", "ready", "last error")
PAGE = 500
MOST_EVENTS = 10_000


class Command(BaseCommand):
    """Lists jobs, shows one with its journal, and retries or cancels some."""

    help = "List, show, retry and cancel jobs. --format json gives every column, values decoded."

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
        for name, text in (("retry", "Run failed or cancelled jobs again."), ("cancel", "Cancel jobs.")):
            changing = actions.add_parser(name, help=f"{text} Give ids, or filters.")
            changing.add_argument("ids", type=int, nargs="*", metavar="ID")
            report.add_filters(changing)
            changing.add_argument("--limit", type=report.at_least_one, help="At most so many jobs.")
            changing.add_argument("--dry-run", action="store_true", help="Only say which jobs are meant.")
            report.add_format(changing)
            if name == "cancel":
                changing.add_argument("--reason", default="")
                changing.add_argument("--tree", action="store_true", help="Their descendants, too.")

    def handle(self, *args: Any, **options: Any) -> None:
        with report.command_errors():
            getattr(self, f"_{options['action']}")(options)

    # -- reporting -----------------------------------------------------------------

    def _list(self, options: dict[str, Any]) -> None:
        given = report.filters(options)
        limit = options["limit"]
        jobs = [handle.job for handle in client.list_jobs(**given, before_id=options["before"], limit=limit)]
        cursor = jobs[-1].id if len(jobs) == limit else None
        if options["format"] == "json":
            self.stdout.write(report.dump({"jobs": [report.job_facts(job) for job in jobs], "next": cursor}))
        elif options["format"] == "jsonl":
            for job in jobs:
                self.stdout.write(report.dump(report.job_facts(job)))
        else:
            report.write_table(self.stdout, COLUMNS, [_row(job) for job in jobs])
            if cursor is not None:
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

    def _retry(self, options: dict[str, Any]) -> None:
        self._change(options, states=("failed", "cancelled"), change=lambda handle: handle.retry())

    def _cancel(self, options: dict[str, Any]) -> None:
        reason, tree = options["reason"], options["tree"]
        self._change(
            options,
            states=tuple(sorted(INCOMPLETE)),
            change=lambda handle: handle.cancel(reason, tree=tree),
        )

    def _change(
        self,
        options: dict[str, Any],
        *,
        states: tuple[str, ...],
        change: Callable[[JobHandle], Controlled | Deferred[Controlled]],
    ) -> None:
        answers = []
        for handle in self._wanted(options, states):
            if isinstance(handle, _Missing):
                answers.append(_Answer(handle.id, "skipped", "no such job", None))
            elif options["dry_run"]:
                answers.append(_Answer(handle.id, "would be done", None, handle.state))
            else:
                answers.append(_answer_of(handle, change))
        self._report(answers, options["format"])
        missing = [answer.id for answer in answers if answer.state is None]
        if missing:
            raise CommandError(f"no such job: {', '.join(map(str, missing))}")

    def _wanted(self, options: dict[str, Any], states: tuple[str, ...]) -> Iterator[JobHandle]:
        given = report.filters(options)
        if options["ids"]:
            if given:
                raise CommandError("give ids or filters, not both")
            yield from (_found(job_id) for job_id in dict.fromkeys(options["ids"]))
            return
        if not given:
            raise CommandError("give ids, or filters such as --state failed --kind shop.send_receipt")
        given.setdefault("states", states)
        left, before = options["limit"], None
        while left is None or left > 0:
            page = client.list_jobs(**given, before_id=before, limit=min(PAGE, left or PAGE))
            yield from page
            if len(page) < min(PAGE, left or PAGE):
                return
            left, before = None if left is None else left - len(page), page[-1].id

    def _report(self, answers: list[_Answer], form: str) -> None:
        done = sum(answer.what != "skipped" for answer in answers)
        if form == "json":
            self.stdout.write(
                report.dump(
                    {
                        "jobs": [answer.facts() for answer in answers],
                        "done": done,
                        "skipped": len(answers) - done,
                    }
                )
            )
            return
        for answer in answers:
            if form == "jsonl":
                self.stdout.write(report.dump(answer.facts()))
            else:
                reason = f": {answer.reason}" if answer.reason else ""
                self.stdout.write(f"{answer.id} {answer.what}{reason}")
        if form == "text":
            self.stdout.write(f"{done} done, {len(answers) - done} skipped")


class _Answer:
    """What became of one job."""

    def __init__(self, job_id: int, what: str, reason: str | None, state: str | None) -> None:
        self.id, self.what, self.reason, self.state = job_id, what, reason, state

    def facts(self) -> dict[str, Any]:
        return {"id": self.id, "what": self.what, "reason": self.reason, "state": self.state}


class _Missing(JobHandle):
    """Stands for an id that no job has."""

    __slots__ = ()


def _found(job_id: int) -> JobHandle:
    try:
        return client.get(job_id)
    except JobNotFound:
        return _Missing(job_id, state="cancelled")


def _answer_of(
    handle: JobHandle, change: Callable[[JobHandle], Controlled | Deferred[Controlled]]
) -> _Answer:
    try:
        answer = change(handle)
    except JobNotFound:
        return _Answer(handle.id, "skipped", "no such job", None)
    if isinstance(answer, Deferred):  # the command runs inside a caller's transaction
        return _Answer(handle.id, "done after commit", None, handle.state)
    if not answer.done:
        return _Answer(handle.id, "skipped", answer.reason, answer.state)
    return _Answer(handle.id, "requested" if answer.requested else "done", None, answer.state)


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
