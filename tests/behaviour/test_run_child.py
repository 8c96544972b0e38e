"""A child in the test's own process, on real storage: what it claims, publishes and obeys."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest

from django_belay.contract.admission import Limits
from django_belay.contract.job import NewJob
from django_belay.engine.options import QueueOptions
from django_belay.exceptions import LeaseLost, Unavailable
from django_belay.storage.base import Storage
from tests.behaviour.supervised import DEADLINE_S, MakeChild, eventually


def test_leases_are_published_before_user_code_and_let_go_after_the_ack(make_child: MakeChild) -> None:
    """Rule 16."""
    published: list[bool] = []

    def job(ctx: Any) -> None:
        seen = lambda: any(m["t"] == "held" and m["j"][0][0] == ctx.id for m in child.messages)  # noqa: E731
        published.append(eventually(seen))

    child = make_child(job)
    job_id = child.add()
    child.start()
    eventually(lambda: child.state(job_id) == "succeeded")
    eventually(lambda: any(m["t"] == "done" and m["j"][0][0] == job_id for m in child.messages))
    [held] = [m for m in child.messages if m["t"] == "held"]
    assert published == [True]
    assert held["r"].startswith("bench:1:")


@pytest.mark.parametrize("operation", ["claim", "list_queues"])
@pytest.mark.parametrize("is_down", [True, False])
def test_the_one_round_of_once_says_whether_it_met_an_outage(
    make_child: MakeChild, monkeypatch: pytest.MonkeyPatch, operation: str, is_down: bool
) -> None:
    child = make_child(lambda: None, once=True)
    job_id = child.add()

    def down(*_: Any, **__: Any) -> Any:
        raise Unavailable("no answer")

    with monkeypatch.context() as patched:
        if is_down:
            patched.setattr(child.bench.storage, operation, down)
        child.start()
        [leaving] = eventually(lambda: [m for m in child.messages if m["t"] == "leaving"])
    assert leaving["down"] is is_down
    eventually(lambda: child.state(job_id) == ("ready" if is_down else "succeeded"))


def test_each_round_has_a_lease_of_its_own(make_child: MakeChild) -> None:
    """Rule 15."""
    child = make_child(lambda: None)
    child.start()
    for _ in range(2):
        job_id = child.add()
        eventually(lambda job_id=job_id: child.state(job_id) == "succeeded")
    rounds = [m["r"] for m in child.messages if m["t"] == "held"]
    assert len(set(rounds)) == 2


def test_a_global_limit_holds(make_child: MakeChild) -> None:
    running, most, lock = [0], [0], threading.Lock()

    def job() -> None:
        with lock:
            running[0] += 1
            most[0] = max(most[0], running[0])
        time.sleep(0.01)  # long enough for another to overlap
        with lock:
            running[0] -= 1

    child = make_child(job, queues={"default": QueueOptions(limit=10, limits=Limits(global_limit=2))})
    ids = [child.add() for _ in range(12)]
    child.start()
    eventually(lambda: all(child.state(job_id) == "succeeded" for job_id in ids))
    assert most[0] == 2


def test_a_local_limit_holds_and_starves_no_other_queue(make_child: MakeChild) -> None:
    go = threading.Event()

    def job(ctx: Any) -> None:
        if ctx.job.queue == "slow":
            assert go.wait(DEADLINE_S)

    child = make_child(
        job, queues={"slow": QueueOptions(limit=2), "quick": QueueOptions(limit=2)}, concurrency=4
    )
    slow = [child.add("slow") for _ in range(5)]
    child.start()
    eventually(lambda: [child.state(job_id) for job_id in slow].count("running") == 2)
    quick = [child.add("quick") for _ in range(8)]
    eventually(lambda: all(child.state(job_id) == "succeeded" for job_id in quick))
    assert [child.state(job_id) for job_id in slow].count("running") == 2
    go.set()
    eventually(lambda: all(child.state(job_id) == "succeeded" for job_id in slow))


def test_a_paused_queue_is_not_claimed_until_it_goes_on(make_child: MakeChild) -> None:
    child = make_child(lambda: None, queues={"default": QueueOptions(), "other": QueueOptions()})
    child.start()
    child.channel.send({"t": "queues", "q": [["default", {}, True]]})
    eventually(lambda: child.bench.services.queues.paused)
    paused, other = child.add(), child.add("other")
    eventually(lambda: child.state(other) == "succeeded")
    assert child.state(paused) == "ready"
    child.channel.send({"t": "queues", "q": []})
    eventually(lambda: child.state(paused) == "succeeded")


def test_a_poke_wakes_a_sleeping_claim_loop(make_child: MakeChild) -> None:
    child = make_child(lambda: None, busy_poll_s=600.0, idle_poll_s=600.0)
    child.start()
    eventually(lambda: child.child.producer.is_idle)
    job_id = child.add()
    child.channel.send({"t": "poke", "q": ["default"]})
    eventually(lambda: child.state(job_id) == "succeeded")


def test_8_2_resumed_jobs_of_one_claim_read_their_journals_together(
    make_child: MakeChild, postgres_store: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A storage in files has no round trips to save."""
    bodies: list[int] = []

    def job(ctx: Any) -> Any:
        ctx.step("once", lambda: bodies.append(ctx.id))
        return ctx.wait_signal("go")

    child = make_child(job, busy_poll_s=600.0, idle_poll_s=600.0)
    storage, clock = child.bench.storage, child.bench.clock
    ids = [child.add() for _ in range(4)]
    child.start()
    eventually(lambda: all(child.state(job_id) == "awaiting" for job_id in ids))
    monkeypatch.setattr(storage, "get_steps", None)
    for job_id in ids:
        storage.put_signal(f"job:{job_id}", "go", job_id, now=clock.now())
    child.channel.send({"t": "poke", "q": ["default"]})
    eventually(lambda: all(child.state(job_id) == "succeeded" for job_id in ids))
    assert sorted(bodies) == ids


def test_a_lost_lease_ends_the_run_without_an_ack(make_child: MakeChild) -> None:
    begun = threading.Event()
    ended: list[type[BaseException]] = []

    def job() -> None:
        deadline = time.monotonic() + DEADLINE_S
        try:
            begun.set()
            # No while: CPython 3.13 leaves its jump outside of the try (python/cpython#130279).
            for _ in iter(lambda: time.monotonic() < deadline, False):
                pass
        except LeaseLost:
            ended.append(LeaseLost)
            raise

    child = make_child(job)
    job_id = child.add()
    child.start()
    held = eventually(lambda: [m for m in child.messages if m["t"] == "held"])[0]
    assert begun.wait(DEADLINE_S)
    child.channel.send({"t": "lost", "j": [[job_id, held["r"]]]})
    eventually(lambda: ended and not child.child.executor.active())
    assert child.state(job_id) == "running"  # as whoever has it now left it


def test_a_lost_lease_ends_a_busy_loop_on_every_python(make_child: MakeChild) -> None:
    """Whether or not the job's own except sees it, the run ends and nothing is acknowledged."""
    begun = threading.Event()

    def job() -> None:
        deadline = time.monotonic() + DEADLINE_S
        begun.set()
        while time.monotonic() < deadline:
            pass

    child = make_child(job)
    job_id = child.add()
    child.start()
    held = eventually(lambda: [m for m in child.messages if m["t"] == "held"])[0]
    assert begun.wait(DEADLINE_S)
    child.channel.send({"t": "lost", "j": [[job_id, held["r"]]]})
    eventually(lambda: not child.child.executor.active())
    assert child.state(job_id) == "running"


def test_a_row_of_unknown_kind_stops_no_other(make_child: MakeChild) -> None:
    """Rule 4."""
    child = make_child(lambda: None)
    now = child.bench.clock.now()
    [foreign] = child.bench.storage.insert_jobs([NewJob(kind="Elixir.Mailer", priority=-9)], now=now)
    ours = child.add()
    child.start()
    eventually(lambda: child.state(ours) == "succeeded")
    row = eventually(
        lambda: row if (row := child.bench.storage.get_job(foreign.job_id)).state == "ready" else None
    )
    assert (row.attempt, row.errors) == (0, [])


def test_threads_that_cannot_be_started_strand_no_job(
    make_child: MakeChild, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At the limit of processes: what was claimed runs as soon as a thread is to be had."""
    start, refused = threading.Thread.start, 0

    def refuse(thread: threading.Thread) -> None:
        nonlocal refused
        if thread.name.startswith("belay-job") and refused < 5:
            refused += 1
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", refuse)
    one = make_child(lambda: 1)
    ids = [one.add() for _ in range(8)]
    one.start()
    eventually(lambda: all(one.state(job_id) == "succeeded" for job_id in ids))
    assert refused == 5
    assert {one.bench.storage.get_job(job_id).attempt for job_id in ids} == {1}


def test_the_grace_is_real_time(make_child: MakeChild, monkeypatch: pytest.MonkeyPatch) -> None:
    """Jobs that keep the interpreter busy make every short sleep long; a hand-back must still come."""
    sleep, may_end = time.sleep, threading.Event()
    one = make_child(lambda: may_end.wait(DEADLINE_S) and None)
    job_id = one.add()
    one.start()
    eventually(lambda: one.state(job_id) == "running")
    monkeypatch.setattr("django_belay.engine.child.time.sleep", lambda seconds: sleep(seconds * 25))
    one.channel.send({"t": "stop", "grace": 0.5})
    row = one.bench.storage.get_job
    before = time.monotonic()
    try:
        eventually(lambda: row(job_id).state == "ready")
        assert time.monotonic() - before < 6
        assert row(job_id).attempt == 0
    finally:
        may_end.set()


def test_a_claim_without_an_answer_does_not_prolong_the_grace(
    make_child: MakeChild, store: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    may_end, answers, asked = threading.Event(), threading.Event(), threading.Event()
    one = make_child(lambda: may_end.wait(DEADLINE_S) and None, shutdown_grace_s=DEADLINE_S)
    job_id = one.add()
    one.start()
    eventually(lambda: one.state(job_id) == "running")
    claim = store.claim

    def slow(*args: Any, **kwargs: Any) -> Any:
        asked.set()
        answers.wait(DEADLINE_S)
        return claim(*args, **kwargs)

    monkeypatch.setattr(type(store), "claim", lambda self, *args, **kwargs: slow(*args, **kwargs))
    try:
        assert asked.wait(DEADLINE_S)
        before = time.monotonic()
        one.channel.send({"t": "stop", "grace": 0.2})
        eventually(lambda: one.state(job_id) == "ready")
        assert time.monotonic() - before < 6
    finally:
        answers.set()
        may_end.set()
