"""Reading a whole store: every byte validated, every record replayed in private (spec F)."""

from __future__ import annotations

import gc
import hashlib
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from crc32c import crc32c

from django_belay.exceptions import JournalError
from django_belay.storage.journal.format.limits import MAX_PAYLOAD_BYTES, READING, ValueLimits
from django_belay.storage.journal.format.manifest import BaseSegment, Manifest
from django_belay.storage.journal.format.pair import Place, decode_payload
from django_belay.storage.journal.format.refusal import located, refuse
from django_belay.storage.journal.format.scan import CHUNK_BYTES, SegmentScan, SegmentSummary
from django_belay.storage.journal.format.segment import check_topology, segment_name
from django_belay.storage.journal.state.store_state import StoreState

from . import authority as authority_files
from . import disk, layout
from .authority import Authority
from .disk import Directory, File
from .ownership import Ownership
from .reader import SegmentReader

Progress: TypeAlias = Callable[[int, int, int], None]
PROGRESS_RECORDS: Final = 20_000


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadBudgets:
    """What one opening may cost. Exceeding one says nothing about the bytes (spec H)."""

    max_payload_bytes: int = MAX_PAYLOAD_BYTES
    values: ValueLimits = field(default_factory=lambda: READING)
    max_directory_entries: int = layout.MAX_ENTRIES
    max_total_segment_bytes: int | None = None
    max_replay_records: int | None = None
    deadline_s: float = 900.0


@dataclass(slots=True, kw_only=True)
class Recovered:
    """A candidate nobody else has seen: the authority, the state, and what was read."""

    authority: Authority
    state: StoreState
    reader: SegmentReader
    segments: list[SegmentSummary]
    records: int
    next_sequence: int
    root_names: list[str]
    made_at: float
    process_id: int
    activated: bool = False

    @property
    def manifest(self) -> Manifest:
        """The manifest of the generation that was read."""
        return self.authority.manifest

    def close(self) -> None:
        """Let go of every directory and file."""
        self.reader.close()
        self.authority.close()


def recover(
    ownership: Ownership,
    budgets: ReadBudgets | None = None,
    *,
    progress: Progress | None = None,
    keep_whole: bool = False,
) -> Recovered:
    """Read everything the lock's root holds into a private state; writes nothing.

    Args:
        progress: Called with records done, bytes done and bytes in all, now and then.
        keep_whole: Hold finished jobs whole instead of by their place on disk.

    Raises:
        JournalError: The first fault, with path, offset and last good sequence.
    """
    budgets = budgets or ReadBudgets()
    names = layout.check_root(ownership.root, budgets.max_directory_entries)
    authority = authority_files.read_authority(ownership.root)
    reader = SegmentReader(authority.segments)
    state = StoreState(None if keep_whole else reader)
    try:
        with _collector_off():
            replay = _Replay(authority, state, budgets, progress)
            replay.run()
        recovered = Recovered(
            authority=authority,
            state=state,
            reader=reader,
            segments=replay.summaries,
            records=replay.expected - 1,
            next_sequence=replay.expected,
            root_names=names,
            made_at=time.monotonic(),
            process_id=os.getpid(),
        )
        revalidate(ownership, recovered, budgets)
    except BaseException:
        reader.close()
        authority.close()
        raise
    return recovered


def revalidate(ownership: Ownership, recovered: Recovered, budgets: ReadBudgets | None = None) -> None:
    """Refuse when root, marker, pointer or the held paths are no longer what was read."""
    most = (budgets or ReadBudgets()).max_directory_entries
    if layout.check_root(ownership.root, most) != recovered.root_names:
        raise located(refuse("changed_view", "root_changed"), path=ownership.root.path)
    authority_files.recheck_authority(ownership.root, recovered.authority)
    ownership.recheck()


def check_unchanged(recovered: Recovered) -> None:
    """Read every segment again and require the same bytes, so that a replay would give the same view."""
    authority = recovered.authority
    listing = layout.list_segments(authority.segments)
    seen = [(summary.segment_id, summary.size) for summary in recovered.segments]
    if [(segment_id, size) for segment_id, _, size in listing] != seen:
        raise located(refuse("changed_view", "v2_frozen_view_changed"), path=authority.segments.path)
    for summary in recovered.segments:
        name = segment_name(summary.segment_id)
        covered = summary.size if summary.state == "active" else summary.size - 64
        with _opened(authority.segments, name) as file:
            if crc_of(file, covered) != summary.crc:
                raise located(refuse("changed_view", "v2_frozen_view_changed"), path=file.path)


class _Replay:
    """One pass over all segments of a generation."""

    def __init__(
        self, authority: Authority, state: StoreState, budgets: ReadBudgets, progress: Progress | None
    ) -> None:
        self.authority = authority
        self.state = state
        self.budgets = budgets
        self.progress = progress
        self.expected = 1
        self.summaries: list[SegmentSummary] = []
        self._deadline = time.monotonic() + budgets.deadline_s
        self._bytes_before = 0
        self._bytes_total = 0

    def run(self) -> None:
        manifest = self.authority.manifest
        listing = layout.list_segments(self.authority.segments, self.budgets.max_directory_entries)
        base = len(manifest.base_segments)
        if len(listing) < base + 1:
            raise located(refuse("discovery", "tail_missing", base + 1), path=self.authority.segments.path)
        self._bytes_total = sum(size for _, _, size in listing)
        limit = self.budgets.max_total_segment_bytes
        if limit is not None and self._bytes_total > limit:
            raise refuse("resource_limit", "max_total_segment_bytes", self._bytes_total, limit)
        for segment_id, name, size in listing:
            if segment_id == base + 1:
                self.state.finish_base(manifest.availability_frontier)
            with _opened(self.authority.segments, name) as file:
                self._segment(file, segment_id, size, highest=segment_id == len(listing))
            self._bytes_before += size
        check_topology([(s.segment_id, s.first_sequence, s.record_count) for s in self.summaries])
        self._report()

    def _segment(self, file: File, segment_id: int, size: int, *, highest: bool) -> None:
        manifest = self.authority.manifest
        base = manifest.base_segments[segment_id - 1] if segment_id <= len(manifest.base_segments) else None
        if base is not None:
            self._check_base(file, base, size)
        scan = SegmentScan(
            lambda position, count: disk.read_exactly(file.fd, position, count),
            size,
            expected_id=segment_id,
            expected_store=self.authority.store_id,
            highest=highest,
            max_payload_bytes=self.budgets.max_payload_bytes,
        )
        try:
            self._records(scan, segment_id, in_base=base is not None)
            assert scan.summary is not None
            self._check_summary(scan.summary, base, segment_id)
        except JournalError as error:
            raise located(
                error, path=file.path, offset=scan.position, last_good_sequence=self.expected - 1
            ) from None
        except OSError as error:
            raise disk.io_error(error, file.path) from error
        self.summaries.append(scan.summary)

    def _records(self, scan: SegmentScan, segment_id: int, *, in_base: bool) -> None:
        state, values = self.state, self.budgets.values
        apply = state.apply_base if in_base else state.apply
        place: Place = "base" if in_base else "tail"
        high = segment_id << 30 if segment_id < 1 << 33 else 0
        most = self.budgets.max_replay_records
        offset = 0
        try:
            for kind, schema, sequence, payload, offset in scan:
                if sequence != self.expected:
                    raise refuse("continuity", "physical_sequence", self.expected, sequence)
                apply(decode_payload(kind, schema, payload, place, values), high and high | offset)
                self.expected = sequence + 1
                if sequence % PROGRESS_RECORDS == 0:
                    self._report(scan.position)
                if most is not None and sequence > most:
                    raise refuse("resource_limit", "max_replay_records", most)
        except JournalError as error:
            raise located(error, offset=offset) from None

    def _check_base(self, file: File, base: BaseSegment, size: int) -> None:
        if size != base.size:
            raise located(refuse("physical_corruption", "base_size", base.size, size), path=file.path)
        if sha256_of(file) != base.sha256:
            raise located(
                refuse("physical_corruption", "base_digest"),
                path=file.path,
                last_good_sequence=self.expected - 1,
            )

    def _check_summary(self, summary: SegmentSummary, base: BaseSegment | None, segment_id: int) -> None:
        if base is not None:
            want = ("sealed", base.first_sequence, base.last_sequence, base.size)
            got = (summary.state, summary.first_sequence, summary.last_sequence, summary.size)
            if want != got:
                raise refuse("physical_corruption", "base_inventory", segment_id)
        elif segment_id == self.authority.manifest.tail_segment_id:
            first = self.authority.manifest.tail_first_sequence
            if summary.first_sequence != first:
                raise refuse("physical_corruption", "tail_frontier", first, summary.first_sequence)

    def _report(self, position: int = 0) -> None:
        if time.monotonic() > self._deadline:
            raise refuse("resource_limit", "recovery_deadline", self.budgets.deadline_s)
        if self.progress is not None:
            self.progress(self.expected - 1, self._bytes_before + position, self._bytes_total)


@contextmanager
def _opened(directory: Directory, name: str) -> Iterator[File]:
    try:
        file = disk.open_file(directory, name)
    except OSError as error:
        raise disk.io_error(error, directory.child(name)) from error
    try:
        yield file
    finally:
        file.close()


@contextmanager
def _collector_off() -> Iterator[None]:
    """A replay makes millions of objects and no cycles; collecting them again and again is a third
    of its time."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def sha256_of(file: File) -> bytes:
    """SHA-256 of a whole file, read in pieces."""
    digest = hashlib.sha256()
    position = 0
    while chunk := os.pread(file.fd, CHUNK_BYTES, position):
        digest.update(chunk)
        position += len(chunk)
    return digest.digest()


def crc_of(file: File, size: int) -> int:
    """CRC32C of the first ``size`` bytes of a file, read in pieces."""
    crc = position = 0
    while position < size:
        chunk = os.pread(file.fd, min(CHUNK_BYTES, size - position), position)
        if not chunk:
            break
        crc = crc32c(chunk, crc)
        position += len(chunk)
    return crc
