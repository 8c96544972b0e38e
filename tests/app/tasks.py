"""Tasks of the tests, found by autodiscovery."""

from __future__ import annotations

from typing import Any

import django

from django_belay import Cost

if django.VERSION >= (6, 0):
    from django.tasks import task
else:
    from django_tasks import task

from tests.app.worker_jobs import note


@task
def noop(*args: Any, **kwargs: Any) -> None:
    """Does nothing."""


@task
def echo(value: Any, twice: bool = False) -> Any:
    """Its argument."""
    return [value, value] if twice else value


@task
def complex_value() -> Any:
    """A value that JSON cannot carry."""
    return object()


@task
async def echo_async(value: Any) -> Any:
    """Its argument, from a coroutine."""
    return value


@task
def fails(message: str) -> None:
    """Raises."""
    raise ValueError(message)


@task
async def fails_async(message: str) -> None:
    """Raises, from a coroutine."""
    raise KeyError(message)


@task(takes_context=True)
def attempt(context: Any, fail_until: int = 0) -> int:
    """The number of its attempt."""
    if context.attempt <= fail_until:
        raise ValueError(f"attempt {context.attempt}")
    return context.attempt


@task(takes_context=True)
def result_id(context: Any, *, prefix: str = "") -> str:
    """The id of its own result."""
    return prefix + context.task_result.id


@task(takes_context=True)
def durable(context: Any, value: int) -> int:
    """A step of the job beneath."""
    context.job.emit({"at": value})
    return context.job.step("double", lambda: value * 2, cost=Cost(usd="0.01"))


@task(takes_context=True)
async def gives_up(context: Any) -> None:
    """Ends its job from a coroutine."""
    context.job.fail("no use")


@task(priority=7, queue_name="mail")
def prioritised() -> None:
    """A task with options of its own."""


@task(queue_name="work")
def marks(name: str) -> str:
    """Leaves a line in the tests' directory; for real workers."""
    return note(name, "ran")
