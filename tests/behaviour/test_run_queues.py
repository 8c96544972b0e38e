"""A child's queues at run time: rows over settings, adaptive limits, fairness under skew."""

from __future__ import annotations

import threading
from typing import Any

from django_belay.engine.options import QueueOptions
from tests.behaviour.supervised import DEADLINE_S, MakeChild, eventually


class Counting:
    """A job that counts how many of it run at once, and waits to be let go."""

    def __init__(self) -> None:
        self.go = threading.Event()
        self.running = 0
        self.most = 0
        self._lock = threading.Lock()

    def __call__(self) -> None:
        with self._lock:
            self.running += 1
            self.most = max(self.most, self.running)
        assert self.go.wait(DEADLINE_S)
        with self._lock:
            self.running -= 1


def counting() -> tuple[Counting, Any]:
    state = Counting()

    def job() -> None:
        state()

    return state, job


def test_a_row_that_is_there_at_the_start_holds_from_the_first_claim_on(make_child: MakeChild) -> None:
    state, job = counting()
    child = make_child(job)
    child.bench.storage.put_queue("default", {"global_limit": 1}, now=child.bench.clock.now())
    ids = [child.add() for _ in range(5)]
    child.start()
    eventually(lambda: state.running == 1)
    state.go.set()
    eventually(lambda: all(child.state(job_id) == "succeeded" for job_id in ids))
    assert state.most == 1


def test_a_limit_is_raised_while_jobs_run(make_child: MakeChild) -> None:
    state, job = counting()
    child = make_child(job, queues={"default": QueueOptions(limit=1)})
    ids = [child.add() for _ in range(5)]
    child.start()
    eventually(lambda: state.running == 1)
    child.put_queue("default", limit=3)
    eventually(lambda: state.running == 3)
    state.go.set()
    eventually(lambda: all(child.state(job_id) == "succeeded" for job_id in ids))
    assert state.most == 3


def test_a_queue_that_a_row_brings_is_served_until_the_row_is_gone(make_child: MakeChild) -> None:
    child = make_child(lambda: None)
    child.start()
    child.put_queue("new", limit=2)
    job_id = child.add("new")
    eventually(lambda: child.state(job_id) == "succeeded")
    child.bench.storage.delete_queue("new")
    child.sync()
    eventually(lambda: "new" not in child.bench.services.queues.served)
    late, marker = child.add("new"), child.add()
    eventually(lambda: child.state(marker) == "succeeded")
    assert child.state(late) == "ready"


def test_a_broken_row_changes_nothing(make_child: MakeChild) -> None:
    """Rule 4."""
    child = make_child(lambda: None)
    child.start()
    child.put_queue("default", limit="lots", rate={"allowed": -1})
    job_id = child.add()
    eventually(lambda: child.state(job_id) == "succeeded")


def test_an_adaptive_limit_grows_with_the_work_and_shrinks_without(make_child: MakeChild) -> None:
    """§3, limit: {min, max}."""
    state, job = counting()
    child = make_child(job, queues={"default": QueueOptions(limit=8, min_limit=1)})
    ids = [child.add() for _ in range(20)]
    child.start()
    eventually(lambda: state.running == 8)
    state.go.set()
    eventually(lambda: all(child.state(job_id) == "succeeded" for job_id in ids))
    producer = child.child.producer
    eventually(lambda: producer._adaptive.of(child.bench.services.queues.served) == {"default": 1})


def test_a_process_that_is_held_claims_nothing(make_child: MakeChild) -> None:
    child = make_child(lambda: None)
    child.start()
    child.channel.send({"t": "hold", "on": True})
    eventually(lambda: child.child.producer._is_held)
    child.child.producer.turn()  # whatever round was under way is over
    job_id = child.add()
    child.channel.send({"t": "poke"})
    child.child.producer.turn()
    assert child.state(job_id) == "ready"
    child.channel.send({"t": "hold", "on": False})
    eventually(lambda: child.state(job_id) == "succeeded")


def test_a_backlog_thirty_times_as_long_starves_no_other_queue(make_child: MakeChild) -> None:
    """Field lesson 56."""
    ended: list[str] = []

    def job(ctx: Any) -> None:
        ended.append(ctx.job.queue)

    queues = {name: QueueOptions(limit=4) for name in ("long", "short", "rated")}
    child = make_child(job, queues=queues, concurrency=4)
    child.bench.storage.put_queue("rated", {"global_limit": 4}, now=child.bench.clock.now())
    ids = [child.add("long") for _ in range(300)]
    ids += [child.add(queue) for queue in ("short", "rated") for _ in range(10)]
    child.start()
    eventually(lambda: len(ended) == len(ids))
    for queue in ("short", "rated"):
        last = len(ended) - ended[::-1].index(queue)
        assert ended[:last].count("long") < 150, f"{queue} had to wait for most of the long queue"
