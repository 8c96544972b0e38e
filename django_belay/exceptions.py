"""Every error that django_belay raises, in one tree.

Messages say what was found, what was expected and what to do; the facts are
attributes. Parks, cancellations and budget stops are not errors: they leave a
job as :class:`Interrupt`, which derives from ``BaseException`` so that a job's
own ``except Exception`` cannot swallow them.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any


class BelayError(Exception):
    """Base of every error of this package."""


class ConfigurationError(BelayError):
    """A setting or an option does not fit; the message names the key and the mend."""


class JobNotFound(BelayError, LookupError):
    """No job has this id: it was never inserted, rolled back, or pruned."""

    def __init__(self, job_id: int) -> None:
        self.job_id = job_id
        super().__init__(
            f"job {job_id} was not found: it was never inserted, its transaction was rolled back, "
            "or it was pruned after its retention"
        )


class WorkflowNotFound(BelayError, LookupError):
    """No job belongs to a workflow or batch of this id: never inserted, rolled back, or pruned."""

    def __init__(self, workflow_id: str) -> None:
        self.workflow_id = workflow_id
        super().__init__(
            f"workflow {workflow_id!r:.120} has no members: it was never inserted, its transaction was "
            "rolled back, or it was pruned after its retention"
        )


class StillDeferred(BelayError):
    """The transaction has not committed: there is nothing to look at yet, or there never will be."""


class ReadOnly(BelayError, TypeError):
    """A model of a wire table was asked to write; the message names the client's call."""


# -- schema -----------------------------------------------------------------


class SchemaError(BelayError):
    """The belay_* tables are not the ones this version can work with."""


class SchemaMissing(SchemaError):
    """The database has no belay_* tables."""


class SchemaTooOld(SchemaError):
    """The belay_* tables are older than the minimum this version needs."""


class ContractTooNew(SchemaError):
    """The database speaks a higher major of the wire contract than this version knows."""


# -- enqueueing ---------------------------------------------------------------


class EnqueueError(BelayError, ValueError):
    """A job was refused before anything was written."""


class UnknownKind(EnqueueError):
    """No job is registered under this kind."""


class InvalidInput(EnqueueError):
    """The input does not fit the job's signature, or cannot be stored.

    Attributes:
        path: Where the offending value stands, such as ``input.order.lines[3]``.
    """

    def __init__(self, message: str, *, path: str = "") -> None:
        self.path = path
        super().__init__(f"{path}: {message}" if path else message)


class PayloadTooLarge(EnqueueError):
    """An input, signal or event payload is over its ceiling."""

    def __init__(self, what: str, *, size: int, limit: int, setting: str) -> None:
        self.size = size
        self.limit = limit
        self.setting = setting
        super().__init__(
            f"{what} takes {size:,} bytes, {limit:,} are allowed ({setting}); "
            "store the data elsewhere and pass a reference to it"
        )


class InvalidCron(EnqueueError):
    """A cron entry's expression, kind, zone or options do not fit."""


class InvalidWorkflow(EnqueueError):
    """A workflow has a cycle, an unknown dependency or a name used twice."""


class InvalidQueue(EnqueueError):
    """A queue's name or options do not fit."""


# -- storage -----------------------------------------------------------------


class StorageError(BelayError):
    """The storage could not do what was asked."""


class Unavailable(StorageError):
    """The storage cannot be reached now; trying again later is right."""


class Contended(Unavailable):
    """Another transaction holds what this one needs; nothing was written, the next try may succeed."""


class Conflict(StorageError):
    """A write met a row that should not be there; nothing was written."""


class NotSupportedByProfile(StorageError):
    """The journal's profile cannot say this; nothing was written."""


class JournalError(StorageError):
    """The journal refuses: names path, offset and the last good sequence where it knows them.

    Attributes:
        refusal: The leaf name of the reason, such as ``record_checksum``.
        kind: The class the reason belongs to, such as ``physical_corruption``.
        details: Numbers and names that belong to the reason; never bytes of a payload.
        path: The file or directory, relative to the store where it lies inside.
        offset: The byte of ``path`` where the fault was met.
        last_good_sequence: The last sequence verified before the fault.
    """

    def __init__(
        self,
        message: str,
        *,
        refusal: str = "",
        kind: str = "",
        details: tuple[object, ...] = (),
        path: str | None = None,
        offset: int | None = None,
        last_good_sequence: int | None = None,
    ) -> None:
        self.refusal = refusal
        self.kind = kind
        self.details = details
        self.path = path
        self.offset = offset
        self.last_good_sequence = last_good_sequence
        super().__init__(message)


class CorruptRecord(JournalError):
    """Bytes of the journal are not what was written."""


class UnsupportedFormat(JournalError):
    """The journal was written in a format this version does not read."""


class JournalLocked(JournalError):
    """Another process owns the journal."""


class JournalFull(JournalError):
    """The file system has no room for the next batch and the reserve."""


# -- results ------------------------------------------------------------------


class JobError(BelayError):
    """A job did not give a result.

    Attributes:
        job_id: The job.
        errors: The entries of its ``errors`` column, oldest first.
    """

    def __init__(self, message: str, *, job_id: int, errors: list[dict[str, Any]] | None = None) -> None:
        self.job_id = job_id
        self.errors = errors or []
        super().__init__(message)


class JobFailed(JobError):
    """The job ended as failed."""


class JobCancelled(JobError):
    """The job ended as cancelled."""


class BudgetExceeded(JobError):
    """The job failed because its steps spent more than its budget."""


class ResultTimeout(JobError, TimeoutError):
    """The job did not end in the time allowed; it goes on."""


# -- inside a job --------------------------------------------------------------


class SignalTimeout(BelayError, TimeoutError):
    """The signal waited for did not come before the deadline."""


class ChildrenFailed(BelayError):
    """Children that a job waited for did not succeed; the others' results are here, too.

    Attributes:
        failures: A :class:`JobError` for each child that failed or was cancelled, in the
            order of their inputs.
        results: What ``return_exceptions=True`` would have returned.
    """

    def __init__(self, failures: list[JobError], results: list[Any]) -> None:
        self.failures = failures
        self.results = results
        told = "; ".join(str(failure) for failure in failures[:5])
        more = f"; and {len(failures) - 5} more" if len(failures) > 5 else ""
        super().__init__(f"{len(failures)} of {len(results)} children did not succeed: {told}{more}")


class ChildrenGone(BelayError, LookupError):
    """Children that a job spawned are not there any more: somebody deleted their rows.

    Attributes:
        job_ids: The missing ones.
    """

    def __init__(self, parent_id: int, job_ids: list[int]) -> None:
        self.job_ids = job_ids
        told = ", ".join(map(str, job_ids[:10])) + (", …" if len(job_ids) > 10 else "")
        super().__init__(
            f"job {parent_id} waits for {len(job_ids)} children whose rows are gone: {told}; pruning keeps the "
            "children of an unfinished parent, so they were deleted by hand"
        )


class SpawnChanged(BelayError):
    """An earlier attempt began a spawn with other inputs; what decides them belongs in a step."""


class PayloadErased(BelayError, ValueError):
    """A job whose payload was erased was retried: it has nothing left to run with."""


class StepReused(BelayError, ValueError):
    """A job asked for a step name twice in one run, and ``BELAY["STRICT_STEPS"]`` forbids it."""


class NotReplayable(BelayError, ValueError):
    """A job has no journal that its code could be run against."""


class StepTooLarge(BelayError, ValueError):
    """A step's value is over the ceiling once encoded."""


class ForeignReservedStep(BelayError):
    """A reserved step was written by another SDK; its value is never interpreted (§2)."""


class Interrupt(BaseException):
    """Leaves a job without being an error; ``except Exception`` does not catch it."""


class Park(Interrupt):
    """The job waits for a signal: until ``deadline``, and for a payload newer than ``newer_than``."""

    def __init__(
        self,
        *,
        scope: str,
        name: str,
        read_scopes: tuple[str, ...],
        deadline: datetime | None = None,
        newer_than: datetime | None = None,
    ) -> None:
        self.scope = scope
        self.name = name
        self.read_scopes = read_scopes
        self.deadline = deadline
        self.newer_than = newer_than
        super().__init__(f"{name} in {scope}")


class Snooze(Interrupt):
    """The job asks to run again later; the attempt does not count."""

    def __init__(self, until: datetime) -> None:
        self.until = until
        super().__init__(f"until {until.isoformat()}")


class Cancel(Interrupt):
    """The job ends as cancelled."""

    def __init__(self, reason: str) -> None:
        self.reason = reason
        super().__init__(reason)


class Fail(Interrupt):
    """The job ends as failed, whatever attempts are left."""

    def __init__(self, reason: str) -> None:
        self.reason = reason
        super().__init__(reason)


class Timeout(Interrupt):
    """The job overran its ``timeout``."""


class BudgetStop(Interrupt):
    """The job's steps spent more than its budget; ``detail`` says how much of what."""

    def __init__(self, detail: str) -> None:
        self.detail = detail
        super().__init__(detail)


class LeaseLost(Interrupt):
    """Another process has taken the job over; this run must stop and writes nothing more."""


class Shutdown(Interrupt):
    """The process is ending; the job is handed back."""
