"""Jobs that wait for signals and children in real worker processes."""

from __future__ import annotations

from django_belay import job
from tests.app.worker_jobs import note


@job(queue="work", backoff=[0.1])
def doubles(ctx, name: str, n: int) -> int:
    """A child."""
    note(f"{name}.children", f"{ctx.id}:{n}")
    return 2 * n


@job(queue="work", backoff=[0.1])
def fans_out(ctx, name: str, count: int) -> list[int]:
    """A parent with two spawns, one after the other, and a step between them."""
    first = ctx.map_children("first", doubles, [{"name": name, "n": n} for n in range(count)])
    total = ctx.step("total", sum, first)
    note(f"{name}.totals", f"{ctx.id}:{total}")
    return [total, *ctx.map_children("second", doubles, [{"name": name, "n": n} for n in first])]


@job(queue="work", backoff=[0.1])
def converses(ctx, name: str, rounds: int) -> list:
    """Asks again and again: each answer is cleared before the next one is waited for."""
    answers = []
    for number in range(rounds):
        ctx.step(f"ask-{number}", note, f"{name}.asked", f"{ctx.id}:{number}")
        answers.append(ctx.wait_signal("answer"))
        ctx.clear_signal("answer")
    return answers
