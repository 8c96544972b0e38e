"""Workflows, batches and streams with real workers, killed ones too."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from django_belay import Batch, Workflow
from django_belay.streams import stream_events
from django_belay.workflows import call
from tests.app import worker_jobs as jobs
from tests.integration.workers import Site, Worker, worker_site

pytestmark = pytest.mark.django_db(transaction=True)

StartWorker = Callable[..., Worker]


@pytest.fixture
def site_and_start(tmp_path: Path, belay_wakeups: bool) -> Iterator[tuple[Site, StartWorker]]:
    with worker_site(tmp_path) as (site, start):
        notify = "auto" if belay_wakeups else "off"
        yield site, lambda *arguments, **options: start(*arguments, **{"NOTIFY": notify, **options})


def test_a_batch_completes_once_although_a_worker_is_killed(
    site_and_start: tuple[Site, StartWorker],
) -> None:
    site, start = site_and_start
    batch = Batch(call(jobs.totals, name="end"))
    batch.add(jobs.holds, name="h")
    for _ in range(20):
        batch.add(jobs.marks, name="m")
    batch.add(jobs.breaks)
    handle = batch.enqueue()
    killed = start()
    site.started("h")
    killed.kill_all()
    site.release("h")
    start()
    progress = handle.wait(timeout=60)
    assert progress.is_finished
    assert handle.on_complete.result(timeout=1) == {"total": 22, "succeeded": 21, "failed": 1}
    assert len(site.lines("end")) == 1


def test_a_workflow_runs_in_order_although_a_worker_is_killed(
    site_and_start: tuple[Site, StartWorker],
) -> None:
    site, start = site_and_start
    flow = Workflow()
    flow.add("a", jobs.marks, name="order")
    flow.add("b", jobs.holds, name="h", deps=["a"])
    flow.add("c", jobs.breaks, deps=["a"])
    flow.add("d", jobs.marks, name="order", deps=["b", "c"], ignore=["failed"])
    flow.add("e", jobs.marks, name="never", deps=["c"])
    handle = flow.enqueue()
    killed = start()
    site.started("h")
    killed.kill_all()
    site.release("h")
    start()
    assert dict(handle.wait(timeout=60).states) == {
        "a": "succeeded", "b": "succeeded", "c": "failed", "d": "succeeded", "e": "cancelled",
    }  # fmt: skip
    assert [line.split(":")[0] for line in site.lines("order")] == [str(handle.job(name).id) for name in "ad"]
    assert site.lines("never") == []


def test_a_stream_follows_a_worker_to_the_last_event(site_and_start: tuple[Site, StartWorker]) -> None:
    _, start = site_and_start
    job = jobs.tells.enqueue(count=200)
    start("--until-empty")
    assert [event.payload for event in stream_events(job, timeout=60)] == list(range(200))
    assert job.result(timeout=10) == 200
