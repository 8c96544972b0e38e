"""Jobs of the worker benches."""

from __future__ import annotations

import time

from django_belay import job


@job(queue="bench")
def noop() -> None:
    """What a job costs when it does nothing."""


@job(queue="bench")
def started(ctx, sent_at: float) -> float:
    """Seconds from its enqueueing to its start, by one machine's clock."""
    return time.time() - sent_at


@job(queue="bench")
def steps(ctx, count: int) -> None:
    """A job of so many steps."""
    for number in range(count):
        ctx.step(f"s{number}", int)


@job(queue="bench")
def child(n: int) -> int:
    """A child that does nothing."""
    return n


@job(queue="bench")
def parent(ctx, count: int) -> int:
    """A fan-out with its fan-in."""
    return len(ctx.map_children("fan", child, [{"n": n} for n in range(count)]))


@job(queue="bench")
def awaits(ctx) -> int:
    """Waits for one signal."""
    return ctx.wait_signal("go")
