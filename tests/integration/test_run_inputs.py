"""Inputs on their way through the runner: typed, and decrypted in the executing process alone."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from decimal import Decimal
from uuid import UUID

import pytest
from django.utils import timezone

from django_belay import conf
from django_belay.client import JobHandle
from django_belay.engine.run import Run
from django_belay.engine.runner import Runner
from django_belay.engine.services import Services
from django_belay.exceptions import JobFailed
from django_belay.registry import registry
from django_belay.testing import override_belay
from tests.app import jobs
from tests.integration.worker import claim, storage

pytestmark = pytest.mark.django_db


def work() -> None:
    """Run the next job of the default queue."""
    options = conf.worker_options()
    runner = Runner(Services(storage=storage(), clock=conf.clock(), registry=registry, options=options))
    now = timezone.now()
    (job,) = claim(take=1, now=now)
    run = runner.prepare(job, claimed_at=now)
    assert isinstance(run, Run)
    ack = runner.execute(run)
    assert ack is not None
    storage().ack(ack, now=timezone.now())


def test_arguments_arrive_typed() -> None:
    job = jobs.typed.enqueue(
        at=datetime(2026, 5, 1, tzinfo=UTC), amount=Decimal("1.5"), reference=UUID(int=1), every=timedelta(1)
    )
    work()
    assert job.result(timeout=0) == ["datetime", "Decimal", "UUID", "timedelta"]


def test_a_job_without_context_gets_its_arguments_alone() -> None:
    job = jobs.plain.enqueue(number=4)
    work()
    assert job.result(timeout=0) == 5


def test_an_encrypted_input_is_decrypted_for_the_run_alone() -> None:
    job = jobs.secret.enqueue("hunter2")
    work()
    assert job.result(timeout=0) == 7
    assert list(job.refresh().job.input) == ["$enc"]


def test_an_input_that_no_key_opens_fails_without_showing_it() -> None:
    job: JobHandle = jobs.secret.using(max_attempts=1).enqueue("hunter2")
    with override_belay(ENCRYPTION_KEYS=[b"another key of tests, 32 bytes.."]):
        work()
    with pytest.raises(JobFailed, match="cannot be decrypted") as caught:
        job.result(timeout=0)
    assert "hunter2" not in str(caught.value.errors)
