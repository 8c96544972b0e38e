"""Jobs that spoil their thread or process: the worker and the jobs after them go on."""

from __future__ import annotations

import os
import signal

import psutil
import pytest

from tests.app import rude_jobs as rude
from tests.app import worker_jobs as jobs
from tests.integration.looking import get_row
from tests.integration.workers import Site, StartWorker, eventually

pytestmark = pytest.mark.django_db(transaction=True)


def has_ended(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


@pytest.mark.parametrize(
    "spoil", [rude.leaves_a_transaction_open, rude.leaves_autocommit_off, rude.breaks_its_connection]
)
def test_a_spoilt_connection_is_not_the_next_jobs(site: Site, start_worker: StartWorker, spoil) -> None:
    """Connection hygiene: the next job of the thread finds a connection in order."""
    worker = start_worker("--concurrency", "1")
    first = spoil.enqueue()
    eventually(lambda: get_row(first.id).state in ("succeeded", "failed"), what=lambda: worker.log)
    after = rude.asks_the_database.enqueue(name="a")
    eventually(lambda: get_row(after.id).state in ("succeeded", "failed"), what=lambda: worker.log)
    assert get_row(after.id).errors == []
    assert site.lines("a.threads") == ["belay-job-1"]


def test_a_thread_that_a_job_leaves_keeps_no_process_alive(site: Site, start_worker: StartWorker) -> None:
    worker = start_worker("--max-jobs", "1")
    rude.leaves_a_thread.enqueue(name="t")
    [pid] = map(int, site.started("t"))
    eventually(lambda: has_ended(pid), what=lambda: worker.log)


def test_a_child_with_a_left_thread_ends_after_its_supervisor(site: Site, start_worker: StartWorker) -> None:
    worker = start_worker()
    rude.leaves_a_thread.enqueue(name="t")
    [pid] = map(int, site.started("t"))
    os.kill(worker.process.pid, signal.SIGKILL)
    eventually(lambda: has_ended(pid), what=lambda: worker.log)


def test_closed_streams_keep_nothing_from_ending(site: Site, start_worker: StartWorker) -> None:
    """The hand-back and the exit do without them, also where a job does not stop."""
    worker = start_worker(SHUTDOWN_GRACE=1)
    held = jobs.holds.enqueue(name="h")
    site.started("h")
    rude.closes_its_streams.enqueue(name="c")
    [pid] = map(int, site.started("c"))
    worker.terminate()
    assert worker.wait() == 0
    assert has_ended(pid)
    assert (get_row(held.id).state, get_row(held.id).attempt) == ("ready", 0)


def test_a_forked_process_ends_with_its_job(site: Site, start_worker: StartWorker) -> None:
    """It acks nothing, and the connections it shares with its parent stay the parent's."""
    worker = start_worker("--concurrency", "1")
    before = rude.asks_the_database.enqueue(name="b")
    forks = rude.forks_and_both_return.enqueue(name="f")
    eventually(lambda: get_row(forks.id).state == "succeeded", what=lambda: worker.log)
    [pid] = eventually(lambda: site.lines("f.fork"))
    eventually(lambda: has_ended(int(pid)), what=lambda: worker.log)
    after = rude.asks_the_database.enqueue(name="b")
    eventually(lambda: get_row(after.id).state == "succeeded", what=lambda: worker.log)
    assert get_row(before.id).state == "succeeded"
    assert get_row(forks.id).attempt == 1
