"""The owner of a directory: opens its store, serves it, looks after it, and gives it up."""

from __future__ import annotations

import logging
import os
import socket
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from types import TracebackType
from typing import Final, Literal, Protocol, Self, TypeAlias

from django_belay.contract.state import State
from django_belay.exceptions import JournalError, JournalLocked
from django_belay.storage.journal.files.filesystem import Durability
from django_belay.storage.journal.files.journal import Journal, JournalOptions, open_journal
from django_belay.storage.journal.files.tail import ROTATION_TARGET_BYTES
from django_belay.storage.journal.format.manifest import INFINITY, Retention
from django_belay.storage.journal.store.instants import floor_ms
from django_belay.storage.journal.store.store import JournalStore

from .place import Place, Word
from .server import Server
from .upkeep import Policy, Upkeep, recheck

logger = logging.getLogger("django_belay.journal")

Progress: TypeAlias = Callable[[int, int, int], None]
_HOUR: Final = timedelta(hours=1)
_LOOK_AGAIN_S: Final = 0.005
# An opening that takes longer is spoken of, as often.
_TELL_EVERY_S: Final = 1.0
_LOG_EVERY_S: Final = 5.0


class Closable(Protocol):
    """What lives as long as the owner does."""

    def close(self) -> None:
        """End it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnerOptions:
    """How a directory is owned.

    Attributes:
        segment_bytes: When a segment is sealed and the next begun.
        retention: How long ended jobs are kept, by state; ``None`` for ever. A store that is made
            and compactions keep by the longest of them.
        lease_ttl: How long the runs of the time before are given to come forward.
        idle_exit_s: :meth:`Owner.join_until_idle` ends after so long without a client; ``None`` never.
        index: Makes the inspection index of the store in the file; closed with the owner.
        policy: When the store is compacted.
        clock: Tells a compaction what has expired; by default the store's.
    """

    durability: Durability = "sync"
    validated_filesystem: bool = False
    segment_bytes: int = ROTATION_TARGET_BYTES
    profile: Literal["belay", "strict"] = "belay"
    retention: Mapping[State, timedelta | None] = field(default_factory=dict)
    lease_ttl: timedelta = timedelta(seconds=30)
    idle_exit_s: float | None = None
    index: Callable[[JournalStore, Path], Closable] | None = None
    policy: Policy = field(default_factory=Policy)
    clock: Callable[[], datetime] | None = None


def longest(retention: Mapping[State, timedelta | None]) -> Retention:
    """The retention of the store itself, in whole hours: that of the state that is kept longest."""
    periods = list(retention.values())
    if not periods or None in periods:
        return INFINITY
    most = max(period for period in periods if period is not None)
    return Retention(unit="hours", amount=max(1, -(-most // _HOUR)))


class Owner:
    """The one process that owns a journal's directory. Made by :meth:`open`.

    Attributes:
        storage: The store, for whoever works in this process.
        epoch: Tells one owner of the directory from another.
        failure: Why this owner ended by itself; ``None`` while it is well.
        ended: Set once it does not serve any more, whatever the reason.
    """

    def __init__(self, place: Place, options: OwnerOptions, storage: JournalStore, word: Word) -> None:
        self.place = place
        self.options = options
        self.storage = storage
        self.epoch = os.urandom(8).hex()
        self.failure: BaseException | None = None
        self.ended = threading.Event()
        self._word = word
        self._journal = storage.journal
        self._closing = threading.Lock()
        self._server: Server | None = None
        self._thread: threading.Thread | None = None
        self._upkeep: Upkeep | None = None
        self._index: Closable | None = None
        self._follows: Callable[[], None] | None = None

    @classmethod
    def open(
        cls,
        place: Place,
        options: OwnerOptions,
        *,
        now: datetime,
        wait_s: float = 0.0,
        progress: Progress | None = None,
    ) -> Owner:
        """Own the directory, made on first use; nothing is served before :meth:`start`.

        Args:
            wait_s: How long to wait for an owner that is dead or handing over (its scribe finishes the
                batch in hand). One that answers on the socket is not waited for.
            progress: Called while a store is read with records so far, bytes done and bytes in all.

        Raises:
            JournalLocked: Another owner lives, or has not let go within ``wait_s``.
            JournalError: The store, or its file system, is refused.
            ConfigurationError: The directory is not this user's.
            StorageError: An import did not come to its end.
        """
        place.make_store(
            now_ms=floor_ms(now),
            retention=longest(options.retention),
            durability=options.durability,
            validated_filesystem=options.validated_filesystem,
        )
        place.prepare()
        place.check_whole()
        teller = _Teller(place, progress)
        try:
            journal = _open_within(place, options, wait_s, teller)
            try:
                teller.say("building its indexes")
                storage = JournalStore(journal, now=now, lease_ttl=options.lease_ttl, profile=options.profile)
                storage.memory.ids.begin(
                    floor_ms(now) + int(teller.took_s * 1000),
                    given=place.given_ids(),
                    promise=place.promise_ids,
                )
            except BaseException:
                journal.close()
                raise
        except BaseException:
            teller.word.end()
            raise
        logger.info(
            "Process %s owns the journal %s: %s records, %.1f s", os.getpid(), place.directory,
            f"{journal.recovered.records:,}", teller.took_s,
        )  # fmt: skip
        return cls(place, options, storage, teller.word)

    @property
    def clients(self) -> int:
        """Connections served now."""
        return self._server.clients if self._server is not None else 0

    def start(self) -> None:
        """Serve the socket, look after the store, and make its index: in threads of this process."""
        if self.options.index is not None:
            self._index = self.options.index(self.storage, self.place.index)
        self._journal.recheck()
        listener = self._listen()
        from .server import Server

        self._server = Server(self.storage, listener, epoch=self.epoch)
        self._follows = self._journal.follow(self._on_batch)
        self._thread = threading.Thread(target=self._serve, name="belay-journal-server", daemon=True)
        self._thread.start()
        self._upkeep = Upkeep(
            self.storage,
            retention=longest(self.options.retention),
            policy=self.options.policy,
            look=self._look,
            failed=self._fail,
            clock=self.options.clock,
        )
        self._upkeep.start()
        self._word.end()

    def join_until_idle(self, stop: threading.Event) -> None:
        """Return when ``stop`` is set, or nobody has been connected for ``idle_exit_s``.

        Raises:
            JournalError: The owner ended by itself: it lost the store, or could not write it.
        """
        limit_s = self.options.idle_exit_s
        while not stop.wait(0.1):
            if self.ended.is_set():
                break
            if limit_s is not None and self._server is not None and self._server.idle_for_s >= limit_s:
                logger.info("Nobody has asked for the journal %s in %g s", self.place.directory, limit_s)
                break
        if self.failure is not None:
            raise self.failure

    def close(self) -> None:
        """Hand over: answer what is in hand, close the clients, write what is pending, release the store.

        Safe to call twice, and from any thread but the owner's own.
        """
        with self._closing:
            self._end(grace_s=1.0)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # -- serving ------------------------------------------------------------

    def _listen(self) -> socket.socket:
        try:
            return self.place.listen()
        except OSError as error:
            raise JournalError(
                f"the socket {self.place.socket} cannot be made: {error.strerror}",
                path=str(self.place.socket),
            ) from error

    def _serve(self) -> None:
        assert self._server is not None
        try:
            self._server.serve()
        except Exception as error:
            logger.exception("The journal's server ended")
            self._fail(error)

    def _on_batch(self, through: int, error: BaseException | None) -> None:
        """In the thread that writes: nothing more becomes durable after an error."""
        if error is not None:
            self._fail(error)

    # -- ending -------------------------------------------------------------

    def _look(self) -> None:
        """Refuse when the directory is no longer what is owned; mend the socket's name."""
        recheck(self._journal)
        if not self.place.is_reachable():
            logger.warning("The socket %s was gone: it is put back", self.place.socket)
            self.place.restore_socket()

    def _fail(self, error: BaseException) -> None:
        """The owner cannot go on: end, so that another takes over. Called by its own threads."""
        if self.failure is not None or self.ended.is_set():
            return
        self.failure = error
        logger.error(
            "Process %s gives the journal %s up: %s; clients go on with the next owner",
            os.getpid(), self.place.directory, error,
        )  # fmt: skip
        threading.Thread(target=self._close_failed, name="belay-journal-end", daemon=True).start()

    def _close_failed(self) -> None:
        with self._closing:
            try:
                self._end(grace_s=0.0)
            except Exception as error:
                logger.error("The journal %s was not closed in order: %s", self.place.directory, error)

    def _end(self, *, grace_s: float) -> None:
        if self.ended.is_set():
            return
        try:
            if self._upkeep is not None:
                self._upkeep.stop()
            if self._server is not None and self._thread is not None:
                self._server.stop(grace_s)
                self._thread.join()
            if self._follows is not None:
                self._follows()
            self.place.remove_socket()
            self._word.end()
            if self._index is not None:
                self._index.close()
        finally:
            try:
                self.storage.close()
            finally:
                self.ended.set()


def _open_within(place: Place, options: OwnerOptions, wait_s: float, teller: _Teller) -> Journal:
    """Take the lock, waiting for an owner that does not answer any more."""
    deadline = time.monotonic() + wait_s
    while True:
        try:
            return open_journal(
                str(place.store),
                JournalOptions(
                    durability=options.durability,
                    validated_filesystem=options.validated_filesystem,
                    rotation_target_bytes=options.segment_bytes,
                ),
                progress=teller,
            )
        except JournalLocked:
            if time.monotonic() >= deadline or place.has_owner():
                raise
        time.sleep(_LOOK_AGAIN_S)


class _Teller:
    """Says how far an opening is: to who asked, to the log, and to clients that wait."""

    def __init__(self, place: Place, progress: Progress | None) -> None:
        self._place = place
        self._progress = progress
        self._began = time.monotonic()
        self.word = Word(place)
        self._told_at = float("-inf")
        self._logged_at = self._began

    @property
    def took_s(self) -> float:
        """Seconds since the opening began."""
        return time.monotonic() - self._began

    def __call__(self, records: int, done: int, total: int) -> None:
        percent = done * 100 // total if total else 100
        now = time.monotonic()
        if now - self._told_at >= _TELL_EVERY_S:
            self._tell("reading the store", percent=percent, records=records)
        if now - self._logged_at >= _LOG_EVERY_S:
            self._logged_at = now
            logger.info(
                "Reading the journal %s: %s records, %s %%", self._place.directory, f"{records:,}", percent
            )
        if self._progress is not None:
            self._progress(records, done, total)

    def say(self, doing: str) -> None:
        """The lock is held and the opening goes on."""
        self._tell(doing)

    def _tell(self, doing: str, **facts: int) -> None:
        self._told_at = time.monotonic()
        try:
            self.word.tell(doing, **facts)
        except OSError as error:  # a full disk keeps nobody from opening the store
            logger.debug("Could not leave word in %s: %s", self._place.run, error)
