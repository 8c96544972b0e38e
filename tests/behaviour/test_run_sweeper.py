"""The sweeper: expired leases, clocks that are off, one part failing beside the others."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import pytest

from django_belay.contract import envelope
from django_belay.engine.sweeper import Sweeper
from django_belay.storage.base import Storage
from django_belay.testing.clock import SimClock
from tests.behaviour.running import Workbench


class SameClock:
    """The real storage, whose own clock is the test's give or take ``skew``."""

    def __init__(self, storage: Storage, clock: SimClock) -> None:
        self.storage = storage
        self.clock = clock
        self.skew = timedelta(0)
        self.broken: set[str] = set()

    def read_clock(self) -> datetime:
        return self.clock.now() + self.skew

    def __getattr__(self, name: str) -> Any:
        if name in self.broken:
            raise RuntimeError(f"{name} is broken")
        return getattr(self.storage, name)


@pytest.fixture
def storage(store: Storage, clock: SimClock) -> Any:
    return SameClock(store, clock)


@pytest.fixture
def bench(storage: Any, clock: SimClock) -> Workbench:
    return Workbench(storage, clock)


def expire(bench: Workbench, job_id: int) -> None:
    job, _ = bench.claim()
    assert job.id == job_id
    bench.clock.advance(bench.services.options.lease_ttl * 2)


def test_expired_leases_come_back_by_policy_v1(bench: Workbench, clock: SimClock) -> None:
    """Rule 16: reclaim consumes an attempt and never asks the job's own backoff."""
    bench.define(lambda: None, backoff=lambda n: 1 / 0)
    job_id = bench.add()
    expire(bench, job_id)
    assert Sweeper(bench.services).turn() == 1
    row = bench.storage.get_job(job_id)
    assert (row.state, row.attempt, row.errors[0]["error"]) == ("ready", 1, "lease_expired")
    assert row.ready_at is not None
    assert timedelta(seconds=1) <= row.ready_at - clock.now() <= timedelta(seconds=1.25)


def test_expired_rows_of_other_sdks_come_back_too(bench: Workbench) -> None:
    """Rule 4."""
    ids = [bench.add(kind="Elixir.Mailer"), bench.add(kind="k")]
    for job_id in ids:
        expire(bench, job_id)
    Sweeper(bench.services).turn()
    assert [bench.storage.get_job(job_id).state for job_id in ids] == ["ready", "ready"]


def test_a_job_whose_last_attempt_died_enqueues_its_follow_up_once(bench: Workbench) -> None:
    bench.define(lambda: None, on_failure="after")
    bench.define(lambda job_id, error: [job_id, error], kind="after")
    job_id = bench.add(max_attempts=1)
    expire(bench, job_id)
    sweeper = Sweeper(bench.services)
    sweeper.turn()
    sweeper.turn()
    assert bench.storage.get_job(job_id).state == "failed"
    row = bench.run()
    assert (row.kind, envelope.decode(row.result)) == ("after", [job_id, "lease_expired"])


def test_a_node_whose_clock_is_off_says_so_and_does_not_sweep(
    bench: Workbench, storage: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """Rule 18: by more than a third of the lease."""
    job_id = bench.add()
    expire(bench, job_id)
    storage.skew = bench.services.options.lease_ttl / 2
    assert Sweeper(bench.services).turn() == 0
    assert "does not sweep" in caplog.text
    storage.skew = -bench.services.options.lease_ttl / 4
    assert Sweeper(bench.services).turn() == 1


def test_a_part_that_fails_stops_no_other(
    bench: Workbench, storage: Any, caplog: pytest.LogCaptureFixture
) -> None:
    storage.broken = {"reclaim_expired", "resettle_signals", "prune_signals"}
    bench.define(lambda: None)
    bench.add()
    assert bench.run().state == "succeeded"
    bench.clock.advance(timedelta(days=2))
    assert Sweeper(bench.services).turn() == 1  # the pruned job
    assert caplog.text.count("the other parts go on") == 3
