"""The Storage protocol: what the engine and the client ask of a storage.

Synchronous, one method an operation, each atomic on its own. ``now`` is always a
parameter: no storage reads a clock (wire contract §2). Dataclasses in, dataclasses
out. What the wire contract decides is decided in :mod:`django_belay.contract`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Literal, Protocol, TypeAlias

from django_belay.contract.admission import Limits
from django_belay.contract.job import JSON, Event, Job, Lease, NewJob, Signal, Standing, Step
from django_belay.contract.notification import Hint
from django_belay.contract.outcome import Outcome
from django_belay.contract.state import State

Backoff: TypeAlias = Callable[[int], timedelta]


@dataclass(slots=True, kw_only=True, frozen=True)
class Capabilities:
    """What the engine would otherwise ask of a storage's type."""

    transactional_enqueue: bool  # an insert joins the caller's database transaction
    atomic_steps: bool  # ctx.step(atomic=True) can commit with the caller's ORM work
    hints: bool  # listen() may give a listener


# -- jobs ----------------------------------------------------------------------


@dataclass(slots=True, kw_only=True, frozen=True)
class Inserted:
    """The answer for one :class:`NewJob`, at the same index.

    With ``duplicate`` the id and state are those of the holder of its key or cron slot. A storage never
    answers ``None``: a client has that where the insert waits for a commit.
    """

    job_id: int
    state: State
    duplicate: bool | None = False


@dataclass(slots=True, kw_only=True, frozen=True)
class JobFilter:
    """Which jobs a listing or a bulk operation means; every given part must hold."""

    ids: Collection[int] | None = None
    states: Collection[State] | None = None
    queue: str | None = None
    kind: str | None = None
    workflow_id: str | None = None
    parent_id: int | None = None
    since: datetime | None = None  # inserted at or after
    before_id: int | None = None  # keyset cursor: ids below this one


@dataclass(slots=True, kw_only=True, frozen=True)
class ChildEnd:
    """How a spawned child stands, and what it left: ``result`` is an envelope (§8.4).

    ``errors`` is empty where it succeeded: those of earlier attempts no longer matter.
    """

    job_id: int
    kind: str
    state: State
    attempt: int
    max_attempts: int
    result: bytes | None
    errors: JSON


@dataclass(slots=True, kw_only=True, frozen=True)
class MemberState:
    """How a member of a workflow stands; a foreign one may have no name."""

    job_id: int
    name: str | None
    state: State


@dataclass(slots=True, kw_only=True, frozen=True)
class QueueStats:
    """Counts of one queue; ``scheduled`` is ready with a ``ready_at`` ahead of now.

    A storage may stop counting at 100,000: more says nothing more and costs.
    """

    queue: str
    ready: int = 0
    scheduled: int = 0
    running: int = 0
    awaiting: int = 0
    held: int = 0
    paused: int = 0
    failed: int = 0
    oldest_ready_at: datetime | None = None


# -- work ----------------------------------------------------------------------


@dataclass(slots=True, kw_only=True, frozen=True)
class Demand:
    """How many rows a worker wants of a queue."""

    queue: str
    take: int


@dataclass(slots=True, kw_only=True, frozen=True)
class ClaimRound:
    """One round of claims: the lease every claimed row gets (rule 15)."""

    leased_by: str
    lease_until: datetime


@dataclass(slots=True, kw_only=True, frozen=True)
class Claimed:
    """What a round over the unlimited queues took.

    ``claimable`` names the limited queues that had a claimable row (rule 12).
    """

    jobs: list[Job] = field(default_factory=list)
    claimable: tuple[str, ...] = ()


@dataclass(slots=True, kw_only=True, frozen=True)
class Ack:
    """The end of one run. ``enqueue`` is inserted in the same transaction when the ack applies."""

    lease: Lease
    outcome: Outcome
    enqueue: tuple[NewJob, ...] = ()


@dataclass(slots=True, frozen=True)
class Applied:
    """The ack was written; ``state`` is what the job became (rule 22 may make it ``cancelled``)."""

    job_id: int
    state: State


@dataclass(slots=True, frozen=True)
class Stale:
    """The fence held: the job is not under that lease any more; nothing was written (§7)."""

    job_id: int


AckResult: TypeAlias = Applied | Stale


@dataclass(slots=True, kw_only=True, frozen=True)
class Renewal:
    """``renewed`` ids have the new lease; ``lost`` ids are surely not ours any more (rule 16).

    An id in neither was locked by somebody, perhaps by its own ack: ask again.
    """

    renewed: frozenset[int]
    lost: frozenset[int]


@dataclass(slots=True, kw_only=True, frozen=True)
class Reclaimed:
    """One expired lease that was taken back."""

    job_id: int
    kind: str
    leased_by: str | None
    state: State


# -- control ---------------------------------------------------------------------


@dataclass(slots=True, kw_only=True, frozen=True)
class Controlled:
    """What an operator's call did to one job.

    ``reason`` says why nothing was done (``"state is running"``, ``"key held by 17"``);
    ``None`` when it was. ``requested`` marks a cancellation that the running job
    will honour at its next step boundary.
    """

    job_id: int
    state: State | None
    reason: str | None = None
    requested: bool = False

    @property
    def done(self) -> bool:
        """Whether the job was changed."""
        return self.reason is None


# -- journal of a job --------------------------------------------------------------


@dataclass(slots=True, kw_only=True, frozen=True)
class NewStep:
    """A step to journal: ``value`` is an envelope, money is integer micro-dollars."""

    name: str
    value: bytes
    usd_micros: int = 0
    tokens: int = 0


@dataclass(slots=True, kw_only=True, frozen=True)
class StepWritten:
    """The answer of ``put_step``.

    ``value`` is the journaled one: another's where ``inserted`` is false (rule 29).
    ``standing`` is the job's after the charge.
    """

    value: bytes | None
    inserted: bool
    standing: Standing


# -- runtime rows --------------------------------------------------------------------


@dataclass(slots=True, kw_only=True, frozen=True)
class QueueRow:
    """A row of ``belay_queues`` (§3) and whether our own tables pause the queue (rule 2).

    ``paused`` holds for every node of this SDK, ``paused_nodes`` names single ones.
    """

    name: str
    opts: JSON
    paused: bool = False
    paused_nodes: tuple[str, ...] = ()
    updated_at: datetime | None = None


@dataclass(slots=True, kw_only=True, frozen=True)
class CronRow:
    """A row of ``belay_crons`` (§3); ``kind`` is its ``worker`` column.

    ``timezone`` and ``catch_up`` live in our own table (rule 2).
    """

    name: str
    expression: str
    kind: str
    input: JSON
    opts: JSON
    paused: bool = False
    timezone: str | None = None
    catch_up: Literal["latest", "all", "none"] | None = None
    updated_at: datetime | None = None


@dataclass(slots=True, kw_only=True, frozen=True)
class NodeRow:
    """A heartbeat row: one worker process of one incarnation (``belay_x_nodes``).

    ``claimed_at`` is when its claim loop last turned: a worker that lives but does not
    claim is stuck. ``facts`` holds what the admin shows (queues, free slots, pid, host).
    """

    incarnation: str
    node: str
    started_at: datetime
    beat_at: datetime
    claimed_at: datetime | None
    facts: JSON


class Listener(Protocol):
    """Hints from other processes; they may be lost, polling is the floor (§9)."""

    def wait(self, timeout_s: float) -> list[Hint] | None:
        """Hints that came within ``timeout_s``; ``None`` once after every (re)connection.

        After ``None`` the caller polls once at once: hints before it are lost. Never
        raises for a lost connection; reconnects with capped backoff.
        """
        ...

    def close(self) -> None:
        """Stop listening; a ``wait`` in another thread returns soon."""
        ...


class Storage(Protocol):
    """Both storages; see the module's docstring."""

    @property
    def capabilities(self) -> Capabilities: ...

    def check_schema(self) -> None:
        """Refuse a storage that this version cannot work with.

        Raises:
            SchemaError: ``SchemaMissing``, ``SchemaTooOld`` or ``ContractTooNew``,
                with what was found, what is known and what to do (§1).
        """
        ...

    def read_clock(self) -> datetime:
        """The storage's own clock, to compare a node's with (rule 18)."""
        ...

    def listener(self) -> Listener | None:
        """A new listener, or ``None`` where polling is all there is."""
        ...

    def close(self) -> None: ...

    # jobs

    def insert_jobs(self, jobs: Sequence[NewJob], *, now: datetime) -> list[Inserted]:
        """Insert rows and poke their queues, in the caller's transaction where there is one.

        Raises:
            Conflict: A row without key and cron slot was skipped (rule 7).

        Contract: §5; rules 7–9, 11.
        """
        ...

    def get_job(self, job_id: int) -> Job:
        """Raises ``JobNotFound``."""
        ...

    def list_jobs(self, jobs: JobFilter, *, limit: int) -> list[Job]:
        """Newest first."""
        ...

    def find_by_unique_key(self, key: str) -> Job | None:
        """The newest row with this key."""
        ...

    def children(self, parent_id: int) -> list[Job]:
        """By id."""
        ...

    def has_incomplete_child(self, parent_id: int, *, spawns: Sequence[str] | None = None) -> bool:
        """One indexed EXISTS (rule 32); with ``spawns`` of the children of these names alone."""
        ...

    def find_spawned(self, parent_id: int, keys: Sequence[str]) -> dict[str, int]:
        """The ids of a job's children by their unique keys, those that are there (§8.4)."""
        ...

    def child_ends(self, parent_id: int, ids: Sequence[int]) -> list[ChildEnd]:
        """These children, each once, in any order; one that is gone is missing."""
        ...

    def has_retry_ahead(self, queues: Sequence[str], *, now: datetime) -> bool:
        """Whether a job whose attempt failed is due again later in one of the queues."""
        ...

    def workflow_jobs(self, workflow_id: str) -> list[Job]:
        """By id."""
        ...

    def workflow_states(self, workflow_id: str) -> list[MemberState]:
        """By id, and nothing but the states: cheap for a workflow of 10,000."""
        ...

    def has_open_member(self, workflow_id: str) -> bool:
        """Whether a member of the workflow has not ended; one indexed EXISTS."""
        ...

    def queue_stats(self, *, now: datetime) -> list[QueueStats]: ...

    def register_waiter(self, job_id: int, *, until: datetime, now: datetime) -> None:
        """Ask for a result hint when the job ends (rule 11)."""
        ...

    # work

    def claim(
        self,
        round_: ClaimRound,
        *,
        demands: Sequence[Demand],
        limited: Sequence[str] = (),
        now: datetime,
    ) -> Claimed:
        """Claim from unlimited queues in one statement; report which limited ones have work.

        Queues are served in the order of ``demands``; each gives at most its ``take``.

        Contract: §6; rule 12.
        """
        ...

    def claim_limited(
        self, round_: ClaimRound, *, demand: Demand, limits: Limits, local_limit: int, now: datetime
    ) -> list[Job]:
        """Claim from one limited queue under its lock, debiting its rate.

        ``local_limit`` caps each key of a partition without ``global_limit``.

        Contract: §6; rules 12–14, 19.
        """
        ...

    def renew_leases(self, leases: Sequence[Lease], *, until: datetime) -> Renewal:
        """Contract: §6; rules 15, 16, 19."""
        ...

    def reclaim_expired(self, *, now: datetime, backoff: Backoff, limit: int = 200) -> list[Reclaimed]:
        """Take back leases that ran out, with full settlement; a bounded batch.

        Rows that cannot be handled are left and logged; they stop no other row (rule 4).

        Contract: §6; rules 4, 16, 19.
        """
        ...

    def ack(self, ack: Ack, *, now: datetime) -> AckResult:
        """Fenced terminal or park write, settlement, parent notification: one atomic unit (§7)."""
        ...

    def ack_group(self, acks: Sequence[Ack], *, now: datetime) -> list[AckResult]:
        """Acks of many jobs in as few transactions as rule 21 allows; results by index.

        A member that fails is sent alone; what still fails raises with nothing of that
        member written, after all others were: ``AckGroupError``.
        """
        ...

    def hand_back(self, leases: Sequence[Lease], *, now: datetime) -> list[AckResult]:
        """Return jobs that a stopping process will not run: ready now, attempt returned."""
        ...

    # control (§8.6; rules 5, 9, 10, 19, 34, 38)

    def retry(self, job_id: int, *, now: datetime) -> Controlled: ...

    def request_cancel(
        self, job_id: int, *, reason: str, tree: bool = False, now: datetime
    ) -> list[Controlled]:
        """Cancel a job, with ``tree`` its incomplete descendants too; the job itself first."""
        ...

    def retry_many(self, job_ids: Sequence[int], *, now: datetime) -> list[Controlled]:
        """Retry jobs, dependencies before dependents; answers in the order of the ids."""
        ...

    def cancel_many(self, job_ids: Sequence[int], *, reason: str, now: datetime) -> list[Controlled]:
        """Cancel jobs in the order given, some hundred a transaction."""
        ...

    def reschedule(self, job_id: int, *, ready_at: datetime, now: datetime) -> Controlled:
        """Ready: due then; awaiting: its deadline (``now`` means "time out now")."""
        ...

    def move(
        self, job_id: int, *, queue: str | None = None, priority: int | None = None, now: datetime
    ) -> Controlled: ...

    def freeze(self, job_id: int, *, now: datetime) -> Controlled: ...

    def unfreeze(self, job_id: int, *, now: datetime) -> Controlled: ...

    def erase_payload(self, job_id: int, *, now: datetime) -> Controlled:
        """Replace input, meta, result, step values, events and error texts of a finished job."""
        ...

    # journal of a job (§8.2; rules 28–31, 37)

    def get_standing(self, job_id: int) -> Standing:
        """The pre-flight re-read (§8.2). Raises ``JobNotFound``."""
        ...

    def get_steps(self, job_id: int) -> list[Step]:
        """By ``seq``."""
        ...

    def get_short_journals(self, job_ids: Sequence[int]) -> Mapping[int, list[Step]]:
        """The steps of several jobs at once, by ``seq``; jobs with many or large ones are left out."""
        ...

    def find_step(self, job_id: int, name: str) -> Step | None: ...

    def put_step(self, job_id: int, step: NewStep, *, now: datetime) -> StepWritten:
        """Journal and charge in one round trip; the first value of a name stays (rule 29).

        Raises:
            JobNotFound: The job is gone; nothing was written (rule 30).
        """
        ...

    def append_event(self, job_id: int, payload: JSON, *, now: datetime) -> int:
        """The event's ``seq``. Raises ``JobNotFound``."""
        ...

    def list_events(self, job_id: int, *, after: int = 0, limit: int = 1000) -> list[Event]: ...

    # signals (§8.1; rules 10, 23)

    def find_signal(
        self, scopes: Sequence[str], name: str, *, newer_than: datetime | None = None
    ) -> Signal | None:
        """The signal that wins: of the first scope, in the given order, that has one (rules 23, 27)."""
        ...

    def list_signals(self, scope: str) -> list[Signal]: ...

    def put_signal(
        self, scope: str, name: str, payload: JSON, *, to_job: bool = False, now: datetime
    ) -> list[int]:
        """Upsert and wake under the scope's lock; ids of the jobs woken.

        Raises:
            JobNotFound: With ``to_job``, the job that the scope names is gone; nothing was written.
        """
        ...

    def write_signal(
        self, scope: str, name: str, payload: JSON, *, to_job: bool = False, now: datetime
    ) -> None:
        """The upsert alone, in the caller's transaction; ``wake_awaiting`` follows its commit.

        Raises:
            JobNotFound: As :meth:`put_signal`.
        """
        ...

    def wake_awaiting(self, scope: str, name: str, *, now: datetime) -> list[int]:
        """Wake whoever waits for a signal that is there, in a transaction of its own."""
        ...

    def clear_signal(self, scope: str, name: str) -> bool:
        """Whether there was one."""
        ...

    def clear_signal_in_run(
        self, lease: Lease, scope: str, name: str, *, step: str | None = None, now: datetime
    ) -> bool | None:
        """Clear for a run while it holds its lease; ``None`` when nothing was done.

        With ``step``, whether there was one is journaled under that name in the same
        transaction; where that name stands already, nothing is done. Otherwise a run after
        a crash would clear a signal that came since.
        """
        ...

    # limits

    def debit_rate(self, bucket: str, *, amount: int, period_s: int, now: datetime) -> None:
        """Add to the bucket's current window; a negative amount credits (§6)."""
        ...

    # maintenance (§8.4, §8.7; rules 23, 25, 32, 36)

    def prune_jobs(
        self, retention: Mapping[State, timedelta | None], *, now: datetime, limit: int = 500
    ) -> int:
        """Delete one batch of ended jobs past their retention with steps and events; how many."""
        ...

    def prune_signals(self, *, older_than: datetime, limit: int = 500) -> int: ...

    def prune_rate(self, *, older_than: datetime) -> int: ...

    def prune_nodes(self, *, older_than: datetime) -> int: ...

    def resettle_parents(self, *, now: datetime, limit: int = 500) -> int:
        """Wake jobs that wait for ``$children`` with no incomplete child left (§8.4, R2)."""
        ...

    def resettle_signals(self, *, now: datetime, limit: int = 500) -> int:
        """Wake jobs whose signal is there: foreign scopes, lost wakes (rules 10, 23)."""
        ...

    def resettle_workflows(self, *, now: datetime, limit: int = 100) -> int:
        """Settle workflows whose held members could move; members changed."""
        ...

    # runtime rows (§3, §8.5; rules 2, 35)

    def put_queue(self, name: str, opts: JSON, *, now: datetime) -> None: ...

    def delete_queue(self, name: str) -> bool: ...

    def list_queues(self) -> list[QueueRow]: ...

    def pause_queue(self, name: str, *, node: str | None = None, now: datetime) -> None:
        """Pause a queue on every node, or on one; the two stand beside each other."""
        ...

    def resume_queue(self, name: str, *, node: str | None = None, now: datetime) -> None:
        """Take back the pause for every node, or the one for this node."""
        ...

    def put_cron(self, cron: CronRow, *, now: datetime) -> None: ...

    def delete_cron(self, name: str) -> bool: ...

    def list_crons(self) -> list[CronRow]: ...

    def pause_cron(self, name: str, *, now: datetime) -> bool: ...

    def resume_cron(self, name: str, *, now: datetime) -> bool: ...

    def last_cron_slots(self) -> dict[str, datetime]:
        """The newest slot of each entry that was fired or passed over."""
        ...

    def fire_cron(self, job: NewJob, *, now: datetime) -> Inserted | None:
        """Insert an entry's job and remember its slot together; ``None`` when it was fired before."""
        ...

    def beat(self, node: NodeRow) -> None: ...

    def list_nodes(self) -> list[NodeRow]: ...

    # steps that commit with the caller's ORM work (rule 31)

    def atomic_step(self) -> AbstractContextManager[Storage]:
        """A storage whose ``put_step`` runs in the outermost transaction of this thread's
        own database connection; leaving the block commits both.

        Raises:
            ConfigurationError: The storage cannot, or a transaction is open already.
        """
        ...


class AckGroupError(Exception):
    """Some acks of a group could not be written; the others were.

    Attributes:
        results: What happened to each ack, by index; ``None`` for those that failed.
        failures: Index and error of those.
    """

    def __init__(self, results: list[AckResult | None], failures: Mapping[int, Exception]) -> None:
        self.results = results
        self.failures = failures
        super().__init__(f"{len(failures)} of {len(results)} acks failed: {next(iter(failures.values()))}")
