"""Gates of automatic compaction: each can hold it back, in the published order."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from django_belay.storage.journal.files.gates import CompactionPolicy, Estimate, estimate, find_closed_gate
from django_belay.storage.journal.files.initialise import initialise
from django_belay.storage.journal.files.journal import JournalOptions, open_journal
from django_belay.storage.journal.format.manifest import INFINITY, Retention

from .history import History

MIB = 1 << 20
GOOD = Estimate(active_jobs=3, sealed_segments=2, sealed_bytes=100 * MIB, candidate_bound=10 * MIB)
NOW = 10_000_000


@pytest.mark.parametrize(
    ("policy", "seen", "captured", "gate"),
    [
        ({}, {}, 0, None),
        ({"enabled": False}, {}, NOW, "disabled"),
        ({"wait_for_idle": True}, {}, NOW, "active_jobs_present"),
        ({}, {"sealed_segments": 0}, NOW - 3_599_999, "cooldown"),
        ({}, {"sealed_segments": 0, "sealed_bytes": 0}, NOW - 3_600_000, "too_few_segments"),
        ({}, {"candidate_bound": 84 * MIB + 1}, 0, "not_enough_reclaimable_bytes"),
        ({}, {"candidate_bound": 80 * MIB}, 0, "ratio_below_threshold"),
        (
            {"min_reclaimable_bytes": 0, "dead_ratio_threshold": 0.0},
            {"candidate_bound": 200 * MIB},
            0,
            "below_minimum_benefit",
        ),
    ],
)
def test_first_closed_gate_is_named(
    policy: dict[str, object], seen: dict[str, int], captured: int, gate: str | None
) -> None:
    chosen = replace(CompactionPolicy(), **policy)  # type: ignore[arg-type]
    found = find_closed_gate(
        chosen, replace(GOOD, **seen), now_ms=NOW, captured_at_ms=captured, activated_at_ms=0
    )
    assert found == gate


def test_cooldown_counts_from_activation_too() -> None:
    assert (
        find_closed_gate(CompactionPolicy(), GOOD, now_ms=NOW, captured_at_ms=0, activated_at_ms=NOW)
        == "cooldown"
    )


def test_estimate_counts_what_would_stay(tmp_path: Path) -> None:
    path = os.path.join(os.path.realpath(tmp_path), "store")
    initialise(path, now_ms=1, retention=INFINITY, durability="write")
    options = JournalOptions(durability="write", writer="inline", rotation_target_bytes=4096, reserve_bytes=0)
    history = History(seed=8)
    with open_journal(path, options) as journal:
        for _ in range(200):
            journal.append([history.draw(journal.state)])
        ever = estimate(journal, CompactionPolicy(terminal_retention=INFINITY), now_ms=history.now)
        hour = CompactionPolicy(terminal_retention=Retention(unit="hours", amount=1))
        later = estimate(journal, hour, now_ms=history.now + 3 * 3_600_000)
        unfinished = sum(
            count
            for name, count in journal.state.count_states().items()
            if name not in ("completed", "cancelled", "discarded")
        )
    assert ever.active_jobs == later.active_jobs == unfinished
    assert ever.sealed_segments > 5
    assert later.candidate_bound < ever.candidate_bound
    assert ever.reclaimable_bytes == 0
