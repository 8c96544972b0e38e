"""Jobs in processes of their own, on the event loop and in chunks, for real workers."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from dataclasses import dataclass

from asgiref.sync import sync_to_async
from django.contrib.auth.models import Group

from django_belay import Chunk, Isolation, job
from tests.app.worker_jobs import await_file, note

MIB = 1024 * 1024


@job(queue="work", isolation="process", backoff=[0.1])
def alone(ctx, name: str) -> dict[str, int]:
    """A step and an event from a process of its own."""
    parent = ctx.step("parent", os.getppid)
    ctx.emit({"from": os.getpid()})
    note(name, f"{os.getpid()}:{threading.active_count()}")
    return {"pid": os.getpid(), "parent": parent, "groups": Group.objects.count()}


@job(queue="work", isolation="process", backoff=[0.1], max_attempts=2)
def dies_alone(ctx, name: str, how: str) -> str:
    """Ends its process on the first attempt."""
    note(name, str(os.getpid()))
    if ctx.attempt == 1:
        if how == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        os._exit(3)
    return how


@job(queue="work", isolation="process", timeout=0.5, max_attempts=1)
def overruns_alone(ctx, name: str, stubborn: bool) -> None:
    """Takes longer than it may; stubbornly, without listening."""
    note(f"{name}.started", str(os.getpid()))
    while True:
        try:
            await_file(f"{name}.never")
        except BaseException:
            note(name, "interrupted")
            if not stubborn:
                raise


@job(queue="work", isolation=Isolation(memory=64 * MIB), max_attempts=1)
def hungry(ctx, mib: int) -> int:
    """Allocates so much."""
    return len(bytearray(mib * MIB)) // MIB


@job(queue="work", isolation="process", backoff=[0.1])
def holds_alone(ctx, name: str) -> str:
    """Runs until a test lets it go."""
    note(f"{name}.started", str(os.getpid()))
    await_file(f"{name}.go")
    return name


@job(queue="work", backoff=[0.1])
async def awaits(ctx, name: str) -> list[int]:
    """ORM calls of an async job, and the thread they run in."""
    await Group.objects.acreate(name=f"{name}-{ctx.id}")
    mine = await sync_to_async(threading.get_ident)()
    await asyncio.sleep(0.05)
    assert await sync_to_async(threading.get_ident)() == mine
    return [await Group.objects.acount(), os.getpid()]


@dataclass
class Page:
    number: int


@job(queue="chunks", chunk=Chunk(size=10, gather=0.2))
def indexes(ctx, items: list[Page]) -> list[int]:
    """Numbers of a chunk, doubled."""
    note("chunks", str(len(items)))
    return [item.number * 2 for item in items]
