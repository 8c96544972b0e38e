"""Every call that asks the database has a twin for async code, with the same parameters."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import django_belay
from django_belay import batches, bulk, client, queues, schedules, streams, workflows
from django_belay.batches import Batch, BatchHandle
from django_belay.handles import JobHandle
from django_belay.jobs import JobFunction
from django_belay.workflows import Workflow, WorkflowHandle

MODULES = (django_belay, batches, bulk, client, queues, schedules, streams, workflows)
CLASSES = (Batch, BatchHandle, JobFunction, JobHandle, Workflow, WorkflowHandle)

#: What asks no database, or is a twin under a name of its own.
WITHOUT = {
    "Batch.add", "Batch.add_many", "JobFunction.using", "Workflow.add", "Workflow.check",
    "JobHandle.of_inserted", "JobHandle.of_insertion", "JobHandle.of_job",
    "django_belay.job", "queues.check", "bulk.where", "schedules.make_scheduler",
    "workflows.call", "workflows.call_kind",
}  # fmt: skip
OTHER_NAMES = {"WorkflowHandle.wait": "await_end", "BatchHandle.wait": "await_end"}
#: Attributes that read.
READING = {"BatchHandle.on_complete": "aon_complete"}


def calls() -> Iterator[tuple[str, Any, Callable[..., Any]]]:
    for module in MODULES:
        for name in module.__all__:
            yield f"{module.__name__.rpartition('.')[2]}.{name}", module, getattr(module, name)
    for cls in CLASSES:
        for name, function in inspect.getmembers(cls, inspect.isroutine):
            if not name.startswith("_"):
                yield f"{cls.__name__}.{name}", cls, function


def parameters(function: Callable[..., Any]) -> list[tuple[str, Any, Any]]:
    found = inspect.signature(function).parameters.values()
    return [(one.name, one.kind, one.default) for one in found]


def is_for_async(function: Callable[..., Any]) -> bool:
    return inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function)


SYNC = [
    pytest.param(owner, function, OTHER_NAMES.get(path) or f"a{path.rpartition('.')[2]}", id=path)
    for path, owner, function in calls()
    if inspect.isroutine(function) and not is_for_async(function) and path not in WITHOUT
    if path != "streams.apages"  # gives an async iterator
]


@pytest.mark.parametrize(("owner", "function", "name"), SYNC)
def test_a_call_has_its_twin(owner: Any, function: Any, name: str) -> None:
    twin = getattr(owner, name, None)
    assert twin is not None, f"there is no {name}"
    assert parameters(twin) == parameters(function)


@pytest.mark.parametrize("path", READING)
def test_an_attribute_that_reads_has_its_twin(path: str) -> None:
    owner = next(cls for cls in CLASSES if path.startswith(f"{cls.__name__}."))
    assert inspect.iscoroutinefunction(getattr(owner, READING[path]))
