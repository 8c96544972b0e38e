"""An owned store: opened, activated, appended to by many threads, closed.

Records are applied to the state and given their place under one lock; they are written in batches,
one sync each (see ``commit``).
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final, Literal, Self

from django_belay.exceptions import JournalError, JournalLocked
from django_belay.storage.journal.format.extension import Frame
from django_belay.storage.journal.format.limits import MAX_U64
from django_belay.storage.journal.format.pair import Payload, encode_payload
from django_belay.storage.journal.format.record import OVERHEAD_BYTES
from django_belay.storage.journal.format.refusal import located, refuse
from django_belay.storage.journal.format.segment import FOOTER_BYTES, HEADER_BYTES
from django_belay.storage.journal.state.finished import location
from django_belay.storage.journal.state.store_state import StoreState

from . import disk, forked, layout
from .authority import Authority, recheck_authority
from .commit import GroupCommit, Told
from .filesystem import RESERVE_BYTES, Durability, Room, check_durable
from .ownership import Ownership, acquire
from .pen import InlinePen, Pen, ScribePen
from .reclaim import reclaim_predecessor
from .recovery import Progress, ReadBudgets, Recovered, check_unchanged, recover, revalidate
from .tail import ROTATION_TARGET_BYTES, Position, Run, Tail, create_successor

# A switch that takes longer will not end any more.
_LONGEST_SWITCH_S: Final = 30.0
_LOOK_AGAIN_S: Final = 0.1


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
    """The owner of one store. Made by :func:`open_journal`.

    ``state`` is what the store holds; look at it under ``lock``.
    """

    def __init__(
        self, ownership: Ownership, recovered: Recovered, tail: Tail, pen: Pen, options: JournalOptions
    ) -> None:
        self.ownership = ownership
        self.recovered = recovered
        self.state = recovered.state
        self.state.go_live()
        self.options = options
        self.pen = pen
        self.lock = threading.RLock()
        self._opened = threading.Condition(self.lock)
        self.tail = tail
        self._admits = True
        self._room = Room(ownership.root, options.reserve_bytes)
        self._settled_at = tail.written
        self._commit = GroupCommit(
            lambda runs: self.tail.write(runs),
            self._room,
            through=tail.written.next_sequence - 1,
            settled=self._try_settle,
            check=self._check_writable,
        )
        self.delta: list[tuple[int, int, bytes]] | None = None
        self.compacting = threading.Lock()
        self.closed = False
        self._framing = threading.get_ident() if recovered.state.open_frame is not None else None
        self._process_id = forked.process_id()

    @property
    def store_id(self) -> bytes:
        """The id of the store."""
        return self.recovered.authority.store_id

    @property
    def path(self) -> str:
        """The store's root."""
        return self.ownership.root.path

    @property
    def through(self) -> int:
        """Through which sequence everything is durable (or written, by the durability)."""
        return self._commit.through

    @property
    def last_write_s(self) -> float | None:
        """Seconds that the last batch took, its fsync included; ``None`` before the first."""
        return self._commit.last_write_s

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
        size = 2 * (HEADER_BYTES + FOOTER_BYTES)
        for _, _, payload in encoded:
            size += len(payload) + OVERHEAD_BYTES
        with self.lock:
            self._check_admits()
            self._settle()
            self._room.promise(size)
            planned = self.tail.planned
            runs: list[Run] = []
            try:
                places = self.tail.plan(encoded, runs)
                if len(items) == 1:
                    self.state.apply(items[0], places[0])
                else:
                    self.state.apply_together(list(zip(items, places, strict=True)))
            except BaseException as error:
                self.tail.planned = planned
                self._room.give_back(size)
                # Interrupted, nobody knows how far the state came.
                self.tail.poisoned = self.tail.poisoned or not isinstance(error, JournalError)
                raise
            self._framing = threading.get_ident() if self.state.open_frame is not None else None
            if self.delta is not None:
                self.delta.extend(encoded)
            sequence = self.tail.planned.next_sequence - 1
            self._commit.add(runs, sequence)
            return sequence

    @property
    def turn(self) -> int:
        """How often the journal has gone on in another generation: each counts its sequences anew."""
        return self._commit.turn

    def wait(self, sequence: int, turn: int | None = None) -> None:
        """Return once everything through ``sequence`` is durable (or written, by the durability).

        Args:
            turn: :attr:`turn` under the lock in which the sequence was submitted; by default that of now.
        """
        self._commit.wait(sequence, self.turn if turn is None else turn)

    def follow(self, told: Told) -> Callable[[], None]:
        """Be told once a batch through which sequence everything is durable: for a loop, which must not
        :meth:`wait`.

        Whoever follows submits the requests of many clients, keeps what :meth:`submit` returned,
        and answers all that ``told(through, error)`` covers in one sweep; after an error nothing more
        becomes durable. From the first call on a thread of the journal's own writes what gathers,
        while the loop goes on. ``told`` is called in that thread: it hands over to the loop
        (``call_soon_threadsafe``) and must not raise.

        Returns:
            Call it to be told no more.
        """
        return self._commit.follow(told)

    def append(self, items: Sequence[Payload]) -> int:
        """Submit and wait."""
        return self.transact(lambda state: items)

    def transact(self, decide: Callable[[StoreState], Sequence[Payload]]) -> int:
        """Decide on records, submit them and wait; the last one's sequence.

        ``decide`` sees the state under the owner's lock, so that nothing comes between what
        it saw and what it says; it must be quick and must not wait for anything.
        """
        with self.lock:
            sequence, turn = self.submit(decide(self.state)), self.turn
        self._commit.wait(sequence, turn)
        return sequence

    def flush(self) -> None:
        """Wait for everything submitted so far."""
        with self.lock:
            sequence, turn = self.tail.planned.next_sequence - 1, self.turn
        self.wait(sequence, turn)

    @contextmanager
    def deciding(self) -> Iterator[None]:
        """Hold the owner's lock to decide on records and submit them.

        Waits for a compaction that switches over: it takes a moment, and what is decided after it stands.
        Do not call it with a frame open.
        """
        deadline = time.monotonic() + _LONGEST_SWITCH_S
        with self.lock:
            while not self._admits and not self.closed and not self.tail.poisoned:
                if not self._opened.wait(_LOOK_AGAIN_S) and time.monotonic() >= deadline:
                    break  # refused with its reason
            yield

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
                if not self._commit.is_idle:
                    continue
                self._settle()
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
        self._settled_at = self.tail.written
        self._commit.restart(position.next_sequence - 1)

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
            self._opened.notify_all()

    def close(self) -> None:
        """Write what is pending, then give the store up. Safe to call twice."""
        if self.closed:
            return
        try:
            if not self.tail.poisoned and self._process_id == forked.process_id():
                self.flush()
        finally:
            self.closed = True
            if self._process_id == forked.process_id():
                self._commit.close()
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
        if self._process_id != forked.process_id():
            raise located(refuse("ownership_unavailable", "caller_lost"), path=self.path)

    def _check_admits(self) -> None:
        self._check_process()
        if self.closed or not self._admits:
            raise located(refuse("argument", "mutation_not_admitted"), path=self.path)
        if self._framing is not None and self._framing != threading.get_ident():
            raise located(
                refuse("argument", "mutation_not_admitted", "another thread's frame is open"), path=self.path
            )
        self._check_writable()

    def _check_writable(self) -> None:
        self._check_process()
        if self.tail.poisoned:
            raise located(refuse("io", "poisoned"), path=self.path)

    def _try_settle(self) -> None:
        """A batch is on disk. Whoever wrote it does not wait for the owner's lock, which may be held
        by somebody who waits for the batch; the next submission makes up for it."""
        if self.lock.acquire(blocking=False):
            try:
                self._settle()
            finally:
                self.lock.release()

    def _settle(self) -> None:
        """Under the lock: let the state drop from memory what can be read back now."""
        at = self.tail.written
        if at is not self._settled_at:
            self._settled_at = at
            self.state.written(location(at.segment_id, at.size))


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
