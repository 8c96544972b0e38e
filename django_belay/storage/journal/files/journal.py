"""An owned store: opened, activated, appended to by many threads, closed.

Records are applied to the state and given their place under one lock; a thread that waits
for them writes everything planned so far in one batch, syncs once, and wakes the others.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Literal, Self

from django_belay.exceptions import JournalError, JournalLocked
from django_belay.storage.journal.format.extension import Frame
from django_belay.storage.journal.format.limits import MAX_U64
from django_belay.storage.journal.format.pair import Payload, encode_payload
from django_belay.storage.journal.format.refusal import located, refuse
from django_belay.storage.journal.format.segment import HEADER_BYTES
from django_belay.storage.journal.state.finished import location
from django_belay.storage.journal.state.store_state import StoreState

from . import disk, layout
from .authority import Authority, recheck_authority
from .filesystem import RESERVE_BYTES, Durability, Room, check_durable
from .ownership import Ownership, acquire
from .pen import InlinePen, Pen, ScribePen
from .reclaim import reclaim_predecessor
from .recovery import Progress, ReadBudgets, Recovered, check_unchanged, recover, revalidate
from .tail import ROTATION_TARGET_BYTES, Position, Run, Tail, create_successor


@dataclass(frozen=True, slots=True, kw_only=True)
class JournalOptions:
    """How a store is owned. The defaults are those of production."""

    durability: Durability = "sync"
    validated_filesystem: bool = False
    rotation_target_bytes: int = ROTATION_TARGET_BYTES
    reserve_bytes: int = RESERVE_BYTES
    writer: Literal["scribe", "inline"] = "scribe"
    activation_window_s: float = 30.0
    lock_wait_s: float = 0.0
    budgets: ReadBudgets = field(default_factory=ReadBudgets)


class Journal:
    """The owner of one store. Made by :func:`open_journal`."""

    def __init__(
        self, ownership: Ownership, recovered: Recovered, tail: Tail, pen: Pen, options: JournalOptions
    ) -> None:
        self.ownership = ownership
        self.recovered = recovered
        self.options = options
        self.pen = pen
        self.lock = threading.RLock()
        self.tail = tail
        self._runs: list[Run] = []
        self._writing = False
        self._waiters: list[_Waiter] = []
        self._admits = True
        self._written_through = tail.written.next_sequence - 1
        recovered.state.go_live()
        self._room = Room(ownership.root, options.reserve_bytes)
        self.delta: list[tuple[int, int, bytes]] | None = None
        self.compacting = threading.Lock()
        self.closed = False
        self._framing = threading.get_ident() if recovered.state.open_frame is not None else None
        self._process_id = os.getpid()

    @property
    def state(self) -> StoreState:
        """What the store holds; look at it under ``lock``."""
        return self.recovered.state

    @property
    def store_id(self) -> bytes:
        """The id of the store."""
        return self.recovered.authority.store_id

    @property
    def path(self) -> str:
        """The store's root."""
        return self.ownership.root.path

    @property
    def admits(self) -> bool:
        """Whether new records are accepted; not while a compaction switches over."""
        return self._admits and not self.closed

    def submit(self, items: Sequence[Payload]) -> int:
        """Apply records together and plan their bytes; the sequence to :meth:`wait` for.

        All of them are applied or, when one is refused, none; nothing is written then. Whoever
        leaves a frame open holds ``lock`` until a later call has closed it; records of another
        thread would be taken for the frame's, and are refused.

        Raises:
            JournalFull: There is no room; nothing changed.
            JournalError: A record is refused, or the writer is poisoned or closed.
        """
        encoded = [encode_payload(item) for item in items]
        size = sum(len(payload) + 28 for _, _, payload in encoded) + 2 * (HEADER_BYTES + 64)
        with self.lock:
            self._check_admits()
            self._room.take(size)
            planned = self.tail.planned
            runs: list[Run] = []
            try:
                places = [self.tail.plan(kind, schema, payload, runs) for kind, schema, payload in encoded]
                if len(items) == 1:
                    self.state.apply(items[0], places[0])
                else:
                    self.state.apply_together(list(zip(items, places, strict=True)))
            except JournalError:
                self.tail.planned = planned
                raise
            except BaseException:  # interrupted: nobody knows how far the state came
                self.tail.planned = planned
                self.tail.poisoned = True
                raise
            self._framing = threading.get_ident() if self.state.open_frame is not None else None
            self._room.promised += size
            self._join(runs)
            if self.delta is not None:
                self.delta.extend(encoded)
            return self.tail.planned.next_sequence - 1

    def wait(self, sequence: int) -> None:
        """Return once everything through ``sequence`` is durable (or written, by the durability)."""
        while self._written_through < sequence:
            with self.lock:
                turn = self._enlist(sequence)
            if self._take_turn(turn):
                return

    def append(self, items: Sequence[Payload]) -> int:
        """Submit and wait."""
        return self.transact(lambda state: items)

    def transact(self, decide: Callable[[StoreState], Sequence[Payload]]) -> int:
        """Decide on records, submit them and wait; the last one's sequence.

        ``decide`` sees the state under the owner's lock, so that nothing comes between what
        it saw and what it says; it must be quick and must not wait for anything. The lock is
        taken once: with many appenders, waiting for it is most of what an append costs.
        """
        with self.lock:
            sequence = self.submit(decide(self.state))
            turn = self._enlist(sequence)
        if not self._take_turn(turn):
            self.wait(sequence)
        return sequence

    def _enlist(self, sequence: int) -> _Batch | _Waiter | None:
        """Under the lock: a batch to write, a place among those who wait, or None when it is done."""
        if self._written_through >= sequence:
            return None
        self._check_process()
        if self.tail.poisoned:
            raise located(refuse("io", "poisoned"), path=self.path)
        if self._writing:
            waiter = _Waiter(sequence)
            self._waiters.append(waiter)
            return waiter
        self._writing = True
        runs, self._runs = self._runs, []
        return _Batch(runs, self.tail.planned.next_sequence - 1, self._room.promised)

    def _take_turn(self, turn: _Batch | _Waiter | None) -> bool:
        """Outside the lock: write the batch or sleep; True when the sequence is surely durable."""
        if isinstance(turn, _Waiter):
            return turn.block()
        if turn is not None:
            self._write(turn)
        return True

    def flush(self) -> None:
        """Wait for everything submitted so far."""
        with self.lock:
            sequence = self.tail.planned.next_sequence - 1
        self.wait(sequence)

    def stop_admission(self) -> None:
        """Refuse new records, wait for the old ones, and make them durable."""
        with self.lock:
            self._admits = False
        self.flush()
        with self.lock:
            try:
                self.tail.sync()
            except OSError as error:
                self.tail.poisoned = True
                raise disk.io_error(error, self.path) from error

    def suspend_admission(self) -> None:
        """Refuse new records."""
        with self.lock:
            self._admits = False

    @contextmanager
    def quiet(self) -> Iterator[None]:
        """Hold the owner's lock with everything written and nobody writing."""
        self._check_process()
        while True:
            self.flush()
            with self.lock:
                if self._writing or self._runs:
                    continue
                yield
                return

    def adopt(self, authority: Authority, position: Position, crc: int) -> None:
        """Go on in another generation, under the lock and with admission closed."""
        self.pen.release(self.tail.file)
        self.tail.close()
        self.recovered.authority.close()
        self.recovered.authority = authority
        self.recovered.reader.turn_to(authority.segments)
        self.tail = _new_tail(authority, position, crc, self.pen, self.options)
        self._written_through = position.next_sequence - 1

    def recheck(self) -> None:
        """Refuse when root, lock, pointer or directories are no longer those that are owned.

        An owner calls this now and then, and before it says that it is ready.
        """
        with self.lock:
            recheck_authority(self.ownership.root, self.recovered.authority)
        self.ownership.recheck()

    def resume_admission(self) -> None:
        """Accept records again."""
        with self.lock:
            self._admits = True

    def close(self) -> None:
        """Write what is pending, then give the store up. Safe to call twice."""
        if self.closed:
            return
        try:
            if not self.tail.poisoned and self._process_id == os.getpid():
                self.flush()
        finally:
            self.closed = True
            self.tail.close()
            self.pen.close()
            self.recovered.close()
            self.ownership.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _check_process(self) -> None:
        """Refuse a child that was forked off the owner: it has the descriptors, but owns nothing."""
        if self._process_id != os.getpid():
            raise located(refuse("ownership_unavailable", "caller_lost"), path=self.path)

    def _check_admits(self) -> None:
        self._check_process()
        if self.closed or not self._admits:
            raise located(refuse("argument", "mutation_not_admitted"), path=self.path)
        if self._framing is not None and self._framing != threading.get_ident():
            raise located(
                refuse("argument", "mutation_not_admitted", "another thread's frame is open"), path=self.path
            )
        if self.tail.poisoned:
            raise located(refuse("io", "poisoned"), path=self.path)

    def _join(self, runs: list[Run]) -> None:
        for run in runs:
            if self._runs and self._runs[-1].segment_id == run.segment_id:
                self._runs[-1].frames.extend(run.frames)
            else:
                self._runs.append(run)

    def _write(self, batch: _Batch) -> None:
        """Write one batch outside the lock, then wake who waited for it and one who goes on."""
        good = False
        through = batch.through
        try:
            self.tail.write(batch.runs)
            good = True
        finally:
            with self.lock:
                self._writing = False
                if good:
                    self._written_through = through
                    at = self.tail.written
                    self.state.written(location(at.segment_id, at.size))
                    self._room.promised -= batch.promised
                    self._room.refresh()
                waiting, self._waiters = self._waiters, []
                served = [waiter for waiter in waiting if good and waiter.sequence <= through]
                rest = [waiter for waiter in waiting if not good or waiter.sequence > through]
                # After a failure everyone looks for himself; else the first of the rest leads.
                called = rest[:1] if good else rest
                self._waiters.extend(rest[len(called) :])
            for waiter in called:
                waiter.wake(done=False)
            for waiter in served:
                waiter.wake(done=True)


@dataclass(frozen=True, slots=True)
class _Batch:
    """What one thread writes for all that planned before it."""

    runs: list[Run]
    through: int
    promised: int


class _Waiter:
    """A thread that waits for a batch. A bare lock: a condition would make all of them queue for
    the owner's lock again when they wake."""

    __slots__ = ("_done", "_gate", "sequence")

    def __init__(self, sequence: int) -> None:
        self.sequence = sequence
        self._done = False
        self._gate = threading.Lock()
        self._gate.acquire()

    def block(self) -> bool:
        """Sleep until woken; True when the sequence is durable."""
        self._gate.acquire()
        return self._done

    def wake(self, *, done: bool) -> None:
        """Wake the thread."""
        self._done = done
        self._gate.release()


def open_journal(
    path: str, options: JournalOptions | None = None, *, progress: Progress | None = None
) -> Journal:
    """Own a store: lock it, read all of it, check that nothing moved, then make it writable.

    Raises:
        JournalLocked: Another owner, or its scribe, still holds it.
        JournalError: The store is refused; nothing was changed.
    """
    options = options or JournalOptions()
    ownership = _acquire_within(path, options.lock_wait_s)
    try:
        check_durable(ownership.root, options.durability, validated=options.validated_filesystem)
        recovered = recover(ownership, options.budgets, progress=progress)
        try:
            return activate(ownership, recovered, options)
        except BaseException:
            recovered.close()
            raise
    except BaseException:
        ownership.release()
        raise


def _acquire_within(path: str, wait_s: float) -> Ownership:
    """Take the lock, waiting for a dead owner's scribe to finish its batch."""
    deadline = time.monotonic() + wait_s
    while True:
        try:
            return acquire(path)
        except JournalLocked:
            if time.monotonic() >= deadline:
                raise
        time.sleep(0.005)


def activate(ownership: Ownership, recovered: Recovered, options: JournalOptions) -> Journal:
    """Turn an inspection into ownership for writing, once and in the same session (spec F).

    Raises:
        JournalError: ``already_activated``, ``activation_window_expired``, ``caller_lost``, a
            changed view; or kind ``uncertain_activation`` once writing was promoted.
    """
    _check_session(recovered, options)
    check_unchanged(recovered)
    revalidate(ownership, recovered, options.budgets)
    ownership.check_noreplace()
    recovered.activated = True
    pen: Pen = InlinePen() if options.writer == "inline" else ScribePen(ownership)
    try:
        _promote(ownership, recovered)
        journal = Journal(ownership, recovered, _open_tail(recovered, pen, options), pen, options)
        _abort_open_frame(journal)
    except OSError as error:
        pen.close()
        refusal = disk.io_error(error, ownership.root.path)
        raise _uncertain(refusal) from error
    except JournalError as error:
        pen.close()
        raise _uncertain(error) from error
    except BaseException:
        pen.close()
        raise
    return journal


def _check_session(recovered: Recovered, options: JournalOptions) -> None:
    path = recovered.authority.epoch.path
    if recovered.activated:
        raise located(refuse("ownership_unavailable", "already_activated"), path=path)
    if recovered.process_id != os.getpid():
        raise located(refuse("ownership_unavailable", "caller_lost"), path=path)
    if time.monotonic() - recovered.made_at > options.activation_window_s:
        raise located(refuse("resource_limit", "activation_window_expired"), path=path)
    last = recovered.segments[-1]
    if recovered.next_sequence > MAX_U64:
        raise located(refuse("resource_limit", "sequence_exhausted"), path=path)
    if last.state == "sealed" and last.segment_id >= MAX_U64:
        raise located(refuse("resource_limit", "segment_id_exhausted"), path=path)


def _uncertain(error: JournalError) -> JournalError:
    """A failure after promotion: the process must end; a fresh one may open the store."""
    refusal = refuse("uncertain_activation", error.refusal, *error.details)
    return located(refusal, path=error.path, offset=error.offset, last_good_sequence=error.last_good_sequence)


def _promote(ownership: Ownership, recovered: Recovered) -> None:
    authority, root = recovered.authority, ownership.root
    disk.fsync_ancestors(root.path, "activate.ancestor.fsync_dir")
    disk.fsync(ownership.lock, "activate.lock.fsync")
    disk.fsync_dir(root, "activate.root.fsync_dir")
    disk.fsync_dir(authority.segments, "activate.segments.fsync_dir")
    reclaim_predecessor(root, authority)
    for directory, name in (
        (root, layout.MARKER),
        (root, layout.CURRENT),
        (authority.epoch, layout.MANIFEST),
    ):
        file = disk.open_file(directory, name)
        try:
            disk.fsync(file, "activate.metadata.fsync")
        finally:
            file.close()
    for directory in (authority.epoch, authority.epochs, root, authority.segments):
        disk.fsync_dir(directory, "activate.fsync_dir")


def _open_tail(recovered: Recovered, pen: Pen, options: JournalOptions) -> Tail:
    last = recovered.segments[-1]
    segments, store_id = recovered.authority.segments, recovered.authority.store_id
    if last.state == "sealed":
        crc = create_successor(pen, segments, store_id, last.segment_id + 1, last.next_sequence)
        position = Position(last.segment_id + 1, HEADER_BYTES, last.next_sequence, last.next_sequence)
    else:
        crc = last.crc
        position = Position(last.segment_id, last.size, last.first_sequence, last.next_sequence)
    tail = _new_tail(recovered.authority, position, crc, pen, options)
    if last.state == "active":
        tail.sync()
    return tail


def _new_tail(authority: Authority, position: Position, crc: int, pen: Pen, options: JournalOptions) -> Tail:
    return Tail(
        pen,
        authority.segments,
        authority.store_id,
        position,
        crc=crc,
        target=options.rotation_target_bytes,
        sync=options.durability == "sync",
    )


def _abort_open_frame(journal: Journal) -> None:
    """A frame that a crash left open is closed by an abort before anything else is written."""
    operation = journal.state.open_frame
    if operation is not None:
        journal.append([Frame(mark="abort", operation=operation)])
