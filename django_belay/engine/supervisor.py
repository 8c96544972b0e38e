"""The supervisor of a worker: runs no job code, keeps the processes that do (rule 16)."""

from __future__ import annotations

import contextlib
import math
import selectors
import signal
import socket
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from types import FrameType
from typing import Any

from django_belay.contract.job import Lease
from django_belay.contract.notification import Poke
from django_belay.engine.crew import CannotStart, Crew, Member, Spawn
from django_belay.engine.loop import Loop
from django_belay.engine.protocol import ChannelClosed, Message
from django_belay.engine.queue_table import rows_to_json
from django_belay.engine.renewal import HeldLeases, Renewer
from django_belay.engine.services import Services
from django_belay.engine.sources import Sources
from django_belay.engine.spawn import rss_bytes
from django_belay.engine.sweeper import Sweeper
from django_belay.engine.telemetry import cron_log, lease_log, notify_log, sweeper_log, worker_log
from django_belay.exceptions import Unavailable
from django_belay.storage.base import Listener, NodeRow

TICK_S = 0.25
BEAT_S = 5.0
CHECK_S = 1.0
# What a stopping child may take beyond the grace: last call, hand-back, exit.
STOP_MARGIN_S = 12.0
# What a first answer of the storage may take before a person is told what is waited for.
SILENT_START_S = 2.0


@dataclass(slots=True, kw_only=True, frozen=True)
class WorkPlan:
    """How a worker was started, beyond its settings."""

    max_jobs: int | None = None
    max_rss_bytes: int | None = None
    until_empty: bool = False
    once: bool = False
    reload: bool = False


class Supervisor:
    """Spawns children; renews, listens, sweeps and beats for them. ``run`` is the whole life.

    ``say`` tells the person at the terminal what the log may keep to itself.
    """

    def __init__(
        self,
        services: Services,
        spawn: Spawn,
        plan: WorkPlan,
        *,
        cron_tick: Callable[[], None] | None = None,
        say: Callable[[str], object] = lambda _text: None,
    ) -> None:
        self._services = services
        self._options = services.options
        self._plan = plan
        self._say = say
        self._said_rss = False
        self._crew = Crew(spawn, services.options.processes)
        self._held = HeldLeases()
        self._rows: list[list[Any]] | None = None
        self._is_held = False
        self._held_before = False
        self._selector = selectors.DefaultSelector()
        self._wake_in, self._wake_out = socket.socketpair()
        self._wake_out.setblocking(False)
        self._wake_in.setblocking(False)
        self._signals = 0
        self._stop_deadline: float | None = None
        self._exit_code = 0
        self._check_at = 0.0
        self._has_started = False
        self._sources = Sources() if plan.reload else None
        self._listener: Listener | None = None
        self._loops = self._make_loops(cron_tick)

    def _make_loops(self, cron_tick: Callable[[], None] | None) -> list[Loop]:
        options = self._options
        renewer = Renewer(
            self._services.storage,
            self._services.clock,
            self._held,
            ttl=options.lease_ttl,
            on_lost=self._tell_lost,
        )
        sweeper = Sweeper(self._services)
        loops = [
            Loop(
                "renew",
                renewer.turn,
                interval_s=options.renew_interval_s,
                # After an outage leases are short of time.
                longest_delay_s=options.renew_interval_s / 2,
                log=lease_log,
            ),
            Loop("sweep", sweeper.turn, interval_s=options.sweep_interval_s, log=sweeper_log),
            Loop("beat", self._beat, interval_s=BEAT_S),
            Loop("sync", self._sync, interval_s=options.sync_interval_s),
            Loop("listen", self._listen, log=notify_log),
        ]
        if cron_tick is not None:
            loops.append(Loop("cron", cron_tick, interval_s=options.cron_interval_s, log=cron_log))
        return loops

    # -- the life --------------------------------------------------------------------

    def run(self) -> int:
        """Work until a signal, an empty queue or a hopeless failure; the exit code."""
        self._install_signals()
        self._selector.register(self._wake_in, selectors.EVENT_READ, None)
        if not self._await_schema():
            return self._exit_code
        worker_log.info(
            "worker starts: queues %s, %d processes of %d threads",
            ", ".join(self._options.queues),
            self._options.processes,
            self._options.concurrency,
        )
        for loop in self._loops:
            loop.start()
        try:
            self._supervise()
        finally:
            self._crew.kill_all()
            self._end_loops()
        worker_log.info("worker ended")
        return self._exit_code

    def _await_schema(self) -> bool:
        """Check the schema; an outage at the start is waited out like any other, but for ``--once``."""
        ready = threading.Event()

        def check() -> None:
            try:
                self._services.storage.check_schema()
            except Unavailable as error:
                if not self._plan.once:
                    raise
                failures.append(error)
            except Exception as error:  # said by the caller, not by the loop
                failures.append(error)
            ready.set()
            self._poke_self()
            loop.stop()

        failures: list[Exception] = []
        loop = Loop("schema", check)
        loop.start()
        say_at = time.monotonic() + SILENT_START_S
        while not ready.is_set() and not self._signals:
            self._receive(TICK_S)
            if time.monotonic() > say_at and not ready.is_set():
                say_at = math.inf
                self._say("no answer from the storage yet; the worker starts when it comes. Ctrl-C ends it.")
        loop.stop()
        if not ready.is_set() and self._plan.until_empty:
            self._exit_code = 1
        if failures:
            raise failures[0]
        return ready.is_set()

    def _supervise(self) -> None:
        while True:
            try:
                self._receive(TICK_S)
                self._reap()
                if self._is_stopping():
                    if not self._crew.members:
                        return
                    self._enforce_stop()
                    continue
                self._keep_up()
            except CannotStart as error:
                worker_log.critical("no child can be started: %s", error)
                self._exit_code = 1
                self._begin_stop()

    def _keep_up(self) -> None:
        self._pass_on_hold()
        if self._plan.once:
            self._start_once()
        else:
            self._adopt(self._crew.fill())
        if time.monotonic() < self._check_at:
            return
        self._check_at = time.monotonic() + CHECK_S
        for member in list(self._crew.members):
            why = self._why_recycle(member)
            if why:
                replacement = self._crew.recycle(member, why)
                self._adopt([replacement] if replacement else [])
        if self._plan.until_empty and self._is_empty():
            self._begin_stop()

    def _start_once(self) -> None:
        """``--once``: one generation of children; the worker ends with the last of them."""
        if not self._has_started:
            self._has_started = True
            self._adopt(self._crew.fill())
        elif not self._crew.members:
            self._begin_stop()

    def _adopt(self, members: Sequence[Member]) -> None:
        for member in members:
            self._selector.register(member.channel, selectors.EVENT_READ, member)

    def _reap(self) -> None:
        before = {member: member.channel for member in self._crew.members}
        try:
            self._crew.reap()
        finally:
            for member in before:
                if member not in self._crew.members:
                    self._forget(member)

    def _forget(self, member: Member) -> None:
        for key in list(self._selector.get_map().values()):
            if key.data is member:
                self._selector.unregister(key.fileobj)
        # Never a hand-back: a job that kills its process must burn an attempt (rule 16).
        lost = self._held.drop_owner(member.number)
        if lost:
            what = "a job running; its lease runs" if lost == 1 else f"{lost} jobs running; their leases run"
            lease_log.warning("%s left %s out", member, what)
        if self._plan.once and member.state == "starting":
            self._exit_code = 1

    # -- why to replace ----------------------------------------------------------------

    def _why_recycle(self, member: Member) -> str | None:
        if member.state != "ready" or member.is_replaced:
            return None
        plan, status = self._plan, member.status
        if plan.max_jobs and status.get("ran", 0) >= plan.max_jobs:
            return f"it ran {status['ran']} jobs"
        if plan.max_rss_bytes and self._is_over(member, plan.max_rss_bytes):
            return "it is over its memory limit"
        if status.get("stuck", 0) * 2 >= self._options.concurrency:
            return f"{status['stuck']} of its threads are stuck"
        if status.get("blocked"):
            return "its event loop is blocked"
        if self._sources is not None and self._has_changed():
            self._reload_all()
        return None

    def _is_over(self, member: Member, limit: int) -> bool:
        """Whether a process grew over its limit; one that is over it idle would be replaced for ever."""
        held, status = rss_bytes(member.process.pid) or 0, member.status
        if held <= limit:
            return False
        if status.get("ran") or status.get("running"):
            return True
        if not self._said_rss:
            self._said_rss = True
            worker_log.error(
                "--max-rss is %d MB, and a process that has run no job yet holds %d MB: each is replaced after its "
                "first jobs; give at least twice that",
                limit >> 20,
                held >> 20,
            )
        return False

    def _has_changed(self) -> bool:
        changed = self._sources.changed() if self._sources else []
        if changed:
            worker_log.info("reloading: %s changed", ", ".join(changed[:3]))
        return bool(changed)

    def _reload_all(self) -> None:
        for member in list(self._crew.members):
            replacement = self._crew.recycle(member, "its code changed")
            self._adopt([replacement] if replacement else [])

    def _is_empty(self) -> bool:
        """Whether no job of the served queues is due, running, or to be tried again anywhere."""
        members = self._crew.members
        if not members or not all(m.state == "ready" and m.status.get("idle") for m in members):
            return False
        storage, now = self._services.storage, self._services.clock.now()
        try:
            served = [
                one for one in storage.queue_stats(now=now) if one.queue in self._services.queues.served
            ]
            if any(one.ready or one.running for one in served):
                return False
            return not storage.has_retry_ahead([one.queue for one in served if one.scheduled], now=now)
        except Unavailable:
            return False

    # -- messages ----------------------------------------------------------------------

    def _receive(self, timeout_s: float) -> None:
        for key, _ in self._selector.select(timeout_s):
            if key.data is None:
                _drain(self._wake_in)
                continue
            self._receive_from(key.data)

    def _receive_from(self, member: Member) -> None:
        try:
            messages = member.channel.receive_some()
        except ChannelClosed:
            self._selector.unregister(member.channel)
            return
        for message in messages:
            self._handle(member, message)

    def _handle(self, member: Member, message: Message) -> None:
        match message:
            case {"t": "held", "r": leased_by, "j": entries}:
                self._held.add(member.number, leased_by, entries)
            case {"t": "done", "j": pairs}:
                self._held.remove((job_id, leased_by) for job_id, leased_by in pairs)
            case {"t": "late", "j": pairs}:
                self._held.limit(
                    ((job_id, leased_by) for job_id, leased_by in pairs), to_s=self._options.ack_retry_s
                )
            case {"t": "status"}:
                member.status = message
                member.claimed_at = self._services.clock.now()
            case {"t": "leaving"}:
                member.state = "draining"
                if message.get("down"):
                    self._exit_code = 1
            case {"t": "ready", "incarnation": incarnation}:
                self._welcome(member, incarnation)

    def _welcome(self, member: Member, incarnation: str) -> None:
        worker_log.info("%s is ready", member)
        member.incarnation = incarnation
        member.born_at = member.claimed_at = self._services.clock.now()
        if self._rows is not None:
            member.tell({"t": "queues", "q": self._rows})
        if self._is_held:
            member.tell({"t": "hold", "on": True})
        if self._is_stopping():
            member.tell({"t": "stop", "grace": self._options.shutdown_grace_s})
            return
        self._crew.became_ready(member)

    def _tell_all(self, message: Message) -> None:
        for member in list(self._crew.members):
            if member.state == "ready":
                member.tell(message)

    def _tell_lost(self, owner: int, leases: Sequence[Lease]) -> None:
        pairs = [(lease.job_id, lease.leased_by) for lease in leases]
        for member in list(self._crew.members):
            if member.number == owner:
                member.tell({"t": "lost", "j": pairs})

    # -- loops -------------------------------------------------------------------------

    def _listen(self) -> None:
        if self._listener is None:
            self._listener = self._services.storage.listener()
        if self._listener is None:
            time.sleep(1.0)  # polling is all there is; the option may not change while we run
            return
        hints = self._listener.wait(1.0)
        if hints is None:
            self._tell_all({"t": "poke"})
        elif queues := sorted({hint.queue for hint in hints if isinstance(hint, Poke)}):
            self._tell_all({"t": "poke", "q": queues})

    def _sync(self) -> None:
        """Pass on what operators have put, deleted, paused or resumed (§3)."""
        found = self._services.storage.list_queues()
        self._services.queues.apply(found)
        rows = rows_to_json(found, node=self._options.node_name)
        if rows != self._rows:
            self._rows = rows
            self._tell_all({"t": "queues", "q": rows})

    def _beat(self) -> None:
        for member in list(self._crew.members):
            if member.born_at is not None:
                self._services.storage.beat(self._node_row(member))

    def _node_row(self, member: Member) -> NodeRow:
        counts: dict[str, Any] = {
            key: member.status[key] for key in ("running", "free", "stuck", "ran") if key in member.status
        }
        facts: dict[str, Any] = {
            "pid": member.process.pid,
            "state": member.state,
            "queues": {name: queue.limit for name, queue in self._services.queues.served.items()},
            **counts,
        }
        now = self._services.clock.now()
        return NodeRow(
            incarnation=member.incarnation,
            node=self._options.node_name,
            started_at=member.born_at or now,
            beat_at=now,
            claimed_at=member.claimed_at,
            facts=facts,
        )

    def _end_loops(self) -> None:
        if self._listener is not None:
            self._listener.close()
        for loop in self._loops:
            loop.stop()
        for loop in self._loops:
            loop.join(1.0)

    # -- stopping ------------------------------------------------------------------------

    def _install_signals(self) -> None:
        if threading.current_thread() is not threading.main_thread():
            return
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._on_signal)
        for name, is_held in (("SIGUSR1", True), ("SIGUSR2", False)):
            if hasattr(signal, name):  # Windows has neither
                signal.signal(getattr(signal, name), partial(self._on_hold, is_held))

    def _on_hold(self, is_held: bool, _number: int, _frame: FrameType | None) -> None:
        # A handler takes no lock; the main loop tells the children.
        self._is_held = is_held
        self._poke_self()

    def _pass_on_hold(self) -> None:
        if self._is_held == self._held_before:
            return
        self._held_before = self._is_held
        worker_log.info("claims %s", "stop until SIGUSR2" if self._is_held else "go on")
        self._tell_all({"t": "hold", "on": self._is_held})

    def _on_signal(self, number: int, _frame: FrameType | None) -> None:
        self._signals += 1
        self._poke_self()

    def _poke_self(self) -> None:
        # A full buffer holds wake-ups enough; a closed one has nobody to wake.
        with contextlib.suppress(OSError):
            self._wake_out.send(b"!")

    def _is_stopping(self) -> bool:
        if self._signals and self._stop_deadline is None:
            text = stop_text(len(self._held), self._options.shutdown_grace_s)
            worker_log.info("%s", text)
            self._say(text)
            self._begin_stop()
        return self._stop_deadline is not None

    def _begin_stop(self) -> None:
        if self._stop_deadline is not None:
            return
        grace_s = self._options.shutdown_grace_s
        self._stop_deadline = time.monotonic() + grace_s + STOP_MARGIN_S
        for member in self._crew.members:
            self._crew.stop(member, grace_s)

    def _enforce_stop(self) -> None:
        assert self._stop_deadline is not None
        if self._signals > 1:
            worker_log.warning("second signal: ending now; leases run out")
            self._exit_code = 1
            self._crew.kill_all()
        elif time.monotonic() > self._stop_deadline:
            worker_log.error("%d children do not end and are killed", len(self._crew.members))
            self._crew.kill_all()


def stop_text(running: int, grace_s: float) -> str:
    """What a worker says when it is told to stop."""
    if not running:
        return "stopping: no job runs"
    jobs = "1 job" if running == 1 else f"{running} jobs"
    return f"stopping: finishing {jobs}, for {grace_s:g} s at most; Ctrl-C again stops now"


def _drain(wake: socket.socket) -> None:
    try:
        while wake.recv(4096):
            pass
    except BlockingIOError:
        pass
