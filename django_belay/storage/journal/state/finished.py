"""A finished core job in few bytes: what decisions need, and where its definition stands.

A store keeps every finished job until compaction, so this is what a million of them
cost in memory. The definition is read back from the segments when something asks.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Final, TypeAlias

from django_belay.storage.journal.format.definition import JobDefinition
from django_belay.storage.journal.format.limits import MAX_U64
from django_belay.storage.journal.format.snapshot import STATES, Job

# state, diagnostic (0: none), attempt, revision, cycle, inserted_at, attempted_at (NONE: none),
# terminal_at, location of the record that holds the definition, length of the definition
_PACKED: Final = struct.Struct(">BBHQQQQQQI")
_NONE: Final = MAX_U64
_OFFSET_BITS: Final = 30

Load: TypeAlias = Callable[[int], JobDefinition]


def location(segment_id: int, offset: int) -> int:
    """One number for a place in the segments; 0 is no place."""
    packed = segment_id << _OFFSET_BITS | offset
    return packed if packed < MAX_U64 else 0


def place(packed: int) -> tuple[int, int]:
    """Segment id and offset of a :func:`location`."""
    return packed >> _OFFSET_BITS, packed & ((1 << _OFFSET_BITS) - 1)


def pack(job: Job, where: int) -> bytes:
    """The job without its definition."""
    assert job.terminal_at is not None
    return _PACKED.pack(
        STATES.index(job.state),
        job.diagnostic or 0,
        job.attempt,
        job.revision,
        job.cycle,
        job.inserted_at,
        _NONE if job.attempted_at is None else job.attempted_at,
        job.terminal_at,
        where,
        len(job.definition.encoded),
    )


def unpack(job_id: bytes, packed: bytes, load: Load) -> Job:
    """The whole job again; reads its definition."""
    state, code, attempt, revision, cycle, inserted, attempted, terminal, where, _ = _PACKED.unpack(packed)
    name = STATES[state]
    return Job(
        job_id=job_id,
        revision=revision,
        cycle=cycle,
        execution=None,
        state=name,
        attempt=attempt,
        next_attempt=None,
        definition=load(where),
        diagnostic=code or None,
        eligible_at=None,
        inserted_at=inserted,
        attempted_at=None if attempted == _NONE else attempted,
        completed_at=terminal if name == "completed" else None,
        terminal_at=terminal,
        availability_order=None,
    )


def state_of(packed: bytes) -> str:
    """Its state, without reading the definition."""
    return STATES[packed[0]]


def revision_of(packed: bytes) -> int:
    """Its logical revision."""
    return int.from_bytes(packed[4:12])


def terminal_at_of(packed: bytes) -> int:
    """When it ended, milliseconds."""
    return int(_PACKED.unpack(packed)[7])


def definition_bytes_of(packed: bytes) -> int:
    """How long its definition is."""
    return int.from_bytes(packed[-4:])


def moved(packed: bytes, where: int) -> bytes:
    """The same job, its definition now at ``where``."""
    return packed[:-12] + where.to_bytes(8) + packed[-4:]


def where_of(packed: bytes) -> int:
    """The location of its definition."""
    return int(_PACKED.unpack(packed)[8])
