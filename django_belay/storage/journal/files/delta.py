"""What was committed while a base was written: checked against it, appended to its tail, and
told to the state (spec G.3)."""

from __future__ import annotations

import os
from array import array
from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeAlias

from crc32c import crc32c

from django_belay.exceptions import JournalError
from django_belay.storage.journal.format.event_v2 import ResultRecorded
from django_belay.storage.journal.format.extension import Frame, Operation, Row
from django_belay.storage.journal.format.limits import MAX_ACTIVE_BYTES
from django_belay.storage.journal.format.manifest import Manifest
from django_belay.storage.journal.format.mutation import PREFIX, decode_mutation
from django_belay.storage.journal.format.pair import decode_payload
from django_belay.storage.journal.format.record import OVERHEAD_BYTES, frame
from django_belay.storage.journal.format.refusal import located, refuse
from django_belay.storage.journal.format.segment import HEADER_BYTES
from django_belay.storage.journal.format.snapshot import decode_snapshot
from django_belay.storage.journal.state.finished import location
from django_belay.storage.journal.state.rows import JobEffect, read_effects
from django_belay.storage.journal.state.store_state import StoreState

from . import disk
from .disk import Directory, File
from .reader import SegmentReader
from .recovery import crc_of
from .tail import Position

Delta: TypeAlias = list[tuple[int, int, bytes]]
_FLUSH_BYTES = 1 << 18


@dataclass(frozen=True, slots=True, kw_only=True)
class Followed:
    """The base that a delta follows, and where it put what."""

    manifest: Manifest
    directory: Directory
    segments: Directory
    tail: File
    keys: dict[str, list[bytes]]
    places: dict[str, array[int]]
    expired: set[bytes]
    dropped: list[tuple[str, str]]
    orders: dict[bytes, int] | None

    def place_of(self, table: str, key: bytes) -> int:
        """Where the base put an entry; 0 when it has none."""
        keys = self.keys[table]
        at = bisect_left(keys, key)
        return self.places[table][at] if at < len(keys) and keys[at] == key else 0


class CatchUp:
    """Follows a base with what is committed meanwhile, in rounds: checked, then appended to its tail.

    Every record must apply cleanly: no job of it expired, each mutation's job there with its
    revision, each availability order the next. The base is read for this from its bytes, not
    from the state that wrote it.
    """

    def __init__(self, base: Followed, next_order: int) -> None:
        manifest = base.manifest
        self.done = 0
        self.places: list[int] = []
        self.crc = crc32c(os.pread(base.tail.fd, HEADER_BYTES, 0))
        self._base = base
        self._reader = SegmentReader(base.segments)
        self._revisions: dict[bytes, int] = {}
        self._next_order = next_order
        self._framed: Delta | None = None
        self._checked_size = self._size = HEADER_BYTES
        self._sequence = manifest.tail_first_sequence

    @property
    def position(self) -> Position:
        """Where the new tail ends."""
        manifest = self._base.manifest
        return Position(manifest.tail_segment_id, self._size, manifest.tail_first_sequence, self._sequence)

    def check(self, records: Delta) -> None:
        """Refuse records that do not fit what they follow; each is checked once, in order."""
        if records and self._base.orders is not None:
            raise located(refuse("argument", "candidate_mismatch", "not at rest"), path=self._base.tail.path)
        for kind, schema, payload in records:
            self._checked_size += len(payload) + OVERHEAD_BYTES
            if self._checked_size > MAX_ACTIVE_BYTES:
                raise located(
                    refuse("resource_limit", "online_delta_too_large", self._checked_size),
                    path=self._base.tail.path,
                )
            if (kind, schema) == (131, 1):
                self._check_frame(payload)
            elif self._framed is not None:
                self._framed.append((kind, schema, payload))
            else:
                self._check_record(kind, schema, payload)

    def _check_frame(self, payload: bytes) -> None:
        """What a frame brackets counts when it commits; aborted, it never did."""
        mark = decode_payload(131, 1, payload, "tail")
        assert isinstance(mark, Frame)
        framed, self._framed = self._framed, [] if mark.mark == "begin" else None
        if mark.mark == "commit":
            for kind, schema, payload in framed or ():
                self._check_record(kind, schema, payload)

    def _check_record(self, kind: int, schema: int, payload: bytes) -> None:
        if (kind, schema) == (8, 1):
            self._check_mutation(payload)
            return
        for job_id in _touched(kind, schema, payload):
            if job_id in self._base.expired:
                raise _mismatch(self._base, job_id, "expired job")

    def _check_mutation(self, payload: bytes) -> None:
        job_id, _, expected, revision, _ = PREFIX.unpack_from(payload)
        current = self._revisions.get(job_id)
        if current is None:
            where = self._base.place_of("jobs", job_id)
            current = decode_snapshot(self._reader.record(where).payload).revision if where else 0
        order = getattr(decode_mutation(payload), "availability_order", None)
        if current != expected:
            raise _mismatch(self._base, job_id, "revision", expected, current)
        if order is not None and order < self._next_order:
            raise _mismatch(self._base, job_id, "availability_order", self._next_order, order)
        self._revisions[job_id] = revision
        self._next_order = self._next_order if order is None else order + 1

    def write(self, records: Delta) -> None:
        """Append checked records with their new sequences; every write is read back."""
        parts: list[bytes] = []
        start, pending = self._size, 0
        for kind, schema, payload in records:
            data = frame(kind, schema, self._sequence, payload)
            self.places.append(location(self._base.manifest.tail_segment_id, self._size))
            parts.append(data)
            self._sequence += 1
            self._size += len(data)
            pending += len(data)
            if pending >= _FLUSH_BYTES:
                self._append(start, parts)
                parts, start, pending = [], self._size, 0
        if parts:
            self._append(start, parts)
        self.done += len(records)

    def _append(self, offset: int, parts: list[bytes]) -> None:
        data = b"".join(parts)
        disk.write(self._base.tail, offset, data, "compact.delta.write")
        self.crc = crc32c(data, self.crc)

    def sync(self) -> None:
        """Make the tail and its directories durable."""
        disk.fsync(self._base.tail, "compact.delta.fsync")
        disk.fsync_dir(self._base.segments, "compact.delta.fsync_segments")
        disk.fsync_dir(self._base.directory, "compact.delta.fsync_dir")

    def check_bytes(self) -> None:
        """Read the tail once more: appenders wait for this, so it is compared, not decoded."""
        file = self._base.tail
        if os.fstat(file.fd).st_size != self._size or crc_of(file, self._size) != self.crc:
            raise located(refuse("physical_corruption", "published_candidate_mismatch"), path=file.path)

    def close(self) -> None:
        """Let go of the base."""
        self._reader.close()


def _touched(kind: int, schema: int, payload: bytes) -> Iterator[bytes]:
    item = decode_payload(kind, schema, payload, "tail")
    if isinstance(item, Row | ResultRecorded):
        yield item.job_id
    elif isinstance(item, Operation):
        for effect in read_effects(item):
            if isinstance(effect, JobEffect):
                yield effect.job_id


def _mismatch(base: Followed, job_id: bytes, *details: object) -> JournalError:
    return located(refuse("argument", "candidate_mismatch", job_id.hex(), *details), path=base.directory.path)


def move_state(state: StoreState, base: Followed, delta: Delta, places: list[int]) -> None:
    """Let the state know where everything stands now, and forget what expired."""
    for job_id in base.expired:
        for table in ("jobs", "results", "extended"):
            state.forget(table, job_id)
    for table, key in base.dropped:
        state.forget(f"tables.{table}", key)
    for job_id, where in zip(base.keys["jobs"], base.places["jobs"], strict=True):
        state.move_job(job_id, where)
    for job_id, where in zip(base.keys["results"], base.places["results"], strict=True):
        state.move_result(job_id, where)
    trails: dict[bytes, list[int]] = {}
    for kind, schema, payload, where in _effective(delta, places):
        if (kind, schema) == (8, 1):
            if payload[16] == 1:
                state.move_job(payload[:16], where)
            continue
        item = decode_payload(kind, schema, payload, "tail")
        if isinstance(item, ResultRecorded):
            state.move_result(item.job_id, where)
        elif isinstance(item, Row):
            trails[item.job_id] = [where]
        elif isinstance(item, Operation):
            _follow(base, item, where, trails)
    for job_id, where in zip(base.keys["extended"], base.places["extended"], strict=True):
        state.move_row(job_id, tuple(trails.pop(job_id, (where,))))
    for job_id, trail in trails.items():
        state.move_row(job_id, tuple(trail))
    if base.orders is not None:
        state.renumber(base.orders)


def _follow(base: Followed, item: Operation, where: int, trails: dict[bytes, list[int]]) -> None:
    for effect in read_effects(item):
        if not isinstance(effect, JobEffect):
            continue
        if effect.changes is None:
            trails[effect.job_id] = []
            continue
        if effect.job_id not in trails:
            first = base.place_of("extended", effect.job_id)
            trails[effect.job_id] = [first] if first else []
        trails[effect.job_id].append(where)


def _effective(delta: Delta, places: list[int]) -> Iterator[tuple[int, int, bytes, int]]:
    """The records of a delta that took effect: those of an aborted frame did not."""
    held: list[tuple[int, int, bytes, int]] | None = None
    for (kind, schema, payload), where in zip(delta, places, strict=True):
        if (kind, schema) == (131, 1):
            mark = decode_payload(kind, schema, payload, "tail")
            assert isinstance(mark, Frame)
            if mark.mark == "commit":
                yield from held or ()
            held = [] if mark.mark == "begin" else None
        elif held is not None:
            held.append((kind, schema, payload, where))
        else:
            yield kind, schema, payload, where
