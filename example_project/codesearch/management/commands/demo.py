"""The demonstration: build the index with workers, kill one half-way, and check the totals."""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
import sys
import time
from argparse import ArgumentParser
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from threading import Thread
from typing import Any

from django.contrib.auth import get_user_model
from django.core.management import call_command
from django.core.management.base import BaseCommand, CommandError
from django.db import transaction
from django.utils import timezone
from tqdm import tqdm

from django_belay.models import Job, Step
from example_project.codesearch.jobs import index_package
from example_project.codesearch.models import IndexedFile, IndexVersion
from example_project.codesearch.search import find
from example_project.codesearch.source import count_terms, packages

POLL_S = 0.1
UNFINISHED = ("ready", "running", "awaiting", "held", "paused")


@dataclass(slots=True)
class Totals:
    """What two ways of counting must agree on."""

    files: int
    terms: int


class Command(BaseCommand):
    help = "Index Django's own source with two workers, kill one with -9 half-way, check the totals."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--workers", type=int, default=2, help="worker processes to start (default 2)")
        parser.add_argument("--no-kill", action="store_true", help="let every worker live")
        parser.add_argument("--search", default="durable", help="term to look up at the end")
        parser.add_argument("--timeout", type=float, default=300, help="seconds until it gives up")

    def handle(self, *, workers: int, no_kill: bool, search: str, timeout: float, **options: Any) -> None:
        if workers < 1 or (workers < 2 and not no_kill):
            raise CommandError(f"--workers {workers}: two are needed so that one can be killed; or --no-kill")
        call_command("migrate", verbosity=0)
        self.stdout.write("Tables are there. Enqueueing one job a package, in one transaction …")
        version, jobs = enqueue_index()
        started = time.monotonic()
        deadline = started + timeout
        try:
            with running_workers(workers) as processes:
                killed_at = self._watch(version, processes, kill=not no_kill, deadline=deadline)
        except KeyboardInterrupt:
            left = Job.objects.filter(pk__in=jobs, state__in=UNFINISHED).count()
            raise CommandError(
                f"stopped; {left} jobs are left. Workers of the next demo run them first", returncode=130
            ) from None
        seconds = time.monotonic() - started
        version.refresh_from_db()
        self._report(version, jobs, killed_at, seconds)
        self._check(version)
        self._show_search(search)
        self._show_admin()

    def _watch(
        self, version: IndexVersion, workers: list[subprocess.Popen[bytes]], *, kill: bool, deadline: float
    ) -> datetime | None:
        """Follow the index until it is published; kill the first worker at half of the files."""
        total = sum(len(files) for files in packages().values())
        killed_at = None
        done = 0
        # Where there is no terminal, a line every few seconds instead of a moving bar.
        with tqdm(total=total, unit="file", file=sys.stderr, mininterval=refresh_s()) as bar:
            while version.published_at is None:
                if time.monotonic() > deadline:
                    raise CommandError(
                        f"not finished in time: {done} of {total} files; see the workers' output"
                    )
                before, done = done, IndexedFile.objects.filter(version=version).count()
                bar.update(done - before)
                if kill and killed_at is None and done * 2 >= total:
                    kill_at_once(workers[0])
                    killed_at = timezone.now()
                    bar.write(
                        f"kill -9 {workers[0].pid}: one worker is gone, with the jobs it ran", file=sys.stderr
                    )
                if all(worker.poll() is not None for worker in workers):
                    raise CommandError(
                        "every worker has ended before the index was published; see their output"
                    )
                time.sleep(POLL_S)
                version.refresh_from_db(fields=["published_at"])
            bar.update(total - done)
        if kill and killed_at is None:
            raise CommandError("the index was finished before a worker could be killed; nothing was proven")
        return killed_at

    def _report(
        self, version: IndexVersion, jobs: list[int], killed_at: datetime | None, seconds: float
    ) -> None:
        self.stdout.write(
            f"Index {version.pk} is published: {version.files:,} files, {version.terms:,} terms "
            f"in {version.packages} packages, {seconds:.1f} s."
        )
        if killed_at is None:
            return
        again = Job.objects.filter(pk__in=jobs, attempt__gt=1)
        replayed = Step.objects.filter(job_id__in=again.values("pk"), inserted_at__lte=killed_at).count()
        self.stdout.write(
            f"{again.count()} jobs of the killed worker ran again elsewhere; "
            f"{replayed} of their steps were replayed from the journal, not run again."
        )

    def _check(self, version: IndexVersion) -> None:
        """Compare with a plain count in this process."""
        files = [path for paths in packages().values() for path in paths]
        plain = Totals(files=len(files), terms=sum(count_terms(path).total() for path in files))
        built = Totals(files=version.files, terms=version.terms)
        if built != plain:
            raise CommandError(f"the totals differ: the index has {built}, a plain count gives {plain}")
        self.stdout.write(
            self.style.SUCCESS("The totals equal a plain single-process count of the same files.")
        )

    def _show_search(self, term: str) -> None:
        hits = find(term, limit=3)
        self.stdout.write(f"Search for {term!r}: " + ("no file" if not hits else ""))
        for hit in hits:
            self.stdout.write(f"  {hit.count:4}  django/{hit.path}")

    def _show_admin(self) -> None:
        password = secrets.token_urlsafe(9)
        user, _ = get_user_model().objects.get_or_create(
            username="demo", defaults={"is_staff": True, "is_superuser": True}
        )
        user.set_password(password)
        user.save()
        self.stdout.write(
            "To look around: python3 -m example_project runserver, then http://127.0.0.1:8000/ to search and "
            f"http://127.0.0.1:8000/admin/ as user demo, password {password}"
        )


def refresh_s() -> float:
    """How often the progress is shown: a moving bar for a person, a line now and then for a log."""
    return 0.1 if sys.stderr.isatty() else 2.0


def enqueue_index() -> tuple[IndexVersion, list[int]]:
    """A new version and the ids of its jobs: all of them, or none."""
    by_package = packages()
    with transaction.atomic():
        version = IndexVersion.objects.create(packages=len(by_package))
        report = index_package.enqueue_many(
            {"version": version.pk, "package": package, "files": files}
            for package, files in by_package.items()
        )
    return version, list(report.ids)


@contextmanager
def running_workers(count: int) -> Iterator[list[subprocess.Popen[bytes]]]:
    """Worker processes, each in a process group of its own; ended with the block."""
    command = [sys.executable, "-m", "django", "belay_worker", "--settings", "example_project.settings"]
    workers = [
        subprocess.Popen([*command, "-v", "0"], start_new_session=True, stderr=subprocess.PIPE)
        for _ in range(count)
    ]
    for worker in workers:
        Thread(target=pass_on, args=[worker], daemon=True).start()
    try:
        yield workers
    finally:
        for worker in workers:
            worker.terminate()
        for worker in workers:
            worker.wait(timeout=30)


def pass_on(worker: subprocess.Popen[bytes]) -> None:
    """Print what a worker says above the progress bar, not into it."""
    assert worker.stderr is not None
    for line in worker.stderr:
        tqdm.write(line.decode(errors="replace").rstrip("\n"), file=sys.stderr)


def kill_at_once(worker: subprocess.Popen[bytes]) -> None:
    """kill -9 a worker and every process it started, as a power cut would."""
    os.killpg(worker.pid, signal.SIGKILL)
    worker.wait()
