"""Names inside a Store-v2 root, and what may lie where (spec C.1, F.2, F.6)."""

from __future__ import annotations

import os
import re
import secrets
import stat
from itertools import islice
from typing import Final

from django_belay.storage.journal.format.domain import ZERO_ID
from django_belay.storage.journal.format.limits import MAX_U64
from django_belay.storage.journal.format.refusal import located, refuse
from django_belay.storage.journal.format.segment import HEADER_BYTES, segment_id_of

from .disk import Directory, entry_stat, is_single_file

LOCK: Final = ".tay-owner.lock"
MARKER: Final = "STORE-V2"
CURRENT: Final = "CURRENT"
EPOCHS: Final = "epochs"
SEGMENTS: Final = "segments"
MANIFEST: Final = "MANIFEST"
LEGACY_MARKER: Final = "STORE"
MAX_ENTRIES: Final = 100_000

_STAGE: Final = re.compile(rb"\.tay-new-([0-9]{20})-[0-9a-f]{32}\.tmp")
_STAGE_PREFIXES: Final = (b".tay-new-", b".tay-store-")


def draw_id() -> bytes:
    """16 random bytes that are not all zero."""
    while (drawn := secrets.token_bytes(16)) == ZERO_ID:
        continue
    return drawn


def epoch_name(epoch_id: bytes) -> str:
    """``e-<32 hex>``."""
    return f"e-{epoch_id.hex()}"


def candidate_name() -> str:
    """A new name for a private candidate generation."""
    return f".tay-candidate-{secrets.token_hex(16)}.tmp"


def marker_stage_name() -> str:
    """A new name for the stage of STORE-V2."""
    return f".tay-v2-marker-{secrets.token_hex(16)}.tmp"


def current_stage_name() -> str:
    """A new name for the stage of CURRENT."""
    return f".tay-current-{secrets.token_hex(16)}.tmp"


def segment_stage_name(segment_id: int) -> str:
    """A new name for the stage of a segment."""
    return f".tay-new-{segment_id:020d}-{secrets.token_hex(16)}.tmp"


def list_names(directory: Directory, most: int = MAX_ENTRIES) -> list[str]:
    """The names in a directory, sorted, refusing more than ``most``."""
    names: list[str] = []
    with os.scandir(directory.fd) as entries:
        for entry in entries:
            names.append(entry.name)
            if len(names) > most:
                raise located(refuse("resource_limit", "directory_entries", most), path=directory.path)
    return sorted(names)


def check_root(root: Directory, most: int = MAX_ENTRIES) -> list[str]:
    """Refuse a root that is not a Store-v2 root; returns its names (spec F.2)."""
    names = list_names(root, most)
    info = {name: entry_stat(root, name) for name in names}
    new = bool(info.keys() & {MARKER, CURRENT, EPOCHS})
    if LEGACY_MARKER in info and not new:
        raise located(
            refuse("unsupported_semantics", "store_v1_unsupported", "migrate it with Tay 1.4.x first"),
            path=root.path,
        )
    if SEGMENTS in info:
        raise located(refuse("discovery", "v2_root_has_v1_segments"), path=root.path)
    if not new:
        raise located(refuse("initialization_required", "initialization_required"), path=root.path)
    if not _is_directory(info.get(EPOCHS)):
        raise located(refuse("discovery", "epochs_missing"), path=root.path)
    for name in (MARKER, CURRENT):
        if not is_single_file(info.get(name)):
            raise located(refuse("discovery", "authority_metadata_missing"), path=root.child(name))
    modes = {name: found.st_mode for name, found in info.items() if found is not None}
    for name, mode in modes.items():
        if not (stat.S_ISDIR(mode) or stat.S_ISREG(mode)):
            raise located(refuse("discovery", "unsupported_root_entry"), path=root.child(name))
    for name, mode in modes.items():
        if stat.S_ISDIR(mode) and name != EPOCHS:
            raise located(refuse("discovery", "unexpected_root_directory"), path=root.child(name))
    return names


def check_epoch(epoch: Directory) -> None:
    """An epoch holds exactly MANIFEST, a regular file with one link, and segments (spec F.4)."""
    with os.scandir(epoch.fd) as entries:
        names = {entry.name for entry in islice(entries, 3)}
    good = names == {MANIFEST, SEGMENTS} and is_single_file(entry_stat(epoch, MANIFEST))
    if not (good and _is_directory(entry_stat(epoch, SEGMENTS))):
        raise located(refuse("discovery", "unexpected_epoch_topology"), path=epoch.path)


def list_segments(
    segments: Directory, most: int = MAX_ENTRIES, *, contiguous: bool = True
) -> list[tuple[int, str, int]]:
    """Id, name and size of every segment, ascending and without a gap (spec F.6)."""
    found: list[tuple[int, str, int]] = []
    for name in list_names(segments, most):
        info = entry_stat(segments, name)
        if info is None:
            raise located(refuse("changed_view", "path_or_extent_changed"), path=segments.child(name))
        segment_id = _classify(segments, name, info)
        if segment_id is not None:
            found.append((segment_id, name, info.st_size))
    found.sort()
    for number, (segment_id, _, _) in enumerate(found, start=1):
        if contiguous and segment_id != number:
            raise located(refuse("discovery", "noncontiguous_ids", number, segment_id), path=segments.path)
    return found


def _classify(segments: Directory, name: str, info: os.stat_result) -> int | None:
    """The id of a segment, None for a tolerated stage; the first rule that fits decides."""
    path = segments.child(name)
    raw = os.fsencode(name)
    try:
        raw.decode()
    except UnicodeDecodeError:
        raise located(refuse("discovery", "invalid_name_encoding"), path=segments.path) from None
    regular, folder = stat.S_ISREG(info.st_mode), stat.S_ISDIR(info.st_mode)
    if not (regular or folder):
        raise located(refuse("discovery", "unsupported_entry_type"), path=path)
    if regular and info.st_nlink != 1:
        raise located(refuse("discovery", "hard_link"), path=path)
    if raw.startswith(_STAGE_PREFIXES):
        if not (regular and _is_stage(raw, info.st_size)):
            raise located(refuse("discovery", "invalid_staging_file"), path=path)
        return None
    segment_id = segment_id_of(name)
    if regular and segment_id is not None:
        if info.st_size == 0:
            raise located(refuse("discovery", "zero_byte_segment"), path=path)
        return segment_id
    if b".tay" in raw.lower():
        raise located(refuse("discovery", "malformed_segment_name"), path=path)
    reason = "unexpected_directory" if folder else "unexpected_epoch_segment_entry"
    raise located(refuse("discovery", reason), path=path)


def _is_stage(raw: bytes, size: int) -> bool:
    match = _STAGE.fullmatch(raw)
    return match is not None and 1 <= int(match[1]) <= MAX_U64 and size <= HEADER_BYTES


def _is_directory(info: os.stat_result | None) -> bool:
    return info is not None and stat.S_ISDIR(info.st_mode)
