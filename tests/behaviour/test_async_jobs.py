"""``async def`` jobs in a worker's child: tasks of one event loop."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from typing import Any

import pytest

from django_belay.contract import envelope
from django_belay.engine.async_context import AsyncJobContext
from django_belay.engine.options import QueueOptions
from django_belay.exceptions import Timeout
from tests.behaviour.running import Workbench
from tests.behaviour.supervised import DEADLINE_S, MakeChild, Supervised, eventually


@pytest.fixture
def bench(store: Any, clock: Any) -> Workbench:
    return Workbench(store, clock)


def result(child: Supervised, job_id: int) -> Any:
    return envelope.decode(child.bench.storage.get_job(job_id).result)


def test_many_jobs_share_one_thread_and_each_has_a_context_of_its_own(make_child: MakeChild) -> None:
    variable: contextvars.ContextVar[int] = contextvars.ContextVar("variable", default=0)
    together, threads, seen = [], set(), []

    async def job(ctx: AsyncJobContext) -> None:
        threads.add(threading.get_ident())
        seen.append(variable.get())
        variable.set(ctx.id)
        together.append(ctx.id)
        while len(together) < 30:
            await asyncio.sleep(0.001)

    child = make_child(job, queues={"default": QueueOptions(limit=30)})
    ids = [child.add() for _ in range(30)]
    child.start()
    eventually(lambda: all(child.state(job_id) == "succeeded" for job_id in ids))
    assert (len(threads), set(seen)) == (1, {0})


def test_the_queues_limit_is_the_concurrency(make_child: MakeChild) -> None:
    running = most = 0
    go = threading.Event()

    async def job() -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        while not go.is_set():
            await asyncio.sleep(0.005)
        running -= 1

    child = make_child(job, queues={"default": QueueOptions(limit=3)})
    ids = [child.add() for _ in range(9)]
    child.start()
    eventually(lambda: running == 3)
    go.set()
    eventually(lambda: all(child.state(job_id) == "succeeded" for job_id in ids))
    assert most == 3


def test_the_context_is_awaited(make_child: MakeChild) -> None:
    calls: list[str] = []

    async def fetch(number: int) -> int:
        calls.append("async")
        await asyncio.sleep(0)
        return number

    def compute(number: int) -> int:
        calls.append("sync")
        return number * 2

    async def job(ctx: AsyncJobContext, value: int) -> list[int]:
        first = await ctx.step("first", fetch, value)
        both = await asyncio.gather(ctx.step("a", fetch, 1), ctx.step("b", compute, 2))
        await ctx.emit({"seen": first})
        if ctx.attempt == 1:
            raise ValueError("again")
        return [first, *both]

    child = make_child(job, {"backoff": [0.0]})
    job_id = child.add(input={"value": 7})
    child.start()
    eventually(lambda: child.state(job_id) == "succeeded")
    assert result(child, job_id) == [7, 1, 4]
    assert sorted(calls) == ["async", "async", "sync"]  # the second attempt replays
    assert [event.payload for event in child.bench.storage.list_events(job_id)] == [{"seen": 7}] * 2


@pytest.mark.parametrize(
    ("how", "expected"), [("cancel", "cancelled"), ("fail", "failed"), ("snooze", "ready")]
)
def test_ends_are_no_errors(make_child: MakeChild, how: str, expected: str) -> None:
    async def job(ctx: AsyncJobContext) -> None:
        try:
            await getattr(ctx, how)(600 if how == "snooze" else "enough")
        except Exception as error:
            raise AssertionError("an interrupt is no Exception") from error

    child = make_child(job)
    job_id = child.add()
    child.start()
    eventually(lambda: child.state(job_id) == expected and child.bench.storage.get_job(job_id).started_at)


def test_a_wait_parks_the_job_and_a_signal_goes_on(make_child: MakeChild) -> None:
    async def job(ctx: AsyncJobContext) -> Any:
        return await ctx.wait_signal("go")

    child = make_child(job)
    job_id = child.add()
    child.start()
    eventually(lambda: child.state(job_id) == "awaiting")
    assert child.child.slots.settle() is None
    child.bench.storage.put_signal(f"job:{job_id}", "go", 5, now=child.bench.clock.now())
    eventually(lambda: child.state(job_id) == "succeeded")
    assert result(child, job_id) == 5


def test_an_overrun_is_cancelled_and_not_swallowed(make_child: MakeChild) -> None:
    seen: list[str] = []

    async def job() -> None:
        try:
            await asyncio.sleep(DEADLINE_S)
        except Exception:
            seen.append("swallowed")
        finally:
            seen.append("cleaned up")

    child = make_child(job, {"timeout": 0.05})
    job_id = child.add(max_attempts=1)
    child.start()
    eventually(lambda: child.state(job_id) == "failed")
    assert seen == ["cleaned up"]
    [entry] = child.bench.storage.get_job(job_id).errors
    assert entry["type"] == f"{Timeout.__module__}.Timeout"


def test_a_lost_lease_cancels_the_task_without_an_ack(make_child: MakeChild) -> None:
    async def job() -> None:
        await asyncio.sleep(DEADLINE_S)

    child = make_child(job)
    job_id = child.add()
    child.start()
    held = eventually(lambda: [m for m in child.messages if m["t"] == "held"])[0]
    eventually(lambda: child.child.executor.active())
    child.channel.send({"t": "lost", "j": [[job_id, held["r"]]]})
    eventually(lambda: not child.child.executor.active())
    assert child.state(job_id) == "running"


def test_a_stop_cancels_what_runs_and_hands_it_back(make_child: MakeChild) -> None:
    ends: list[type[BaseException]] = []

    async def job() -> None:
        try:
            await asyncio.sleep(DEADLINE_S)
        except BaseException as error:
            ends.append(type(error))
            raise

    child = make_child(job)
    job_id = child.add()
    child.start()
    eventually(lambda: child.state(job_id) == "running" and child.child.executor.active())
    child.stop()
    row = child.bench.storage.get_job(job_id)
    assert (row.state, row.attempt, row.errors) == ("ready", 0, [])
    assert ends in ([asyncio.CancelledError], [])


def test_a_blocked_loop_is_seen(make_child: MakeChild, caplog: pytest.LogCaptureFixture) -> None:
    go = threading.Event()

    async def job() -> None:
        blocks(go)

    child = make_child(job, shutdown_grace_s=0.1)
    job_id = child.add()
    child.start()
    eventually(lambda: any(m.get("blocked") for m in child.messages if m["t"] == "status"))
    eventually(lambda: "blocks the event loop" in caplog.text)
    assert "blocks(go)" in caplog.text
    go.set()
    eventually(lambda: child.state(job_id) == "succeeded")


def blocks(go: threading.Event) -> None:
    assert go.wait(DEADLINE_S)


def test_a_lost_loop_takes_its_other_jobs_along(make_child: MakeChild) -> None:
    """Nothing is acknowledged for what may still run; leases run out."""
    go = threading.Event()

    async def job() -> None:
        blocks(go)

    async def patient() -> None:
        await asyncio.sleep(DEADLINE_S)

    child = make_child(job, {"timeout": 0.2}, shutdown_grace_s=0.2)
    child.bench.define(patient, "patient")
    other = child.add(kind="patient")
    child.start()
    eventually(lambda: child.state(other) == "running")
    blocking = child.add()
    try:
        eventually(lambda: len(child.child.executor.stuck()) == 2)
        child.stop()
        assert {child.state(other), child.state(blocking)} == {"running"}
    finally:
        go.set()


def test_middleware_gets_an_awaitable(make_child: MakeChild) -> None:
    seen: list[str] = []

    def handler(context: Any, call_next: Any) -> Any:
        async def around() -> Any:
            seen.append("before")
            value = await call_next(context)
            seen.append("after")
            return value

        return around()

    async def job() -> str:
        seen.append("job")
        return "done"

    child = make_child(job, middleware=(handler,))
    job_id = child.add()
    child.start()
    eventually(lambda: child.state(job_id) == "succeeded")
    assert (seen, result(child, job_id)) == (["before", "job", "after"], "done")


def test_an_async_job_runs_without_a_loop_of_the_process_too(bench: Workbench) -> None:
    threads: set[int] = set()

    async def job(ctx: AsyncJobContext) -> int:
        return await ctx.step("one", lambda: threads.add(threading.get_ident()) or 1)

    row = bench.run_once(job)
    assert (row.state, envelope.decode(row.result)) == ("succeeded", 1)
    assert threads == {threading.get_ident()}
