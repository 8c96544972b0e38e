"""The backlog of one queue in claim order (§6; mapping page, order).

Entries are never removed from the middle: one whose row has changed since is passed over when
it comes up.
"""

from __future__ import annotations

import heapq
import json
from collections.abc import Callable, Iterable
from typing import Final, TypeAlias

from django_belay.contract.admission import Partition, pick_partitioned

from .row import Row

# priority, ready_at with nulls first, order, id
Entry: TypeAlias = tuple[int, int, int, int]
_NULL: Final = -(2**63)


def is_claimable(row: Row) -> bool:
    """Whether the row may be claimed once it is due: ready, or awaiting with a deadline (§4)."""
    return row["state"] == "ready" or (row["state"] == "awaiting" and row["ready_at"] is not None)


def entry_of(row: Row) -> Entry:
    """Where the row stands in its queue."""
    ready_at = row["ready_at"]
    return (row["priority"], _NULL if ready_at is None else ready_at, row["order"] or 0, row["id"])


class Lane:
    """What may be claimed of a queue, now or later.

    Args:
        find: The open row of an id.
    """

    def __init__(self, queue: str, find: Callable[[int], Row | None]) -> None:
        self._queue = queue
        self._find = find
        self._due: dict[str, list[Entry]] = {}
        self._later: list[tuple[int, int]] = []
        self._partition: Partition | None = None

    def push(self, row: Row) -> None:
        """Put a claimable row where it belongs."""
        heapq.heappush(self._later, (entry_of(row)[1], row["id"]))

    def has_due(self, now_ms: int) -> bool:
        """Whether a row may be claimed now."""
        self._ripen(now_ms)
        return any(self._head(heap, now_ms) is not None for heap in list(self._due.values()))

    def take(self, count: int, now_ms: int) -> list[Row]:
        """Up to ``count`` rows in claim order. They leave the lane: the caller claims them."""
        self._turn_to(None)
        self._ripen(now_ms)
        heap = self._due.get("")
        taken: dict[int, Row] = {}  # an entry may stand in the heap twice
        while heap and len(taken) < count:
            row = self._head(heap, now_ms)
            if row is None:
                break
            heapq.heappop(heap)
            taken[row["id"]] = row
        return list(taken.values())

    def take_partitioned(
        self, partition: Partition, count: int, now_ms: int, *, per_key: int, running: dict[str, int]
    ) -> list[Row]:
        """Up to ``count`` rows in claim order, of each key at most its limit less what runs.

        Contract: §6, partitioned; rule 14.
        """
        self._turn_to(partition)
        self._ripen(now_ms)
        rows: dict[int, Row] = {}
        candidates: list[tuple[Entry, str]] = []
        for key, heap in self._due.items():
            room = min(per_key - running.get(key, 0), count)
            while room > 0:
                row = self._head(heap, now_ms)
                if row is None:
                    break
                entry = heapq.heappop(heap)
                if row["id"] not in rows:  # an entry may stand in the heap twice
                    rows[row["id"]] = row
                    candidates.append((entry, key))
                    room -= 1
        candidates.sort()
        ranked = [(entry[3], key) for entry, key in candidates]
        picked = set(pick_partitioned(ranked, per_key_limit=per_key, running=running, take=count))
        for entry, key in candidates:
            if entry[3] not in picked:
                heapq.heappush(self._due[key], entry)
        return [rows[entry[3]] for entry, _ in candidates if entry[3] in picked]

    def _head(self, heap: list[Entry], now_ms: int) -> Row | None:
        """The first row of a heap that is due; what has changed since goes, and what is not due now waits."""
        while heap:
            entry = heap[0]
            row = self._find(entry[3])
            if (
                row is not None
                and row["queue"] == self._queue
                and is_claimable(row)
                and entry_of(row) == entry
            ):
                if entry[1] <= now_ms:
                    return row
                heapq.heappush(self._later, (entry[1], entry[3]))
            heapq.heappop(heap)
        return None

    def _ripen(self, now_ms: int) -> None:
        """Move what has become due into its heap."""
        later = self._later
        while later and later[0][0] <= now_ms:
            _, job_id = heapq.heappop(later)
            row = self._find(job_id)
            if row is None or row["queue"] != self._queue or not is_claimable(row):
                continue
            entry = entry_of(row)
            if entry[1] > now_ms:
                continue  # rescheduled since, with an entry of its own
            heapq.heappush(self._due.setdefault(self._key(row), []), entry)

    def _turn_to(self, partition: Partition | None) -> None:
        """Keep the due rows by another field from now on."""
        if partition == self._partition:
            return
        self._partition = partition
        entries = {entry for heap in self._due.values() for entry in heap}
        self._due = {}
        for entry in entries:
            row = self._find(entry[3])
            if row is not None:
                self._due.setdefault(self._key(row), []).append(entry)
        for heap in self._due.values():
            heapq.heapify(heap)

    def _key(self, row: Row) -> str:
        return "" if self._partition is None else partition_key(row, self._partition)


def partition_key(row: Row, partition: Partition) -> str:
    """The key that a row's fairness is counted by, as ``->>`` gives it."""
    document = row["input"] if partition.column == "input" else row["meta"]
    value = document.get(partition.key) if isinstance(document, dict) else None
    return _text(value)


def count_by_key(rows: Iterable[Row], partition: Partition) -> dict[str, int]:
    """How many rows there are of each key."""
    counts: dict[str, int] = {}
    for row in rows:
        key = partition_key(row, partition)
        counts[key] = counts.get(key, 0) + 1
    return counts


def _text(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value) if isinstance(value, int) else _json(value)


def _json(value: object) -> str:
    return json.dumps(value, separators=(", ", ": "), ensure_ascii=False)
