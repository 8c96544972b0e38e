"""The demonstration: build the index, kill a worker half-way, approve, refresh, and check the totals."""

from __future__ import annotations

import json
import os
import secrets
import shutil
import signal
import sys
import tempfile
import time
from argparse import ArgumentParser
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from io import StringIO
from pathlib import Path
from typing import Any

from django.contrib.auth import get_user_model
from django.core.management import call_command
from django.core.management.base import BaseCommand, CommandError
from django.utils import timezone
from tqdm import tqdm

from django_belay import JobHandle, get_job, schedules
from django_belay.inspection.waiting import wait_for_index
from django_belay.models import Job, Step
from example_project.codesearch import source
from example_project.codesearch.building import count_rows
from example_project.codesearch.jobs import (
    APPROVAL,
    APPROVAL_TIMEOUT,
    build_index,
    index_package,
    refresh_index,
)
from example_project.codesearch.management import owner
from example_project.codesearch.management.workers import Worker, kill, running_workers
from example_project.codesearch.models import IndexedFile, IndexVersion
from example_project.codesearch.search import find

POLL_S = 0.1
REPORT_EVERY_S = 2.0  # where there is no terminal for a moving bar
SCHEDULE = "nightly-refresh"
NEW_TERM = "belayed"  # stands in no file of Django
REMARK = f"\n# Somebody {NEW_TERM} this today.\n"


class Command(BaseCommand):
    help = (
        "Index Django's own source with two workers, kill one with -9 half-way, approve the index, "
        "run the nightly refresh, and compare the totals with a plain count."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--workers", type=int, default=2, help="worker processes to start (default 2)")
        parser.add_argument("--no-kill", action="store_true", help="let every worker live")
        parser.add_argument("--search", default="durable", help="term to look up at the end")
        parser.add_argument("--timeout", type=float, default=300, help="seconds until it gives up")

    def handle(self, *, workers: int, no_kill: bool, search: str, timeout: float, **options: Any) -> None:
        if workers < 1 or (workers < 2 and not no_kill):
            raise CommandError(f"--workers {workers}: two are needed so that one can be killed; or --no-kill")
        begin = time.monotonic()
        call_command("migrate", verbosity=0)
        if owner.journal() is None:
            call_command("belay_migrate", verbosity=0, stdout=StringIO())
        self.former_owner = owner.owner_pid()
        try:
            with (
                self._nobody_left(),
                working_copy() as folder,
                running_workers(workers, say=self._pass_on) as processes,
            ):
                self.watch = Watch(workers=processes, deadline=begin + timeout)
                self._cancel_leftovers()
                self._build(kill_one=not no_kill)
                self._refresh(folder)
                self._show_search(search)
        except KeyboardInterrupt:
            raise CommandError("stopped; the next demo cancels what is left", returncode=130) from None
        self._say(self.style.SUCCESS(f"All of it agrees. {time.monotonic() - begin:.0f} s"))
        self._show_around()

    @contextmanager
    def _nobody_left(self) -> Iterator[None]:
        """End with the demo who serves the journal because of it."""
        try:
            yield
        finally:
            owner.end_owner(but=self.former_owner)

    # -- the parts -----------------------------------------------------------------------

    def _cancel_leftovers(self) -> None:
        """An earlier demo that was interrupted may have left a build, whose key holds up ours."""
        wait_for_index()
        left = Job.objects.incomplete().for_kind(build_index, index_package, refresh_index)
        for job in left:
            job.cancel("a new demo begins", tree=True)
        self.watch.until(lambda: not left.exists(), "the end of an earlier demo's jobs")

    def _build(self, *, kill_one: bool) -> None:
        total = len(source.paths())
        if owner.journal() is not None:
            self.watch.until(lambda: owner.owner_pid() is not None, "an owner of the journal")
        self._say(f"1  Fan out: {total} files of Django's source, a child job for each package")
        begin = time.monotonic()
        handle = build_index.enqueue(full=True)
        killed_at = self._follow(handle, total, kill_one=kill_one)
        version = self._wait_for_approval(handle)
        wait_for_index()
        children = Job.objects.children_of(handle.id)
        self._say(
            f"   {children.count()} children have ended and their parent has added up: {version.files:,} files, "
            f"{version.terms:,} terms, {time.monotonic() - begin:.1f} s"
        )
        if killed_at is not None:
            self._report_replays(handle, killed_at)
        self._check(handle, version, expected=total)

        self._say(f"\n2  Approve: index {version.pk} waits for a human")
        self._say(
            f"   job {handle.id} is {handle.refresh().state}; it holds no thread, no slot and no connection, and would "
            f"give up after {APPROVAL_TIMEOUT.total_seconds() / 3600:.0f} hours"
        )
        self._say("   this demo says yes: handle.signal('approval', {'approved': True, 'by': 'demo'})")
        handle.signal(APPROVAL, {"approved": True, "by": "demo"})
        self._end(handle, version)

    def _refresh(self, folder: Path) -> None:
        schedule = schedules.get(SCHEDULE)
        self._say(
            f"\n3  Refresh: schedule {schedule.name!r}, {schedule.expression}, next {schedule.next_run:%Y-%m-%d %H:%M} UTC"
        )
        edited = change_some_files(folder)
        self._say(
            f"   {edited.written} files changed or added, {edited.removed} removed; schedules.run_now({SCHEDULE!r})"
        )
        begin = time.monotonic()
        started = schedules.run_now(SCHEDULE).result(timeout=self.watch.left_s)
        if started["changes"] != edited.written + edited.removed:
            raise CommandError(
                f"{edited.written + edited.removed} files differ; the refresh saw {started['changes']}"
            )
        handle = get_job(started["build"])
        version = self._wait_for_approval(handle)
        self._say(
            f"   read {version.files_indexed} of {version.files} files, the others as they were, "
            f"{time.monotonic() - begin:.1f} s"
        )
        self._check(handle, version, expected=edited.written)
        answer = json.dumps({"approved": True, "by": "demo"})
        self._say(
            f"   approved by hand: python3 -m example_project belay_signal send {handle.id} {APPROVAL} '{answer}'"
        )
        call_command("belay_signal", "send", str(handle.id), APPROVAL, answer, stdout=StringIO())
        self._end(handle, version)
        found = len(find(NEW_TERM))
        if found != edited.written:
            raise CommandError(f"{edited.written} files have {NEW_TERM!r} now; the search finds {found}")
        self._say(f"   the search finds {NEW_TERM!r} in the {found} files that have it since")

    def _show_search(self, term: str) -> None:
        hits = find(term, limit=3)
        self._say(f"\n4  Search for {term!r}" + ("" if hits else ": no file"))
        for hit in hits:
            self._say(f"   {hit.count:4}  django/{hit.path}")
        self._say("")

    # -- following -----------------------------------------------------------------------

    def _follow(self, handle: JobHandle, total: int, *, kill_one: bool) -> datetime | None:
        """Show how the build goes; kill the first worker at half of the files. When it was killed."""
        killed_at: datetime | None = None
        done, shown = 0, time.monotonic()
        with tqdm(total=total, unit="file", leave=False, disable=not sys.stderr.isatty()) as bar:
            while done < total:
                self.watch.check(f"the files: {done} of {total} are done", handle)
                before, done = done, IndexedFile.objects.filter(version__job_id=handle.id).count()
                bar.update(done - before)
                if kill_one and killed_at is None and total <= done * 2 < total * 2:
                    victim = self._victim()
                    self._say(
                        f"   {done} of {total} files: kill -9 {victim.pid}, one of the workers, with all that it ran"
                        + self._kill_owner(victim)
                    )
                    kill(victim)
                    killed_at = timezone.now()
                elif bar.disable and time.monotonic() - shown > REPORT_EVERY_S:
                    shown = time.monotonic()
                    self._say(f"   {done} of {total} files")
                time.sleep(POLL_S)
        if kill_one and killed_at is None:
            raise CommandError("the files were done before a worker could be killed; nothing was proven")
        return killed_at

    def _victim(self) -> Worker:
        """On the journal, the worker that serves it to all."""
        serving = owner.owner_pid()
        return next((one for one in self.watch.workers if one.pid == serving), self.watch.workers[0])

    def _kill_owner(self, victim: Worker) -> str:
        """Kill who serves the journal for this demo, too; what to say of it."""
        serving = owner.owner_pid()
        if serving is None or serving == self.former_owner:
            return ""
        if serving != victim.pid:
            os.kill(serving, signal.SIGKILL)
            return f", and {serving}, which served the journal"
        return ", and the journal that it served"

    def _wait_for_approval(self, handle: JobHandle) -> IndexVersion:
        self.watch.until(lambda: is_waiting(handle), "the fan-in", handle)
        return IndexVersion.objects.get(job_id=handle.id)

    def _end(self, handle: JobHandle, version: IndexVersion) -> None:
        begin = time.monotonic()
        self.watch.until(lambda: handle.refresh().is_finished, "the publication", handle)
        version.refresh_from_db()
        if version.state != IndexVersion.State.PUBLISHED:
            raise CommandError(f"{version} was approved and is {version.get_state_display()}")
        self._say(f"   index {version.pk} is published, {time.monotonic() - begin:.1f} s later")

    # -- checking ------------------------------------------------------------------------

    def _report_replays(self, handle: JobHandle, killed_at: datetime) -> None:
        """What the journal saved: the steps that the killed worker's jobs had done."""
        again = [
            job.pk
            for job in Job.objects.children_of(handle.id).filter(attempt__gt=1)
            if "lease_expired" in json.dumps(job.errors)
        ]
        if not again:
            raise CommandError("the killed worker ran no job at that moment; nothing was proven")
        steps = Step.objects.filter(job_id__in=again, name__startswith="file:")
        replayed = steps.filter(inserted_at__lte=killed_at).count()
        self._say(
            f"   {len(again)} of them ran on the killed worker and went on elsewhere: {replayed} of their files came from the "
            f"journal, {steps.count() - replayed} were still to do"
        )

    def _check(self, handle: JobHandle, version: IndexVersion, *, expected: int) -> None:
        """Compare what the jobs added up, what the tables hold, and a plain count in this process."""
        wait_for_index()
        files = source.paths()
        plain = {"files": len(files), "terms": sum(source.read(path).terms.total() for path in files)}
        added_up = {"files": version.files, "terms": version.terms}
        rows = count_rows(version)
        if not added_up == rows == plain:
            raise CommandError(
                f"the totals differ: the jobs added up {added_up}, the tables hold {rows}, a plain count gives {plain}"
            )
        steps = Step.objects.filter(
            job__parent_id=handle.id, job__kind=index_package.kind, name__startswith="file:"
        ).count()
        if not steps == version.files_indexed == expected:
            raise CommandError(
                f"{expected} files were to be read; {version} says {version.files_indexed}, the journal has {steps} steps"
            )
        self._say(
            self.style.SUCCESS(
                "   ok: the same files and terms as a plain count in one process, each counted once"
            )
        )

    # -- saying --------------------------------------------------------------------------

    def _say(self, text: str) -> None:
        with tqdm.external_write_mode(file=sys.stdout):
            self.stdout.write(text)
            self.stdout.flush()

    def _pass_on(self, line: str) -> None:
        """A line that a worker logs."""
        with tqdm.external_write_mode(file=sys.stderr):
            self.stderr.write(f"   worker: {line}", lambda text: text)

    def _show_around(self) -> None:
        password = secrets.token_urlsafe(9)
        user, _ = get_user_model().objects.get_or_create(
            username="demo", defaults={"is_staff": True, "is_superuser": True}
        )
        user.set_password(password)
        user.save()
        self._say("To look around, each in a terminal of its own:")
        self._say("   python3 -m example_project runserver      search and approve at http://127.0.0.1:8000/")
        self._say(
            "   python3 -m example_project belay_worker   does what you approve, and refreshes at night"
        )
        self._say(f"   The admin is at /admin/; user demo, password {password}")


@dataclass(slots=True)
class Watch:
    """Waits for what the workers do, and says why where it never comes."""

    workers: list[Worker]
    deadline: float

    @property
    def left_s(self) -> float:
        return max(0.0, self.deadline - time.monotonic())

    def until(self, is_so: Callable[[], bool], what: str, handle: JobHandle | None = None) -> None:
        while not is_so():
            self.check(what, handle)
            time.sleep(POLL_S)

    def check(self, what: str, handle: JobHandle | None = None) -> None:
        """Raises ``CommandError`` where waiting makes no sense any more."""
        if not self.left_s:
            raise CommandError(f"not in time: waited for {what}; see what the workers say, or give --timeout")
        if all(worker.poll() is not None for worker in self.workers):
            raise CommandError(f"every worker has ended; waited for {what}")
        if handle is not None and handle.refresh().state in ("failed", "cancelled"):
            raise CommandError(
                f"job {handle.id} is {handle.state}: {handle.job.errors[-1:]}; waited for {what}"
            )


def is_waiting(handle: JobHandle) -> bool:
    """Whether the build has added up, and parked."""
    waiting = IndexVersion.objects.filter(job_id=handle.id, state=IndexVersion.State.WAITING)
    return waiting.exists() and handle.refresh().state == "awaiting"


@contextmanager
def working_copy() -> Iterator[Path]:
    """A copy of Django's Python files that is indexed in their place, so that some of them can change."""
    with tempfile.TemporaryDirectory(prefix="belay-demo-") as folder:
        copy = Path(folder).resolve()
        for path in source.paths():
            (copy / path).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source.root() / path, copy / path)
        before = os.environ.get(source.ROOT_VARIABLE)
        os.environ[source.ROOT_VARIABLE] = str(copy)  # the workers inherit it
        try:
            yield copy
        finally:
            if before is None:
                del os.environ[source.ROOT_VARIABLE]
            else:
                os.environ[source.ROOT_VARIABLE] = before


@dataclass(frozen=True, slots=True)
class Edited:
    """How many files a night's work touched."""

    written: int
    removed: int


def change_some_files(folder: Path) -> Edited:
    """What a day's work does to a source tree: some files differ, one is new, one is gone."""
    changed = ["shortcuts.py", "db/models/query.py", "core/signing.py"]
    for path in changed:
        with (folder / path).open("a", encoding="utf-8") as file:
            file.write(REMARK)
    (folder / "core" / "overnight.py").write_text(REMARK, encoding="utf-8")
    (folder / "utils" / "lorem_ipsum.py").unlink()
    return Edited(written=len(changed) + 1, removed=1)
