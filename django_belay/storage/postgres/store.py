"""The Storage protocol on the belay_* tables: a facade, one line a method.

What a method does stands in the module it calls; what it promises in
:class:`django_belay.storage.base.Storage`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from datetime import datetime, timedelta
from typing import Any

from django_belay.contract.admission import Limits
from django_belay.contract.job import JSON, Event, Job, Lease, NewJob, Signal, Standing, Step
from django_belay.contract.notification import PokePolicy
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
from django_belay.storage.postgres import acks as ends
from django_belay.storage.postgres import (
    claims,
    control,
    events,
    insert,
    maintenance,
    read,
    reclaim,
    runtime,
    schema,
    signals,
    steps,
)
from django_belay.storage.postgres import leases as renewal
from django_belay.storage.postgres import limits as rates
from django_belay.storage.postgres import retention as pruning
from django_belay.storage.postgres.listen import PostgresListener
from django_belay.storage.postgres.session import Session


class PostgresStore:
    """A :class:`~django_belay.storage.base.Storage` over one source of connections.

    Args:
        session: Where statements run: the worker's pool or the caller's connection.
        poke: When an insert pokes its queues (rule 11); shared by the stores of a process.
        listen_params: psycopg's parameters for a direct connection to LISTEN on;
            ``None`` where polling must do.
        combines: Many threads journal steps through this store at once, each statement a
            transaction of its own: what piles up goes together.
    """

    def __init__(
        self,
        session: Session,
        *,
        poke: PokePolicy | None = None,
        listen_params: Mapping[str, Any] | None = None,
        combines: bool = False,
    ) -> None:
        self.session = session
        self.poke = poke if poke is not None else PokePolicy()
        self._listen_params = listen_params
        self._standings = steps.standings(session) if combines else None
        self._writes = steps.writes(session) if combines else None
        self._journals = steps.journals(session) if combines else None
        self._looks = signals.looks(session) if combines else None
        self._pruned = pruning.Cursors()
        self._settled = maintenance.Rotation()

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(
            transactional_enqueue=True, atomic_steps=True, hints=self._listen_params is not None
        )

    def check_schema(self) -> None:
        schema.check(self.session)

    def read_clock(self) -> datetime:
        return runtime.read_clock(self.session)

    def listener(self) -> Listener | None:
        return None if self._listen_params is None else PostgresListener(self._listen_params)

    def close(self) -> None:
        self.session.close()

    # -- jobs

    def insert_jobs(self, jobs: Sequence[NewJob], *, now: datetime) -> list[Inserted]:
        return insert.insert_jobs(self.session, jobs, poke=self.poke, now=now)

    def get_job(self, job_id: int) -> Job:
        return read.get_job(self.session, job_id)

    def list_jobs(self, jobs: JobFilter, *, limit: int) -> list[Job]:
        return read.list_jobs(self.session, jobs, limit=limit)

    def find_by_unique_key(self, key: str) -> Job | None:
        return read.find_by_unique_key(self.session, key)

    def children(self, parent_id: int) -> list[Job]:
        return read.children(self.session, parent_id)

    def has_incomplete_child(self, parent_id: int, *, spawns: Sequence[str] | None = None) -> bool:
        return read.has_incomplete_child(self.session, parent_id, spawns=spawns)

    def find_spawned(self, parent_id: int, keys: Sequence[str]) -> dict[str, int]:
        return read.find_spawned(self.session, parent_id, keys)

    def child_ends(self, parent_id: int, ids: Sequence[int]) -> list[ChildEnd]:
        return read.child_ends(self.session, parent_id, ids)

    def has_retry_ahead(self, queues: Sequence[str], *, now: datetime) -> bool:
        return read.has_retry_ahead(self.session, queues, now=now)

    def workflow_jobs(self, workflow_id: str) -> list[Job]:
        return read.workflow_jobs(self.session, workflow_id)

    def workflow_states(self, workflow_id: str) -> list[MemberState]:
        return read.workflow_states(self.session, workflow_id)

    def has_open_member(self, workflow_id: str) -> bool:
        return read.has_open_member(self.session, workflow_id)

    def queue_stats(self, *, now: datetime) -> list[QueueStats]:
        return read.queue_stats(self.session, now=now)

    def register_waiter(self, job_id: int, *, until: datetime, now: datetime) -> None:
        runtime.register_waiter(self.session, job_id, until=until, now=now)

    # -- work

    def claim(
        self,
        round_: ClaimRound,
        *,
        demands: Sequence[Demand],
        limited: Sequence[str] = (),
        now: datetime,
    ) -> Claimed:
        return claims.claim(self.session, round_, demands=demands, limited=limited, now=now)

    def claim_limited(
        self, round_: ClaimRound, *, demand: Demand, limits: Limits, local_limit: int, now: datetime
    ) -> list[Job]:
        return claims.claim_limited(
            self.session, round_, demand=demand, limits=limits, local_limit=local_limit, now=now
        )

    def renew_leases(self, leases: Sequence[Lease], *, until: datetime) -> Renewal:
        return renewal.renew(self.session, leases, until=until)

    def reclaim_expired(self, *, now: datetime, backoff: Backoff, limit: int = 200) -> list[Reclaimed]:
        return reclaim.reclaim_expired(self.session, now=now, backoff=backoff, limit=limit, poke=self.poke)

    def ack(self, ack: Ack, *, now: datetime) -> AckResult:
        return ends.ack(self.session, ack, poke=self.poke, now=now)

    def ack_group(self, acks: Sequence[Ack], *, now: datetime) -> list[AckResult]:
        return ends.ack_group(self.session, acks, poke=self.poke, now=now)

    def hand_back(self, leases: Sequence[Lease], *, now: datetime) -> list[AckResult]:
        return ends.hand_back(self.session, leases, poke=self.poke, now=now)

    # -- control

    def retry(self, job_id: int, *, now: datetime) -> Controlled:
        return control.retry(self.session, job_id, poke=self.poke, now=now)

    def request_cancel(
        self, job_id: int, *, reason: str, tree: bool = False, now: datetime
    ) -> list[Controlled]:
        return control.request_cancel(self.session, job_id, reason=reason, tree=tree, poke=self.poke, now=now)

    def retry_many(self, job_ids: Sequence[int], *, now: datetime) -> list[Controlled]:
        return control.retry_many(self.session, job_ids, poke=self.poke, now=now)

    def cancel_many(self, job_ids: Sequence[int], *, reason: str, now: datetime) -> list[Controlled]:
        return control.cancel_many(self.session, job_ids, reason=reason, poke=self.poke, now=now)

    def reschedule(self, job_id: int, *, ready_at: datetime, now: datetime) -> Controlled:
        return control.reschedule(self.session, job_id, ready_at=ready_at, poke=self.poke, now=now)

    def move(
        self, job_id: int, *, queue: str | None = None, priority: int | None = None, now: datetime
    ) -> Controlled:
        return control.move(self.session, job_id, queue=queue, priority=priority, poke=self.poke, now=now)

    def freeze(self, job_id: int, *, now: datetime) -> Controlled:
        return control.freeze(self.session, job_id, poke=self.poke, now=now)

    def unfreeze(self, job_id: int, *, now: datetime) -> Controlled:
        return control.unfreeze(self.session, job_id, poke=self.poke, now=now)

    def erase_payload(self, job_id: int, *, now: datetime) -> Controlled:
        return control.erase_payload(self.session, job_id, poke=self.poke, now=now)

    # -- journal of a job

    def atomic_step(self) -> AbstractContextManager[Storage]:
        raise ConfigurationError(
            "an atomic step needs a Django connection to the storage's database; "
            "this storage was made without one"
        )

    def get_standing(self, job_id: int) -> Standing:
        if self._standings is not None:
            return self._standings.ask(job_id)
        return steps.get_standing(self.session, job_id)

    def get_steps(self, job_id: int) -> list[Step]:
        if self._journals is not None:
            return self._journals.ask(job_id)
        return steps.get_steps(self.session, job_id)

    def get_short_journals(self, job_ids: Sequence[int]) -> Mapping[int, list[Step]]:
        return steps.get_short_journals(self.session, job_ids)

    def find_step(self, job_id: int, name: str) -> Step | None:
        return steps.find_step(self.session, job_id, name)

    def put_step(self, job_id: int, step: NewStep, *, now: datetime) -> StepWritten:
        if self._writes is not None and not (step.usd_micros or step.tokens):
            return self._writes.ask(steps.Write(job_id, step, now))
        return steps.put_step(self.session, job_id, step, now=now)

    def append_event(self, job_id: int, payload: JSON, *, now: datetime) -> int:
        return events.append_event(self.session, job_id, payload, now=now)

    def list_events(self, job_id: int, *, after: int = 0, limit: int = 1000) -> list[Event]:
        return events.list_events(self.session, job_id, after=after, limit=limit)

    # -- signals

    def find_signal(
        self, scopes: Sequence[str], name: str, *, newer_than: datetime | None = None
    ) -> Signal | None:
        if self._looks is not None:
            return self._looks.ask(signals.Look(tuple(scopes), name, newer_than))
        return signals.find_signal(self.session, scopes, name, newer_than=newer_than)

    def list_signals(self, scope: str) -> list[Signal]:
        return signals.list_signals(self.session, scope)

    def put_signal(
        self, scope: str, name: str, payload: JSON, *, to_job: bool = False, now: datetime
    ) -> list[int]:
        return signals.put_signal(self.session, scope, name, payload, to_job=to_job, poke=self.poke, now=now)

    def write_signal(
        self, scope: str, name: str, payload: JSON, *, to_job: bool = False, now: datetime
    ) -> None:
        signals.write_signal(self.session, scope, name, payload, to_job=to_job, now=now)

    def wake_awaiting(self, scope: str, name: str, *, now: datetime) -> list[int]:
        return signals.wake_awaiting(self.session, scope, name, poke=self.poke, now=now)

    def clear_signal(self, scope: str, name: str) -> bool:
        return signals.clear_signal(self.session, scope, name)

    def clear_signal_in_run(
        self, lease: Lease, scope: str, name: str, *, step: str | None = None, now: datetime
    ) -> bool | None:
        return signals.clear_signal_in_run(self.session, lease, scope, name, step=step, now=now)

    # -- limits

    def debit_rate(self, bucket: str, *, amount: int, period_s: int, now: datetime) -> None:
        rates.debit_rate(self.session, bucket, amount=amount, period_s=period_s, now=now)

    # -- maintenance

    def prune_jobs(
        self, retention: Mapping[State, timedelta | None], *, now: datetime, limit: int = 500
    ) -> int:
        return pruning.prune_jobs(self.session, self._pruned, retention, now=now, limit=limit)

    def prune_signals(self, *, older_than: datetime, limit: int = 500) -> int:
        return pruning.prune_signals(self.session, older_than=older_than, limit=limit)

    def prune_rate(self, *, older_than: datetime) -> int:
        return pruning.prune_rate(self.session, older_than=older_than)

    def prune_nodes(self, *, older_than: datetime) -> int:
        return pruning.prune_nodes(self.session, older_than=older_than)

    def resettle_parents(self, *, now: datetime, limit: int = 500) -> int:
        return maintenance.resettle_parents(self.session, poke=self.poke, now=now, limit=limit)

    def resettle_signals(self, *, now: datetime, limit: int = 500) -> int:
        return maintenance.resettle_signals(self.session, poke=self.poke, now=now, limit=limit)

    def resettle_workflows(self, *, now: datetime, limit: int = 100) -> int:
        return maintenance.resettle_workflows(
            self.session, self._settled, poke=self.poke, now=now, limit=limit
        )

    # -- runtime rows

    def put_queue(self, name: str, opts: JSON, *, now: datetime) -> None:
        runtime.put_queue(self.session, name, opts, now=now)

    def delete_queue(self, name: str) -> bool:
        return runtime.delete_queue(self.session, name)

    def list_queues(self) -> list[QueueRow]:
        return runtime.list_queues(self.session)

    def pause_queue(self, name: str, *, node: str | None = None, now: datetime) -> None:
        runtime.set_queue_paused(self.session, name, node=node, paused=True, now=now)

    def resume_queue(self, name: str, *, node: str | None = None, now: datetime) -> None:
        runtime.set_queue_paused(self.session, name, node=node, paused=False, now=now)

    def put_cron(self, cron: CronRow, *, now: datetime) -> None:
        runtime.put_cron(self.session, cron, now=now)

    def delete_cron(self, name: str) -> bool:
        return runtime.delete_cron(self.session, name)

    def list_crons(self) -> list[CronRow]:
        return runtime.list_crons(self.session)

    def pause_cron(self, name: str, *, now: datetime) -> bool:
        return runtime.set_cron_paused(self.session, name, paused=True, now=now)

    def resume_cron(self, name: str, *, now: datetime) -> bool:
        return runtime.set_cron_paused(self.session, name, paused=False, now=now)

    def last_cron_slots(self) -> dict[str, datetime]:
        return runtime.last_cron_slots(self.session)

    def fire_cron(self, job: NewJob, *, now: datetime) -> Inserted | None:
        return runtime.fire_cron(self.session, job, poke=self.poke, now=now)

    def beat(self, node: NodeRow) -> None:
        runtime.beat(self.session, node)

    def list_nodes(self) -> list[NodeRow]:
        return runtime.list_nodes(self.session)
