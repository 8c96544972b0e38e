"""What an owner does beside serving: it looks whether it still owns, has room, and what to compact."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from itertools import islice
from typing import Any, Final

from django_belay.exceptions import JournalError
from django_belay.storage.journal.files import layout
from django_belay.storage.journal.files.compaction import CompactionReport, compact, keep_share
from django_belay.storage.journal.files.journal import Journal
from django_belay.storage.journal.format.manifest import Retention
from django_belay.storage.journal.state import finished
from django_belay.storage.journal.store.instants import floor_ms
from django_belay.storage.journal.store.store import JournalStore

logger = logging.getLogger("django_belay.journal")

_MEBIBYTE: Final = 2**20
_LOOK_EVERY_S: Final = 1.0
_SAMPLE: Final = 1000
#: Free space beyond the reserve below which a warning is given.
_LITTLE_ROOM_BYTES: Final = 64 * _MEBIBYTE
_LONGEST_PAUSE_S: Final = 6 * 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """When a store is compacted: when one of three bounds is passed, and not too often.

    Attributes:
        check_every_s: How often the bounds are looked at.
        min_interval_s: Between the ends of two compactions, or from the opening to the first; after a
            failure twice as long, and so on up to six hours.
        growth: The first bound: what was written since the last compaction, to what that one left…
        min_bytes: …and at least so much.
        most_segments: The second bound: sealed segments written since.
        expired_share: The third bound: jobs past their retention, to all jobs…
        min_expired: …and at least so many.
        share: Which part of the time a compaction works; the rest is for whoever is served.
    """

    enabled: bool = True
    check_every_s: float = 30.0
    min_interval_s: float = 600.0
    growth: float = 1.0
    min_bytes: int = 64 * _MEBIBYTE
    most_segments: int = 256
    expired_share: float = 0.25
    min_expired: int = 10_000
    share: float = 0.25


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """What a store has to gain from a compaction."""

    base_bytes: int
    tail_bytes: int
    sealed: int
    jobs: int
    expired: int


def find_reason(policy: Policy, figures: Figures) -> str | None:
    """Why to compact now, for the log; ``None`` when no bound is passed."""
    least = max(policy.min_bytes, int(policy.growth * figures.base_bytes))
    if figures.tail_bytes >= least:
        return f"{figures.tail_bytes:,} bytes were written since the last one, {least:,} are let be"
    if figures.sealed >= policy.most_segments:
        return (
            f"{figures.sealed:,} segments were sealed since the last one, {policy.most_segments:,} are let be"
        )
    fewest = max(policy.min_expired, int(policy.expired_share * figures.jobs))
    if figures.expired >= fewest:
        return f"about {figures.expired:,} of {figures.jobs:,} jobs are past their retention"
    return None


def measure(store: JournalStore, *, retention: Retention, now_ms: int) -> Figures:
    """Measure a store in a few milliseconds; how many jobs have expired is told from a sample."""
    journal = store.journal
    with journal.lock:
        authority = journal.recovered.authority
        segments = layout.list_segments(authority.segments)
        jobs = len(journal.state.jobs) + len(journal.state.extended)
        expired = _expired(store, retention, now_ms)
    first = authority.manifest.tail_segment_id
    tail = [size for segment_id, _, size in segments if segment_id >= first]
    return Figures(
        base_bytes=sum(base.size for base in authority.manifest.base_segments),
        tail_bytes=sum(tail),
        sealed=max(len(tail) - 1, 0),
        jobs=jobs,
        expired=expired,
    )


def _expired(store: JournalStore, retention: Retention, now_ms: int) -> int:
    """How many hidden jobs a compaction would leave out, about."""
    hidden, kept_ms = store.memory.hidden, retention.milliseconds
    if kept_ms is None or not hidden:
        return 0
    sample = list(islice(hidden, _SAMPLE))
    gone = sum(_ended_at(store, job_id) <= now_ms - kept_ms for job_id in sample)
    return len(hidden) * gone // len(sample)


def _ended_at(store: JournalStore, job_id: int) -> int:
    key = store.memory.key_of(job_id)
    extended = store.journal.state.extended.get(key)
    if extended is not None:
        return int(extended.column("finished_at") or 0)
    entry = store.journal.state.jobs[key]
    return finished.terminal_at_of(entry) if isinstance(entry, bytes) else int(entry.terminal_at or 0)


def recheck(journal: Journal) -> None:
    """:meth:`Journal.recheck`, but not while a compaction switches generations."""
    if journal.compacting.acquire(blocking=False):
        try:
            journal.recheck()
        finally:
            journal.compacting.release()


def free_bytes(journal: Journal) -> int:
    """Free space beyond the reserve, where the store lies; below 0 when the reserve is touched."""
    info = os.fstatvfs(journal.ownership.root.fd)
    return info.f_bavail * info.f_frsize - journal.options.reserve_bytes


class Upkeep:
    """A thread that looks after a store until it is stopped.

    Args:
        retention: What a compaction keeps.
        look: Raises when the store is not owned any more.
        failed: Told then, and when the store cannot be written.
        clock: Now; what has expired is told by it.
    """

    def __init__(
        self,
        store: JournalStore,
        *,
        retention: Retention,
        policy: Policy,
        look: Callable[[], None],
        failed: Callable[[BaseException], None],
        clock: Callable[[], datetime] | None = None,
    ) -> None:
        self._store = store
        self._journal = store.journal
        self._retention = retention
        self._policy = policy
        self._look = look
        self._failed = failed
        self._clock = clock or store.read_clock
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="belay-journal-upkeep", daemon=True)
        self._compaction: threading.Thread | None = None
        self._one_at_a_time = threading.Lock()
        self._pause_s = policy.min_interval_s
        self._next_at = time.monotonic() + policy.min_interval_s
        self._has_room = True
        self._facts: dict[str, Any] = {}

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self) -> None:
        """End; a compaction is given up, the old generation stays in force."""
        self._stop.set()
        for thread in (self._thread, self._compaction):
            if thread is not None and thread.ident is not None and thread is not threading.current_thread():
                thread.join()

    def facts(self) -> dict[str, Any]:
        """What the last compaction did, for ``belay_stats``; empty before the first."""
        return dict(self._facts)

    def _run(self) -> None:
        check_at = time.monotonic() + self._policy.check_every_s
        while not self._stop.wait(_LOOK_EVERY_S):
            try:
                self._look()
            except Exception as error:
                self._failed(error)
                return
            try:
                self._notice_room()
                if time.monotonic() >= check_at:
                    check_at = time.monotonic() + self._policy.check_every_s
                    self._consider()
            except Exception:
                logger.exception("Looking after the journal %s failed; it is tried again", self._journal.path)

    def _notice_room(self) -> None:
        room = free_bytes(self._journal)
        if self._has_room and room < _LITTLE_ROOM_BYTES:
            self._has_room = False
            logger.warning(
                "The file system of the journal %s has %s bytes left beyond the reserve of %s: free space, "
                "or writes will be refused (reads go on)",
                self._journal.path, f"{max(room, 0):,}", f"{self._journal.options.reserve_bytes:,}",
            )  # fmt: skip
        elif not self._has_room and room >= 2 * _LITTLE_ROOM_BYTES:
            self._has_room = True
            logger.info("The file system of the journal %s has room again", self._journal.path)

    # -- compaction ---------------------------------------------------------

    def _consider(self) -> None:
        """Begin a compaction, in a thread of its own, when there is a reason and the time has come."""
        if not self._policy.enabled or time.monotonic() < self._next_at:
            return
        if self._compaction is not None and self._compaction.is_alive():
            return
        figures = measure(self._store, retention=self._retention, now_ms=floor_ms(self._clock()))
        reason = find_reason(self._policy, figures)
        if reason is not None:
            self._compaction = threading.Thread(
                target=self._try_compact, args=(reason,), name="belay-journal-compaction", daemon=True
            )
            self._compaction.start()

    def _try_compact(self, reason: str) -> None:
        try:
            self.compact(reason)
            self._pause_s = self._policy.min_interval_s
        except Exception as error:
            if self._stop.is_set():
                return
            self._pause_s = min(2 * self._pause_s, _LONGEST_PAUSE_S)
            self._facts = {**self._facts, "failed_at": self._clock().isoformat(), "failure": str(error)}
            logger.warning(
                "Compacting the journal %s failed: %s; the store is as it was, the next try is in %.0f s",
                self._journal.path, error, self._pause_s, exc_info=not isinstance(error, JournalError),
            )  # fmt: skip
            if self._journal.tail.poisoned:
                self._failed(error)
        finally:
            self._next_at = time.monotonic() + self._pause_s

    def compact(self, reason: str) -> CompactionReport:
        """Compact now, whatever the bounds say.

        Raises:
            JournalError: Given up with the store as it was; or, when the journal is poisoned after
                it, in the middle of the switch: the owner must end.
        """
        limit = self._room_for_candidate()
        began = time.monotonic()
        logger.info("Compacting the journal %s: %s", self._journal.path, reason)
        report = compact(
            self._journal,
            now_ms=floor_ms(self._clock()),
            retention=self._retention,
            keeper=self._store.memory,
            candidate_limit=limit,
            is_cancelled=self._stop.is_set,
            pace=keep_share(self._policy.share),
        )
        took_s = time.monotonic() - began
        self._facts = {
            "compacted_at": self._clock().isoformat(),
            "took_s": round(took_s, 3),
            "kept_records": report.kept_records,
            "expired_jobs": report.expired_jobs,
            "base_bytes": report.base_bytes,
        }
        logger.info(
            "Compacted the journal %s in %.1f s: %s records kept, %s jobs gone, %s bytes",
            self._journal.path, took_s, f"{report.kept_records:,}", f"{report.expired_jobs:,}",
            f"{report.base_bytes:,}",
        )  # fmt: skip
        return report

    def _room_for_candidate(self) -> int:
        """How many bytes the new generation may take beside the old one.

        What is written meanwhile keeps the reserve and as much again.
        """
        room = free_bytes(self._journal) - _LITTLE_ROOM_BYTES
        if room <= 0:
            raise JournalError(
                f"no room for a second generation beside the first: {max(room, 0):,} bytes are left on the "
                f"file system of {self._journal.path}; free space, a compaction then frees more",
                refusal="insufficient_headroom",
                kind="resource_limit",
                path=self._journal.path,
            )
        return room
