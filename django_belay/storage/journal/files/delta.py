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
from django_belay.storage.journal.format.manifest import Manifest
from django_belay.storage.journal.format.mutation import PREFIX, decode_mutation
from django_belay.storage.journal.format.pair import decode_payload
from django_belay.storage.journal.format.record import frame
from django_belay.storage.journal.format.refusal import located, refuse
from django_belay.storage.journal.format.scan import SegmentScan
from django_belay.storage.journal.format.segment import HEADER_BYTES
from django_belay.storage.journal.format.snapshot import decode_snapshot
from django_belay.storage.journal.state.finished import location
from django_belay.storage.journal.state.rows import JobEffect, read_effects
from django_belay.storage.journal.state.store_state import StoreState

from . import disk
from .disk import Directory, File
from .reader import SegmentReader
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
    orders: dict[bytes, int] | None

    def place_of(self, table: str, key: bytes) -> int:
        """Where the base put an entry; 0 when it has none."""
        keys = self.keys[table]
        at = bisect_left(keys, key)
        return self.places[table][at] if at < len(keys) and keys[at] == key else 0


def check_delta(base: Followed, delta: Delta, next_order: int) -> None:
    """Every committed record must apply cleanly: no job of it expired, each mutation's job there with
    its revision, each availability order the next. The base is read for this from its bytes,
    not from the state that wrote it."""
    revisions: dict[bytes, int] = {}
    reader = SegmentReader(base.segments)
    try:
        for kind, schema, payload in delta:
            if (kind, schema) != (8, 1):
                for job_id in _touched(kind, schema, payload):
                    if job_id in base.expired:
                        raise _mismatch(base, job_id, "expired job")
                continue
            job_id, _, expected, revision, _ = PREFIX.unpack_from(payload)
            if job_id not in revisions:
                where = base.place_of("jobs", job_id)
                revisions[job_id] = decode_snapshot(reader.record(where).payload).revision if where else 0
            order = getattr(decode_mutation(payload), "availability_order", None)
            if revisions[job_id] != expected:
                raise _mismatch(base, job_id, "revision", expected, revisions[job_id])
            if order is not None and order < next_order:
                raise _mismatch(base, job_id, "availability_order", next_order, order)
            revisions[job_id] = revision
            next_order = next_order if order is None else order + 1
    finally:
        reader.close()


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


def catch_up(base: Followed, delta: Delta) -> tuple[Position, int, list[int]]:
    """Append what was committed meanwhile to the new tail, with its new sequences."""
    manifest = base.manifest
    header = os.pread(base.tail.fd, HEADER_BYTES, 0)
    sequence, size, crc = manifest.tail_first_sequence, HEADER_BYTES, crc32c(header)
    places: list[int] = []
    parts: list[bytes] = []
    pending, start = 0, size
    for kind, schema, payload in delta:
        data = frame(kind, schema, sequence, payload)
        places.append(location(manifest.tail_segment_id, size))
        parts.append(data)
        size += len(data)
        pending += len(data)
        sequence += 1
        if pending >= _FLUSH_BYTES:
            crc = _write_delta(base.tail, start, b"".join(parts), crc)
            parts, pending, start = [], 0, size
    if parts:
        crc = _write_delta(base.tail, start, b"".join(parts), crc)
    disk.fsync(base.tail, "compact.delta.fsync")
    disk.fsync_dir(base.segments, "compact.delta.fsync_segments")
    disk.fsync_dir(base.directory, "compact.delta.fsync_dir")
    position = Position(manifest.tail_segment_id, size, manifest.tail_first_sequence, sequence)
    return position, crc, places


def _write_delta(tail: File, offset: int, data: bytes, crc: int) -> int:
    disk.write(tail, offset, data, "compact.delta.write")
    return crc32c(data, crc)


def check_tail(base: Followed, delta: Delta, position: Position) -> None:
    """Read the new tail back and compare it with what was to be in it."""
    scan = SegmentScan(
        lambda at, count: disk.read_exactly(base.tail.fd, at, count),
        position.size,
        expected_id=position.segment_id,
        expected_store=base.manifest.store_id,
        highest=True,
    )
    found = [(item.record_type, item.payload_schema, item.payload) for item in scan]
    if found != delta:
        raise located(refuse("physical_corruption", "published_candidate_mismatch"), path=base.tail.path)


def move_state(state: StoreState, base: Followed, delta: Delta, places: list[int]) -> None:
    """Let the state know where everything stands now, and forget what expired."""
    for job_id in base.expired:
        for table in ("jobs", "results", "extended"):
            state.forget(table, job_id)
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
