"""Why a job did not succeed, as the error that whoever asked for its result gets."""

from __future__ import annotations

from django_belay.contract.error_entry import told
from django_belay.contract.job import JSON
from django_belay.contract.state import State
from django_belay.exceptions import BudgetExceeded, JobCancelled, JobError, JobFailed


def job_error(
    job_id: int, kind: str, state: State, errors: JSON, *, attempt: int, max_attempts: int
) -> JobError:
    """The error of a job that failed or was cancelled; ``errors`` is its column, whatever it holds."""
    found = errors if isinstance(errors, list) else []
    entries = [entry for entry in found if isinstance(entry, dict)]
    last = entries[-1] if entries else {}
    if state == "cancelled":
        reason = last.get("reason") or "no reason was given"
        return JobCancelled(f"job {job_id} ({kind}) was cancelled: {reason}", job_id=job_id, errors=entries)
    text = told(last) or "no error was recorded"
    error = BudgetExceeded if last.get("error") == "budget_exceeded" else JobFailed
    detail = f" ({last['detail']})" if error is BudgetExceeded and "detail" in last else ""
    return error(
        f"job {job_id} ({kind}) failed at attempt {attempt} of {max_attempts}: {text}{detail}",
        job_id=job_id,
        errors=entries,
    )
