"""The acknowledger: writes the ends of runs in groups, through outages (§7, rules 15, 21)."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from queue import Empty, SimpleQueue

from django_belay.contract.error_entry import named_entry
from django_belay.contract.job import Lease
from django_belay.contract.outcome import Failed
from django_belay.engine.clock import Clock
from django_belay.engine.patience import Patience
from django_belay.engine.telemetry import worker_log
from django_belay.exceptions import Contended, StorageError, Unavailable
from django_belay.storage.base import Ack, AckGroupError, AckResult, Applied, Storage

GROUP = 200
IDLE_WAIT_S = 0.5
#: While jobs end side by side, a group waits so long for more: each costs a commit.
GATHER_S = 0.002


@dataclass(slots=True)
class _Delayed:
    """An ack that could not be written yet."""

    ack: Ack
    give_up_at: float
    is_simplified: bool = False


class Acknowledger:
    """Takes acks from any thread; one thread of its own writes them.

    Acks that arrive while a group is being written make up the next group, so groups
    grow with the load. In an outage acks are kept for ``retry_s``; one that the storage
    refuses for itself is replaced by a plain failure, then dropped, and holds up no other.
    """

    def __init__(
        self,
        storage: Storage,
        clock: Clock,
        *,
        retry_s: float,
        on_done: Callable[[Sequence[Lease]], None],
        on_delayed: Callable[[Sequence[Lease]], None] = lambda leases: None,
    ) -> None:
        self._storage = storage
        self._clock = clock
        self._retry_s = retry_s
        self._on_done = on_done
        self._on_delayed = on_delayed
        self._inbox: SimpleQueue[Ack | None] = SimpleQueue()
        self._delayed: deque[_Delayed] = deque()
        self._lock = threading.Lock()
        self._open = 0
        self._counting = threading.Lock()
        self._patience = Patience(0.1, 5.0)
        self._contention = Patience(0.02, 5.0)
        self._retry_at = 0.0
        self._is_down = False
        self._is_busy = False
        self.applied = 0
        self.stale = 0

    def put(self, ack: Ack) -> None:
        """Queue an ack; called by the thread that ran the job."""
        with self._counting:
            self._open += 1
        self._inbox.put(ack)

    @property
    def pending(self) -> int:
        """Acks that are not written yet."""
        return self._open

    def forget(self, job_ids: Collection[int]) -> None:
        """Drop delayed acks of jobs that this process has claimed again (rule 15)."""
        if not self._delayed:
            return
        with self._lock:
            dropped = [entry for entry in self._delayed if entry.ack.lease.job_id in job_ids]
            self._delayed = deque(e for e in self._delayed if e.ack.lease.job_id not in job_ids)
        self._finish([entry.ack.lease for entry in dropped])

    def wake(self) -> None:
        """Let a waiting turn end."""
        self._inbox.put(None)

    def turn(self) -> None:
        """Write one group, or wait for something to write."""
        if self._delayed and time.monotonic() >= self._retry_at:
            self._send_delayed()
            return
        group = self._collect()
        if group and self._is_down:
            self._delay([_Delayed(ack, 0.0) for ack in group])
        elif group:
            self._send([_Delayed(ack, 0.0) for ack in group])

    def flush(self, timeout_s: float) -> bool:
        """Wait until everything is written; whether it was in time. For other threads."""
        deadline = time.monotonic() + timeout_s
        pause = threading.Event()
        while self.pending and time.monotonic() < deadline:
            pause.wait(0.01)
        return not self.pending

    # -- collecting ----------------------------------------------------------------

    def _collect(self) -> list[Ack]:
        wait_s = IDLE_WAIT_S
        if self._delayed:
            wait_s = min(wait_s, max(self._retry_at - time.monotonic(), 0.001))
        group: list[Ack] = []
        try:
            first = self._inbox.get(timeout=wait_s)
            if first is not None:
                group.append(first)
                if self._is_busy:
                    time.sleep(GATHER_S)
            while len(group) < GROUP:
                ack = self._inbox.get_nowait()
                if ack is not None:
                    group.append(ack)
        except Empty:
            pass
        self._is_busy = len(group) > 1
        return group

    def _send_delayed(self) -> None:
        with self._lock:
            group = [self._delayed.popleft() for _ in range(min(GROUP, len(self._delayed)))]
        now = time.monotonic()
        if expired := [entry for entry in group if entry.give_up_at < now]:
            self._give_up(expired)
        if current := [entry for entry in group if entry.give_up_at >= now]:
            self._send(current)

    # -- sending -------------------------------------------------------------------

    def _send(self, entries: list[_Delayed]) -> None:
        acks = [entry.ack for entry in entries]
        try:
            results = self._storage.ack_group(acks, now=self._clock.now())
        except AckGroupError as error:
            self._settle(entries, error.results)
            self._sort_out(entries, error)
        except Unavailable as error:
            self._went_down(error)
            self._delay(entries)
        except Exception as error:
            self._send_alone(entries, error)
        else:
            self._settle(entries, results)
            self._came_up()
            if not self._delayed:
                self._contention.reset()

    def _send_alone(self, entries: list[_Delayed], error: Exception) -> None:
        """The storage did not say which member it refuses: ask one by one."""
        if len(entries) == 1:
            self._refused(entries[0], error)
            return
        for index, entry in enumerate(entries):
            try:
                result = self._storage.ack(entry.ack, now=self._clock.now())
            except Unavailable as failure:
                self._went_down(failure)
                self._delay(entries[index:])
                return
            except Exception as failure:
                self._refused(entry, failure)
            else:
                self._settle([entry], [result])

    def _sort_out(self, entries: list[_Delayed], error: AckGroupError) -> None:
        # Where others of the group were written, or the row alone is held, this is no outage.
        is_up = any(result is not None for result in error.results)
        for index, failure in error.failures.items():
            if not isinstance(failure, Unavailable):
                self._refused(entries[index], failure)
                continue
            if not is_up and not isinstance(failure, Contended):
                self._went_down(failure)
            self._delay([entries[index]])
        if not self._is_down and self._delayed:
            self._retry_at = time.monotonic() + self._contention.next_s()

    def _settle(self, entries: Sequence[_Delayed], results: Sequence[AckResult | None]) -> None:
        done = []
        for entry, result in zip(entries, results, strict=True):
            if result is None:
                continue
            done.append(entry.ack.lease)
            if isinstance(result, Applied):
                self.applied += 1
            else:
                self.stale += 1  # discarded silently (§7)
        self._finish(done)

    def _finish(self, leases: Sequence[Lease]) -> None:
        if leases:
            with self._counting:
                self._open -= len(leases)
            self._on_done(leases)

    # -- failing -------------------------------------------------------------------

    def _refused(self, entry: _Delayed, error: Exception) -> None:
        """The storage refuses this ack for itself: end the attempt without what it carries."""
        job_id = entry.ack.lease.job_id
        if entry.is_simplified:
            worker_log.error("job %s: its end cannot be stored (%s); its lease will run out", job_id, error)
            self._finish([entry.ack.lease])
            return
        worker_log.error(
            "job %s: its end cannot be stored (%s: %s); it is recorded as failed",
            job_id,
            type(error).__name__,
            error,
        )
        reason = named_entry(
            "the end of the job could not be stored",
            attempt=entry.ack.lease.attempt,
            at=self._clock.now(),
            detail=f"{type(entry.ack.outcome).__name__}: {type(error).__name__}: {error}",
        )
        plain = replace(entry.ack, outcome=Failed(error=reason), enqueue=())
        self._delay([_Delayed(plain, self._give_up_at(), is_simplified=True)])

    def _delay(self, entries: Sequence[_Delayed]) -> None:
        fresh = [entry for entry in entries if not entry.give_up_at]
        for entry in fresh:
            entry.give_up_at = self._give_up_at()
        with self._lock:
            self._delayed.extend(entries)
        self._on_delayed([entry.ack.lease for entry in fresh])

    def _give_up(self, entries: Sequence[_Delayed]) -> None:
        worker_log.error(
            "%d ends of jobs could not be written within %.0f s and are dropped; their leases run out: %s",
            len(entries),
            self._retry_s,
            ", ".join(str(entry.ack.lease.job_id) for entry in entries[:20]),
        )
        self._finish([entry.ack.lease for entry in entries])

    def _give_up_at(self) -> float:
        return time.monotonic() + self._retry_s

    def _went_down(self, error: StorageError) -> None:
        self._retry_at = time.monotonic() + self._patience.next_s()
        if not self._is_down:
            self._is_down = True
            worker_log.warning("acks are kept back until the storage answers: %s", error)

    def _came_up(self) -> None:
        if self._is_down:
            self._is_down = False
            self._patience.reset()
            self._retry_at = 0.0
            worker_log.info("acks are written again")
