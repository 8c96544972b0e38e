"""How a run ends, and what becomes of its job (§7, rules 4, 22, 25)."""

from __future__ import annotations

import logging
from datetime import timedelta
from typing import Any

import pytest

from django_belay.contract import envelope
from django_belay.contract.encryption import encrypt
from django_belay.engine.async_context import AsyncJobContext
from django_belay.engine.context import JobContext
from django_belay.engine.run import Run
from django_belay.engine.telemetry import worker_log
from django_belay.exceptions import LeaseLost
from django_belay.storage.base import Ack, Applied, Stale, Storage
from django_belay.testing.clock import SimClock
from tests.behaviour.running import Workbench


@pytest.fixture
def bench(store: Storage, clock: SimClock) -> Workbench:
    return Workbench(store, clock)


def test_the_returned_value_is_the_result(bench: Workbench) -> None:
    row = bench.run_once(lambda ctx, n: {"n": n, "of": (1, 2)}, input={"n": 7})
    assert (row.state, envelope.decode(row.result)) == ("succeeded", {"n": 7, "of": [1, 2]})


def test_a_job_without_a_value_has_no_result(bench: Workbench) -> None:
    row = bench.run_once(lambda: None)
    assert (row.state, row.result) == ("succeeded", None)


def test_an_exception_is_retried_with_the_jobs_backoff(bench: Workbench, clock: SimClock) -> None:
    def fails(ctx: JobContext) -> None:
        raise ValueError(f"attempt {ctx.attempt}")

    bench.define(fails, backoff=[5.0, 60.0])
    bench.add(max_attempts=2)
    row = bench.run()
    assert (row.state, row.ready_at) == ("ready", clock.now() + timedelta(seconds=5))
    clock.advance(5)
    row = bench.run()
    assert (row.state, row.finished_at) == ("failed", clock.now())
    assert [(e["error"], e["attempt"], e["type"]) for e in row.errors] == [
        ("attempt 1", 1, "ValueError"),
        ("attempt 2", 2, "ValueError"),
    ]


def test_a_result_that_cannot_be_stored_is_a_clear_failure(bench: Workbench) -> None:
    row = bench.run_once(lambda: object())
    assert row.state == "failed"
    assert "object" in row.errors[0]["error"]


def test_a_job_can_cancel_fail_and_snooze_itself(bench: Workbench, clock: SimClock) -> None:
    def ends(ctx: JobContext, how: str) -> None:
        try:
            {"cancel": ctx.cancel, "fail": ctx.fail, "snooze": lambda _: ctx.snooze(90)}[how]("enough")
        except Exception:
            ctx.log.error("an interrupt is no Exception")

    bench.define(ends)
    bench.add(input={"how": "cancel"})
    row = bench.run()
    assert (row.state, row.errors) == ("cancelled", [{"reason": "enough"}])
    bench.add(input={"how": "fail"})
    row = bench.run()
    assert (row.state, row.errors[0]["error"], row.attempt) == ("failed", "enough", 1)
    bench.add(input={"how": "snooze"})
    row = bench.run()
    assert (row.state, row.ready_at, row.attempt) == ("ready", clock.now() + timedelta(seconds=90), 0)


def test_an_unknown_kind_is_put_back_with_its_attempt(bench: Workbench, clock: SimClock) -> None:
    """Rule 4: a tenth of the row's age, from a second to five minutes."""
    bench.add(kind="Elixir.Mailer")
    row = bench.run()
    assert (row.state, row.attempt, row.ready_at) == ("ready", 0, clock.now() + timedelta(seconds=1))
    clock.advance(600)
    assert bench.run().ready_at == clock.now() + timedelta(seconds=60)


def test_a_cancelled_job_starts_no_user_code(bench: Workbench) -> None:
    """Rule 22."""
    ran: list[int] = []
    bench.define(lambda: ran.append(1))
    job_id = bench.add()
    job, now = bench.claim()
    bench.storage.request_cancel(job_id, reason="operator", now=now)
    job.cancel_requested = True  # as a claim after the request reads it
    prepared = bench.runner.prepare(job, claimed_at=now)
    assert isinstance(prepared, Ack)
    assert bench.write(prepared) == Applied(job_id, "cancelled")
    assert not ran


def test_a_job_expires_before_its_first_run_only(bench: Workbench, clock: SimClock) -> None:
    bench.define(lambda ctx: ctx.snooze(1), expires=60.0)
    bench.add()
    clock.advance(61)
    row = bench.run()
    assert (row.state, row.errors) == ("cancelled", [{"reason": "expired"}])
    bench.add()
    assert bench.run().state == "ready"
    clock.advance(120)
    assert bench.run().state == "ready"


def test_a_failed_job_enqueues_its_follow_up_with_the_ack(bench: Workbench) -> None:
    def fails() -> None:
        raise ValueError("broken")

    bench.define(fails, on_failure="after")
    bench.define(lambda job_id, error: [job_id, error], kind="after")
    job_id = bench.add(max_attempts=1)
    assert bench.run().state == "failed"
    row = bench.run()
    assert (row.kind, envelope.decode(row.result)) == ("after", [job_id, "broken"])


def test_a_run_that_lost_its_lease_writes_nothing(bench: Workbench) -> None:
    lost: list[int] = []
    bench.hook(lease_lost=lambda job: lost.append(job.id))

    def loses() -> None:
        raise LeaseLost

    bench.define(loses)
    job_id = bench.add()
    assert bench.execute() is None
    assert lost == [job_id]
    assert bench.storage.get_job(job_id).state == "running"


def test_a_resent_park_does_not_hit_the_next_run(bench: Workbench, clock: SimClock) -> None:
    """Rule 15: a snooze gives the attempt back, so the attempt alone would not fence it."""
    bench.define(lambda ctx: ctx.snooze(0))
    bench.add()
    first = bench.execute()
    assert first is not None
    assert bench.write(first) == Applied(first.lease.job_id, "ready")
    second, _ = bench.claim()
    assert second.attempt == first.lease.attempt
    assert bench.write(first) == Stale(first.lease.job_id)  # the first answer was lost
    assert bench.storage.get_job(second.id).state == "running"


def test_middleware_is_around_the_job_outermost_first(store: Storage, clock: SimClock) -> None:
    trace: list[str] = []

    def outer(context: JobContext, call_next: Any) -> Any:
        trace.append("outer")
        return call_next(context) + 1

    def inner(context: JobContext, call_next: Any) -> Any:
        trace.append("inner")
        return call_next(context) * 10

    bench = Workbench(store, clock, middleware=(outer, inner))
    row = bench.run_once(lambda: 4)
    assert (envelope.decode(row.result), trace) == (41, ["outer", "inner"])


def test_hooks_surround_a_job_and_see_its_exception(bench: Workbench) -> None:
    import sys

    seen: list[Any] = []
    bench.hook(
        before_job=lambda: seen.append("before"),
        job_started=lambda context: seen.append(("started", context.attempt)),
        job_finished=lambda context, outcome, s: seen.append((type(outcome).__name__, sys.exc_info()[0])),
        after_job=lambda: seen.append("after"),
    )

    def fails() -> None:
        raise KeyError("x")

    bench.run_once(fails)
    assert seen == ["before", ("started", 1), ("Retried", KeyError), "after"]


def test_a_broken_hook_changes_nothing(bench: Workbench, caplog: pytest.LogCaptureFixture) -> None:
    bench.hook(before_job=lambda: 1 / 0)
    assert bench.run_once(lambda: 1).state == "succeeded"
    assert "a hook failed" in caplog.text


@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt(), GeneratorExit()])
@pytest.mark.parametrize("name", ["before_job", "job_started", "job_finished", "after_job"])
def test_a_hook_that_exits_changes_nothing(bench: Workbench, name: str, error: BaseException) -> None:
    def hook(*_: Any) -> None:
        raise error

    bench.hook(**{name: hook})
    assert bench.run_once(lambda: 1).state == "succeeded"


def test_a_retried_attempt_is_one_line_of_the_log(bench: Workbench, caplog: pytest.LogCaptureFixture) -> None:
    def fails() -> None:
        raise TimeoutError("no answer\nfrom the bank")

    bench.run_once(fails)
    [record] = [record for record in caplog.records if record.levelno >= logging.WARNING]
    assert "(k) failed on attempt 1 of 20 and runs again at 20" in record.getMessage()
    assert record.getMessage().endswith("Z: TimeoutError: no answer")


@pytest.mark.parametrize(("max_attempts", "state"), [(2, "ready"), (1, "failed")])
def test_of_an_encrypted_job_the_log_says_the_type_alone(
    store: Storage, clock: SimClock, caplog: pytest.LogCaptureFixture, max_attempts: int, state: str
) -> None:
    key = bytes(32)
    bench = Workbench(store, clock, encryption_keys=(key,))

    def fails(secret: str) -> None:
        raise TimeoutError(secret)

    bench.define(fails)
    bench.add(input=encrypt(b'{"secret": "hunter2"}', [key]), max_attempts=max_attempts)
    assert bench.run().state == state
    assert "TimeoutError" in caplog.text
    assert "hunter2" not in caplog.text


@pytest.mark.parametrize("level", [logging.DEBUG, logging.ERROR])
def test_logging_that_raises_changes_no_outcome(bench: Workbench, level: int) -> None:
    """A succeeded job is not run again because of it, a failed attempt has its own error."""

    def broken(_record: logging.LogRecord) -> bool:
        raise AttributeError("request")

    def fails() -> None:
        raise KeyError("the job's own")

    before = worker_log.level
    worker_log.addFilter(broken)
    worker_log.setLevel(level)
    try:
        assert bench.run_once(lambda: 1).state == "succeeded"
        bench.define(fails, "fails")
        bench.add("fails", max_attempts=1)
        row = bench.run()
    finally:
        worker_log.removeFilter(broken)
        worker_log.setLevel(before)
    assert (row.state, row.errors[0]["type"]) == ("failed", "KeyError")


@pytest.mark.parametrize("base", [Exception, BaseException])
@pytest.mark.parametrize("raised", [KeyError, SystemExit, RecursionError])
def test_an_error_that_cannot_be_shown_is_retried_like_any_other(
    bench: Workbench, base: type[BaseException], raised: type[BaseException]
) -> None:
    class Rude(base):  # type: ignore[misc, valid-type]
        def __str__(self) -> str:
            raise raised

        __repr__ = __str__

    def fails() -> None:
        raise Rude

    row = bench.run_once(fails)
    assert row.state == "ready"
    assert row.errors[0]["type"].endswith("Rude")


def test_each_job_has_a_context_of_its_own(bench: Workbench) -> None:
    from contextvars import ContextVar

    seen: list[str] = []
    variable = ContextVar("variable", default="clean")

    def sets() -> None:
        seen.append(variable.get())
        variable.set("dirty")

    bench.define(sets)
    for _ in range(2):
        bench.add()
        bench.run()
    assert seen == ["clean", "clean"]


def test_log_lines_of_a_job_carry_its_id(bench: Workbench, caplog: pytest.LogCaptureFixture) -> None:
    def logs(ctx: JobContext) -> None:
        ctx.log.info("hello %s", "you", extra={"mine": 1})

    with caplog.at_level(logging.DEBUG):
        row = bench.run_once(logs)
    ours = [record for record in caplog.records if str(row.id) in record.message]
    assert f"job {row.id}: hello you" in [record.message for record in ours]
    assert all(record.__dict__["belay_job_id"] == row.id for record in ours)
    assert any(record.__dict__.get("mine") == 1 for record in ours)


def test_async_functions_run_to_their_end(bench: Workbench) -> None:
    async def job(ctx: AsyncJobContext, n: int) -> int:
        return await ctx.step("a", lambda: n + 1)

    bench.define(job)
    bench.add(input={"n": 1})
    assert envelope.decode(bench.run().result) == 2


def test_input_that_does_not_fit_is_an_error_of_the_attempt(bench: Workbench) -> None:
    row = bench.run_once(lambda ctx, n: n, input={"m": 1})
    assert row.state == "ready"
    assert "n" in row.errors[0]["error"]


def test_a_claim_of_a_fresh_job_is_its_first_run(bench: Workbench, clock: SimClock) -> None:
    bench.define(lambda: None)
    bench.add()
    clock.advance(1)
    prepared = bench.prepare()
    assert isinstance(prepared, Run)
    assert prepared.is_first
