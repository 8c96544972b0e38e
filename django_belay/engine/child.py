"""A process that runs jobs: claim loop, threads, acknowledger, and its link to the supervisor."""

from __future__ import annotations

import math
import os
import secrets
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from django_belay.contract.job import Lease
from django_belay.engine.acks import Acknowledger
from django_belay.engine.executor import Executor
from django_belay.engine.isolation import Isolation, Spawn
from django_belay.engine.leases import LeaseBook
from django_belay.engine.loop import Loop
from django_belay.engine.producer import Producer
from django_belay.engine.protocol import Channel, ChannelClosed, Message
from django_belay.engine.queue_table import rows_from_json
from django_belay.engine.runner import Runner
from django_belay.engine.services import Services
from django_belay.engine.slots import Slots
from django_belay.engine.telemetry import lease_log, worker_log
from django_belay.engine.watch import Watch
from django_belay.exceptions import LeaseLost, Shutdown, Unavailable
from django_belay.storage.base import QueueRow

STATUS_S = 1.0
# What user code gets to run its finally blocks after the grace, before its jobs are handed back.
LAST_CALL_S = 1.0
BLOCKED_WARNING_S = 2.0


def new_incarnation(node_name: str) -> str:
    """A name that no other process has or will have: the start of every ``leased_by`` (rule 15)."""
    node = node_name.replace(":", "-")
    return f"{node}:{os.getpid()}-{secrets.token_hex(4)}"


@dataclass(slots=True)
class _Link:
    """The publisher of a child that has a supervisor; quiet once it is gone."""

    channel: Channel
    on_closed: Callable[[], None]
    is_closed: bool = False

    def send(self, message: Message) -> None:
        if self.is_closed:
            return
        try:
            self.channel.send(message)
        except ChannelClosed:
            self.is_closed = True
            self.on_closed()

    def held(self, leased_by: str, entries: Sequence[tuple[int, int, float | None]]) -> None:
        self.send({"t": "held", "r": leased_by, "j": entries})

    def done(self, leases: Sequence[Lease]) -> None:
        self.send({"t": "done", "j": _pairs(leases)})

    def late(self, leases: Sequence[Lease]) -> None:
        self.send({"t": "late", "j": _pairs(leases)})


def _pairs(leases: Sequence[Lease]) -> list[tuple[int, str]]:
    return [(lease.job_id, lease.leased_by) for lease in leases]


class Child:
    """Everything of one process; ``run`` blocks until it has ended in order."""

    def __init__(
        self,
        services: Services,
        channel: Channel,
        *,
        incarnation: str,
        once: bool = False,
        spawn_isolated: Spawn | None = None,
    ) -> None:
        self._services = services
        self._options = services.options
        self._channel = channel
        self._link = _Link(channel, self._supervisor_gone)
        self._stop = threading.Event()
        self._deadline = math.inf
        self._once = once
        self._is_orphan = threading.Lock()
        self._status_at = 0.0
        self._applying = threading.Lock()
        self._knows_queues = False
        self._was_blocked = False
        self.incarnation = incarnation

        self.slots = Slots()
        self.watch = Watch(grace_s=self._options.shutdown_grace_s)
        self.leases = LeaseBook(self._link)
        self.acks = Acknowledger(
            services.storage,
            services.clock,
            retry_s=self._options.ack_retry_s,
            on_done=self.leases.release,
            on_delayed=self.leases.delay,
        )
        runner = Runner(services)
        self.executor = Executor(
            services, runner, acks=self.acks, leases=self.leases, slots=self.slots, watch=self.watch
        )
        if spawn_isolated is not None:
            self.executor.isolation = Isolation(services, runner, self.watch, spawn_isolated)
        self.producer = Producer(
            services,
            runner,
            self.executor,
            acks=self.acks,
            leases=self.leases,
            slots=self.slots,
            watch=self.watch,
            incarnation=incarnation,
        )
        self._claiming = Loop("claim", self._claim_turn, wake=self.slots.poke)
        self._acking = Loop("ack", self.acks.turn, wake=self.acks.wake)
        self._watching = Loop("timeout", self.watch.turn, wake=self.watch.wake)
        self._listening = Loop("link", self._receive)
        self._renewing = Loop(
            "renew",
            self._renew_myself,
            interval_s=self._options.renew_interval_s,
            longest_delay_s=self._options.renew_interval_s / 2,
        )

    def run(self) -> bool:
        """Work until told to stop; whether every thread has ended, so that the process can exit in order."""
        for loop in (self._acking, self._watching, self._listening):
            loop.start()
        if self.executor.isolation is not None:
            self.executor.isolation.start_early()
        self._link.send({"t": "ready", "incarnation": self.incarnation})
        self._claiming.start()
        while not self._stop.wait(1.0):
            self._check_loops()
        return self._end()

    def stop(self, grace_s: float | None) -> None:
        """Claim no more and end: within a grace, or when every job has ended."""
        if grace_s is not None:
            self._deadline = min(self._deadline, time.monotonic() + grace_s)
        self._claiming.stop()
        self._stop.set()

    def leave(self, grace_s: float | None) -> None:
        """End of this process's own accord, for instance by a signal of its own."""
        self._link.send({"t": "leaving"})
        self.stop(grace_s)

    # -- loops ---------------------------------------------------------------------

    def _claim_turn(self) -> None:
        if self._stop.is_set():
            return
        if self._once:
            self._claim_once()
            return
        self._learn_queues()
        self.producer.turn()
        now = time.monotonic()
        if now - self._status_at >= STATUS_S or self.producer.is_idle:
            self._status_at = now
            self._send_status()

    def _learn_queues(self) -> None:
        """A limit or a pause that stands in a row holds from the first claim on."""
        if not self._knows_queues:
            self._apply_queues(self._services.storage.list_queues(), is_told=False)

    def _claim_once(self) -> None:
        """The one round of ``--once``; one that meets an outage is none, and the exit code says so."""
        try:
            self._learn_queues()
            self.producer.turn()
            is_down = self.producer.is_down
        except Unavailable as error:
            worker_log.warning("no claims: %s", error)
            is_down = True
        self.producer.start_gathered(all_=True)
        self._link.send({"t": "leaving", "down": is_down})
        self.stop(None)

    def _apply_queues(self, rows: Sequence[QueueRow], *, is_told: bool) -> None:
        """Take rows up; what the supervisor sends is never older than what was read here before."""
        with self._applying:
            if not is_told and self._knows_queues:
                return
            self._knows_queues = True
            if self._services.queues.apply(rows):
                self.slots.poke()

    def _send_status(self) -> None:
        stuck = len(self.executor.stuck())
        self._link.send(
            {
                "t": "status",
                "running": self.slots.total,
                "free": self._options.concurrency - self.slots.total,
                "stuck": stuck,
                "blocked": self.executor.blocked_s() > self._options.shutdown_grace_s,
                "ran": self.slots.ended,
                "pending": self.acks.pending,
                "idle": self.producer.is_idle,
            }
        )

    def _check_event_loop(self) -> None:
        is_blocked = self.executor.blocked_s() > BLOCKED_WARNING_S
        if is_blocked and not self._was_blocked:
            worker_log.error(
                "a job blocks the event loop, and with it every async job of this process:\n%s",
                self.executor.where_blocked(),
            )
        self._was_blocked = is_blocked

    def _check_loops(self) -> None:
        self._check_event_loop()
        for loop in (self._claiming, self._acking, self._watching):
            if not loop.is_alive and not self._stop.is_set():
                # A Loop survives every Exception; whatever ended it, this process is no worker any more.
                worker_log.critical("the %s loop has died; this process ends", loop.name)
                raise SystemExit(1)

    def _receive(self) -> None:
        try:
            messages = self._channel.receive()
        except ChannelClosed:
            if not self._link.is_closed:
                self._link.is_closed = True
                self._supervisor_gone()
            self._listening.stop()
            return
        for message in messages:
            self._handle(message)

    def _handle(self, message: Message) -> None:
        match message:
            case {"t": "poke", "q": queues}:
                if any(queue in self._services.queues.served for queue in queues):
                    self.slots.poke()
            case {"t": "poke"}:
                self.slots.poke()
            case {"t": "lost", "j": pairs}:
                for job_id, leased_by in pairs:
                    self._lose(job_id, leased_by)
            case {"t": "queues", "q": rows}:
                self._apply_queues(rows_from_json(rows), is_told=True)
            case {"t": "hold", "on": is_on}:
                self.producer.hold(is_on)
            case {"t": "drain"}:
                self.stop(None)
            case {"t": "stop", "grace": grace_s}:
                self.stop(grace_s)

    # -- without a supervisor --------------------------------------------------------

    def _supervisor_gone(self) -> None:
        """Claim no more, renew by ourselves, end within the grace (rule 16)."""
        if not self._is_orphan.acquire(blocking=False):
            return  # every thread that wanted to send notices it
        if not self._stop.is_set():
            worker_log.error("the supervisor is gone; this process finishes its jobs and ends")
        self._renewing.start()
        self.stop(self._options.shutdown_grace_s)

    def _renew_myself(self) -> None:
        leases = self.leases.all()
        if not leases:
            return
        until = self._services.clock.now() + self._options.lease_ttl
        renewal = self._services.storage.renew_leases(leases, until=until)
        for lease in leases:
            if lease.job_id in renewal.lost:
                self._lose(lease.job_id, lease.leased_by)

    def _lose(self, job_id: int, leased_by: str) -> None:
        self.producer.gatherer.interrupt(job_id, leased_by, LeaseLost)
        self.executor.interrupt(job_id, leased_by, LeaseLost)

    # -- the end ---------------------------------------------------------------------

    def _end(self) -> bool:
        ended_in_order = self._wait_for_jobs()
        if not ended_in_order:
            self._services.gate.close(LAST_CALL_S)
            for run in self.executor.active():
                run.interrupt(Shutdown)
            self._wait(lambda: not self.executor.active(), LAST_CALL_S)
            self.executor.kill_isolated()
            self._wait(lambda: not self.executor.has_isolated(), LAST_CALL_S)
        self._hand_back()
        self.executor.stop_threads()
        self._acking.stop()
        if not ended_in_order:
            return False  # at once: what was handed back may run elsewhere by now
        self._acking.join(1.0)
        return self.executor.join(0.2)

    def _wait_for_jobs(self) -> bool:
        """Whether all jobs ended and were acknowledged within the grace; without one, however long it takes."""
        while self._claiming.is_alive or self.executor.active() or self.acks.pending:
            if time.monotonic() >= self._deadline:
                return False
            if self._has_only_stuck_runs():
                return False
            self.executor.staff()
            if not self._claiming.is_alive:
                self.producer.start_gathered(all_=True)
            time.sleep(0.02)  # the last poll of a process that has nothing else to do
        return True

    def _has_only_stuck_runs(self) -> bool:
        """Whether only threads are left that never end."""
        active = len(self.executor.active())
        return (
            0 < active == len(self.executor.stuck()) and not self.acks.pending and not self._claiming.is_alive
        )

    def _wait(self, condition: Callable[[], bool], timeout_s: float) -> None:
        deadline = time.monotonic() + timeout_s
        while not condition() and time.monotonic() < deadline:
            time.sleep(0.01)

    def _hand_back(self) -> None:
        """The last write: what was claimed and did not end is ready again, its attempt returned."""
        self.acks.flush(LAST_CALL_S)
        stuck = {(lease.job_id, lease.leased_by) for run in self.executor.stuck() for lease in run.leases}
        leases = [lease for lease in self.leases.all() if (lease.job_id, lease.leased_by) not in stuck]
        if not leases:
            return
        try:
            self._services.storage.hand_back(leases, now=self._services.clock.now())
        except Unavailable as error:
            lease_log.warning(
                "%d jobs could not be handed back: %s; their leases run out", len(leases), error
            )
            return
        worker_log.info("handed back %d jobs", len(leases))
        self.leases.release(leases)
