"""Compaction: a new generation beside the old one, then one atomic switch (spec C.7, G.3).

Until CURRENT is renamed the old generation is the authority and is not touched. Appends
go on while the base is written; what they add is caught up in the new tail after admission
has been closed for a moment.
"""

from __future__ import annotations

import hashlib
import time
from array import array
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from typing import Any, Final

from django_belay.exceptions import JournalError, JournalFull
from django_belay.storage.journal.format.manifest import Manifest, Retention, SourceSegment, encode_manifest
from django_belay.storage.journal.format.metadata import Current
from django_belay.storage.journal.format.pair import decode_payload
from django_belay.storage.journal.format.record import OVERHEAD_BYTES
from django_belay.storage.journal.format.refusal import located, refuse
from django_belay.storage.journal.format.scan import SegmentScan
from django_belay.storage.journal.format.segment import (
    SegmentHeader,
    encode_header,
    segment_name,
)
from django_belay.storage.journal.state.store_state import Change

from . import authority as authority_files
from . import disk, layout
from .authority import Authority
from .base import BaseWriter
from .delta import CatchUp, Delta, Followed, move_state
from .disk import Directory, File
from .filesystem import Room
from .initialise import publish_current
from .journal import Journal
from .reclaim import reclaim_predecessor, remove_candidate
from .recovery import sha256_of
from .retained import Keeper, Selection, renumbered

# A slice of about a millisecond: whoever appends waits for the rest of one when it wakes.
STEP_RECORDS: Final = 16
# Few enough to be checked and written while appenders wait.
LAST_ROUND_RECORDS: Final = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactionReport:
    """What a compaction did."""

    kept_records: int
    expired_jobs: int
    caught_up_records: int
    base_bytes: int
    epoch_id: bytes
    reclaimed: bool


@dataclass(slots=True)
class _Frontier:
    """The source as it stood when the build began."""

    log: Change
    sequence: int
    next_order: int
    sealed_below: int
    current_bytes: bytes


@dataclass(slots=True)
class _Build:
    """A candidate on its way."""

    name: str
    directory: Directory
    segments: Directory
    tail: File
    manifest_bytes: bytes
    manifest: Manifest
    selection: Selection
    digest: bytes
    keys: dict[str, list[bytes]]
    places: dict[str, array[int]]


def keep_share(share: float) -> Callable[[int], None]:
    """A pace that works ``share`` of the time and leaves the rest to whoever appends."""
    resumed = time.perf_counter()

    def pace(done: int) -> None:
        nonlocal resumed
        worked = time.perf_counter() - resumed
        time.sleep(worked * (1 / share - 1))
        resumed = time.perf_counter()

    return pace


def compact(
    journal: Journal,
    *,
    now_ms: int,
    retention: Retention,
    at_rest: bool = False,
    keeper: Keeper | None = None,
    candidate_limit: int | None = None,
    deadline_s: float | None = None,
    is_cancelled: Callable[[], bool] = lambda: False,
    pace: Callable[[int], None] | None = None,
) -> CompactionReport:
    """Write a canonical base of what is retained, switch to it, and remove the predecessor.

    Args:
        now_ms: The instant that decides what has expired.
        at_rest: Nobody appends meanwhile: availability orders are renumbered from 1.
        keeper: Says which finished jobs may go once they have expired, and is told which went;
            without one all that have expired go.
        candidate_limit: Give up when the base would take more bytes.
        deadline_s: Give up when the build takes longer.
        is_cancelled: Asked every few dozen records while the build goes on.
        pace: Called as often with the number of records so far; may sleep, so that appenders
            keep their share of the processor.

    Raises:
        JournalError: Given up, the old generation in force; or ``unknown_publication_outcome``
            and the like after admission was closed: the journal is then poisoned, and only
            opening the store again tells which generation is the authority.
    """
    pace = _watched(pace, is_cancelled, deadline_s, journal.path)
    if not journal.compacting.acquire(blocking=False):
        raise located(refuse("argument", "compaction_not_admitted"), path=journal.path)
    try:
        frontier = _begin(journal)
        with ExitStack() as opened:
            try:
                build = _build(
                    journal,
                    frontier,
                    now_ms,
                    retention,
                    at_rest=at_rest,
                    keeper=keeper,
                    limit=candidate_limit,
                    pace=pace,
                    opened=opened,
                )
                catch_up = CatchUp(_followed(build), frontier.next_order)
                opened.callback(catch_up.close)
                _drain(journal, build, catch_up, pace)
            except BaseException:
                _give_up(journal, frontier)
                raise
            return _switch(journal, frontier, build, catch_up)
    finally:
        journal.compacting.release()


def _watched(
    pace: Callable[[int], None] | None, is_cancelled: Callable[[], bool], deadline_s: float | None, path: str
) -> Callable[[int], None]:
    """The pace, with an eye on the clock and on who wants it to end."""
    end = None if deadline_s is None else time.monotonic() + deadline_s

    def watch(done: int) -> None:
        if is_cancelled():
            raise located(refuse("argument", "compaction_cancelled", done), path=path)
        if end is not None and time.monotonic() > end:
            raise located(refuse("resource_limit", "compaction_deadline", deadline_s), path=path)
        if pace is not None:
            pace(done)

    return watch


def _begin(journal: Journal) -> _Frontier:
    with journal.quiet():
        if journal.state.open_frame is not None:
            raise located(refuse("argument", "compaction_not_admitted", "open frame"), path=journal.path)
        journal.tail.rotate()
        journal.delta = []
        return _Frontier(
            log=journal.state.watch(),
            sequence=journal.tail.planned.next_sequence - 1,
            next_order=journal.state.next_order,
            sealed_below=journal.tail.planned.segment_id,
            current_bytes=journal.recovered.authority.current_bytes,
        )


def _give_up(journal: Journal, frontier: _Frontier) -> None:
    with journal.lock:
        journal.state.unwatch(frontier.log)
        journal.delta = None


def _build(
    journal: Journal,
    frontier: _Frontier,
    now_ms: int,
    retention: Retention,
    *,
    at_rest: bool,
    keeper: Keeper | None,
    limit: int | None,
    pace: Callable[[int], None],
    opened: ExitStack,
) -> _Build:
    authority = journal.recovered.authority
    sources = _digest_sources(authority.segments, frontier.sealed_below, pace)
    orders = renumbered(journal.state) if at_rest else None
    selection = Selection(
        journal.state,
        frontier.log,
        journal.recovered.reader,
        now_ms,
        retention,
        orders=orders,
        keeper=keeper,
    )
    name = layout.candidate_name()
    try:
        return _write_candidate(
            journal, frontier, selection, sources, name, limit=limit, pace=pace, opened=opened
        )
    except BaseException as error:
        with suppress(OSError, JournalError):  # what is left has no authority, and the cause matters more
            remove_candidate(authority.epochs, name)
        if isinstance(error, JournalFull):
            raise located(refuse("resource_limit", "insufficient_headroom"), path=journal.path) from error
        if isinstance(error, OSError):
            raise disk.io_error(error, journal.path) from error
        raise


def _digest_sources(
    segments: Directory, below: int, pace: Callable[[int], None]
) -> tuple[SourceSegment, ...]:
    result = []
    for segment_id, name, _ in layout.list_segments(segments):
        if segment_id >= below:
            break
        file = disk.open_file(segments, name)
        try:
            digest = sha256_of(file)
        finally:
            file.close()
        result.append(SourceSegment(sha256=digest, segment_id=segment_id))
        pace(0)
    if len(result) != below - 1:
        raise located(refuse("changed_view", "source_segments_missing"), path=segments.path)
    return tuple(result)


def _write_candidate(
    journal: Journal,
    frontier: _Frontier,
    selection: Selection,
    sources: tuple[SourceSegment, ...],
    name: str,
    *,
    limit: int | None,
    pace: Callable[[int], None],
    opened: ExitStack,
) -> _Build:
    authority = journal.recovered.authority
    candidate = disk.mkdir(authority.epochs, name, "compact.mkdir")
    opened.callback(candidate.close)
    disk.fsync_dir(authority.epochs, "compact.mkdir.fsync_dir")
    segments = disk.mkdir(candidate, layout.SEGMENTS, "compact.segments.mkdir")
    opened.callback(segments.close)
    disk.fsync_dir(candidate, "compact.segments.fsync_dir")
    room = Room(authority.epochs, max(journal.options.reserve_bytes, 0))
    writer = BaseWriter(segments, authority.store_id, target=journal.options.rotation_target_bytes, room=room)
    keys: dict[str, list[bytes]] = {"jobs": [], "results": [], "extended": []}
    places = {"jobs": array("Q"), "results": array("Q"), "extended": array("Q")}
    digest = hashlib.sha256()
    written = 0
    try:
        for number, kept in enumerate(selection.records(), start=1):
            where = writer.add(kept.record_type, kept.payload_schema, kept.payload)
            digest.update(b"%d.%d.%d." % (kept.record_type, kept.payload_schema, len(kept.payload)))
            digest.update(kept.payload)
            if kept.table in keys:
                keys[kept.table].append(kept.key)
                places[kept.table].append(where)
            written += len(kept.payload) + OVERHEAD_BYTES
            if limit is not None and written > limit:
                raise located(refuse("resource_limit", "candidate_limit", limit), path=candidate.path)
            if number % STEP_RECORDS == 0:
                pace(number)
        bases = writer.finish()
    except BaseException:
        writer.abandon()
        raise
    manifest = Manifest(
        base_segments=bases,
        captured_at=selection.captured_at,
        epoch_id=layout.draw_id(),
        source_epoch_id=authority.current.epoch_id,
        source_frontier=frontier.sequence,
        source_segments=sources,
        store_id=authority.store_id,
        tail_first_sequence=writer.next_sequence,
        tail_segment_id=len(bases) + 1,
        terminal_retention=_written_form(selection.retention),
        availability_frontier=None if selection.orders is not None else frontier.next_order - 1,
    )
    manifest_bytes = encode_manifest(manifest)
    disk.write_new(candidate, layout.MANIFEST, manifest_bytes, "compact.manifest")
    disk.fsync_dir(candidate, "compact.manifest.fsync_dir")
    header = encode_header(
        SegmentHeader(
            segment_id=manifest.tail_segment_id,
            first_sequence=manifest.tail_first_sequence,
            store_id=authority.store_id,
        )
    )
    tail = disk.create(segments, segment_name(manifest.tail_segment_id), "compact.tail.create")
    opened.callback(tail.close)
    disk.write(tail, 0, header, "compact.tail.write")
    disk.fsync(tail, "compact.tail.fsync")
    disk.fsync_dir(segments, "compact.tail.fsync_dir")
    build = _Build(
        name, candidate, segments, tail, manifest_bytes, manifest, selection, digest.digest(), keys, places
    )
    _check_base(segments, build, "candidate_mismatch", pace)
    return build


def _written_form(retention: Retention) -> Retention:
    """Only hours from 1 or infinity are written (spec K.6); minutes and 0 round up to hours."""
    if retention.unit == "infinity":
        return retention
    milliseconds = retention.milliseconds or 0
    return Retention(unit="hours", amount=max(1, -(-milliseconds // 3_600_000)))


def _check_base(segments: Directory, build: _Build, reason: str, pace: Callable[[int], None]) -> None:
    """Read the base back as a reader would and compare it with what the state said, in flat memory."""
    digest = hashlib.sha256()
    expected = 1
    for base in build.manifest.base_segments:
        file = disk.open_file(segments, segment_name(base.segment_id))
        try:
            for kind, schema, sequence, payload, _ in _scan(file, base.size, base.segment_id, build):
                if sequence != expected:
                    raise located(refuse("physical_corruption", reason, sequence), path=file.path)
                expected += 1
                decode_payload(kind, schema, payload, "base")
                digest.update(b"%d.%d.%d." % (kind, schema, len(payload)))
                digest.update(payload)
                if expected % STEP_RECORDS == 0:
                    pace(expected)
        finally:
            file.close()
    if digest.digest() != build.digest:
        raise located(refuse("physical_corruption", reason), path=segments.path)


def _check_digests(segments: Directory, build: _Build, reason: str) -> None:
    """The base still has the bytes that were validated; appenders wait for this, so no decoding."""
    for base in build.manifest.base_segments:
        file = disk.open_file(segments, segment_name(base.segment_id))
        try:
            if sha256_of(file) != base.sha256:
                raise located(refuse("physical_corruption", reason), path=file.path)
        finally:
            file.close()


def _scan(file: File, size: int, segment_id: int, build: _Build) -> Iterator[Any]:
    def read_at(position: int, count: int) -> bytes:
        return disk.read_exactly(file.fd, position, count)

    return iter(
        SegmentScan(
            read_at, size, expected_id=segment_id, expected_store=build.manifest.store_id, highest=False
        )
    )


def _drain(journal: Journal, build: _Build, catch_up: CatchUp, pace: Callable[[int], None]) -> None:
    """Catch up while appends go on until little is left, or no less than before; check that, and
    refuse new records."""
    before: int | None = None
    try:
        while True:
            with journal.lock:
                delta = journal.delta or []
                rest = delta[catch_up.done :]
                if len(rest) <= LAST_ROUND_RECORDS or (before is not None and len(rest) >= before):
                    catch_up.check(rest)
                    journal.suspend_admission()
                    return
            before = len(rest)
            for start in range(0, before, STEP_RECORDS):
                some = rest[start : start + STEP_RECORDS]
                catch_up.check(some)
                catch_up.write(some)
                pace(catch_up.done)
    except BaseException as error:
        with suppress(OSError, JournalError):
            remove_candidate(journal.recovered.authority.epochs, build.name)
        if isinstance(error, OSError):
            raise disk.io_error(error, journal.path) from error
        raise


def _followed(build: _Build) -> Followed:
    selection = build.selection
    return Followed(
        manifest=build.manifest,
        directory=build.directory,
        segments=build.segments,
        tail=build.tail,
        keys=build.keys,
        places=build.places,
        expired=selection.expired | selection.expired_extended,
        dropped=selection.dropped,
        orders=selection.orders,
    )


def _switch(journal: Journal, frontier: _Frontier, build: _Build, catch_up: CatchUp) -> CompactionReport:
    try:
        journal.stop_admission()
        delta = journal.delta or []
        catch_up.write(delta[catch_up.done :])
        catch_up.sync()
        _publish(journal, frontier, build)
        _check_digests(build.segments, build, "published_candidate_mismatch")
        catch_up.check_bytes()
        authority = _turn_to(journal, frontier, build, catch_up, delta)
    except OSError as error:
        journal.tail.poisoned = True
        raise disk.io_error(error, journal.path) from error
    except BaseException:
        journal.tail.poisoned = True
        raise
    reclaimed = reclaim_predecessor(journal.ownership.root, authority)
    return CompactionReport(
        kept_records=build.manifest.tail_first_sequence - 1,
        expired_jobs=len(build.selection.expired) + len(build.selection.expired_extended),
        caught_up_records=len(delta),
        base_bytes=sum(base.size for base in build.manifest.base_segments),
        epoch_id=build.manifest.epoch_id,
        reclaimed=reclaimed,
    )


def _turn_to(
    journal: Journal, frontier: _Frontier, build: _Build, catch_up: CatchUp, delta: Delta
) -> Authority:
    """Go on in the published generation; a failure here leaves an owner that knows neither."""
    with journal.lock:
        authority = authority_files.read_authority(journal.ownership.root)
        try:
            base = _followed(build)
            move_state(journal.state, base, delta, catch_up.places)
            if build.selection.keeper is not None:
                build.selection.keeper.forget(base.expired)
            journal.state.unwatch(frontier.log)
            journal.delta = None
            journal.adopt(authority, catch_up.position, catch_up.crc)
        except BaseException:
            if journal.recovered.authority is not authority:
                authority.close()
            raise
        journal.resume_admission()
    return authority


def _publish(journal: Journal, frontier: _Frontier, build: _Build) -> None:
    root, authority = journal.ownership.root, journal.recovered.authority
    disk.rename_new(
        authority.epochs, build.name, layout.epoch_name(build.manifest.epoch_id), "compact.generation.rename"
    )
    disk.fsync_dir(authority.epochs, "compact.generation.fsync_dir")
    _check_digests(build.segments, build, "renamed_candidate_mismatch")
    if authority_files.read_metadata(root, layout.CURRENT) != frontier.current_bytes:
        raise located(refuse("changed_view", "source_current_changed"), path=root.path)
    current = Current(
        store_id=build.manifest.store_id,
        epoch_id=build.manifest.epoch_id,
        manifest_sha256=hashlib.sha256(build.manifest_bytes).digest(),
    )
    try:
        publish_current(root, current, point="compact.current", replacing=True)
    except (OSError, JournalError) as error:
        raise located(refuse("io", "unknown_publication_outcome"), path=root.path) from error
