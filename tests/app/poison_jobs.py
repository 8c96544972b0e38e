"""Jobs whose journals the tests spoil."""

from __future__ import annotations

from django_belay import job


@job(max_attempts=1)
def steps_once(ctx, value: int) -> int:
    """One step."""
    return ctx.step("fetch", lambda: value)


@job(max_attempts=1)
def naps(ctx, value: int) -> int:
    """A sleep that may be journaled already."""
    ctx.sleep("nap", 60)
    return value


@job(max_attempts=1)
def spawns(ctx, value: int) -> int:
    """Two children of a kind that does nothing odd."""
    return len(ctx.map_children("fan", "belay_testapp.echo", [{"value": value}, {"value": value}]))
