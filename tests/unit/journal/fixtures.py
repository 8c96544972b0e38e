"""The project's own literal fixtures: how each was assembled by hand, and what it means.

The bytes stand in ``tests/fixtures/store_v2/*.hex`` with their SHA256SUMS. They are frozen: when a
test fails, the code is wrong. ``python -m tests.unit.journal.fixtures`` writes the files that do
not exist yet and never changes one that does.
"""

from __future__ import annotations

import hashlib
import struct
from pathlib import Path
from typing import Any

from .by_hand import Opaque, current, footer, header, manifest, marker, record, value

FOLDER = Path(__file__).resolve().parents[2] / "fixtures" / "store_v2"
STORE = bytes.fromhex("be1a000000000000000000000000d001")
EPOCH = bytes.fromhex("be1a000000000000000000000000e001")
OLDER = bytes.fromhex("be1a000000000000000000000000e000")
JOB = bytes.fromhex("0123456789abcdef0123456789abcdef")
OTHER = bytes.fromhex("fedcba9876543210fedcba9876543210")
T = 1_750_000_000_000

DEFINITION: dict[str, Any] = {
    "args": {"amount": -12.5, "lines": [1, -2, True, None, "€"], "order": 42},
    "definition_version": 1,
    "max_attempts": 3,
    "queue_key": "mail",
    "retry_policy": {"base_ms": 1000, "cap_ms": 60_000, "jitter_divisor": 4, "version": 1},
    "scheduled_at": None,
    "timeout_ms": 45_000,
    "worker_key": "shop.send_receipt",
}
SCHEDULE: dict[str, Any] = {
    "args": {"region": "eu"}, "catch_up": "latest", "expression": "*/15 6-18 * * 1-5", "kind": "cron",
    "options": {"priority": 1}, "overlap": "queue", "task": "shop.report", "timezone": "+01:00",
}  # fmt: skip
DIAGNOSTIC = {"code": 2, "version": 1}


def bare(kind: int, expected: int, **body: Any) -> bytes:
    return value({"at": T + kind, "expected_revision": expected, "job_id": Opaque(JOB), **body})


def mutation(kind: int, expected: int, **body: Any) -> bytes:
    return struct.pack(">16sBQQQ", JOB, kind, expected, expected + 1, T + kind) + value(body)


def snapshot(revision: int, cycle: int, token: int | None, **body: Any) -> bytes:
    prefix = struct.pack(">16sQQB", JOB, revision, cycle, token is not None)
    return prefix + (b"" if token is None else struct.pack(">Q", token)) + value(
        {
            "attempt": 0, "attempted_at": None, "availability_order": None, "completed_at": None,
            "definition": DEFINITION, "diagnostic": None, "eligible_at": None, "inserted_at": T,
            "next_attempt": None, "state": "", "terminal_at": None, **body,
        }
    )  # fmt: skip


FINISHED = {
    "diagnostic": DIAGNOSTIC, "disposition": 1, "execution_token": 3, "next_attempt": 2,
    "next_due_at": T + 1_100, "outcome": 1,
}  # fmt: skip
STATE = {
    "at": T, "cancelled_at": None, "definition": SCHEDULE, "expected_revision": 4, "last_at": T - 900_000,
    "next_at": T + 900_000, "registered_at": T - 9_000_000, "revision": 5, "schedule_id": "nightly-ü",
}  # fmt: skip

# name: (type, schema, payload)
PAYLOADS: dict[str, tuple[int, int, bytes]] = {
    "event-1-1-inserted": (1, 1, bare(1, 0, definition=DEFINITION, eligible_at=T + 1)),
    "event-2-1-available": (2, 1, bare(2, 1, due_at=T)),
    "event-3-1-started": (3, 1, bare(3, 2, attempt=1, cycle_token=1)),
    "event-4-1-finished": (4, 1, bare(4, 3, **FINISHED)),
    "event-5-1-cancelled": (5, 1, bare(5, 4, execution_token=None)),
    "event-6-1-retried": (6, 1, bare(6, 4, mode=1, new_due_at=T + 6)),
    "snapshot-7-1-available": (7, 1, snapshot(1, 1, None, state="available", availability_order=9, eligible_at=T, next_attempt=1)),
    "snapshot-7-1-executing": (7, 1, snapshot(3, 1, 3, state="executing", attempt=1, attempted_at=T + 3, next_attempt=1)),
    "snapshot-7-1-completed": (
        7, 1, snapshot(4, 1, None, state="completed", attempt=1, attempted_at=T, completed_at=T + 9, terminal_at=T + 9),
    ),
    "snapshot-7-1-discarded": (
        7, 1, snapshot(7, 1, None, state="discarded", attempt=3, attempted_at=T, diagnostic=DIAGNOSTIC, terminal_at=T + 9),
    ),
    "mutation-8-1-inserted": (8, 1, mutation(1, 0, availability_order=1, definition=DEFINITION, eligible_at=T + 1)),
    "mutation-8-1-available": (8, 1, mutation(2, 1, availability_order=2**64 - 1, due_at=T)),
    "mutation-8-1-started": (8, 1, mutation(3, 2, attempt=1, cycle_token=1)),
    "mutation-8-1-finished": (8, 1, mutation(4, 3, **FINISHED)),
    "mutation-8-1-succeeded": (
        8, 1, mutation(4, 3, diagnostic=None, disposition=0, execution_token=3, next_attempt=None, next_due_at=None, outcome=0),
    ),
    "mutation-8-1-cancelled": (8, 1, mutation(5, 3, execution_token=3)),
    "mutation-8-1-retried": (8, 1, mutation(6, 4, availability_order=7, mode=0, new_due_at=T + 6)),
    "event-7-2-registered": (
        7, 2, value({"at": T, "definition": {**SCHEDULE, "kind": "every", "expression": 90_000, "timezone": None},
                     "expected_revision": 0, "next_at": T + 90_000, "schedule_id": "every"}),
    ),
    "event-8-2-advanced": (
        8, 2, value({"at": T + 5, "due_at": T, "expected_revision": 1, "next_at": T + 90_000, "schedule_id": "every"}),
    ),
    "event-9-2-cancelled": (9, 2, value({"at": T, "expected_revision": 2, "schedule_id": "every"})),
    "event-10-2-result": (
        10, 2, value({"at": T, "expected_revision": 4, "job_id": Opaque(JOB), "result": {"sent": True, "to": ["a@b"]}}),
    ),
    "event-11-2-delivered": (
        11, 2, value({"active_job_id": Opaque(JOB), "at": T, "due_at": T, "expected_revision": 3,
                      "next_at": T + 60_000, "schedule_id": "every"}),
    ),
    "event-12-2-checkpoint": (12, 2, value({**STATE, "active_job_id": None})),
    "event-13-2-state": (
        13, 2, value({**STATE, "active_job_ids": [Opaque(JOB), Opaque(OTHER)], "membership_complete": True}),
    ),
    "extension-128-1-operation": (
        128, 1, value({"at": T, "client": "web-1", "effects": Opaque(b'{"tables":{"rate":{"mail":{"used":3}}}}'),
                       "op": "debit_rate", "request": 17}),
    ),
    "extension-129-1-row": (
        129, 1, value({"job_id": Opaque(JOB), "row": Opaque(b'{"order":2,"priority":-5,"revision":3,"state":"ready"}')}),
    ),
    "extension-130-1-table": (
        130, 1, value({"rows": Opaque(b'[["1/a",{"value":1}],["1/b",{"value":2}]]'), "table": "steps"}),
    ),
    "extension-131-1-frame": (131, 1, value({"mark": "begin", "operation": "web-1/18"})),
}  # fmt: skip


def _segments() -> dict[str, bytes]:
    first = PAYLOADS["mutation-8-1-inserted"]
    second = PAYLOADS["mutation-8-1-cancelled"]
    head = header(1, 1, STORE)
    whole = head + record(first[0], first[1], 1, first[2]) + record(second[0], second[1], 2, second[2])
    return {
        "segment-empty": head,
        "segment-active": whole,
        "segment-sealed": whole + footer(1, 1, 2, STORE, whole),
    }


def _metadata() -> dict[str, bytes]:
    fresh = {
        "base_segments": [], "captured_at": T, "epoch_id": Opaque(EPOCH), "source_epoch_id": None,
        "source_frontier": 0, "source_segments": [], "store_id": Opaque(STORE), "tail_first_sequence": 1,
        "tail_segment_id": 1, "terminal_retention": {"hours": 24},
    }  # fmt: skip
    digest = Opaque(hashlib.sha256(b"segment").digest())
    later = {
        **fresh, "availability_frontier": 7, "source_epoch_id": Opaque(OLDER), "source_frontier": 12,
        "source_segments": [{"digest": digest, "id": 1}], "terminal_retention": "infinity",
        "base_segments": [{"bytes": 1000, "digest": digest, "first_sequence": 1, "id": 1, "last_sequence": 3}],
        "tail_first_sequence": 4, "tail_segment_id": 2,
    }  # fmt: skip
    return {
        "metadata-marker": marker(STORE),
        "metadata-manifest-first": manifest(fresh),
        "metadata-manifest-later": manifest(later),
        "metadata-current": current(STORE, EPOCH, manifest(fresh)),
    }


def by_name() -> dict[str, bytes]:
    """Every fixture, assembled by hand; payloads as whole records of sequence 1."""
    records = {name: record(kind, schema, 1, payload) for name, (kind, schema, payload) in PAYLOADS.items()}
    return {**records, **_segments(), **_metadata()}


def load(name: str) -> bytes:
    """The committed bytes of a fixture."""
    return bytes.fromhex("".join((FOLDER / f"{name}.hex").read_text().split()))


def main() -> None:
    FOLDER.mkdir(parents=True, exist_ok=True)
    for name, data in by_name().items():
        file = FOLDER / f"{name}.hex"
        if not file.exists():
            text = data.hex()
            file.write_text("\n".join(text[at : at + 96] for at in range(0, len(text), 96)) + "\n")
    sums = FOLDER / "SHA256SUMS"
    if not sums.exists():
        lines = [f"{hashlib.sha256(data).hexdigest()}  {name}\n" for name, data in sorted(by_name().items())]
        sums.write_text("".join(lines))


if __name__ == "__main__":
    main()
