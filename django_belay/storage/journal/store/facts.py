"""How a store stands, in numbers for who looks after it."""

from __future__ import annotations

from django_belay.contract.job import JSON
from django_belay.contract.state import INCOMPLETE
from django_belay.storage.journal.files import layout
from django_belay.storage.journal.files.journal import Journal

from .memory import Memory


def facts_of(journal: Journal, memory: Memory) -> dict[str, JSON]:
    """The facts by name; call it under the owner's lock.

    ``generation`` is that of the last compaction, ``last_sequence`` counts the records since it, bytes
    are those of all segments, ``last_write_s`` is how long the last batch took with its fsync.
    """
    authority = journal.recovered.authority
    segments = layout.list_segments(authority.segments)
    jobs = len(journal.state.jobs) + len(journal.state.extended) - len(memory.hidden)
    jobs_open = sum(row["state"] in INCOMPLETE for row in memory.view.open.values())
    return {
        "store_id": journal.store_id.hex(),
        "generation": authority.current.epoch_id.hex(),
        "durability": journal.options.durability,
        "last_sequence": journal.tail.planned.next_sequence - 1,
        "segments": len(segments),
        "bytes": sum(size for _, _, size in segments),
        "base_bytes": sum(base.size for base in authority.manifest.base_segments),
        "last_write_s": journal.last_write_s,
        "jobs_open": jobs_open,
        "jobs_finished": jobs - jobs_open,
    }
