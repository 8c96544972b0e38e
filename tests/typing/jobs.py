"""The public API as a user writes it; checked by pyright, not run."""

from __future__ import annotations

from datetime import timedelta
from typing import assert_type

from django_belay import (
    AsyncJobContext,
    Budget,
    Chunk,
    ChunkContext,
    Isolation,
    JobContext,
    JobFunction,
    JobHandle,
    Unique,
    enqueue_job,
    get_job,
    job,
)
from django_belay.client import EnqueueReport
from django_belay.deferred import Deferred


@job
def bare(ctx: JobContext, order_id: int, note: str = "") -> str:
    return note * order_id


@job(queue="mail", max_attempts=5, unique=Unique("k", within=timedelta(hours=1)), budget=Budget(usd="1.50"))
def with_options(ctx: JobContext, order_id: int) -> None: ...


@job
def without_context(order_id: int) -> int:
    return order_id


@job(queue="bulk")
def unannotated(ctx, order_id: int):  # type: ignore[no-untyped-def]
    return order_id


@job(queue="chunks", chunk=Chunk(size=10))
def chunked(ctx: ChunkContext, items: list[dict[str, int]]) -> list[int]:
    return [item["number"] for item in items]


@job
async def awaited(ctx: AsyncJobContext, order_id: int) -> int:
    return await ctx.step("one", without_context, order_id)


@job(queue="media", isolation=Isolation(memory=2**26))
def isolated(ctx: JobContext, order_id: int) -> None: ...


def use() -> None:
    assert_type(bare.enqueue(1), JobHandle)
    assert_type(bare.enqueue(order_id=1, note="x"), JobHandle)
    assert_type(with_options.using(priority=-5).enqueue(order_id=1), JobHandle)
    assert_type(bare.enqueue_many([{"order_id": 1}]), EnqueueReport)
    assert_type(bare.enqueue_on_commit(1), Deferred[JobHandle])
    assert_type(without_context.enqueue(5), JobHandle)
    unannotated.enqueue(1)
    assert_type(chunked.enqueue(number=1), JobHandle)
    assert_type(awaited.enqueue(order_id=1), JobHandle)
    assert_type(isolated.enqueue(1), JobHandle)
    awaited.enqueue("one")  # pyright: ignore[reportArgumentType]
    bare.enqueue("one")  # pyright: ignore[reportArgumentType]
    bare.enqueue()  # pyright: ignore[reportCallIssue]
    with_options.enqueue(1, 2)  # pyright: ignore[reportCallIssue]
    without_context.enqueue("x")  # pyright: ignore[reportArgumentType]
    function: JobFunction[[int], int] = without_context
    assert_type(function(3), int)


def handles() -> None:
    handle = get_job(1)
    assert_type(handle, JobHandle)
    assert_type(handle.id, int)
    assert_type(handle.refresh(), JobHandle)
    for step in handle.steps():
        assert_type(step.name, str)
    enqueue_job("MyApp.Mailer", {"to": "x"}, queue="elixir")


async def twins() -> None:
    assert_type(await bare.aenqueue(1), JobHandle)
    assert_type(await bare.aenqueue_many([]), EnqueueReport)
    handle = await bare.aenqueue(order_id=1)
    assert_type(await handle.arefresh(), JobHandle)
    await handle.aresult(timeout=5)
