"""Waiting for signals as a job does it (§7, §8.1; rules 3, 22, 23, 26-28, 38)."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from django_belay.contract import envelope
from django_belay.contract.job import Job
from django_belay.engine.context import JobContext
from django_belay.exceptions import SignalTimeout
from django_belay.storage.base import NewStep, Storage
from django_belay.testing.clock import SimClock
from tests.behaviour.running import Workbench

ETF_ATOM_OK = b"\x83w\x02ok"


@pytest.fixture
def bench(store: Storage, clock: SimClock) -> Workbench:
    return Workbench(store, clock)


def send(bench: Workbench, scope: str, payload: Any, name: str = "go") -> list[int]:
    return bench.storage.put_signal(scope, name, payload, now=bench.clock.now())


def result(row: Job) -> Any:
    assert row.state == "succeeded", row.errors
    return envelope.decode(row.result)


def steps(bench: Workbench, job_id: int) -> dict[str, Any]:
    return {step.name: envelope.decode(step.value) for step in bench.storage.get_steps(job_id)}


def test_7_a_wait_parks_and_gets_the_payload_when_it_is_sent(bench: Workbench, clock: SimClock) -> None:
    effects: list[int] = []

    def job(ctx: JobContext) -> Any:
        ctx.step("pre", lambda: effects.append(ctx.attempt))
        return ctx.wait_signal("go", timeout=60)

    row = bench.run_once(job)
    assert (row.state, row.attempt, row.lease_until) == ("awaiting", 0, None)
    assert (row.await_scope, row.await_name) == (f"job:{row.id}", "go")
    assert row.ready_at == clock.now() + timedelta(seconds=60)
    clock.advance(5)
    assert send(bench, f"job:{row.id}", {"by": "ann"}) == [row.id]
    row = bench.run()
    assert result(row) == {"by": "ann"}
    assert (row.attempt, effects) == (1, [1])


def test_a_wait_that_finds_its_signal_does_not_park(bench: Workbench) -> None:
    bench.define(lambda ctx: ctx.wait_signal("go"))
    job_id = bench.add()
    send(bench, f"job:{job_id}", [1])
    assert result(bench.run()) == [1]


@pytest.mark.parametrize("payload", [None, False, 0, "", {}])
def test_an_empty_payload_is_a_payload(bench: Workbench, payload: Any) -> None:
    bench.define(lambda ctx: [ctx.wait_signal("go")])
    job_id = bench.add()
    send(bench, f"job:{job_id}", payload)
    assert result(bench.run()) == [payload]


@pytest.mark.parametrize("timeout", [10, 10.0, timedelta(seconds=10)])
def test_26_a_timeout_is_observed_at_the_first_deadline_whatever_happened_since(
    bench: Workbench, clock: SimClock, timeout: Any
) -> None:
    """The deadline counts from the first time; a failed attempt does not move it."""

    def job(ctx: JobContext) -> str:
        try:
            ctx.wait_signal("go", timeout=timeout)
        except SignalTimeout:
            if ctx.step("once", lambda: ctx.attempt) == ctx.attempt:
                raise ConnectionError("after the timeout") from None
            return "timed out"
        return "signalled"

    bench.define(job, backoff=[0.0])
    job_id = bench.add()
    assert bench.run().state == "awaiting"
    clock.advance(10)
    assert bench.run().state == "ready"
    assert steps(bench, job_id)["$await:go:1"] == {"timeout": True}
    # The outcome is the one first observed, though a signal came meanwhile.
    send(bench, f"job:{job_id}", 1)
    row = bench.run()
    assert result(row) == "timed out"
    assert (row.await_scope, row.await_name) == (None, None)


def test_26_the_deadline_stands_in_the_journal_before_the_first_park(
    bench: Workbench, clock: SimClock
) -> None:
    bench.define(lambda ctx: ctx.wait_signal("go", timeout=60))
    job_id = bench.add()
    ack = bench.execute()
    assert ack is not None
    until = (clock.now() + timedelta(seconds=60)).isoformat().replace("+00:00", "Z")
    assert steps(bench, job_id)["$await:go:1:until"]["until"] == until
    # This process dies before its park is written; the next one keeps the deadline.
    clock.advance(40)
    bench.storage.reclaim_expired(now=clock.now(), backoff=lambda n: timedelta(0))
    row = bench.run()
    assert (row.state, row.ready_at) == ("awaiting", clock.now() + timedelta(seconds=20))


def test_26_a_run_that_repeats_sees_the_payload_first_observed(bench: Workbench, clock: SimClock) -> None:
    def job(ctx: JobContext) -> Any:
        value = ctx.wait_signal("go")
        if ctx.attempt == 1:
            raise ConnectionError
        return value

    bench.define(job, backoff=[0.0])
    job_id = bench.add()
    send(bench, f"job:{job_id}", 1)
    assert bench.run().state == "ready"
    send(bench, f"job:{job_id}", 2)
    assert result(bench.run()) == 1


def test_27_after_a_timeout_a_second_wait_waits_again(bench: Workbench, clock: SimClock) -> None:
    def job(ctx: JobContext) -> Any:
        seen = []
        for _ in range(3):
            try:
                return [*seen, ctx.wait_signal("go", timeout=10)]
            except SignalTimeout:
                seen.append("late")
        return seen

    row = bench.run_once(job)
    clock.advance(10)
    row = bench.run()
    assert (row.state, row.ready_at) == ("awaiting", clock.now() + timedelta(seconds=10))
    clock.advance(9)
    send(bench, f"job:{row.id}", "x")
    assert result(bench.run()) == ["late", "x"]


def test_27_after_a_timeout_a_crash_before_the_second_park_does_not_end_the_second_wait(
    bench: Workbench, clock: SimClock
) -> None:
    """The row still shows the await columns of the first wait then."""

    def job(ctx: JobContext) -> Any:
        try:
            return ctx.wait_signal("go", timeout=10)
        except SignalTimeout:
            return ctx.wait_signal("go", timeout=1000)

    row = bench.run_once(job)
    clock.advance(10)
    assert bench.execute() is not None  # its ack is lost with the process
    assert "$await:go:2:until" in steps(bench, row.id)
    clock.advance(60)
    bench.storage.reclaim_expired(now=clock.now(), backoff=lambda n: timedelta(0))
    assert bench.storage.get_job(row.id).await_name == "go"
    row = bench.run()
    assert (row.state, row.ready_at) == ("awaiting", clock.now() + timedelta(seconds=940))


@pytest.mark.parametrize("timeout", [1000, None])
def test_38_an_operator_can_time_a_wait_out_now(
    bench: Workbench, clock: SimClock, timeout: float | None
) -> None:
    def job(ctx: JobContext) -> Any:
        try:
            ctx.wait_signal("go", timeout=timeout)
        except SignalTimeout:
            return ctx.wait_signal("go", timeout=timeout)

    row = bench.run_once(job)
    clock.advance(1)
    bench.storage.reschedule(row.id, ready_at=clock.now(), now=clock.now())
    row = bench.run()
    assert row.state == "awaiting"
    assert steps(bench, row.id)["$await:go:1"] == {"timeout": True}
    assert "$await:go:2" not in steps(bench, row.id)
    clock.advance(1)
    bench.storage.reschedule(row.id, ready_at=clock.now(), now=clock.now())
    row = bench.run()
    assert steps(bench, row.id)["$await:go:2"] == {"timeout": True}


def test_27_a_second_wait_returns_the_signal_that_stayed(bench: Workbench) -> None:
    bench.define(lambda ctx: [ctx.wait_signal("go"), ctx.wait_signal("go")])
    job_id = bench.add()
    send(bench, f"job:{job_id}", 1)
    assert result(bench.run()) == [1, 1]


def test_27_a_cleared_signal_is_waited_for_again_and_cleared_once(bench: Workbench, clock: SimClock) -> None:
    """A run that repeats must not clear what was sent since, or the job would wait for ever."""

    def job(ctx: JobContext) -> Any:
        first = ctx.wait_signal("go")
        was_there = ctx.clear_signal("go")
        return [first, was_there, ctx.wait_signal("go")]

    bench.define(job)
    job_id = bench.add()
    send(bench, f"job:{job_id}", 1)
    assert bench.run().state == "awaiting"
    send(bench, f"job:{job_id}", 2)
    assert result(bench.run()) == [1, True, 2]


def test_clearing_names_a_scope_and_says_whether_there_was_one(bench: Workbench) -> None:
    bench.define(lambda ctx: [ctx.clear_signal("go", scope="orders"), ctx.clear_signal("go")])
    bench.add()
    send(bench, "orders", 1)
    assert result(bench.run()) == [True, False]
    assert bench.storage.list_signals("orders") == []


def test_a_run_that_lost_its_lease_clears_nothing(bench: Workbench, clock: SimClock) -> None:
    bench.define(lambda ctx: ctx.clear_signal("go"))
    job_id = bench.add()
    send(bench, f"job:{job_id}", 1)
    lost = bench.prepare()
    clock.advance(60)
    bench.storage.reclaim_expired(now=clock.now(), backoff=lambda n: timedelta(0))
    assert bench.runner.execute(lost) is None  # type: ignore[arg-type]
    assert len(bench.storage.list_signals(f"job:{job_id}")) == 1
    assert result(bench.run()) is True


def test_27_newer_waits_for_a_payload_sent_after_the_one_observed(bench: Workbench, clock: SimClock) -> None:
    def job(ctx: JobContext) -> Any:
        return [ctx.wait_signal("go", newer=True) for _ in range(3)]

    bench.define(job)
    job_id = bench.add()
    send(bench, f"job:{job_id}", 1)
    assert bench.run().state == "awaiting"
    assert bench.storage.resettle_signals(now=clock.now()) == 0
    assert send(bench, f"job:{job_id}", 2) == [job_id]  # the clock stands still, or was set back
    assert bench.run().state == "awaiting"
    send(bench, f"job:{job_id}", 3)
    assert result(bench.run()) == [1, 2, 3]


def test_27_newer_passes_over_an_older_payload_of_a_scope_that_would_win(
    bench: Workbench, clock: SimClock
) -> None:
    bench.define(lambda ctx: [ctx.wait_signal("go"), ctx.wait_signal("go", newer=True)])
    job_id = bench.add(workflow_id="w", wf_name="a")
    send(bench, f"job:{job_id}", "job")
    clock.advance(1)
    send(bench, "wf:w", "workflow")
    assert result(bench.run()) == ["job", "workflow"]


@pytest.mark.parametrize("sent_to", ["orders", "job", "wf:w"])
def test_23_a_wait_reads_its_scope_the_jobs_and_the_workflows(bench: Workbench, sent_to: str) -> None:
    bench.define(lambda ctx: ctx.wait_signal("go", scope="orders"))
    job_id = bench.add(workflow_id="w", wf_name="a")
    assert bench.run().await_scope == "orders"
    send(bench, sent_to if sent_to != "job" else f"job:{job_id}", sent_to)
    assert result(bench.run()) == sent_to


def test_23_the_explicit_scope_wins_then_the_job_then_the_workflow(bench: Workbench) -> None:
    def job(ctx: JobContext) -> Any:
        seen = []
        for scope in ("orders", f"job:{ctx.id}", "wf:w"):
            seen.append(ctx.wait_signal("go", scope="orders"))
            ctx.clear_signal("go", scope)
        return seen

    bench.define(job)
    job_id = bench.add(workflow_id="w", wf_name="a")
    for scope in ("wf:w", f"job:{job_id}", "orders"):
        send(bench, scope, scope)
    assert result(bench.run()) == ["orders", f"job:{job_id}", "wf:w"]


def test_timeout_zero_only_looks(bench: Workbench) -> None:
    def job(ctx: JobContext) -> Any:
        try:
            return ctx.wait_signal("go", timeout=0)
        except SignalTimeout:
            return "not there"

    assert result(bench.run_once(job)) == "not there"


def test_22_a_waiting_job_can_be_cancelled(bench: Workbench, clock: SimClock) -> None:
    row = bench.run_once(lambda ctx: ctx.wait_signal("go"))
    bench.storage.request_cancel(row.id, reason="enough", now=clock.now())
    assert bench.storage.get_job(row.id).state == "cancelled"


def test_22_a_cancellation_that_comes_before_the_park_is_honoured(bench: Workbench, clock: SimClock) -> None:
    def job(ctx: JobContext) -> Any:
        bench.storage.request_cancel(ctx.id, reason="enough", now=clock.now())
        return ctx.wait_signal("go")

    assert bench.run_once(job).state == "cancelled"


def test_no_code_of_the_job_can_swallow_a_park(bench: Workbench) -> None:
    def job(ctx: JobContext) -> Any:
        try:
            return ctx.wait_signal("go")
        except Exception:
            return "swallowed"

    assert bench.run_once(job).state == "awaiting"


@pytest.mark.parametrize("name", ["$await:go:1", "$await:go:1:until", "$spawn:x", "$sleep:x"])
def test_3_a_foreign_reserved_step_fails_the_job_clearly(
    bench: Workbench, clock: SimClock, name: str
) -> None:
    bench.define(lambda ctx: ctx.wait_signal("go"), backoff=[0.0])
    job_id = bench.add()
    bench.storage.put_step(job_id, NewStep(name=name, value=ETF_ATOM_OK), now=clock.now())
    clock.advance(1)
    job, now = bench.claim()
    bench.storage.hand_back([bench.runner.prepare(job, claimed_at=now).lease], now=clock.now())  # type: ignore[union-attr]
    clock.advance(1)
    row = bench.run()
    assert row.state == "failed"
    assert row.errors[-1]["type"].endswith("ForeignReservedStep")
    assert name in row.errors[-1]["error"]


@pytest.mark.parametrize(
    ("name", "value"),
    [("$await:go:1", 7), ("$await:go:1:until", "soon"), ("$await:go:1:until", {"until": "soon"})],
)
def test_3_a_reserved_step_of_another_form_is_foreign_too(
    bench: Workbench, clock: SimClock, name: str, value: Any
) -> None:
    bench.define(
        lambda ctx: ctx.snooze(1) if ctx.job.ready_at == ctx.job.inserted_at else ctx.wait_signal("go")
    )
    job_id = bench.add()
    bench.storage.put_step(job_id, NewStep(name=name, value=envelope.encode(value)), now=clock.now())
    bench.run()
    clock.advance(1)
    row = bench.run()
    assert row.errors[-1]["type"].endswith("ForeignReservedStep")


@pytest.mark.parametrize(
    "arguments",
    [
        {"name": ""},
        {"name": "$children"},
        {"name": "n" * 1001},
        {"name": 7},
        {"name": "a\x00b"},
        {"name": "go", "timeout": -1},
        {"name": "go", "timeout": float("nan")},
        {"name": "go", "timeout": float("inf")},
        {"name": "go", "timeout": "soon"},
        {"name": "go", "timeout": True},
        {"name": "go", "scope": ""},
        {"name": "go", "scope": "\ud800"},
    ],
    ids=repr,
)
def test_bad_arguments_are_named_errors_and_nothing_is_written(
    bench: Workbench, arguments: dict[str, Any]
) -> None:
    def job(ctx: JobContext) -> None:
        with pytest.raises(ValueError):  # noqa: PT011 - the message differs by argument
            ctx.wait_signal(**arguments)

    row = bench.run_once(job)
    assert row.state == "succeeded"
    assert steps(bench, row.id) == {}


# -- steering


def test_steering_is_the_latest_guidance_and_stays(bench: Workbench) -> None:
    def job(ctx: JobContext) -> Any:
        seen = [ctx.steering()]
        for text in ("shorter", "longer"):
            bench.storage.put_signal(f"job:{ctx.id}", "$steer", {"text": text}, now=bench.clock.now())
            seen += [ctx.steering(), ctx.steering()]
        return seen

    shorter, longer = {"text": "shorter"}, {"text": "longer"}
    assert result(bench.run_once(job)) == [None, shorter, shorter, longer, longer]


# -- sleeping


def test_a_sleep_ends_at_its_journaled_instant(bench: Workbench, clock: SimClock) -> None:
    def job(ctx: JobContext) -> Any:
        ctx.sleep("night", 100)
        return clock.now().isoformat()

    row = bench.run_once(job)
    wakes = clock.now() + timedelta(seconds=100)
    assert (row.state, row.ready_at, row.attempt) == ("ready", wakes, 0)
    clock.advance(40)
    bench.storage.reschedule(row.id, ready_at=clock.now(), now=clock.now())
    assert bench.run().ready_at == wakes
    clock.advance(60)
    row = bench.run()
    assert result(row) == wakes.isoformat()
    assert row.attempt == 1


def test_sleeps_of_other_names_follow_each_other(bench: Workbench, clock: SimClock) -> None:
    def job(ctx: JobContext) -> None:
        ctx.sleep("a", timedelta(seconds=5))
        ctx.sleep("b", 5.0)
        ctx.sleep("c", 0)

    row = bench.run_once(job)
    for _ in range(2):
        assert row.ready_at == clock.now() + timedelta(seconds=5)
        clock.advance(5)
        row = bench.run()
    assert row.state == "succeeded"


@pytest.mark.parametrize(("name", "seconds"), [("", 1), ("$x", 1), ("a", -1), ("a", None), ("a", "1")])
def test_bad_sleeps_are_named_errors(bench: Workbench, name: str, seconds: Any) -> None:
    def job(ctx: JobContext) -> None:
        with pytest.raises(ValueError):  # noqa: PT011 - the message differs by argument
            ctx.sleep(name, seconds)

    assert bench.run_once(job).state == "succeeded"
