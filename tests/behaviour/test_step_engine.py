"""Durable steps as a job sees them (§8.2, rules 16, 17, 22, 25, 29, 30)."""

from __future__ import annotations

from typing import Any

import pytest

from django_belay.contract import envelope
from django_belay.contract.money import Cost
from django_belay.engine.context import JobContext
from django_belay.exceptions import StepTooLarge, Unavailable
from django_belay.storage.base import NewStep, Storage
from django_belay.testing.clock import SimClock
from tests.behaviour.running import Workbench

ETF_ATOM_OK = b"\x83w\x02ok"


@pytest.fixture
def bench(store: Storage, clock: SimClock) -> Workbench:
    return Workbench(store, clock)


class Watched:
    """A storage that counts calls and can lose answers; everything else is the real one."""

    def __init__(self, storage: Storage) -> None:
        self.storage = storage
        self.calls: list[str] = []
        self.lose_answers_of: list[str] = []

    def __getattr__(self, name: str) -> Any:
        method = getattr(self.storage, name)

        def call(*args: Any, **kwargs: Any) -> Any:
            self.calls.append(name)
            answer = method(*args, **kwargs)
            if name in self.lose_answers_of:
                self.lose_answers_of.remove(name)
                raise Unavailable("the answer was lost")
            return answer

        return call


def resume(bench: Workbench, job_id: int, clock: SimClock) -> None:
    """Make the job due again as a lost lease does."""
    clock.advance(bench.services.options.lease_ttl * 2)
    bench.storage.reclaim_expired(now=clock.now(), backoff=lambda n: clock.now() - clock.now())
    assert bench.storage.get_job(job_id).state == "ready"


def test_a_journaled_step_is_not_executed_again(bench: Workbench, clock: SimClock) -> None:
    calls: list[str] = []

    def body(name: str) -> Any:
        calls.append(name)
        return {"name": name, "pair": (1, 2)}

    def job(ctx: JobContext) -> Any:
        values = [ctx.step("a", body, "a"), ctx.step("b", body, "b")]
        if ctx.attempt == 1:
            raise ConnectionError("after the steps")
        return values

    bench.define(job, backoff=[0.0])
    bench.add()
    bench.run()
    row = bench.run()
    assert calls == ["a", "b"]
    assert envelope.decode(row.result) == [{"name": n, "pair": [1, 2]} for n in "ab"]


def test_a_step_gives_what_a_replay_would_give(bench: Workbench) -> None:
    """The first run must not see a value that the second does not."""
    seen: list[Any] = []
    bench.run_once(lambda ctx: seen.append(ctx.step("a", lambda: (1, {2: "x"}.keys().__len__()))))
    assert seen == [[1, 1]]


def test_a_step_that_raises_leaves_nothing(bench: Workbench) -> None:
    def job(ctx: JobContext) -> int:
        return ctx.step("a", lambda: 1 // (ctx.attempt - 1))

    bench.define(job, backoff=[0.0])
    job_id = bench.add()
    bench.run()
    assert bench.storage.get_steps(job_id) == []
    assert envelope.decode(bench.run().result) == 1


def test_a_first_run_asks_for_no_journal_and_a_resumed_one_asks_once(store: Storage, clock: SimClock) -> None:
    """Rule 17, and two round trips for each new step."""
    watched: Any = Watched(store)
    bench = Workbench(watched, clock)

    def job(ctx: JobContext) -> None:
        for name in "abc":
            ctx.step(name, int)
        if ctx.attempt == 1:
            raise ValueError

    bench.define(job, backoff=[0.0])
    bench.add()
    clock.advance(1)
    run = bench.prepare()
    watched.calls.clear()
    ack = bench.runner.execute(run)  # type: ignore[arg-type]
    assert watched.calls == ["get_standing", "put_step"] * 3
    bench.write(ack)  # type: ignore[arg-type]
    clock.advance(1)
    run = bench.prepare()
    watched.calls.clear()
    bench.runner.execute(run)  # type: ignore[arg-type]
    assert watched.calls == ["get_steps"]


def test_a_snoozed_job_is_no_first_run(bench: Workbench, clock: SimClock) -> None:
    """Rule 17: its attempt is 1 again, its steps are there."""
    calls: list[int] = []

    def job(ctx: JobContext) -> None:
        ctx.step("a", lambda: calls.append(1))
        if not ctx.meta.get("x") and clock.now() < until:
            ctx.snooze(10)

    until = clock.now() + bench.services.options.lease_ttl / 10
    bench.define(job)
    bench.add()
    assert bench.run().state == "ready"
    clock.advance(10)
    assert bench.run().state == "succeeded"
    assert calls == [1]


def test_a_clock_that_stands_still_makes_no_second_run_a_first_one(bench: Workbench) -> None:
    calls: list[int] = []

    def job(ctx: JobContext) -> None:
        ctx.step("a", lambda: calls.append(1))
        if len(seen) < 2:
            seen.append(1)
            ctx.snooze(0)

    seen: list[int] = []
    bench.define(job)
    bench.add()
    states = [bench.run().state for _ in range(3)]
    assert (states, calls) == (["ready", "ready", "succeeded"], [1])


def test_the_budget_stops_the_job_at_the_step_that_crosses_it(bench: Workbench) -> None:
    """§11, invariant 4; exactly three steps of 0.20 cross 0.50."""

    def job(ctx: JobContext) -> None:
        for number in range(5):
            try:
                ctx.step(f"b{number}", int, cost=Cost(usd="0.20", tokens=10))
            except Exception:
                ctx.log.error("a budget stop is no Exception")

    row = bench.run_once(job, budget_usd_micros=500_000)
    assert (row.state, row.spent_usd_micros, row.spent_tokens) == ("failed", 600_000, 30)
    assert row.errors[-1]["error"] == "budget_exceeded"
    assert "$0.6" in row.errors[-1]["detail"]
    assert [step.name for step in bench.storage.get_steps(row.id)] == ["b0", "b1", "b2"]


def test_a_crash_after_the_crossing_step_executes_no_further_one(bench: Workbench, clock: SimClock) -> None:
    """§8.2, the pre-flight check."""
    calls: list[str] = []

    def job(ctx: JobContext) -> None:
        for name in "ab":
            ctx.step(name, lambda name=name: calls.append(name), cost=Cost(usd=1))

    bench.define(job)
    job_id = bench.add(budget_usd_micros=500_000)
    assert bench.execute() is not None  # budget_exceeded, but its ack is never written
    resume(bench, job_id, clock)
    row = bench.run()
    assert (row.state, row.errors[-1]["error"], calls) == ("failed", "budget_exceeded", ["a"])


def test_a_cost_may_depend_on_the_value(bench: Workbench) -> None:
    row = bench.run_once(
        lambda ctx: ctx.step("a", lambda: {"tokens": 120}, cost=lambda v: Cost(tokens=v["tokens"]))
    )
    assert row.spent_tokens == 120


def test_a_cancel_is_honoured_at_the_next_step(bench: Workbench, clock: SimClock) -> None:
    def job(ctx: JobContext) -> None:
        bench.storage.request_cancel(ctx.id, reason="operator", now=clock.now())
        ctx.step("never", lambda: pytest.fail("ran after the request"))

    row = bench.run_once(job)
    assert row.state == "cancelled"
    assert bench.storage.get_steps(row.id) == []


def test_a_lost_lease_is_noticed_at_the_next_step(bench: Workbench, clock: SimClock) -> None:
    def job(ctx: JobContext) -> None:
        ctx.step("before", int)
        resume(bench, ctx.id, clock)
        ctx.step("after", lambda: pytest.fail("ran without a lease"))

    bench.define(job)
    job_id = bench.add()
    assert bench.execute() is None
    assert [step.name for step in bench.storage.get_steps(job_id)] == ["before"]


def test_the_first_value_of_a_step_stays(bench: Workbench, clock: SimClock) -> None:
    """Rule 29: another run journaled it meanwhile; both bodies ran, both are paid."""

    def body(ctx: JobContext) -> str:
        other = NewStep(name="a", value=b'"theirs"', usd_micros=3)
        bench.storage.put_step(ctx.id, other, now=clock.now())
        return "ours"

    row = bench.run_once(lambda ctx: ctx.step("a", body, ctx, cost=Cost(usd="0.000004")))
    assert (envelope.decode(row.result), row.spent_usd_micros) == ("theirs", 7)


def test_a_resent_step_is_charged_once(store: Storage, clock: SimClock) -> None:
    """Rule 29: spend equals the steps where no body ran twice."""
    watched: Any = Watched(store)
    bench = Workbench(watched, clock)
    watched.lose_answers_of = ["put_step"]
    row = bench.run_once(lambda ctx: ctx.step("a", lambda: "v", cost=Cost(tokens=5)))
    assert (row.state, envelope.decode(row.result), row.spent_tokens) == ("succeeded", "v", 5)


def test_steps_wait_for_a_storage_that_is_away(store: Storage, clock: SimClock) -> None:
    watched: Any = Watched(store)
    bench = Workbench(watched, clock)
    watched.lose_answers_of = ["get_standing", "get_standing"]
    assert bench.run_once(lambda ctx: ctx.step("a", int)).state == "succeeded"


def test_a_value_over_the_ceiling_fails_the_job(store: Storage, clock: SimClock) -> None:
    bench = Workbench(store, clock, max_step_bytes=100)
    row = bench.run_once(lambda ctx: ctx.step("a", lambda: "x" * 200))
    assert (row.state, bench.storage.get_steps(row.id)) == ("failed", [])
    assert row.errors[0]["type"].endswith(StepTooLarge.__name__)


@pytest.mark.parametrize("name", ["", "$mine", "a" * 256, "a\x00", "\ud800", 7, None])
def test_names_that_do_not_fit_are_refused(bench: Workbench, name: Any) -> None:
    def job(ctx: JobContext) -> None:
        with pytest.raises(ValueError, match="name"):
            ctx.step(name, int)

    assert bench.run_once(job).state == "succeeded"


def test_reserved_steps_of_another_sdk_are_not_interpreted(bench: Workbench, clock: SimClock) -> None:
    """Rule 3."""
    bench.define(lambda ctx: ctx.step("a", int))
    job_id = bench.add()
    bench.claim()
    bench.storage.put_step(job_id, NewStep(name="$sleep:x", value=ETF_ATOM_OK), now=clock.now())
    resume(bench, job_id, clock)
    row = bench.run()
    assert (row.state, row.errors[-1]["type"].split(".")[-1]) == ("failed", "ForeignReservedStep")


def test_steps_of_another_sdk_are_read(bench: Workbench, clock: SimClock) -> None:
    bench.define(lambda ctx: ctx.step("a", lambda: pytest.fail("was journaled")))
    job_id = bench.add()
    bench.claim()
    bench.storage.put_step(job_id, NewStep(name="a", value=b"\x83a\x07"), now=clock.now())
    resume(bench, job_id, clock)
    assert envelope.decode(bench.run().result) == 7


def test_a_closed_gate_lets_no_step_through(bench: Workbench, clock: SimClock) -> None:
    """What is handed back must not write any more."""

    def job(ctx: JobContext) -> None:
        ctx.step("before", int)
        assert bench.services.gate.close(1.0)
        ctx.step("after", int)

    row = bench.run_once(job)
    assert (row.state, row.attempt) == ("ready", 0)
    assert [step.name for step in bench.storage.get_steps(row.id)] == ["before"]


def test_a_name_used_twice_in_a_run_is_reported(bench: Workbench, caplog: pytest.LogCaptureFixture) -> None:
    row = bench.run_once(lambda ctx: [ctx.step("a", lambda: 1), ctx.step("a", lambda: 2)])
    assert envelope.decode(row.result) == [1, 1]
    assert "uses the step name 'a' again" in caplog.text


def test_events_are_numbered(bench: Workbench) -> None:
    row = bench.run_once(lambda ctx: [ctx.emit({"at": 1}), ctx.emit("two")])
    assert envelope.decode(row.result) == [1, 2]
    assert [event.payload for event in bench.storage.list_events(row.id)] == [{"at": 1}, "two"]
