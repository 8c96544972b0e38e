"""Waiting for a job's end: polls, woken early by hints (§9, §10)."""

from __future__ import annotations

from asgiref.sync import sync_to_async

from django_belay._control import check_id, get_row
from django_belay._hints import AsyncResultHint, ResultHint
from django_belay._polling import pauses
from django_belay.contract import envelope
from django_belay.contract.job import JSON, Job
from django_belay.contract.job_error import job_error
from django_belay.contract.state import is_terminal
from django_belay.db import storage_for_client
from django_belay.exceptions import ConfigurationError, JobNotFound, ResultTimeout

FIRST_POLL_S = 0.005
LAST_POLL_S = 0.2
#: Shorter waits are not worth a connection to listen on.
HINTS_AFTER_S = 0.1


def await_result(job_id: int, *, timeout: float | None = None) -> JSON:
    """Wait until a job has ended and return its result, decoded.

    Args:
        timeout: Seconds to wait at most; ``None`` waits for as long as it takes.

    Raises:
        JobFailed, JobCancelled, BudgetExceeded: How the job ended instead.
        ResultTimeout: It has not ended in time; it goes on.
        JobNotFound: It is gone.
        ConfigurationError: Inside the caller's transaction, an endless wait, or any for a job that
            was enqueued in it.
    """
    check_id(job_id)
    if timeout is None:
        _refuse_endless_wait()
    has_looked = False
    with ResultHint(job_id, after_s=HINTS_AFTER_S) as hint:
        for pause in pauses(timeout, first_s=FIRST_POLL_S, last_s=LAST_POLL_S):
            job = _look(job_id)
            if is_terminal(job.state):
                return _result_of(job)
            if not has_looked:
                _refuse_own(job_id)
                has_looked = True
            hint.wait(pause)
    raise _too_late(job_id, timeout)


async def aawait_result(job_id: int, *, timeout: float | None = None) -> JSON:
    """As :func:`await_result`; holds no thread while it waits."""
    check_id(job_id)
    if timeout is None:
        await sync_to_async(_refuse_endless_wait)()
    has_looked = False
    async with AsyncResultHint(job_id, after_s=HINTS_AFTER_S) as hint:
        for pause in pauses(timeout, first_s=FIRST_POLL_S, last_s=LAST_POLL_S):
            job = await sync_to_async(_look)(job_id)
            if is_terminal(job.state):
                return _result_of(job)
            if not has_looked:
                await sync_to_async(_refuse_own)(job_id)
                has_looked = True
            await hint.wait(pause)
    raise _too_late(job_id, timeout)


def _look(job_id: int) -> Job:
    try:
        return get_row(job_id)
    except JobNotFound:
        _refuse_own(job_id)
        raise


def _refuse_endless_wait() -> None:
    if storage_for_client().session.is_in_callers_transaction():
        raise ConfigurationError(
            "waiting for a result without a timeout inside a transaction: no worker sees a job that was "
            "enqueued in it before it commits. Wait after the atomic() block, or give a timeout"
        )


def _refuse_own(job_id: int) -> None:
    found = storage_for_client()
    if not found.session.is_in_callers_transaction():
        return
    if found.is_uncommitted(job_id):
        raise ConfigurationError(
            f"waiting for the result of job {job_id} inside the transaction that enqueued or changed it: no worker "
            "can end it before that commits. Wait after the atomic() block"
        )


def _result_of(job: Job) -> JSON:
    if job.state == "succeeded":
        return envelope.decode(job.result)
    raise job_error(
        job.id, job.kind, job.state, job.errors, attempt=job.attempt, max_attempts=job.max_attempts
    )


def _too_late(job_id: int, timeout: float | None) -> ResultTimeout:
    return ResultTimeout(
        f"job {job_id} had not ended after {timeout:g} s; it goes on. Ask again, or see that a worker "
        "serves its queue",
        job_id=job_id,
    )
