"""Records for tests of the engine without a storage."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from django_belay.contract.inputs import InputCodec
from django_belay.contract.job import Job, Lease
from django_belay.engine.run import Run
from django_belay.registry import JobDefinition, JobOptions

NOW = datetime(2030, 1, 1, tzinfo=UTC)

_JOB = Job(
    id=1, kind="k", queue="q", state="running", input={}, meta={}, priority=0, attempt=1, max_attempts=3,
    partition_key=None, ready_at=None, lease_until=NOW, leased_by="n:1:1", await_scope=None, await_name=None,
    workflow_id=None, wf_name=None, wf_deps=(), wf_ignore=(), cron_name=None, cron_slot=None, unique_key=None,
    unique_mode=None, parent_id=None, budget_usd_micros=None, budget_tokens=None, spent_usd_micros=0,
    spent_tokens=0, result=None, errors=[], cancel_requested=False, inserted_at=NOW, started_at=NOW,
    finished_at=None,
)  # fmt: skip


def make_job(**fields: Any) -> Job:
    return replace(_JOB, **fields)


def make_definition(function: Callable[..., Any], **options: Any) -> JobDefinition:
    codec = InputCodec.for_function(function)
    return JobDefinition(
        kind="k",
        function=function,
        codec=codec,
        options=JobOptions(**options),
        takes_context=codec.takes_context,
    )


def make_run(function: Callable[..., Any] = lambda: None, **fields: Any) -> Run:
    return Run(make_job(**fields), make_definition(function), claimed_at=NOW)


def make_lease(job_id: int = 1, leased_by: str = "n:1:1") -> Lease:
    return Lease(job_id=job_id, attempt=1, leased_by=leased_by)
