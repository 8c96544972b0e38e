"""When a compaction is worth while (spec G.5): gates in their order, and what they are told."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, Literal, TypeAlias

from django_belay.storage.journal.format.manifest import Retention
from django_belay.storage.journal.format.segment import HEADER_BYTES
from django_belay.storage.journal.format.snapshot import TERMINAL
from django_belay.storage.journal.state import finished

from . import layout
from .journal import Journal

Gate: TypeAlias = Literal[
    "disabled",
    "active_jobs_present",
    "cooldown",
    "too_few_segments",
    "not_enough_reclaimable_bytes",
    "ratio_below_threshold",
    "below_minimum_benefit",
]
_JOB_OVERHEAD: Final = 512
_FIXED_BYTES: Final = 1_048_576
_ENTRY_BYTES: Final = 256
_HOUR_MS: Final = 3_600_000


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactionPolicy:
    """The settings of automatic compaction. Durations in milliseconds."""

    enabled: bool = True
    terminal_retention: Retention = field(default_factory=lambda: Retention(unit="hours", amount=24))
    check_interval_ms: int = 60_000
    min_interval_ms: int = 3_600_000
    min_sealed_segments: int = 1
    min_reclaimable_bytes: int = 16_777_216
    dead_ratio_threshold: float = 0.25
    wait_for_idle: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """What a compaction could reclaim; it never promises more than it would."""

    active_jobs: int
    sealed_segments: int
    sealed_bytes: int
    candidate_bound: int

    @property
    def reclaimable_bytes(self) -> int:
        """Sealed bytes beyond what the candidate may take."""
        return max(0, self.sealed_bytes - self.candidate_bound)

    @property
    def dead_ratio(self) -> float:
        """The share of the sealed bytes that could go."""
        return self.reclaimable_bytes / self.sealed_bytes if self.sealed_bytes else 0.0


def find_closed_gate(
    policy: CompactionPolicy, estimate: Estimate, *, now_ms: int, captured_at_ms: int, activated_at_ms: int
) -> Gate | None:
    """The first gate that keeps a compaction from starting now, or None."""
    if not policy.enabled:
        return "disabled"
    if policy.wait_for_idle and estimate.active_jobs:
        return "active_jobs_present"
    if now_ms - max(captured_at_ms, activated_at_ms) < policy.min_interval_ms:
        return "cooldown"
    if estimate.sealed_segments < policy.min_sealed_segments:
        return "too_few_segments"
    if estimate.reclaimable_bytes < policy.min_reclaimable_bytes:
        return "not_enough_reclaimable_bytes"
    if estimate.dead_ratio < policy.dead_ratio_threshold:
        return "ratio_below_threshold"
    if estimate.reclaimable_bytes <= HEADER_BYTES:
        return "below_minimum_benefit"
    return None


def estimate(journal: Journal, policy: CompactionPolicy, *, now_ms: int) -> Estimate:
    """Measure a store. Expiry counts in whole hours, so the bound is never too low for long."""
    duration = policy.terminal_retention.milliseconds
    cut = None if duration is None or now_ms < duration else (now_ms - duration) // _HOUR_MS * _HOUR_MS
    with journal.lock:
        entries = list(journal.state.jobs.values())
        rows = len(journal.state.extended)
        segments = layout.list_segments(journal.recovered.authority.segments)
    active = kept = size = 0
    for entry in entries:
        if isinstance(entry, bytes):
            terminal_at: int | None = finished.terminal_at_of(entry)
            definition_bytes = finished.definition_bytes_of(entry)
        else:
            terminal_at = entry.terminal_at if entry.state in TERMINAL else None
            definition_bytes = len(entry.definition.encoded)
        active += terminal_at is None
        if terminal_at is None or cut is None or terminal_at > cut:
            kept += 1
            size += definition_bytes + _JOB_OVERHEAD
    sealed = segments[:-1]
    return Estimate(
        active_jobs=active + rows,
        sealed_segments=len(sealed),
        sealed_bytes=sum(item[2] for item in sealed),
        candidate_bound=size + _FIXED_BYTES + _ENTRY_BYTES * (len(sealed) + kept + rows),
    )
