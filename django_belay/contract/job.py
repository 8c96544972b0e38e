"""Records of the wire tables as Python values (§3)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal, TypeAlias

from django_belay.contract.state import State

JSON: TypeAlias = Any  # a value that orjson can carry; the only Any in public signatures

UniqueMode = Literal["incomplete", "window", "always"]

MICROS_PER_DOLLAR = 1_000_000


@dataclass(slots=True, kw_only=True, frozen=True)
class NewJob:
    """A row to insert: what the enqueuer chooses. The storage adds id and instants.

    ``input`` and ``meta`` are JSON objects that were checked already. ``ready_at``
    is ``None`` for "now". ``state`` is ``held`` for a workflow member with deps.

    Contract: §3, §5.1.
    """

    kind: str
    queue: str = "default"
    input: dict[str, JSON] = field(default_factory=dict)
    meta: dict[str, JSON] = field(default_factory=dict)
    state: Literal["ready", "held"] = "ready"
    priority: int = 0
    max_attempts: int = 20
    partition_key: str | None = None
    ready_at: datetime | None = None
    workflow_id: str | None = None
    wf_name: str | None = None
    wf_deps: tuple[str, ...] = ()
    wf_ignore: tuple[str, ...] = ()
    cron_name: str | None = None
    cron_slot: datetime | None = None
    unique_key: str | None = None
    unique_mode: UniqueMode | None = None
    parent_id: int | None = None
    budget_usd_micros: int | None = None
    budget_tokens: int | None = None


@dataclass(slots=True)
class Job:
    """A row of ``belay_jobs`` as read at one instant. Nobody writes to it.

    Instants are aware datetimes in UTC, money is integer micro-dollars, ``result``
    is an envelope. ``input``, ``meta`` and ``errors`` are decoded JSON, or an
    ``Opaque`` where a row holds what Python cannot carry (rule 4).

    Contract: §3. (Neither frozen nor keyword-only: claims build thousands a second
    from tuples, and either would cost three times as much.)
    """

    id: int
    kind: str
    queue: str
    state: State
    input: JSON
    meta: JSON
    priority: int
    attempt: int
    max_attempts: int
    partition_key: str | None
    ready_at: datetime | None
    lease_until: datetime | None
    leased_by: str | None
    await_scope: str | None
    await_name: str | None
    workflow_id: str | None
    wf_name: str | None
    wf_deps: Sequence[str]
    wf_ignore: Sequence[str]
    cron_name: str | None
    cron_slot: datetime | None
    unique_key: str | None
    unique_mode: str | None
    parent_id: int | None
    budget_usd_micros: int | None
    budget_tokens: int | None
    spent_usd_micros: int
    spent_tokens: int
    result: bytes | None
    errors: JSON
    cancel_requested: bool
    inserted_at: datetime
    started_at: datetime | None
    finished_at: datetime | None


@dataclass(slots=True, kw_only=True, frozen=True)
class Lease:
    """What fences a run: the claim round that took the job (§7, rule 15).

    ``workflow_id`` and ``parent_id`` never change, so an ack can take their locks
    before it touches the row (rule 19).
    """

    job_id: int
    attempt: int
    leased_by: str
    workflow_id: str | None = None
    parent_id: int | None = None

    @classmethod
    def of(cls, job: Job) -> Lease:
        """The lease that a claimed job is held under."""
        if job.leased_by is None:
            raise ValueError(f"job {job.id} is not claimed: state {job.state!r}, no leased_by")
        return cls(
            job_id=job.id,
            attempt=job.attempt,
            leased_by=job.leased_by,
            workflow_id=job.workflow_id,
            parent_id=job.parent_id,
        )


@dataclass(slots=True, kw_only=True, frozen=True)
class Standing:
    """What a run re-reads of its job before it pays for a step (§8.2, rules 16, 22)."""

    state: State
    leased_by: str | None
    cancel_requested: bool
    budget_usd_micros: int | None
    budget_tokens: int | None
    spent_usd_micros: int
    spent_tokens: int

    @property
    def over_budget(self) -> bool:
        """Whether the durable spend exceeds a budget column (§8.2)."""
        usd, tokens = self.budget_usd_micros, self.budget_tokens
        return (usd is not None and self.spent_usd_micros > usd) or (
            tokens is not None and self.spent_tokens > tokens
        )

    def is_held_by(self, lease: Lease) -> bool:
        """Whether the run under ``lease`` still owns the job (rule 15)."""
        return self.state == "running" and self.leased_by == lease.leased_by


@dataclass(slots=True, kw_only=True, frozen=True)
class Step:
    """A journaled step: ``value`` is an envelope (§8.2)."""

    job_id: int
    seq: int
    name: str
    value: bytes | None
    usd_micros: int
    tokens: int
    inserted_at: datetime | None


@dataclass(slots=True, kw_only=True, frozen=True)
class Event:
    """An entry of a job's append-only stream (§3)."""

    job_id: int
    seq: int
    payload: JSON
    inserted_at: datetime | None


@dataclass(slots=True, kw_only=True, frozen=True)
class Signal:
    """An inbox entry: the latest payload of a name in a scope (§8.1)."""

    scope: str
    name: str
    payload: JSON
    inserted_at: datetime | None
