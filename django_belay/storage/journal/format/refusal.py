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
_NO_SALVAGE: Final = (
    "preserve the directory and restore a backup: without this file there is nothing to salvage by"
)
# Where a kind's advice would send an operator the wrong way.
_ADVICE_OF: Final = {
    "already_initialized": "nothing was changed; choose a path that does not exist, or an empty directory "
    "with `--use-empty`",
    "archive_checksum_mismatch": "the copy is not what this catalog lists; take the other catalog, or another copy",
    "authority_metadata_missing": "restore a backup; an `init` that was broken off holds no work, remove it",
    "base_digest": _NO_SALVAGE,
    "base_size": _NO_SALVAGE,
    "byte_budget": "allow more with `--max-bytes`",
    "catalog_must_be_external": "put the catalog outside of source and destination",
    "destination_exists": "nothing is overwritten; choose a path that does not exist, or move away what is there",
    "eacces": "check who owns the path and the directories above it, and run this as that user",
    "enoent": "put back what the path names, or make the directories above it",
    "enotdir": "name a directory",
    "eloop": "no symbolic link is followed; name the real path",
    "enospc": "free space on that file system, then try again",
    "epochs_missing": "restore a backup; an `init` that was broken off holds no work, remove it",
    "existing_root_or_lock_missing": "check the path: the root of a store has STORE-V2 and .tay-owner.lock",
    "file_budget": "allow more with `--max-files`",
    "filesystem_not_durable": "choose a directory on a disk, or `--durability write` in development",
    "filesystem_not_validated": "choose ext4, XFS or Btrfs, vouch for this one with `--validated-filesystem`, "
    "or `--durability write` in development",
    "insufficient_space": "free space on that file system, then try again",
    "invalid_catalog": "name the catalog that `belay_journal backup` wrote",
    "missing_history": "this is no whole store; `belay_journal verify` says more",
    "missing_metadata": "this is no whole store; `belay_journal verify` says more",
    "overlapping_paths": "source and destination must lie beside each other",
    "restore_catalog_required": "name the catalog the backup was written with: `--verify CATALOG`",
    "store_v1_unsupported": "only Store v2 is read here",
    "unsafe_file": "only plain files with one link are copied; take away what does not belong there",
    "unsafe_name": "only printable ASCII names, eight directories deep, are copied; take away what does not belong there",
    **dict.fromkeys(
        (
            "metadata_missing_or_invalid", "metadata_length", "metadata_checksum", "marker_format",
            "current_format", "store_id", "current_fields", "store_id_mismatch", "epoch_mismatch",
            "manifest_digest", "manifest_length", "manifest_keys", "manifest_entries", "manifest_fields",
            "manifest_id", "base_inventory",
        ),
        _NO_SALVAGE,
    ),
}  # fmt: skip


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


def explained(error: JournalError, found: str, advice: str | None = None) -> JournalError:
    """The same refusal, saying what lies there and, where its own advice does not fit that, what to do."""
    place = "" if error.path is None else f" in {error.path}"
    advice = advice or _ADVICE_OF.get(error.refusal) or _ADVICE.get(error.kind, "")
    return _class_of(error.kind)(
        f"{error.refusal}{place}: {found}: {advice}",
        refusal=error.refusal,
        kind=error.kind,
        details=(found,),
        path=error.path,
        offset=error.offset,
        last_good_sequence=error.last_good_sequence,
    )


def advised(error: JournalError, advice: str) -> JournalError:
    """The same refusal with other advice, for where its own would send an operator the wrong way."""
    return _build(
        error.kind,
        error.refusal,
        error.details,
        path=error.path,
        offset=error.offset,
        last_good_sequence=error.last_good_sequence,
        advice=advice,
    )


def _build(
    kind: str,
    reason: str,
    details: tuple[object, ...],
    *,
    path: str | None,
    offset: int | None,
    last_good_sequence: int | None,
    advice: str | None = None,
) -> JournalError:
    message = reason if not details else f"{reason} ({', '.join(str(item) for item in details)})"
    if path is not None:
        message += f" in {path}"
    if offset is not None:
        message += f" at byte {offset}"
    if last_good_sequence is not None:
        message += f", last good sequence {last_good_sequence}"
    advice = advice or _ADVICE_OF.get(reason) or _ADVICE.get(kind)
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
