"""What has been kept long enough (§8.7, rule 36).

A job past its retention is gone for everyone at once; its bytes go with the next compaction.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta

from django_belay.contract.state import State, is_terminal
from django_belay.contract.uniqueness import window_ends_at

from .instants import floor_ms, to_instant
from .memory import Memory
from .row import Row


def prune_jobs(
    memory: Memory, retention: Mapping[State, timedelta | None], *, now: datetime, limit: int
) -> int:
    """Hide at most ``limit`` ended jobs past their retention; how many.

    Spared are children of an unfinished parent, members of an unfinished workflow, and ``window``
    keys whose window is not over.
    """
    pruned = 0
    for state, kept_for in retention.items():
        if kept_for is not None and is_terminal(state):
            pruned += _prune_state(memory, state, floor_ms(now - kept_for), now=now, limit=limit - pruned)
    return pruned


def _prune_state(memory: Memory, state: State, before: int, *, now: datetime, limit: int) -> int:
    ended = memory.view.ended[state]
    pruned = at = 0
    spared: list[int] = []
    while at < len(ended) and pruned < limit and ended[at] <= before:
        finished_at, job_id = ended[at], ended[at + 1]
        at += 2
        if memory.ended_state_of(job_id) != state:
            continue  # retried since
        row = memory.find(job_id)
        if row is None or row["finished_at"] != finished_at:
            continue
        if _is_needed(memory, row, now):
            spared += (finished_at, job_id)
            continue
        memory.hide(row)
        pruned += 1
    ended[:at] = type(ended)("q", spared)
    return pruned


def _is_needed(memory: Memory, row: Row, now: datetime) -> bool:
    view = memory.view
    if row["parent_id"] is not None and row["parent_id"] in view.open:
        return True
    workflow = None if row["workflow_id"] is None else view.workflows.get(row["workflow_id"])
    if workflow is not None and workflow.open:
        return True
    if row["unique_mode"] != "window" or row["unique_key"] is None:
        return False
    ends_at = window_ends_at(row["unique_key"], to_instant(row["inserted_at"]))
    return ends_at is not None and ends_at > now
