"""Durable background jobs for Django.

Importing this package touches neither models nor the database.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django_belay._version import __version__
from django_belay.contract.money import Budget, Cost
from django_belay.registry import Chunk, Isolation, Unique

if TYPE_CHECKING:
    from django_belay.batches import Batch
    from django_belay.client import (
        JobHandle,
        aenqueue_job,
        alist_jobs,
        areplay,
        astats,
        enqueue_job,
        list_jobs,
        replay,
        stats,
    )
    from django_belay.client import aget as aget_job
    from django_belay.client import get as get_job
    from django_belay.deferred import Deferred
    from django_belay.engine.async_context import AsyncJobContext
    from django_belay.engine.chunk_context import ChunkContext
    from django_belay.engine.context import JobContext
    from django_belay.jobs import JobFunction, job
    from django_belay.workflows import Workflow

__all__ = [
    "AsyncJobContext",
    "Batch",
    "Budget",
    "Chunk",
    "ChunkContext",
    "Cost",
    "Deferred",
    "Isolation",
    "JobContext",
    "JobFunction",
    "JobHandle",
    "Unique",
    "Workflow",
    "__version__",
    "aenqueue_job",
    "aget_job",
    "alist_jobs",
    "areplay",
    "astats",
    "enqueue_job",
    "get_job",
    "job",
    "list_jobs",
    "replay",
    "stats",
]

# Loaded at first use, so that a process that only wants a version or an error loads no driver.
_LAZY = {
    "AsyncJobContext": ("django_belay.engine.async_context", "AsyncJobContext"),
    "Batch": ("django_belay.batches", "Batch"),
    "ChunkContext": ("django_belay.engine.chunk_context", "ChunkContext"),
    "Deferred": ("django_belay.deferred", "Deferred"),
    "JobContext": ("django_belay.engine.context", "JobContext"),
    "JobFunction": ("django_belay.jobs", "JobFunction"),
    "JobHandle": ("django_belay.client", "JobHandle"),
    "Workflow": ("django_belay.workflows", "Workflow"),
    "aenqueue_job": ("django_belay.client", "aenqueue_job"),
    "aget_job": ("django_belay.client", "aget"),
    "alist_jobs": ("django_belay.client", "alist_jobs"),
    "areplay": ("django_belay.client", "areplay"),
    "astats": ("django_belay.client", "astats"),
    "enqueue_job": ("django_belay.client", "enqueue_job"),
    "get_job": ("django_belay.client", "get"),
    "job": ("django_belay.jobs", "job"),
    "list_jobs": ("django_belay.client", "list_jobs"),
    "replay": ("django_belay.client", "replay"),
    "stats": ("django_belay.client", "stats"),
}


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    module, attribute = _LAZY[name]
    return getattr(import_module(module), attribute)


def __dir__() -> list[str]:
    return sorted(__all__)
