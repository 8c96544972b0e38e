"""The Storage protocol through the owner of a store: what another process uses.

Each connection is a client of the owner with a request open at a time. Where it is lost, the same
request goes out again under the same number, and the owner, or the one that took over, answers it once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Concatenate, Final, ParamSpec, TypeVar

from django_belay.contract.admission import Limits
from django_belay.contract.error_entry import storable_entry
from django_belay.contract.job import JSON, Event, Job, Lease, NewJob, Signal, Standing, Step
from django_belay.contract.outcome import Cancelled, Failed, Retried
from django_belay.contract.state import State
from django_belay.exceptions import ConfigurationError
from django_belay.storage.base import (
    Ack,
    AckResult,
    Backoff,
    Capabilities,
    ChildEnd,
    Claimed,
    ClaimRound,
    Controlled,
    CronRow,
    Demand,
    Inserted,
    JobFilter,
    Listener,
    MemberState,
    NewStep,
    NodeRow,
    QueueRow,
    QueueStats,
    Reclaimed,
    Renewal,
    StepWritten,
    Storage,
)
from django_belay.storage.journal.store.claiming import Expired
from django_belay.storage.journal.store.store import ATOMIC_STEP, JournalStore

from .held import HeldLeases
from .hints import RemoteListener
from .line import Dial, Line, Lines
from .operations import OPERATIONS

P = ParamSpec("P")
T = TypeVar("T")

#: How many expired leases are looked at for each that may be taken back: some cannot be.
_SPARE: Final = 20


class RemoteStore:
    """A :class:`~django_belay.storage.base.Storage` whose owner is reached by a socket.

    Safe to use from many threads, and after a fork.

    Args:
        dial: Gives a connected socket within so many seconds, or raises ``Unavailable``.
        connections: How many there are at most; a call beyond them waits for one.
        patience_s: How long an owner is looked for and an answer waited for, before a call raises ``Unavailable``.
    """

    def __init__(self, dial: Dial, *, connections: int = 64, patience_s: float = 10.0) -> None:
        self._held = HeldLeases()
        self._lines = Lines(dial, most=connections, patience_s=patience_s)
        self._lines.on_take_over = self._tell_of_runs

    def _tell_of_runs(self, line: Line) -> None:
        """Whose core jobs run is in the memory of their owner alone: the next one is told."""
        leases = self._held.all()
        if leases:
            operation = OPERATIONS["adopt_leases"]
            line.ask(operation, operation.encode_call([leases], {}))

    def _ask(self, method: Callable[Concatenate[JournalStore, P], T], *args: P.args, **kwargs: P.kwargs) -> T:
        operation = OPERATIONS[method.__name__]
        answer: T = self._lines.ask(operation, operation.encode_call(args, kwargs))
        return answer

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(transactional_enqueue=False, atomic_steps=False, hints=True)

    def listener(self) -> Listener | None:
        return RemoteListener(self._lines)

    def close(self) -> None:
        self._lines.close()

    def atomic_step(self) -> AbstractContextManager[Storage]:
        raise ConfigurationError(ATOMIC_STEP)

    def insert_jobs(self, jobs: Sequence[NewJob], *, now: datetime) -> list[Inserted]:
        """Under ids reserved before: so a call that is sent again inserts nothing twice."""
        return self.insert_reserved(jobs, self.reserve_ids(len(jobs), now=now), now=now)

    def reclaim_expired(self, *, now: datetime, backoff: Backoff, limit: int = 200) -> list[Reclaimed]:
        expired = self.find_expired(now=now, limit=_SPARE * limit)
        delays = {one.job_id: backoff(one.attempt) for one in expired}
        return self.reclaim(delays, now=now, limit=limit) if delays else []

    def ack(self, ack: Ack, *, now: datetime) -> AckResult:
        result = self._ask(JournalStore.ack, _storable(ack), now=now)
        self._held.drop([ack.lease])
        return result

    def ack_group(self, acks: Sequence[Ack], *, now: datetime) -> list[AckResult]:
        results = self._ask(JournalStore.ack_group, [_storable(ack) for ack in acks], now=now)
        self._held.drop([ack.lease for ack in acks])
        return results

    # -- as they stand

    def durable_sequence(self) -> tuple[str, int]:
        return self._ask(JournalStore.durable_sequence)

    def check_schema(self) -> None:
        return self._ask(JournalStore.check_schema)

    def read_clock(self) -> datetime:
        return self._ask(JournalStore.read_clock)

    def facts(self) -> dict[str, JSON]:
        return self._ask(JournalStore.facts)

    def reserve_ids(self, count: int, *, now: datetime) -> list[int]:
        return self._ask(JournalStore.reserve_ids, count, now=now)

    def insert_reserved(self, jobs: Sequence[NewJob], ids: Sequence[int], *, now: datetime) -> list[Inserted]:
        return self._ask(JournalStore.insert_reserved, jobs, ids, now=now)

    def insert_members(
        self, jobs: Sequence[NewJob], ids: Sequence[int], *, workflow_id: str, now: datetime
    ) -> list[Inserted]:
        return self._ask(JournalStore.insert_members, jobs, ids, workflow_id=workflow_id, now=now)

    def get_job(self, job_id: int) -> Job:
        return self._ask(JournalStore.get_job, job_id)

    def list_jobs(self, jobs: JobFilter, *, limit: int) -> list[Job]:
        return self._ask(JournalStore.list_jobs, jobs, limit=limit)

    def find_by_unique_key(self, key: str) -> Job | None:
        return self._ask(JournalStore.find_by_unique_key, key)

    def children(self, parent_id: int) -> list[Job]:
        return self._ask(JournalStore.children, parent_id)

    def has_incomplete_child(self, parent_id: int, *, spawns: Sequence[str] | None = None) -> bool:
        return self._ask(JournalStore.has_incomplete_child, parent_id, spawns=spawns)

    def find_spawned(self, parent_id: int, keys: Sequence[str]) -> dict[str, int]:
        return self._ask(JournalStore.find_spawned, parent_id, keys)

    def child_ends(self, parent_id: int, ids: Sequence[int]) -> list[ChildEnd]:
        return self._ask(JournalStore.child_ends, parent_id, ids)

    def has_retry_ahead(self, queues: Sequence[str], *, now: datetime) -> bool:
        return self._ask(JournalStore.has_retry_ahead, queues, now=now)

    def workflow_jobs(self, workflow_id: str) -> list[Job]:
        return self._ask(JournalStore.workflow_jobs, workflow_id)

    def workflow_states(self, workflow_id: str) -> list[MemberState]:
        return self._ask(JournalStore.workflow_states, workflow_id)

    def has_open_member(self, workflow_id: str) -> bool:
        return self._ask(JournalStore.has_open_member, workflow_id)

    def queue_stats(self, *, now: datetime) -> list[QueueStats]:
        return self._ask(JournalStore.queue_stats, now=now)

    def register_waiter(self, job_id: int, *, until: datetime, now: datetime) -> None:
        return self._ask(JournalStore.register_waiter, job_id, until=until, now=now)

    def claim(
        self, round_: ClaimRound, *, demands: Sequence[Demand], limited: Sequence[str] = (), now: datetime
    ) -> Claimed:
        claimed = self._ask(JournalStore.claim, round_, demands=demands, limited=limited, now=now)
        self._held.add(claimed.jobs)
        return claimed

    def claim_limited(
        self, round_: ClaimRound, *, demand: Demand, limits: Limits, local_limit: int, now: datetime
    ) -> list[Job]:
        jobs = self._ask(
            JournalStore.claim_limited, round_, demand=demand, limits=limits, local_limit=local_limit, now=now
        )
        self._held.add(jobs)
        return jobs

    def renew_leases(self, leases: Sequence[Lease], *, until: datetime) -> Renewal:
        renewal = self._ask(JournalStore.renew_leases, leases, until=until)
        self._held.drop([lease for lease in leases if lease.job_id in renewal.lost])
        return renewal

    def adopt_leases(self, leases: Sequence[Lease]) -> None:
        return self._ask(JournalStore.adopt_leases, leases)

    def find_expired(self, *, now: datetime, limit: int) -> list[Expired]:
        return self._ask(JournalStore.find_expired, now=now, limit=limit)

    def reclaim(self, delays: Mapping[int, timedelta], *, now: datetime, limit: int = 200) -> list[Reclaimed]:
        return self._ask(JournalStore.reclaim, delays, now=now, limit=limit)

    def hand_back(self, leases: Sequence[Lease], *, now: datetime) -> list[AckResult]:
        results = self._ask(JournalStore.hand_back, leases, now=now)
        self._held.drop(leases)
        return results

    def retry(self, job_id: int, *, now: datetime) -> Controlled:
        return self._ask(JournalStore.retry, job_id, now=now)

    def request_cancel(
        self, job_id: int, *, reason: str, tree: bool = False, now: datetime
    ) -> list[Controlled]:
        return self._ask(
            JournalStore.request_cancel, job_id, reason=_storable_reason(reason), tree=tree, now=now
        )

    def retry_many(self, job_ids: Sequence[int], *, now: datetime) -> list[Controlled]:
        return self._ask(JournalStore.retry_many, job_ids, now=now)

    def cancel_many(self, job_ids: Sequence[int], *, reason: str, now: datetime) -> list[Controlled]:
        return self._ask(JournalStore.cancel_many, job_ids, reason=_storable_reason(reason), now=now)

    def reschedule(self, job_id: int, *, ready_at: datetime, now: datetime) -> Controlled:
        return self._ask(JournalStore.reschedule, job_id, ready_at=ready_at, now=now)

    def move(
        self, job_id: int, *, queue: str | None = None, priority: int | None = None, now: datetime
    ) -> Controlled:
        return self._ask(JournalStore.move, job_id, queue=queue, priority=priority, now=now)

    def freeze(self, job_id: int, *, now: datetime) -> Controlled:
        return self._ask(JournalStore.freeze, job_id, now=now)

    def unfreeze(self, job_id: int, *, now: datetime) -> Controlled:
        return self._ask(JournalStore.unfreeze, job_id, now=now)

    def erase_payload(self, job_id: int, *, now: datetime) -> Controlled:
        return self._ask(JournalStore.erase_payload, job_id, now=now)

    def get_standing(self, job_id: int) -> Standing:
        return self._ask(JournalStore.get_standing, job_id)

    def get_steps(self, job_id: int) -> list[Step]:
        return self._ask(JournalStore.get_steps, job_id)

    def get_short_journals(self, job_ids: Sequence[int]) -> Mapping[int, list[Step]]:
        return self._ask(JournalStore.get_short_journals, job_ids)

    def find_step(self, job_id: int, name: str) -> Step | None:
        return self._ask(JournalStore.find_step, job_id, name)

    def put_step(self, job_id: int, step: NewStep, *, now: datetime) -> StepWritten:
        return self._ask(JournalStore.put_step, job_id, step, now=now)

    def append_event(self, job_id: int, payload: JSON, *, now: datetime) -> int:
        return self._ask(JournalStore.append_event, job_id, payload, now=now)

    def list_events(self, job_id: int, *, after: int = 0, limit: int = 1000) -> list[Event]:
        return self._ask(JournalStore.list_events, job_id, after=after, limit=limit)

    def find_signal(
        self, scopes: Sequence[str], name: str, *, newer_than: datetime | None = None
    ) -> Signal | None:
        return self._ask(JournalStore.find_signal, scopes, name, newer_than=newer_than)

    def list_signals(self, scope: str) -> list[Signal]:
        return self._ask(JournalStore.list_signals, scope)

    def put_signal(
        self, scope: str, name: str, payload: JSON, *, to_job: bool = False, now: datetime
    ) -> list[int]:
        return self._ask(JournalStore.put_signal, scope, name, payload, to_job=to_job, now=now)

    def write_signal(
        self, scope: str, name: str, payload: JSON, *, to_job: bool = False, now: datetime
    ) -> None:
        return self._ask(JournalStore.write_signal, scope, name, payload, to_job=to_job, now=now)

    def wake_awaiting(self, scope: str, name: str, *, now: datetime) -> list[int]:
        return self._ask(JournalStore.wake_awaiting, scope, name, now=now)

    def clear_signal(self, scope: str, name: str) -> bool:
        return self._ask(JournalStore.clear_signal, scope, name)

    def clear_signal_in_run(
        self, lease: Lease, scope: str, name: str, *, step: str | None = None, now: datetime
    ) -> bool | None:
        return self._ask(JournalStore.clear_signal_in_run, lease, scope, name, step=step, now=now)

    def debit_rate(self, bucket: str, *, amount: int, period_s: int, now: datetime) -> None:
        return self._ask(JournalStore.debit_rate, bucket, amount=amount, period_s=period_s, now=now)

    def prune_jobs(
        self, retention: Mapping[State, timedelta | None], *, now: datetime, limit: int = 500
    ) -> int:
        return self._ask(JournalStore.prune_jobs, retention, now=now, limit=limit)

    def prune_signals(self, *, older_than: datetime, limit: int = 500) -> int:
        return self._ask(JournalStore.prune_signals, older_than=older_than, limit=limit)

    def prune_rate(self, *, older_than: datetime) -> int:
        return self._ask(JournalStore.prune_rate, older_than=older_than)

    def prune_nodes(self, *, older_than: datetime) -> int:
        return self._ask(JournalStore.prune_nodes, older_than=older_than)

    def resettle_parents(self, *, now: datetime, limit: int = 500) -> int:
        return self._ask(JournalStore.resettle_parents, now=now, limit=limit)

    def resettle_signals(self, *, now: datetime, limit: int = 500) -> int:
        return self._ask(JournalStore.resettle_signals, now=now, limit=limit)

    def resettle_workflows(self, *, now: datetime, limit: int = 100) -> int:
        return self._ask(JournalStore.resettle_workflows, now=now, limit=limit)

    def put_queue(self, name: str, opts: JSON, *, now: datetime) -> None:
        return self._ask(JournalStore.put_queue, name, opts, now=now)

    def delete_queue(self, name: str) -> bool:
        return self._ask(JournalStore.delete_queue, name)

    def list_queues(self) -> list[QueueRow]:
        return self._ask(JournalStore.list_queues)

    def pause_queue(self, name: str, *, node: str | None = None, now: datetime) -> None:
        return self._ask(JournalStore.pause_queue, name, node=node, now=now)

    def resume_queue(self, name: str, *, node: str | None = None, now: datetime) -> None:
        return self._ask(JournalStore.resume_queue, name, node=node, now=now)

    def put_cron(self, cron: CronRow, *, now: datetime) -> None:
        return self._ask(JournalStore.put_cron, cron, now=now)

    def delete_cron(self, name: str) -> bool:
        return self._ask(JournalStore.delete_cron, name)

    def list_crons(self) -> list[CronRow]:
        return self._ask(JournalStore.list_crons)

    def pause_cron(self, name: str, *, now: datetime) -> bool:
        return self._ask(JournalStore.pause_cron, name, now=now)

    def resume_cron(self, name: str, *, now: datetime) -> bool:
        return self._ask(JournalStore.resume_cron, name, now=now)

    def last_cron_slots(self) -> dict[str, datetime]:
        return self._ask(JournalStore.last_cron_slots)

    def fire_cron(self, job: NewJob, *, now: datetime) -> Inserted | None:
        return self._ask(JournalStore.fire_cron, job, now=now)

    def beat(self, node: NodeRow) -> None:
        return self._ask(JournalStore.beat, node)

    def list_nodes(self) -> list[NodeRow]:
        return self._ask(JournalStore.list_nodes)


def _storable(ack: Ack) -> Ack:
    """An ack whose error entry can be sent: what the store makes of one is made of it here (rule 25)."""
    match ack.outcome:
        case Retried() | Failed() as ended:
            return replace(ack, outcome=replace(ended, error=storable_entry(ended.error)))
        case Cancelled(reason=reason):
            return replace(ack, outcome=Cancelled(reason=_storable_reason(reason)))
    return ack


def _storable_reason(reason: str) -> str:
    return str(storable_entry({"reason": reason})["reason"])
