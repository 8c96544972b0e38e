"""The claim loop of a process: free slots in, running jobs out (§6, rules 4, 12, 15)."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import datetime

from django_belay.contract.job import Job, Lease
from django_belay.engine.acks import Acknowledger
from django_belay.engine.adaptive import AdaptiveLimits
from django_belay.engine.executor import Executor
from django_belay.engine.fairness import rooms_of, rotate, share_slots
from django_belay.engine.gather import Gatherer
from django_belay.engine.isolated_run import IsolatedRun
from django_belay.engine.isolation import START_S
from django_belay.engine.leases import LeaseBook
from django_belay.engine.options import QueueOptions
from django_belay.engine.patience import Patience, spread
from django_belay.engine.run import Run
from django_belay.engine.runner import Runner, unreadable
from django_belay.engine.services import Services
from django_belay.engine.slots import Slots
from django_belay.engine.telemetry import worker_log
from django_belay.engine.watch import Watch
from django_belay.exceptions import StorageError, Unavailable
from django_belay.storage.base import Ack, ClaimRound, Demand

# A limited queue that had rows but admitted none is not asked again at the hot cadence.
REFUSED_PAUSE_S = 0.25
QUIET_AFTER = 2
# Resumed jobs of one claim whose journals are read together.
MANY = 2
# Of a chunk queue in one round; more only make the round long.
MAX_ROWS = 1000


class Producer:
    """Asks for as many rows as there are free slots, for all queues at once.

    Unlimited queues go into one statement that also says which limited queues have a
    claimable row; only those are asked, each under its lock.
    """

    def __init__(
        self,
        services: Services,
        runner: Runner,
        executor: Executor,
        *,
        acks: Acknowledger,
        leases: LeaseBook,
        slots: Slots,
        watch: Watch,
        incarnation: str,
    ) -> None:
        self._services = services
        self._runner = runner
        self._executor = executor
        self._acks = acks
        self._leases = leases
        self._slots = slots
        self._watch = watch
        self._incarnation = incarnation
        self._queues: Mapping[str, QueueOptions] = {}  # of this round
        self._limits: Mapping[str, int] = {}
        self._rooms: Mapping[str, int] = {}
        self._adaptive = AdaptiveLimits()
        # A chunk kind has its queue alone (rule 12).
        self._sizes = {
            definition.options.queue: definition.options.chunk.size
            for definition in services.registry
            if definition.options.chunk is not None
        }
        self.gatherer = Gatherer(longest_s=services.options.lease_ttl.total_seconds() / 2)
        self._misses: dict[str, int] = {}
        self._refused_until: dict[str, float] = {}
        self._rounds = 0
        self._outage = Patience(0.1, 5.0)
        self._idle = Patience(services.options.busy_poll_s, services.options.idle_poll_s)
        self.is_down = False
        self._is_held = False
        self.is_idle = False
        self.claimed = 0

    def hold(self, is_on: bool) -> None:
        """Stop claims from all queues in this process, or let them go on."""
        self._is_held = is_on
        self._slots.poke()

    def turn(self) -> None:
        """One round, then the wait until the next is due."""
        self._slots.settle()
        self._executor.staff()
        self.start_gathered()
        free = self._free()
        if free <= 0:
            self._pause(spread(self._services.options.idle_poll_s), ends=1)
            return
        try:
            found, wanted = self._round(free)
        except Unavailable as error:
            self._went_down(error)
            self._pause(self._outage.next_s(), ends=0)
            return
        self._came_up()
        self._wait(found, wanted)

    # -- one round ---------------------------------------------------------------

    def _free(self) -> int:
        """Free slots; none while results pile up faster than they are written."""
        concurrency = self._services.options.concurrency
        if self._is_held or self._acks.pending >= 4 * concurrency + 400:
            return 0
        return concurrency - self._slots.total

    def _round(self, free: int) -> tuple[int, int]:
        """Claim and start; how many were claimed and how many were asked for."""
        self._rounds += 1
        self._queues = self._services.queues.served
        self._limits = self._adaptive.of(self._queues)
        shares = self._shares(free)
        takes = {queue: self._rows(queue, slots) for queue, slots in shares.items()}
        limited = [queue for queue in shares if self._queues[queue].limits.is_limited]
        demands = [Demand(queue=queue, take=take) for queue, take in takes.items() if queue not in limited]
        if not shares:
            return 0, 0
        now = self._services.clock.now()
        round_ = ClaimRound(
            leased_by=f"{self._incarnation}:{self._rounds}",
            lease_until=now + self._services.options.lease_ttl,
        )
        answer = self._services.storage.claim(round_, demands=demands, limited=limited, now=now)
        claimed = self._take(answer.jobs, now)
        for queue in answer.claimable:
            jobs = self._ask_limited(round_, Demand(queue=queue, take=takes[queue]), now)
            claimed += self._take(jobs, now)
        self._learn(shares, claimed, claimable=answer.claimable)
        return len(claimed), sum(takes.values())

    def _rows(self, queue: str, slots: int) -> int:
        """How many rows fill so many slots, a call of a chunk kind being one."""
        size = self._sizes.get(queue)
        if size is None:
            return slots
        return min(slots * size, max(MAX_ROWS, size)) + self.gatherer.room(queue)

    def _shares(self, free: int) -> dict[str, int]:
        now = time.monotonic()
        paused = self._services.queues.paused
        order = [
            queue
            for queue in rotate(list(self._queues), self._rounds)
            if queue not in paused and self._refused_until.get(queue, 0.0) <= now
        ]
        quiet = {queue for queue in order if self._misses.get(queue, 0) >= QUIET_AFTER}
        rooms = rooms_of(self._limits, self._slots.running, order)
        self._rooms = dict(rooms)
        return share_slots(free, rooms, quiet=quiet)

    def _ask_limited(self, round_: ClaimRound, demand: Demand, now: datetime) -> list[Job]:
        queue = self._queues[demand.queue]
        jobs = self._services.storage.claim_limited(
            round_,
            demand=demand,
            limits=queue.limits,
            local_limit=self._limits[demand.queue] * self._sizes.get(demand.queue, 1),
            now=now,
        )
        if not jobs:
            self._refused_until[demand.queue] = time.monotonic() + REFUSED_PAUSE_S
        return jobs

    def _learn(self, shares: dict[str, int], claimed: Sequence[Job], *, claimable: Sequence[str]) -> None:
        """Remember which queues had work: empty ones are asked for less, adaptive limits follow."""
        rows = Counter(job.queue for job in claimed)
        got = {queue: -(-rows[queue] // self._sizes.get(queue, 1)) for queue in shares}
        for queue, asked in shares.items():
            self._misses[queue] = 0 if got[queue] else self._misses.get(queue, 0) + 1
            self._adaptive.note_round(
                queue,
                self._queues[queue],
                room=self._rooms.get(queue, 0),
                asked=asked,
                got=got[queue],
                is_idle=not got[queue] and queue not in claimable,
            )

    # -- starting ------------------------------------------------------------------

    def _take(self, jobs: list[Job], now: datetime) -> list[Job]:
        """Publish, then start each in its own try: one bad row strands no other (rule 4)."""
        if not jobs:
            return jobs
        self.claimed += len(jobs)
        self._acks.forget({job.id for job in jobs})
        prepared = [self._prepare(job, now) for job in jobs]
        self._leases.hold(jobs[0].leased_by or "", [self._renewal(one) for one in prepared])
        resumed: list[Run] = []
        for one in prepared:
            if not isinstance(one, Run):
                self._acks.put(one)
            elif _reads_journal(one):
                resumed.append(one)
            else:
                self._start(one)
        self._read_journals(resumed)
        for run in resumed:
            self._start(run)
        self.start_gathered()
        return jobs

    def _read_journals(self, runs: Sequence[Run]) -> None:
        """Read at once what each would ask for first; one alone does so itself."""
        if len(runs) < MANY:
            return
        try:
            journals = self._services.storage.get_short_journals([run.job.id for run in runs])
        except StorageError:
            return  # each run asks, and meets what it must
        for run in runs:
            run.journal = journals.get(run.job.id)

    def _start(self, run: Run) -> None:
        if run.definition.options.chunk is None:
            self._slots.take(run.job.queue)
            self._executor.start(run)
        elif self.gatherer.add(run):
            self._slots.take(run.job.queue)

    def start_gathered(self, *, all_: bool = False) -> None:
        """Start the calls over chunks that are full or have gathered for long enough."""
        for call in self.gatherer.due(all_=all_):
            self._executor.start(call)

    def _prepare(self, job: Job, now: datetime) -> Run | Ack:
        try:
            return self._runner.prepare(job, claimed_at=now)
        except Exception as error:
            worker_log.exception("job %s could not be started", job.id)
            return unreadable(job, error, now=now)

    def _renewal(self, one: Run | Ack) -> tuple[Lease, float | None]:
        if not isinstance(one, Run):
            return one.lease, None
        options = one.definition.options
        renew_for_s = self._watch.renew_for_s(options.timeout)
        if renew_for_s is not None and options.chunk is not None:
            renew_for_s += options.chunk.gather
        if renew_for_s is not None and options.is_isolated:
            renew_for_s += START_S
        return one.lease, renew_for_s

    # -- waiting -------------------------------------------------------------------

    def _wait(self, found: int, wanted: int) -> None:
        options = self._services.options
        self.is_idle = not found and not self._slots.total and not self._acks.pending
        if not found:
            self._pause(self._idle.next_s(), ends=0)
            return
        self._idle.reset()
        if found == wanted and self._free() > 0:
            return  # there is surely more
        # A round for every single slot would cost a statement a job: let a batch come free. Where
        # fewer were found than asked for, no slot is missed: only a poke or the cadence calls.
        ends = max(self._slots.total // 2, 1) if found == wanted else 0
        self._pause(spread(options.busy_poll_s), ends=ends)

    def _pause(self, seconds: float, *, ends: int) -> None:
        """Wait for ends of jobs or a poke; at most until a gathered call is due."""
        gathered_s = self.gatherer.next_s()
        self._slots.wait(seconds if gathered_s is None else min(seconds, gathered_s), ends=ends)

    def _went_down(self, error: Unavailable) -> None:
        self.is_idle = False
        if not self.is_down:
            self.is_down = True
            worker_log.warning("no claims until the storage answers: %s", error)

    def _came_up(self) -> None:
        if self.is_down:
            self.is_down = False
            self._outage.reset()
            worker_log.info("claims go on")


def _reads_journal(run: Run) -> bool:
    """Whether a run asks for its job's steps, in this process, before anything else."""
    return not run.is_first and run.definition.options.chunk is None and not isinstance(run, IsolatedRun)
