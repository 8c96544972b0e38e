"""Real workers: jobs in killable processes, on the event loop, in chunks; queues at run time."""

from __future__ import annotations

import signal

import psutil
import pytest
from django.contrib.auth.models import Group
from django.db import connection

from django_belay import queues
from tests.app import isolated_jobs as jobs
from tests.app import worker_jobs
from tests.integration.looking import count, get_row
from tests.integration.workers import Site, StartWorker, eventually

pytestmark = pytest.mark.django_db(transaction=True)


def test_isolated_jobs_have_a_process_each_and_work_as_others(site: Site, start_worker: StartWorker) -> None:
    handles = [jobs.alone.enqueue(name="a") for _ in range(3)]
    assert start_worker("--until-empty").wait() == 0
    results = [handle.result(timeout=0) for handle in handles]
    assert len({found["pid"] for found in results}) == 3
    assert len({found["parent"] for found in results}) == 1
    assert [event.payload for event in handles[0].events()] == [{"from": results[0]["pid"]}]


@pytest.mark.parametrize(("how", "said"), [("kill", "killed by SIGKILL"), ("exit", "exit code 3")])
def test_death_of_the_process_burns_the_attempt_and_says_so(
    site: Site, start_worker: StartWorker, how: str, said: str
) -> None:
    handle = jobs.dies_alone.enqueue(name="d", how=how)
    worker = start_worker("--until-empty")
    assert worker.wait() == 0
    found = get_row(handle.id)
    assert (found.state, found.attempt) == ("succeeded", 2)
    assert said in found.errors[0]["error"]
    assert "child 1 died" not in worker.log


@pytest.mark.parametrize("stubborn", [False, True])
def test_time_limit_ends_the_process(site: Site, start_worker: StartWorker, stubborn: bool) -> None:
    handle = jobs.overruns_alone.enqueue(name="o", stubborn=stubborn)
    assert start_worker("--until-empty").wait() == 0
    [pid] = site.started("o")
    found = get_row(handle.id)
    assert (found.state, [e["type"] for e in found.errors]) == ("failed", ["django_belay.exceptions.Timeout"])
    assert ("was killed" in found.errors[0]["error"]) == stubborn
    assert site.lines("o")[:1] == ["interrupted"]
    assert not psutil.pid_exists(int(pid))


def test_memory_limit_ends_the_job(start_worker: StartWorker) -> None:
    small, big = jobs.hungry.enqueue(mib=16), jobs.hungry.enqueue(mib=512)
    assert start_worker("--until-empty").wait() == 0
    assert small.result(timeout=0) == 16
    assert get_row(big.id).errors[0]["type"] == "MemoryError"


def test_stop_hands_back_and_leaves_no_process(site: Site, start_worker: StartWorker) -> None:
    handle = jobs.holds_alone.enqueue(name="h")
    worker = start_worker(SHUTDOWN_GRACE=0.5)
    [pid] = site.started("h")
    worker.terminate()
    assert worker.wait() == 0
    assert (get_row(handle.id).state, get_row(handle.id).attempt) == ("ready", 0)
    eventually(lambda: not psutil.pid_exists(int(pid)))


def test_killed_child_takes_its_isolated_jobs_along(site: Site, start_worker: StartWorker) -> None:
    jobs.holds_alone.enqueue(name="h")
    worker = start_worker()
    [pid] = site.started("h")
    for child in psutil.Process(worker.process.pid).children():
        child.kill()
    eventually(lambda: not psutil.pid_exists(int(pid)))


@pytest.mark.postgres
def test_async_jobs_use_the_orm_and_leave_no_connection(start_worker: StartWorker) -> None:
    handles = [jobs.awaits.enqueue(name="g") for _ in range(5)]
    worker = start_worker()
    results = [handle.result(timeout=30) for handle in handles]
    assert len({pid for _, pid in results}) == 1
    assert Group.objects.count() == 5
    others = (
        "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()"
        " AND pid <> pg_backend_pid() AND application_name NOT LIKE 'belay%%'"
    )

    def left() -> int:
        with connection.cursor() as cursor:
            cursor.execute(others)
            return int(cursor.fetchone()[0])

    eventually(lambda: left() == 0, what=left)
    worker.terminate()
    assert worker.wait() == 0


def test_chunks_of_real_workers(site: Site, start_worker: StartWorker) -> None:
    ids = jobs.indexes.enqueue_many([{"number": number} for number in range(25)]).ids
    assert start_worker("--until-empty", QUEUES={"chunks": 2}).wait() == 0
    assert sorted(int(line) for line in site.lines("chunks")) == [5, 10, 10]
    assert count(ids=ids, states=["succeeded"]) == 25


def test_queue_rows_and_holds_reach_a_running_worker(site: Site, start_worker: StartWorker) -> None:
    worker = start_worker(QUEUES={"elsewhere": 1})
    worker.await_log("is ready")
    handle = worker_jobs.marks.enqueue(name="m")
    queues.put("work", limit=3)
    assert handle.result(timeout=30) == "m"
    worker.process.send_signal(signal.SIGUSR1)
    worker.await_log("claims stop until SIGUSR2")
    late = worker_jobs.marks.enqueue(name="late")
    worker.process.send_signal(signal.SIGUSR2)
    worker.await_log("claims go on")
    assert late.result(timeout=30) == "late"
