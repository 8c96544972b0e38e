"""Looking at a store without owning it for writing: aggregates, or the refusal (spec I)."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from django_belay.exceptions import JournalError

from .ownership import acquire
from .recovery import Progress, ReadBudgets, Recovered, recover


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """What a store holds, in numbers. It carries no job's data and no authority."""

    store_id: str
    epoch_id: str
    segments: int
    base_segments: int
    bytes: int
    records: int
    next_sequence: int
    next_availability_order: int
    jobs: dict[str, int]
    extended_jobs: int
    results: int
    schedules: int
    open_frame: bool
    captured_at: int
    retention: str
    highest: str


def inspect(path: str, budgets: ReadBudgets | None = None, *, progress: Progress | None = None) -> Summary:
    """Lock, read and validate everything, replay it in private, and let go; writes nothing.

    Raises:
        JournalError: The first fault.
    """
    with acquire(path) as ownership:
        recovered = recover(ownership, budgets, progress=progress)
        try:
            return summarise(recovered)
        finally:
            recovered.close()


def summarise(recovered: Recovered) -> Summary:
    """The numbers of a recovered store."""
    manifest, state = recovered.manifest, recovered.state
    retention = manifest.terminal_retention
    return Summary(
        store_id=recovered.authority.store_id.hex(),
        epoch_id=manifest.epoch_id.hex(),
        segments=len(recovered.segments),
        base_segments=len(manifest.base_segments),
        bytes=sum(segment.size for segment in recovered.segments),
        records=recovered.records,
        next_sequence=recovered.next_sequence,
        next_availability_order=state.next_order,
        jobs=state.count_states(),
        extended_jobs=len(state.extended),
        results=len(state.results),
        schedules=len(state.schedules),
        open_frame=state.open_frame is not None,
        captured_at=manifest.captured_at,
        retention="infinity" if retention.unit == "infinity" else f"{retention.amount} {retention.unit}",
        highest=recovered.segments[-1].state,
    )


def verify(path: str, *, progress: Progress | None = None) -> dict[str, Any]:
    """``{"ok": True, …summary}``, or ``{"ok": False, "refusal": …}`` with the place of the fault."""
    try:
        return {"ok": True, **asdict(inspect(path, progress=progress))}
    except JournalError as error:
        return refusal_as_json(error)


def refusal_as_json(error: JournalError) -> dict[str, Any]:
    """A refusal for scripts."""
    return {
        "ok": False,
        "refusal": error.refusal,
        "kind": error.kind,
        "path": error.path,
        "offset": error.offset,
        "last_good_sequence": error.last_good_sequence,
        "details": [str(item) for item in error.details],
        "message": str(error),
    }
