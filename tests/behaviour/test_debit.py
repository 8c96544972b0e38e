"""``ctx.debit``: what a job really used replaces the estimate of its claim (§6)."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import psycopg
import pytest

from django_belay.contract.admission import Limits, Rate
from django_belay.engine.options import QueueOptions
from django_belay.engine.run import Run
from django_belay.storage.base import ClaimRound, Demand, Storage
from django_belay.testing.clock import SimClock
from tests.behaviour.running import Workbench

RATE = Rate(allowed=100, period_s=60, estimate=10, resource="llm")
QUEUES = {
    "default": QueueOptions(limits=Limits(rate=RATE)),
    "calls": QueueOptions(limits=Limits(rate=Rate(allowed=9, period_s=60))),
    "plain": QueueOptions(),
}


@pytest.fixture
def bench(store: Storage, clock: SimClock) -> Workbench:
    return Workbench(store, clock, queues=QUEUES)


def run(bench: Workbench, function: Callable[..., Any], queue: str = "default") -> None:
    """Insert a job, claim it under its queue's limits, run it."""
    bench.define(function)
    bench.add(queue=queue)
    now = bench.clock.now()
    round_ = ClaimRound(leased_by="bench:1:1", lease_until=now + timedelta(seconds=30))
    demand, limits = Demand(queue=queue, take=1), QUEUES[queue].limits
    [job] = bench.storage.claim_limited(round_, demand=demand, limits=limits, local_limit=10, now=now)
    prepared = bench.runner.prepare(job, claimed_at=now)
    assert isinstance(prepared, Run)
    ack = bench.runner.execute(prepared)
    assert ack is not None
    bench.write(ack)
    assert bench.storage.get_job(job.id).state == "succeeded", bench.storage.get_job(job.id).errors


def used(connection: psycopg.Connection[Any], bucket: str) -> int:
    rows = connection.execute("SELECT sum(count) FROM belay_rate WHERE bucket = %s", [bucket]).fetchall()
    return int(rows[0][0] or 0)


def test_first_debit_of_an_execution_gives_the_estimate_back(
    bench: Workbench, connection: psycopg.Connection[Any]
) -> None:
    def job(ctx: Any) -> None:
        assert used(connection, "resource:llm") == 10
        assert ctx.debit(25)
        assert used(connection, "resource:llm") == 25
        assert ctx.debit(5, resource="llm")

    run(bench, job)
    assert used(connection, "resource:llm") == 30


def test_debit_of_nothing_gives_the_estimate_back(
    bench: Workbench, connection: psycopg.Connection[Any]
) -> None:
    run(bench, lambda ctx: ctx.debit(0) and None)
    assert used(connection, "resource:llm") == 0


def test_estimate_is_credited_to_the_window_of_the_claim(
    bench: Workbench, connection: psycopg.Connection[Any]
) -> None:
    def job(ctx: Any) -> None:
        bench.clock.advance(timedelta(seconds=70))
        ctx.debit(25)

    run(bench, job)
    counts = connection.execute("SELECT count FROM belay_rate ORDER BY window_start").fetchall()
    assert [count for (count,) in counts] == [0, 25]


def test_debit_of_another_resource_leaves_the_estimate(
    bench: Workbench, connection: psycopg.Connection[Any]
) -> None:
    run(bench, lambda ctx: ctx.debit(7, resource="llm") and None, queue="calls")
    assert (used(connection, "resource:llm"), used(connection, "queue:calls")) == (7, 1)


def test_debit_without_such_a_rate_counts_nothing_and_says_so(
    bench: Workbench, connection: psycopg.Connection[Any], caplog: pytest.LogCaptureFixture
) -> None:
    answers: list[bool] = []

    def job(ctx: Any) -> None:
        answers.append(ctx.debit(7, resource="nothing"))

    run(bench, job)
    assert answers == [False]
    assert "resource:nothing" in caplog.text
    assert used(connection, "resource:nothing") == 0


@pytest.mark.parametrize("amount", [-1, 1.5, True, 2**31, "7"])
def test_amount_that_does_not_fit_is_refused(bench: Workbench, amount: Any) -> None:
    def job(ctx: Any) -> None:
        with pytest.raises(ValueError, match="whole number from 0"):
            ctx.debit(amount)

    run(bench, job)
