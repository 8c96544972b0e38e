"""Waits and children in real workers that are killed (§8.1, §8.4, §11)."""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from django_belay import JobHandle, client
from tests.app import waiting_jobs as jobs
from tests.integration.looking import count, rows
from tests.integration.workers import Site, Worker, eventually, worker_site

pytestmark = pytest.mark.django_db(transaction=True)

StartWorker = Callable[..., Worker]


@pytest.fixture
def site_and_start(tmp_path: Path, belay_wakeups: bool) -> Iterator[tuple[Site, StartWorker]]:
    with worker_site(tmp_path) as (site, start):
        notify = "auto" if belay_wakeups else "off"
        yield site, lambda *arguments, **options: start(*arguments, **{"NOTIFY": notify, **options})


class Killer:
    """Two workers, one of which is killed with all its processes and started again, in turn."""

    def __init__(self, start: StartWorker, seed: int) -> None:
        print(f"seed {seed}")
        self._start = start
        self._chance = random.Random(seed)
        self._workers = [start(), start()]
        self.kills = 0

    def strike(self) -> None:
        index = self.kills % 2
        self._workers[index].kill_all()
        self.kills += 1
        self._workers[index] = self._start()

    def until(self, condition: Callable[[], bool], *, kills: int, timeout_s: float = 45.0) -> None:
        """Kill at odd moments, then leave the workers alone until the condition holds."""
        for _ in range(kills):
            # Long enough for a worker to come up and to be in the middle of something.
            time.sleep(self._chance.uniform(0.9, 1.6))
            self.strike()
        eventually(condition, timeout_s=timeout_s, what=lambda: self._workers[0].log[-3000:])


def all_ended(ids: list[int]) -> bool:
    return all(one.state in ("succeeded", "failed", "cancelled") for one in rows(ids=ids))


def test_11_parents_have_exactly_their_children_though_workers_are_killed(
    site_and_start: tuple[Site, StartWorker],
) -> None:
    site, start = site_and_start
    parents = [jobs.fans_out.enqueue(name="f", count=25) for _ in range(20)]
    Killer(start, seed=4).until(lambda: all_ended([parent.id for parent in parents]), kills=4)

    first = [2 * n for n in range(25)]
    expected = [sum(first), *(2 * n for n in first)]
    for parent in parents:
        row = parent.refresh().job
        assert row.state == "succeeded", row.errors
        assert parent.result() == expected
        assert count(parent_id=parent.id) == 50
        spawned = {step.name: step.value for step in parent.steps() if step.name.startswith("$spawn:")}
        ids = [child.id for child in rows(parent_id=parent.id)]
        assert sorted([*spawned["$spawn:first"], *spawned["$spawn:second"]]) == list(ids)
    assert len(site.lines("f.children")) >= 20 * 50


def test_11_signals_reach_their_jobs_though_workers_are_killed(
    site_and_start: tuple[Site, StartWorker],
) -> None:
    """Each round's answer is sent once, when its question was asked."""
    _, start = site_and_start
    rounds = 5
    conversations = [jobs.converses.enqueue(name="c", rounds=rounds) for _ in range(20)]
    answered: Counter[int] = Counter()

    def answer() -> bool:
        """Answer what was asked and not answered yet; whether all have ended."""
        journaled = {
            (job_id, int(name.removeprefix("ask-")))
            for job_id, name in _asked(conversations)
            if answered[job_id] == int(name.removeprefix("ask-")) and _is_cleared(job_id, name)
        }
        for job_id, number in sorted(journaled):
            client.signal(job_id, "answer", number)
            answered[job_id] += 1
        return all_ended([conversation.id for conversation in conversations])

    killer = Killer(start, seed=5)
    deadline = time.monotonic() + 8
    while time.monotonic() < deadline and not answer():
        if killer.kills < 4 and time.monotonic() > deadline - 7 + 1.3 * killer.kills:
            killer.strike()
        time.sleep(0.02)  # polls the workers' rows: there is nothing to be woken by
    killer.until(answer, kills=0)

    for conversation in conversations:
        row = conversation.refresh().job
        assert row.state == "succeeded", row.errors
        assert conversation.result() == list(range(rounds))


def _asked(conversations: list[JobHandle[Any]]) -> list[tuple[int, str]]:
    """The questions that are journaled, by job."""
    return [
        (job.id, step.name) for job in conversations for step in job.steps() if step.name.startswith("ask-")
    ]


def _is_cleared(job_id: int, ask: str) -> bool:
    """Whether the answer before this question is gone, so that this one does not replace it."""
    return client.signals(job_id) == []


def test_8_6_a_tree_is_cancelled_while_workers_run_it(site_and_start: tuple[Site, StartWorker]) -> None:
    _, start = site_and_start
    parent = jobs.fans_out.using(queue="parents").enqueue(name="t", count=30)
    start(QUEUES={"parents": 5})
    eventually(lambda: parent.refresh().state == "awaiting", timeout_s=10)
    parent.cancel("enough", tree=True)
    assert parent.refresh().state == "cancelled"
    assert {one.state for one in rows()} == {"cancelled"}
    assert count() == 31
