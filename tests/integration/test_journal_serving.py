"""A journal among real processes: served on demand, by workers, and by the one that follows a killed owner."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from django.db import transaction

from django_belay import client
from django_belay.exceptions import JobNotFound
from tests.app import worker_jobs as jobs
from tests.integration.looking import count, get_row
from tests.integration.workers import ROOT, Site, StartWorker, eventually, owner_pid

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.skipif(os.environ.get("BELAY_TEST_STORAGE") != "journal", reason="of the journal alone"),
]


@pytest.fixture
def directory(site: Site) -> Path:
    return site.path / "belay"


def test_a_process_that_enqueues_needs_no_worker(
    site: Site, start_worker: StartWorker, directory: Path
) -> None:
    assert owner_pid(directory) is None
    job = jobs.marks.enqueue(name="m")
    assert owner_pid(directory) not in (None, os.getpid())
    assert start_worker("--until-empty").wait() == 0
    assert get_row(job.id).state == "succeeded"
    assert len(site.lines("m")) == 1


def test_a_run_outlives_the_owner_of_the_journal(
    site: Site, start_worker: StartWorker, directory: Path
) -> None:
    job = jobs.holds.enqueue(name="h")
    worker = start_worker(LEASE_TTL=10)
    site.started("h")
    killed = owner_pid(directory)
    assert killed is not None
    assert killed != worker.process.pid  # who was started for the first enqueue
    os.kill(killed, signal.SIGKILL)
    eventually(lambda: owner_pid(directory) not in (None, killed), what="another owner")
    site.release("h")
    eventually(lambda: get_row(job.id).state == "succeeded", what=lambda: worker.log)
    row = get_row(job.id)
    assert (row.attempt, row.errors) == (1, [])
    assert len(site.lines("h.started")) == 1


def test_a_worker_takes_over_from_a_killed_worker_that_owned_the_journal(
    site: Site, start_worker: StartWorker, directory: Path
) -> None:
    first = start_worker()
    eventually(lambda: owner_pid(directory) == first.process.pid, what=lambda: first.log)
    second = start_worker()
    ids = [jobs.marks.enqueue(name="m").id for _ in range(50)]
    held = jobs.holds.enqueue(name="h")
    site.started("h")
    first.kill_all()
    eventually(lambda: owner_pid(directory) == second.process.pid, what=lambda: second.log)
    site.release("h")
    ids += [jobs.marks.enqueue(name="m").id for _ in range(50)]
    eventually(lambda: count(ids=[*ids, held.id], states=["succeeded"]) == 101, what=lambda: second.log)
    assert owner_pid(directory) == second.process.pid


@pytest.mark.usefixtures("site")
def test_what_is_enqueued_in_a_transaction_follows_its_commit() -> None:
    with transaction.atomic():
        job = jobs.marks.enqueue(name="m")
        with pytest.raises(JobNotFound):
            client.get_row(job.id)
    assert get_row(job.id).state == "ready"
    with transaction.atomic():
        lost = jobs.marks.enqueue(name="m")
        transaction.set_rollback(True)
    with pytest.raises(JobNotFound):
        client.get_row(lost.id)


@pytest.fixture
def serve(directory: Path) -> Iterator[subprocess.Popen[str]]:
    process = _serve(directory)
    eventually(lambda: owner_pid(directory) == process.pid, what="an owner")
    yield process
    process.kill()
    process.communicate()


def _serve(directory: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "django", "belay_journal", "serve", str(directory)],
        cwd=ROOT,
        env={**os.environ, "DJANGO_SETTINGS_MODULE": "tests.settings", "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def test_serve_ends_well_when_it_is_asked_to(serve: subprocess.Popen[str], directory: Path) -> None:
    job = jobs.marks.enqueue(name="m")
    serve.terminate()
    said = serve.communicate(timeout=30)[0]
    assert serve.returncode == 0, said
    assert f"process {serve.pid} serves the journal {directory}" in said
    assert get_row(job.id).state == "ready"  # by an owner that was started to answer


def test_a_second_serve_says_that_it_is_served(serve: subprocess.Popen[str], directory: Path) -> None:
    second = _serve(directory)
    said = second.communicate(timeout=30)[0]
    assert second.returncode == 0
    assert "is served already" in said
    assert owner_pid(directory) == serve.pid
