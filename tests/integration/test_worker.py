"""Real workers on real PostgreSQL: running, stopping, being killed, losing the database."""

from __future__ import annotations

import os
import signal
import socket
from pathlib import Path

import pytest
from django.db import connections

from django_belay.db import storage_for_client
from django_belay.testing.postgres import PostgresServer
from tests.app import worker_jobs as jobs
from tests.integration.looking import count, get_row
from tests.integration.workers import Site, StartWorker, eventually

pytestmark = pytest.mark.django_db(transaction=True)


def state(job_id: int) -> str:
    return get_row(job_id).state


def all_in(expected: str, ids: list[int]) -> bool:
    return count(ids=ids, states=[expected]) == len(ids)


def test_worker_runs_jobs_until_empty_and_ends_with_zero(site: Site, start_worker: StartWorker) -> None:
    ids = [jobs.marks.enqueue(name="m").id for _ in range(25)]
    assert start_worker("--until-empty").wait() == 0
    assert all_in("succeeded", ids)
    assert sorted(line.split(":")[0] for line in site.lines("m")) == sorted(map(str, ids))
    assert {line.split(":")[1] for line in site.lines("m")} == {"1"}


def test_until_empty_waits_for_another_attempt(site: Site, start_worker: StartWorker) -> None:
    job = jobs.dies.enqueue(name="d", times=1)
    assert start_worker("--until-empty").wait() == 0
    assert state(job.id) == "succeeded"


def test_once_runs_one_round(site: Site, start_worker: StartWorker) -> None:
    ids = [jobs.marks.enqueue(name="m").id for _ in range(5)]
    assert start_worker("--once", "--queue", "work=3").wait() == 0
    assert count(ids=ids, states=["succeeded"]) == 3
    assert count(ids=ids, states=["ready"]) == 2


def test_killed_worker_loses_no_job_and_replays_no_step(site: Site, start_worker: StartWorker) -> None:
    """§11: at least once, and a journaled step is not executed again."""
    walking = jobs.walks.enqueue(name="w", count=4, hold_at=2)
    ids = [jobs.marks.enqueue(name="m").id for _ in range(30)]
    first, second = start_worker(), start_worker()
    [line] = site.started("w")
    killed = first if int(line.split(":")[2]) in first.children() else second
    killed.kill_all()
    site.release("w")
    eventually(lambda: state(walking.id) == "succeeded", what=lambda: second.log)
    eventually(lambda: all_in("succeeded", ids))
    row = get_row(walking.id)
    assert site.lines("w.effects") == ["0", "1", "2", "3"]
    assert row.attempt == 2
    assert row.spent_usd_micros == 40_000
    assert [entry["error"] for entry in row.errors] == ["lease_expired"]


def test_job_that_kills_its_process_burns_attempts_and_the_child_is_replaced(
    site: Site, start_worker: StartWorker
) -> None:
    """Rule 16: never a hand-back when a child dies."""
    job = jobs.dies.enqueue(name="d", times=1)
    worker = start_worker()
    eventually(lambda: state(job.id) == "succeeded")
    assert site.lines("d") == ["1", "2"]
    assert get_row(job.id).attempt == 2
    worker.await_log("died (exit code -9)")
    worker.terminate()
    assert worker.wait() == 0


def test_busy_interpreter_does_not_lose_its_lease(site: Site, start_worker: StartWorker) -> None:
    """Rule 16: renewal is the work of a process that no job can block."""
    job = jobs.occupies.enqueue(seconds=5.0)
    worker = start_worker(LEASE_TTL=2)
    other = start_worker(LEASE_TTL=2)  # it would reclaim the job and run it again
    eventually(lambda: state(job.id) == "succeeded", timeout_s=60)
    row = get_row(job.id)
    assert (row.attempt, row.errors) == (1, [])
    assert "died" not in worker.log + other.log


def test_sigterm_lets_jobs_finish_and_hands_back_the_rest(site: Site, start_worker: StartWorker) -> None:
    quick = jobs.holds.enqueue(name="quick")
    slow = jobs.holds.enqueue(name="slow")
    worker = start_worker(SHUTDOWN_GRACE=1.5)
    site.started("quick")
    site.started("slow")
    worker.terminate()
    worker.await_log("stopping: finishing 2 jobs, for 1.5 s at most; Ctrl-C again stops now")
    late = jobs.marks.enqueue(name="late")
    site.release("quick")
    assert worker.wait() == 0
    assert state(quick.id) == "succeeded"
    row = get_row(slow.id)
    assert (row.state, row.attempt, row.errors, row.leased_by) == ("ready", 0, [], None)
    assert state(late.id) == "ready"
    assert site.lines("late") == []


def test_second_signal_ends_at_once(site: Site, start_worker: StartWorker) -> None:
    job = jobs.holds.enqueue(name="h")
    worker = start_worker(SHUTDOWN_GRACE=60)
    site.started("h")
    worker.terminate()
    worker.await_log("stopping")
    worker.terminate()
    assert worker.wait(10) == 1
    assert state(job.id) == "running"


def test_child_that_loses_its_supervisor_ends_its_jobs_and_itself(
    site: Site, start_worker: StartWorker
) -> None:
    """Rule 16: it claims no more, renews itself, and ends within the grace."""
    job = jobs.holds.enqueue(name="h")
    worker = start_worker(LEASE_TTL=2, SHUTDOWN_GRACE=30)
    [line] = site.started("h")
    child = int(line.split(":")[2])
    os.kill(worker.process.pid, signal.SIGKILL)
    worker.await_log("the supervisor is gone")
    first = get_row(job.id).lease_until
    eventually(lambda: get_row(job.id).lease_until > first, what="a renewal by the child")
    site.release("h")
    eventually(lambda: state(job.id) == "succeeded")
    eventually(lambda: not _is_alive(child), what="the end of the child")


def test_worker_survives_a_crash_of_the_database(
    site: Site, start_worker: StartWorker, postgres_server: PostgresServer
) -> None:
    from django.db import connection

    if not postgres_server.can_restart:
        pytest.skip(f"{postgres_server} cannot be restarted from here")
    walking = jobs.walks.enqueue(name="w", count=4, hold_at=2)
    ids = [jobs.marks.enqueue(name="m").id for _ in range(20)]
    worker = start_worker(LEASE_TTL=10)
    site.started("w")
    connection.close()
    postgres_server.restart("immediate")
    site.release("w")
    eventually(lambda: state(walking.id) == "succeeded", timeout_s=60)
    ids += [jobs.marks.enqueue(name="m").id for _ in range(20)]
    eventually(lambda: all_in("succeeded", ids), timeout_s=60)
    assert site.lines("w.effects") == ["0", "1", "2", "3"]
    assert get_row(walking.id).spent_usd_micros == 40_000
    worker.terminate()
    assert worker.wait() == 0


def test_overrun_is_interrupted_and_retried(site: Site, start_worker: StartWorker) -> None:
    job = jobs.overruns.enqueue(name="o")
    start_worker("--until-empty")
    eventually(lambda: state(job.id) == "failed")
    row = get_row(job.id)
    assert site.lines("o") == ["1", "2"]
    assert [entry["type"] for entry in row.errors] == ["django_belay.exceptions.Timeout"] * 2


def test_stuck_threads_count_as_used_and_the_child_is_replaced(site: Site, start_worker: StartWorker) -> None:
    """A thread cannot be killed: nothing is acknowledged for it, its process is replaced."""
    stuck = jobs.resists.enqueue(name="r")
    worker = start_worker("--queue", "work=2", "--concurrency", "2", SHUTDOWN_GRACE=0.5)
    [pid] = site.started("r")
    worker.await_log("its thread is lost")
    worker.await_log("threads are stuck")
    eventually(lambda: not _is_alive(int(pid)), what="the end of the stuck child")
    after = jobs.marks.enqueue(name="m")
    eventually(lambda: state(after.id) == "succeeded")
    eventually(lambda: state(stuck.id) == "failed")
    assert [e["error"] for e in get_row(stuck.id).errors] == ["lease_expired"]


def test_child_is_recycled_without_a_gap(site: Site, start_worker: StartWorker) -> None:
    worker = start_worker("--max-jobs", "5")
    ids = [jobs.marks.enqueue(name="m").id for _ in range(6)]
    worker.await_log("it ran", timeout_s=20)
    worker.await_log("child 1", count=3)
    eventually(lambda: "has ended" in worker.log)
    log = worker.log
    assert log.index("is replaced: it ran") < log.index("child 2") < log.index("has ended")
    eventually(lambda: all_in("succeeded", ids))
    later = jobs.marks.enqueue(name="m")
    eventually(lambda: state(later.id) == "succeeded")


def test_child_that_is_told_to_end_hands_over_and_is_replaced(site: Site, start_worker: StartWorker) -> None:
    job = jobs.holds.enqueue(name="h")
    worker = start_worker()
    [line] = site.started("h")
    os.kill(int(line.split(":")[2]), signal.SIGTERM)
    worker.await_log("is ready", count=2)
    later = jobs.marks.enqueue(name="m")
    eventually(lambda: state(later.id) == "succeeded")
    assert state(job.id) == "running"
    site.release("h")
    eventually(lambda: state(job.id) == "succeeded")
    worker.await_log("has ended")
    assert "died" not in worker.log


def test_changed_code_is_reloaded(
    site: Site, start_worker: StartWorker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = tmp_path / "lib" / "belay_reloaded_middleware.py"
    module.parent.mkdir()
    text = "def handler(context, call_next):\n    call_next(context)\n    return {!r}\n"
    module.write_text(text.format("old"))
    monkeypatch.setenv("BELAY_TEST_PATH", str(module.parent))
    worker = start_worker("--reload", MIDDLEWARE=["belay_reloaded_middleware.handler"])
    first = jobs.marks.enqueue(name="m")
    assert first.result(timeout=30) == "old"
    module.write_text(text.format("new!"))
    worker.await_log("has ended")
    second = jobs.marks.enqueue(name="m")
    assert second.result(timeout=30) == "new!"


@pytest.mark.postgres
def test_database_that_is_away_at_the_start_is_waited_for(site: Site, start_worker: StartWorker) -> None:
    settings = {**connections["default"].settings_dict}
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # nobody listens here
        away = {**settings, "HOST": "127.0.0.1", "PORT": str(taken.getsockname()[1])}
        worker = start_worker(database=away)
        worker.await_log("waits for the storage")
        worker.terminate()
        assert worker.wait() == 0


def test_budget_stops_at_the_step_that_crosses_it(site: Site, start_worker: StartWorker) -> None:
    job = jobs.pays.enqueue(name="p")
    assert start_worker("--until-empty").wait() == 0
    row = get_row(job.id)
    assert row.state == "failed"
    assert row.errors[-1]["error"] == "budget_exceeded"
    assert site.lines("p.effects") == ["0", "1", "2"]


def test_liveness_is_the_last_turn_of_the_claim_loop(start_worker: StartWorker) -> None:
    start_worker()
    storage = storage_for_client().storage
    row = eventually(lambda: next((node for node in storage.list_nodes() if node.claimed_at), None))
    assert row.facts["queues"] == {"work": 20}
    eventually(lambda: any(node.claimed_at > row.claimed_at for node in storage.list_nodes()))


def test_worker_that_cannot_start_its_children_ends_with_an_error(start_worker: StartWorker) -> None:
    worker = start_worker(MIDDLEWARE=["tests.app.worker_jobs.nothing_here"])
    assert worker.wait() != 0


@pytest.mark.postgres
def test_a_worker_without_a_database_says_what_it_waits_for_and_why(start_worker: StartWorker) -> None:
    worker = start_worker(database=nobody_listens(), STORAGE={"OPTIONS": {"connect_timeout": 1}})
    worker.await_log("no answer from the storage yet")
    eventually(lambda: "refused" in worker.log, what=lambda: worker.log)
    worker.terminate()
    assert worker.wait() == 0


@pytest.mark.postgres
def test_once_does_not_wait_for_a_database_and_fails(start_worker: StartWorker) -> None:
    worker = start_worker("--once", database=nobody_listens(), STORAGE={"OPTIONS": {"connect_timeout": 1}})
    assert worker.wait() == 1
    assert "CommandError" in worker.log
    assert "refused" in worker.log


def test_a_memory_limit_below_an_idle_process_is_said_and_replaces_nothing(
    site: Site, start_worker: StartWorker
) -> None:
    worker = start_worker("--max-rss", "1")
    worker.await_log("--max-rss is 1 MB")
    assert "is replaced: " not in worker.log
    job = jobs.marks.enqueue(name="m")
    eventually(lambda: state(job.id) == "succeeded")
    worker.await_log("it is over its memory limit")


def nobody_listens() -> dict[str, object]:
    """The database on a port that nobody listens to."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        port = held.getsockname()[1]
    return {**connections["default"].settings_dict, "HOST": "127.0.0.1", "PORT": port}


def _is_alive(pid: int) -> bool:
    import psutil

    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
