"""The threads of a process and what runs in them."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from queue import SimpleQueue

from django_belay.contract.error_entry import named_entry
from django_belay.contract.job import Lease
from django_belay.contract.outcome import Failed
from django_belay.engine.acks import Acknowledger
from django_belay.engine.async_executor import AsyncExecutor
from django_belay.engine.async_run import AsyncRun
from django_belay.engine.gather import ChunkRun
from django_belay.engine.isolated_run import IsolatedRun
from django_belay.engine.isolation import Isolation
from django_belay.engine.leases import LeaseBook
from django_belay.engine.run import Interruption, Run
from django_belay.engine.runner import Runner
from django_belay.engine.services import Services
from django_belay.engine.slots import Slots
from django_belay.engine.telemetry import call_hook, worker_log
from django_belay.engine.watch import Watch
from django_belay.exceptions import Shutdown
from django_belay.storage.base import Ack

# A loop that has not answered for so long does not run its tasks.
BLOCKED_S = 1.0


class Executor:
    """Runs jobs in lazily started threads; ends go to the acknowledger.

    Threads wait on one plain queue: a burst wakes them one after the other, each only
    if the one before left something, which costs short jobs no switch.
    """

    def __init__(
        self,
        services: Services,
        runner: Runner,
        *,
        acks: Acknowledger,
        leases: LeaseBook,
        slots: Slots,
        watch: Watch,
    ) -> None:
        self._services = services
        self._runner = runner
        self._acks = acks
        self._leases = leases
        self._slots = slots
        self._watch = watch
        self._queue: SimpleQueue[Run | None] = SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._staffing = threading.Lock()
        self._is_short = False
        self._active: dict[tuple[int, str], Run] = {}
        self.isolation: Isolation | None = None  # without one, isolated jobs run in threads
        self._in_loop: dict[tuple[int, str], AsyncRun] = {}
        self._async = AsyncExecutor(services, runner, ended=self._ended, failed=self._failed)

    def start(self, run: Run) -> None:
        """Hand a run to a thread. Called by the claim loop, which has taken a slot for it."""
        self._active[run.job.id, run.lease.leased_by] = run
        timeout_s = run.definition.options.timeout
        is_in_process = self.isolation is not None and isinstance(run, IsolatedRun)
        if timeout_s is not None and not is_in_process:
            self._watch.add(run, timeout_s)
        if isinstance(run, AsyncRun):
            self._in_loop[run.job.id, run.lease.leased_by] = run
            self._async.start(run)
            return
        self._queue.put(run)
        self.staff()

    def staff(self) -> None:
        """See to a thread for each run; one that cannot be started now is tried again by the next call."""
        with self._staffing:
            while len(self._threads) < min(self._needed(), self._services.options.concurrency):
                try:
                    self._add_thread()
                except RuntimeError as error:  # at the system's limit; the threads there are take turns
                    if not self._is_short:
                        self._is_short = True
                        worker_log.error("no thread can be started now: %s; jobs wait for one", error)
                    return
            self._is_short = False

    def _needed(self) -> int:
        """Threads for every job that is to run in one."""
        return len(self._active) - len(self._in_loop)

    def stuck(self) -> list[Run]:
        """Runs that never end: past timeout and grace, or in a loop that one of those blocks."""
        stuck = self._watch.stuck_runs()
        if self._async.blocked_s() > BLOCKED_S and any(isinstance(run, AsyncRun) for run in stuck):
            stuck += [run for run in list(self._in_loop.values()) if run not in stuck]
        return stuck

    def blocked_s(self) -> float:
        """For how long the event loop has not turned."""
        return self._async.blocked_s()

    def where_blocked(self) -> str:
        """What the event loop is doing."""
        return self._async.where()

    def active(self) -> list[Run]:
        """The runs that have not ended."""
        return list(self._active.values())

    def interrupt(self, job_id: int, leased_by: str, reason: Interruption) -> None:
        """Make one run stop, if it is still there."""
        run = self._active.get((job_id, leased_by))
        if run is not None and not isinstance(run, ChunkRun):
            run.interrupt(reason)
            return
        for chunk in self.active():
            if isinstance(chunk, ChunkRun):
                chunk.interrupt_member(job_id, leased_by, reason)

    def kill_isolated(self) -> None:
        """Kill the processes of isolated jobs that were told to stop and have not."""
        for run in self.active():
            if isinstance(run, IsolatedRun):
                run.interrupt(Shutdown)

    def has_isolated(self) -> bool:
        """Whether a process of an isolated job is left."""
        return any(isinstance(run, IsolatedRun) for run in self.active())

    def stop_threads(self) -> None:
        """Let idle threads end; busy ones follow when their job does."""
        for _ in self._threads:
            self._queue.put(None)
        self._async.stop()

    def join(self, timeout_s: float) -> bool:
        """Wait for the threads; whether all ended."""
        for thread in self._threads:
            thread.join(timeout_s)
            if thread.is_alive():
                return False
        return self._async.join()

    # -- in a thread ------------------------------------------------------------------

    def _add_thread(self) -> None:
        # Daemons: a job that never ends must not keep a stopping process alive.
        name = f"belay-job-{len(self._threads) + 1}"
        thread = threading.Thread(target=self._work, name=name, daemon=True)
        thread.start()
        self._threads.append(thread)

    def _work(self) -> None:
        try:
            while (run := self._queue.get()) is not None:
                self._run(run)
                del run  # an idle thread keeps no job's data alive
        finally:
            call_hook(self._services.hooks.thread_ended)

    def _run(self, run: Run) -> None:
        try:
            if isinstance(run, IsolatedRun) and self.isolation is not None:
                acks = self.isolation.execute(run)
            else:
                acks = self._runner.execute_all(run)
        except BaseException as error:
            worker_log.critical("job %s: the engine failed around it", run.job.id, exc_info=True)
            acks = self._failed(run, error)
        self._ended(run, acks)

    def _failed(self, run: Run, error: BaseException) -> list[Ack]:
        return [self._engine_failure(lease, run, error) for lease in run.leases]

    def _ended(self, run: Run, acks: Sequence[Ack]) -> None:
        self._active.pop((run.job.id, run.lease.leased_by), None)
        self._in_loop.pop((run.job.id, run.lease.leased_by), None)
        for ack in acks:
            self._acks.put(ack)
        if len(acks) < len(run.leases):
            acked = {ack.lease.job_id for ack in acks}
            self._leases.release([lease for lease in run.leases if lease.job_id not in acked])
        self._slots.release(run.job.queue)

    def _engine_failure(self, lease: Lease, run: Run, error: BaseException) -> Ack:
        entry = named_entry(
            f"the engine failed: {type(error).__name__}",
            attempt=run.job.attempt,
            at=self._services.clock.now(),
        )
        return Ack(lease=lease, outcome=Failed(error=entry))
