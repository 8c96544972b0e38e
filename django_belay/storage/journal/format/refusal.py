"""Refusals of the journal: one leaf name each, sorted into kinds (spec J)."""

from __future__ import annotations

from typing import Final

from django_belay.exceptions import CorruptRecord, JournalError, JournalLocked, UnsupportedFormat

_CORRUPT: Final = frozenset(
    {
        "physical_corruption",
        "incomplete_tail",
        "continuity",
        "invalid_payload",
        "consumer_rejected",
        "discovery",
    }
)
_UNSUPPORTED: Final = frozenset({"unsupported_physical", "unsupported_semantics"})

_ADVICE: Final = {
    "argument": "correct the call",
    "ownership_busy": "another process owns this store; stop it or talk to it",
    "ownership_unavailable": "check the path and its permissions",
    "initialization_required": "create a store with `belay_journal init`",
    "discovery": "preserve the directory; put back what is missing or take away what does not belong",
    "incomplete_tail": "preserve the directory; `belay_journal salvage` writes a new store from what is whole",
    "physical_corruption": "preserve the directory; restore a backup, or `belay_journal salvage` into a new store",
    "continuity": "preserve the directory; restore a backup, or `belay_journal salvage` into a new store",
    "unsupported_physical": "open the store with the version that wrote it",
    "unsupported_semantics": "open the store with the version that wrote it",
    "invalid_payload": "preserve the directory; restore a backup, or `belay_journal salvage` into a new store",
    "consumer_rejected": "preserve the directory; restore a backup, or `belay_journal salvage` into a new store",
    "resource_limit": "the bytes may be good; read them again with a larger budget",
    "changed_view": "something else changed the directory meanwhile; find it, then try again",
    "io": "look at the system's log and the disk, then try again",
    "uncertain_activation": "stop this process; a fresh one may open the store",
}


def refuse(kind: str, reason: str, *details: object) -> JournalError:
    """Build the error for one refusal; where it was met is added by :func:`located`."""
    return _build(kind, reason, details, path=None, offset=None, last_good_sequence=None)


def located(
    error: JournalError,
    *,
    path: str | None = None,
    offset: int | None = None,
    last_good_sequence: int | None = None,
) -> JournalError:
    """The same refusal with its place, keeping whatever place was already known."""
    return _build(
        error.kind,
        error.refusal,
        error.details,
        path=error.path if error.path is not None else path,
        offset=error.offset if error.offset is not None else offset,
        last_good_sequence=(
            error.last_good_sequence if error.last_good_sequence is not None else last_good_sequence
        ),
    )


def _build(
    kind: str,
    reason: str,
    details: tuple[object, ...],
    *,
    path: str | None,
    offset: int | None,
    last_good_sequence: int | None,
) -> JournalError:
    message = reason if not details else f"{reason} ({', '.join(str(item) for item in details)})"
    if path is not None:
        message += f" in {path}"
    if offset is not None:
        message += f" at byte {offset}"
    if last_good_sequence is not None:
        message += f", last good sequence {last_good_sequence}"
    advice = _ADVICE.get(kind)
    if advice:
        message += f": {advice}"
    return _class_of(kind)(
        message,
        refusal=reason,
        kind=kind,
        details=details,
        path=path,
        offset=offset,
        last_good_sequence=last_good_sequence,
    )


def _class_of(kind: str) -> type[JournalError]:
    if kind in _CORRUPT:
        return CorruptRecord
    if kind in _UNSUPPORTED:
        return UnsupportedFormat
    if kind == "ownership_busy":
        return JournalLocked
    return JournalError
