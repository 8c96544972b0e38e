"""The Storage protocol on a journal that this process owns: a facade, one line a method.

What a method does stands in the module it calls; what it promises in
:class:`django_belay.storage.base.Storage`. Each method is one operation under the owner's lock,
answered once its records are durable.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Final, TypeVar

from django_belay.contract.admission import Limits
from django_belay.contract.job import JSON, Event, Job, Lease, NewJob, Signal, Standing, Step
from django_belay.contract.outcome import Snoozed
from django_belay.contract.state import State
from django_belay.exceptions import ConfigurationError
from django_belay.storage.base import (
    Ack,
    AckGroupError,
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
from django_belay.storage.journal.files.journal import Journal

from . import (
    claiming,
    control,
    ending,
    job_journal,
    moving,
    reading,
    runtime,
    signals,
)
from . import (
    retention as keeping,
)
from .claiming import Expired
from .facts import facts_of
from .hub import Hub, HubListener
from .inserting import Inserter
from .instants import floor_ms
from .memory import Memory, Observer, Profile
from .row import Row, job_of
from .unit import Unit

logger = logging.getLogger("django_belay.sweeper")

T = TypeVar("T")

#: Why there is no atomic step.
ATOMIC_STEP: Final = (
    "an atomic step needs a storage in the database of your models; the journal is no such "
    "database: make the step's database work safe to repeat, and leave out atomic=True"
)


class JournalStore:
    """A :class:`~django_belay.storage.base.Storage` over a journal.

    Args:
        journal: Owned and active; closed with the store.
        now: When this owner began: what ran then keeps running for ``lease_ttl``.
        profile: ``strict`` writes nothing but the contract's own records, and refuses what they cannot say.
    """

    def __init__(
        self,
        journal: Journal,
        *,
        now: datetime,
        lease_ttl: timedelta = timedelta(seconds=30),
        profile: Profile = "belay",
    ) -> None:
        self.journal = journal
        self.hub = Hub()
        with journal.lock:
            self.memory = Memory(
                journal,
                lease_ms=lease_ttl // timedelta(milliseconds=1),
                now_ms=floor_ms(now),
                profile=profile,
            )
        self._nodes: dict[str, NodeRow] = {}
        #: How many seconds the inspection index is behind; ``None`` where nobody writes one.
        self.index_lag: Callable[[], float | None] = lambda: None

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(transactional_enqueue=False, atomic_steps=False, hints=True)

    def check_schema(self) -> None:
        """A store of another version is refused when it is opened."""

    def read_clock(self) -> datetime:
        return datetime.now(UTC)

    def listener(self) -> Listener | None:
        return HubListener(self.hub)

    def close(self) -> None:
        self.journal.close()

    # -- watching

    def watch(self, observer: Observer) -> Callable[[], None]:
        """Tell an observer of every change from now on; call the answer to stop it."""
        with self.journal.lock:
            self.memory.observers = [*self.memory.observers, observer]

        def leave() -> None:
            with self.journal.lock:
                self.memory.observers = [one for one in self.memory.observers if one is not observer]

        return leave

    def durable_sequence(self) -> tuple[str, int]:
        """Generation and sequence that everything acknowledged so far stands at or before.

        Sequences of two generations cannot be compared: a compaction begins a new count.
        """
        with self.journal.lock:
            generation = self.journal.recovered.authority.current.epoch_id.hex()
            return generation, self.journal.tail.planned.next_sequence - 1

    def is_durable(self, mark: tuple[str, int]) -> bool:
        """Whether everything is that :meth:`durable_sequence` spoke of then.

        A compaction begins once everything before it is durable.
        """
        with self.journal.lock:
            generation, _ = self.durable_sequence()
            return generation != mark[0] or self.journal.through >= mark[1]

    def facts(self) -> dict[str, JSON]:
        """How the store stands, for who looks after it: JSON by name."""
        with self.journal.lock:
            found = facts_of(self.journal, self.memory)
        return {**found, "index_lag_s": self.index_lag()}

    # -- one operation ------------------------------------------------------

    def _apply(self, name: str, now: datetime, operation: Callable[[Unit], T]) -> T:
        """Decide and write; the answer holds once :meth:`_wait` has waited."""
        with self.journal.deciding():
            unit = Unit(self.memory, name, now)
            answer = operation(unit)
            written = self.memory.commit(unit)
            if written:
                self._written = written, self.journal.turn
        if unit.queues_due or unit.ended:
            self.hub.publish(queues=unit.queues_due, ended=unit.ended)
        return answer

    _written: tuple[int, int] | None = None

    def _write(self, name: str, now: datetime, operation: Callable[[Unit], T]) -> T:
        answer = self._apply(name, now, operation)
        self._wait()
        return answer

    def _wait(self) -> None:
        """Answer nothing that is not durable, what others wrote and this answer saw included."""
        if self._written is not None:
            self.journal.wait(*self._written)

    def _read(self, operation: Callable[[Unit], T], now: datetime | None = None) -> T:
        with self.journal.lock:
            return operation(Unit(self.memory, "read", now if now is not None else _NEVER))

    # -- jobs

    def insert_jobs(self, jobs: Sequence[NewJob], *, now: datetime) -> list[Inserted]:
        return self._write("insert", now, lambda unit: Inserter(unit).insert(jobs))

    def reserve_ids(self, count: int, *, now: datetime) -> list[int]:
        """Ids for jobs that will be inserted once the caller's transaction has committed."""
        with self.journal.lock:
            return [self.memory.ids.draw(floor_ms(now)) for _ in range(count)]

    def insert_reserved(self, jobs: Sequence[NewJob], ids: Sequence[int], *, now: datetime) -> list[Inserted]:
        """Insert under reserved ids; sent again, it finds them there."""
        return self._write("insert", now, lambda unit: Inserter(unit).insert(jobs, ids=ids))

    def insert_members(
        self, jobs: Sequence[NewJob], ids: Sequence[int], *, workflow_id: str, now: datetime
    ) -> list[Inserted]:
        """Insert a new workflow under reserved ids, or refuse with ``InvalidWorkflow``."""
        return self._write(
            "insert", now, lambda unit: Inserter(unit).insert_members(jobs, ids, workflow_id=workflow_id)
        )

    def get_job(self, job_id: int) -> Job:
        return self._read(lambda unit: job_of(unit.get(job_id)))

    def list_jobs(self, jobs: JobFilter, *, limit: int) -> list[Job]:
        return self._read(lambda unit: reading.list_jobs(unit, jobs, limit=limit))

    def find_by_unique_key(self, key: str) -> Job | None:
        return self._read(lambda unit: reading.find_by_unique_key(unit, key))

    def children(self, parent_id: int) -> list[Job]:
        return self._read(lambda unit: reading.children(unit, parent_id))

    def has_incomplete_child(self, parent_id: int, *, spawns: Sequence[str] | None = None) -> bool:
        return self._read(lambda unit: reading.has_incomplete_child(unit, parent_id, spawns=spawns))

    def find_spawned(self, parent_id: int, keys: Sequence[str]) -> dict[str, int]:
        return self._read(lambda unit: reading.find_spawned(unit, parent_id, keys))

    def child_ends(self, parent_id: int, ids: Sequence[int]) -> list[ChildEnd]:
        return self._read(lambda unit: reading.child_ends(unit, parent_id, ids))

    def has_retry_ahead(self, queues: Sequence[str], *, now: datetime) -> bool:
        return self._read(lambda unit: reading.has_retry_ahead(unit, queues), now)

    def workflow_jobs(self, workflow_id: str) -> list[Job]:
        return self._read(lambda unit: reading.workflow_jobs(unit, workflow_id))

    def workflow_states(self, workflow_id: str) -> list[MemberState]:
        return self._read(lambda unit: reading.workflow_states(unit, workflow_id))

    def has_open_member(self, workflow_id: str) -> bool:
        workflow = self.memory.view.workflows.get(workflow_id)
        return workflow is not None and workflow.open > 0

    def queue_stats(self, *, now: datetime) -> list[QueueStats]:
        return self._read(reading.queue_stats, now)

    def register_waiter(self, job_id: int, *, until: datetime, now: datetime) -> None:
        self.hub.register_waiter(job_id, until_ms=floor_ms(until), now_ms=floor_ms(now))

    # -- work

    def claim(
        self,
        round_: ClaimRound,
        *,
        demands: Sequence[Demand],
        limited: Sequence[str] = (),
        now: datetime,
    ) -> Claimed:
        return self._write("claim", now, lambda unit: claiming.claim(unit, round_, demands, limited))

    def claim_limited(
        self, round_: ClaimRound, *, demand: Demand, limits: Limits, local_limit: int, now: datetime
    ) -> list[Job]:
        return self._write(
            "claim", now, lambda unit: claiming.claim_limited(unit, round_, demand, limits, local_limit)
        )

    def renew_leases(self, leases: Sequence[Lease], *, until: datetime) -> Renewal:
        with self.journal.lock:
            renewal = self._read(lambda unit: claiming.renew(unit, leases, until))
            self._tell_of_leases(leases)
        return renewal

    def _tell_of_leases(self, leases: Sequence[Lease]) -> None:
        """Renewals stand in no record; whoever watches sees them all the same."""
        if not self.memory.observers:
            return
        rows = self.memory.view.open
        renewed = {lease.job_id: rows[lease.job_id] for lease in leases if lease.job_id in rows}
        for observer in self.memory.observers:
            observer(0, renewed, {})

    def adopt_leases(self, leases: Sequence[Lease]) -> None:
        """Tell an owner that took over whose runs these are."""
        with self.journal.lock:
            self._read(lambda unit: claiming.adopt(unit, leases))
            self._tell_of_leases(leases)

    def reclaim_expired(self, *, now: datetime, backoff: Backoff, limit: int = 200) -> list[Reclaimed]:
        return self._reclaim(lambda row: backoff(row["attempt"]), now=now, limit=limit)

    def find_expired(self, *, now: datetime, limit: int) -> list[Expired]:
        """Whose leases ran out; for a caller that cannot send its backoff, see :meth:`reclaim`."""
        return self._read(lambda unit: claiming.find_expired(unit, limit=limit), now)

    def reclaim(self, delays: Mapping[int, timedelta], *, now: datetime, limit: int = 200) -> list[Reclaimed]:
        """As :meth:`reclaim_expired`, with the delay of each job that may be taken back."""
        return self._reclaim(lambda row: delays.get(row["id"]), now=now, limit=limit)

    def _reclaim(
        self, delay_of: Callable[[Row], timedelta | None], *, now: datetime, limit: int
    ) -> list[Reclaimed]:
        reclaimed: list[Reclaimed] = []
        with self.journal.deciding():
            for row in self.memory.view.expired(floor_ms(now)):
                if len(reclaimed) == limit:
                    break
                try:
                    delay = delay_of(row)
                    if delay is None:
                        continue
                    take_back = partial(claiming.reclaim_one, row=row, delay=delay)
                    reclaimed.append(self._apply("reclaim", now, take_back))
                except Exception as error:
                    logger.warning(
                        "The expired lease of job %s (%s) could not be taken back: %s",
                        row["id"],
                        row["kind"],
                        error,
                        extra={"belay_job_id": row["id"], "belay_kind": row["kind"]},
                    )
        self._wait()
        return reclaimed

    def ack(self, ack: Ack, *, now: datetime) -> AckResult:
        return self._write("ack", now, lambda unit: self._end(unit, ack))

    def ack_group(self, acks: Sequence[Ack], *, now: datetime) -> list[AckResult]:
        results: list[AckResult | None] = []
        failures: dict[int, Exception] = {}
        for index, one in enumerate(acks):
            try:
                results.append(self._apply("ack", now, partial(self._end, ack=one)))
            except Exception as error:
                results.append(None)
                failures[index] = error
        self._wait()
        if failures:
            raise AckGroupError(results, failures)
        return [result for result in results if result is not None]

    def _end(self, unit: Unit, ack: Ack) -> AckResult:
        return ending.ack(unit, ack)

    def hand_back(self, leases: Sequence[Lease], *, now: datetime) -> list[AckResult]:
        return self.ack_group([Ack(lease=lease, outcome=Snoozed(until=now)) for lease in leases], now=now)

    # -- control

    def retry(self, job_id: int, *, now: datetime) -> Controlled:
        return self.retry_many([job_id], now=now)[0]

    def request_cancel(
        self, job_id: int, *, reason: str, tree: bool = False, now: datetime
    ) -> list[Controlled]:
        def cancel(unit: Unit) -> list[Controlled]:
            ids = control.tree_of(unit, job_id) if tree and unit.has(job_id) else [job_id]
            return control.cancel(unit, ids, reason=reason)

        return self._write("cancel", now, cancel)

    def retry_many(self, job_ids: Sequence[int], *, now: datetime) -> list[Controlled]:
        return self._write("retry", now, lambda unit: control.retry(unit, job_ids))

    def cancel_many(self, job_ids: Sequence[int], *, reason: str, now: datetime) -> list[Controlled]:
        return self._write("cancel", now, lambda unit: control.cancel(unit, job_ids, reason=reason))

    def reschedule(self, job_id: int, *, ready_at: datetime, now: datetime) -> Controlled:
        return self._write(
            "reschedule", now, lambda unit: control.reschedule(unit, job_id, ready_at=ready_at)
        )

    def move(
        self, job_id: int, *, queue: str | None = None, priority: int | None = None, now: datetime
    ) -> Controlled:
        return self._write(
            "move", now, lambda unit: control.move(unit, job_id, queue=queue, priority=priority)
        )

    def freeze(self, job_id: int, *, now: datetime) -> Controlled:
        return self._write("freeze", now, lambda unit: control.freeze(unit, job_id))

    def unfreeze(self, job_id: int, *, now: datetime) -> Controlled:
        return self._write("unfreeze", now, lambda unit: control.unfreeze(unit, job_id))

    def erase_payload(self, job_id: int, *, now: datetime) -> Controlled:
        return self._write("erase_payload", now, lambda unit: control.erase_payload(unit, job_id))

    # -- journal of a job

    def atomic_step(self) -> AbstractContextManager[Storage]:
        raise ConfigurationError(ATOMIC_STEP)

    def get_standing(self, job_id: int) -> Standing:
        return self._read(lambda unit: job_journal.standing_of(unit.get(job_id)))

    def get_steps(self, job_id: int) -> list[Step]:
        return self._read(lambda unit: job_journal.get_steps(unit, job_id))

    def get_short_journals(self, job_ids: Sequence[int]) -> Mapping[int, list[Step]]:
        return {}  # a read costs no round trip here

    def find_step(self, job_id: int, name: str) -> Step | None:
        return self._read(lambda unit: job_journal.find_step(unit, job_id, name))

    def put_step(self, job_id: int, step: NewStep, *, now: datetime) -> StepWritten:
        return self._write("put_step", now, lambda unit: job_journal.put_step(unit, job_id, step))

    def append_event(self, job_id: int, payload: JSON, *, now: datetime) -> int:
        return self._write("append_event", now, lambda unit: job_journal.append_event(unit, job_id, payload))

    def list_events(self, job_id: int, *, after: int = 0, limit: int = 1000) -> list[Event]:
        return self._read(lambda unit: job_journal.list_events(unit, job_id, after=after, limit=limit))

    # -- signals

    def find_signal(
        self, scopes: Sequence[str], name: str, *, newer_than: datetime | None = None
    ) -> Signal | None:
        return self._read(lambda unit: signals.find_signal(unit, scopes, name, newer_than=newer_than))

    def list_signals(self, scope: str) -> list[Signal]:
        return self._read(lambda unit: signals.list_signals(unit, scope))

    def put_signal(
        self, scope: str, name: str, payload: JSON, *, to_job: bool = False, now: datetime
    ) -> list[int]:
        def put(unit: Unit) -> list[int]:
            signals.check_target(unit, scope, to_job=to_job)
            return moving.deliver(unit, scope, name, payload)

        return self._write("put_signal", now, put)

    def write_signal(
        self, scope: str, name: str, payload: JSON, *, to_job: bool = False, now: datetime
    ) -> None:
        def write(unit: Unit) -> None:
            signals.check_target(unit, scope, to_job=to_job)
            moving.write_signal(unit, scope, name, payload)

        self._write("put_signal", now, write)

    def wake_awaiting(self, scope: str, name: str, *, now: datetime) -> list[int]:
        def wake(unit: Unit) -> list[int]:
            is_there = unit.table_row("signals", moving.signal_key(scope, name)) is not None
            return moving.wake(unit, scope, name) if is_there else []

        return self._write("put_signal", now, wake)

    def clear_signal(self, scope: str, name: str) -> bool:
        return self._write("clear_signal", _now(), lambda unit: signals.clear(unit, scope, name))

    def clear_signal_in_run(
        self, lease: Lease, scope: str, name: str, *, step: str | None = None, now: datetime
    ) -> bool | None:
        return self._write(
            "clear_signal", now, lambda unit: signals.clear_in_run(unit, lease, scope, name, step=step)
        )

    # -- limits

    def debit_rate(self, bucket: str, *, amount: int, period_s: int, now: datetime) -> None:
        self._write(
            "debit_rate",
            now,
            lambda unit: claiming.debit_rate(unit, bucket, amount=amount, period_s=period_s),
        )

    # -- maintenance

    def prune_jobs(
        self, retention: Mapping[State, timedelta | None], *, now: datetime, limit: int = 500
    ) -> int:
        with self.journal.lock:
            return keeping.prune_jobs(self.memory, retention, now=now, limit=limit)

    def prune_signals(self, *, older_than: datetime, limit: int = 500) -> int:
        return self._write(
            "prune_signals",
            _now(),
            lambda unit: signals.prune(unit, older_than=older_than, limit=limit),
        )

    def prune_rate(self, *, older_than: datetime) -> int:
        return self._write(
            "prune_rate", _now(), lambda unit: claiming.prune_rate(unit, older_than=older_than)
        )

    def prune_nodes(self, *, older_than: datetime) -> int:
        old = [name for name, node in self._nodes.items() if node.beat_at < older_than]
        for name in old:
            self._nodes.pop(name, None)
        return len(old)

    def resettle_parents(self, *, now: datetime, limit: int = 500) -> int:
        return self._write("resettle", now, lambda unit: signals.resettle_parents(unit, limit=limit))

    def resettle_signals(self, *, now: datetime, limit: int = 500) -> int:
        return self._write("resettle", now, lambda unit: signals.resettle(unit, limit=limit))

    def resettle_workflows(self, *, now: datetime, limit: int = 100) -> int:
        """Nothing is ever left unsettled by this engine; every held member is looked at all the same."""
        changed = 0
        for workflow_id in self._held_workflows()[:limit]:
            changed += self._write("resettle", now, partial(moving.resettle, workflow_id=workflow_id))
        return changed

    def _held_workflows(self) -> list[str]:
        with self.journal.lock:
            rows = self.memory.view.open.values()
            held = {row["workflow_id"] for row in rows if row["state"] == "held"}
        return sorted(one for one in held if one is not None)

    # -- runtime rows

    def put_queue(self, name: str, opts: JSON, *, now: datetime) -> None:
        self._write("put_queue", now, lambda unit: runtime.put_queue(unit, name, opts))

    def delete_queue(self, name: str) -> bool:
        return self._write("delete_queue", _now(), lambda unit: runtime.delete_queue(unit, name))

    def list_queues(self) -> list[QueueRow]:
        return self._read(runtime.list_queues)

    def pause_queue(self, name: str, *, node: str | None = None, now: datetime) -> None:
        self._write("pause_queue", now, lambda unit: runtime.pause_queue(unit, name, node))

    def resume_queue(self, name: str, *, node: str | None = None, now: datetime) -> None:
        self._write("resume_queue", now, lambda unit: runtime.resume_queue(unit, name, node))

    def put_cron(self, cron: CronRow, *, now: datetime) -> None:
        self._write("put_cron", now, lambda unit: runtime.put_cron(unit, cron))

    def delete_cron(self, name: str) -> bool:
        return self._write("delete_cron", _now(), lambda unit: runtime.delete_cron(unit, name))

    def list_crons(self) -> list[CronRow]:
        return self._read(runtime.list_crons)

    def pause_cron(self, name: str, *, now: datetime) -> bool:
        return self._write("pause_cron", now, lambda unit: runtime.set_cron_paused(unit, name, paused=True))

    def resume_cron(self, name: str, *, now: datetime) -> bool:
        return self._write("pause_cron", now, lambda unit: runtime.set_cron_paused(unit, name, paused=False))

    def last_cron_slots(self) -> dict[str, datetime]:
        return self._read(runtime.last_cron_slots)

    def fire_cron(self, job: NewJob, *, now: datetime) -> Inserted | None:
        return self._write("fire_cron", now, lambda unit: runtime.fire_cron(unit, job))

    def beat(self, node: NodeRow) -> None:
        self._nodes[node.incarnation] = node

    def list_nodes(self) -> list[NodeRow]:
        return sorted(self._nodes.values(), key=lambda node: (node.node, node.started_at, node.incarnation))


_NEVER = datetime.min.replace(tzinfo=UTC)


def _now() -> datetime:
    """For the few operations that the protocol gives no instant: it stands in the record alone."""
    return datetime.now(UTC)
