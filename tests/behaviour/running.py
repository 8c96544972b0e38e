"""Runs jobs through the engine in the test's own thread, on any storage."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime
from inspect import iscoroutinefunction
from typing import Any

from django_belay._chunk_items import chunk_items
from django_belay.contract.inputs import InputCodec
from django_belay.contract.job import Job, NewJob
from django_belay.engine.options import WorkerOptions
from django_belay.engine.run import Run
from django_belay.engine.runner import Runner
from django_belay.engine.services import Services
from django_belay.engine.telemetry import Hooks
from django_belay.registry import JobDefinition, JobOptions, Registry
from django_belay.storage.base import Ack, AckResult, ClaimRound, Demand, Storage
from django_belay.testing.clock import SimClock

_rounds = itertools.count(1)


class Workbench:
    """A storage, a registry and a runner; no thread, no process."""

    def __init__(self, storage: Storage, clock: SimClock, **options: Any) -> None:
        self.clock = clock
        self.services = Services(
            storage=storage, clock=clock, registry=Registry(), options=WorkerOptions(**options)
        )
        self.runner = Runner(self.services)

    @property
    def storage(self) -> Storage:
        return self.services.storage

    def hook(self, **hooks: Any) -> None:
        """Use these hooks from now on."""
        self.services = replace(self.services, hooks=Hooks(**hooks))
        self.runner = Runner(self.services)

    def define(self, function: Callable[..., Any], kind: str = "k", **options: Any) -> None:
        is_chunk = options.get("chunk") is not None
        items = chunk_items(function, where=kind, context="ctx") if is_chunk else None
        codec = items.codec if items else InputCodec.for_function(function)
        self.services.registry.register(
            JobDefinition(
                kind=kind,
                function=function,
                codec=codec,
                options=JobOptions(**options),
                takes_context=items.takes_context if items else codec.takes_context,
                is_async=iscoroutinefunction(function),
                item_type=items.item_type if items else None,
            )
        )

    def add(self, kind: str = "k", **fields: Any) -> int:
        job = NewJob(kind=kind, **fields)
        [inserted] = self.storage.insert_jobs([job], now=self.clock.now())
        return inserted.job_id

    def claim(self) -> tuple[Job, datetime]:
        now = self.clock.now()
        round_ = ClaimRound(
            leased_by=f"bench:1:{next(_rounds)}", lease_until=now + self.services.options.lease_ttl
        )
        claimed = self.storage.claim(round_, demands=[Demand(queue="default", take=1)], now=now)
        [job] = claimed.jobs
        return job, now

    def prepare(self) -> Run | Ack:
        job, now = self.claim()
        return self.runner.prepare(job, claimed_at=now)

    def execute(self) -> Ack | None:
        """Claim the next job and run it; its ack is not written."""
        prepared = self.prepare()
        return self.runner.execute(prepared) if isinstance(prepared, Run) else prepared

    def run(self) -> Job:
        """Claim the next job, run it, write its ack; the row afterwards."""
        ack = self.execute()
        assert ack is not None
        self.write(ack)
        return self.storage.get_job(ack.lease.job_id)

    def write(self, ack: Ack) -> AckResult:
        return self.storage.ack(ack, now=self.clock.now())

    def run_once(self, function: Callable[..., Any], **fields: Any) -> Job:
        """Define, insert and run a job."""
        self.define(function)
        self.add(**fields)
        return self.run()
