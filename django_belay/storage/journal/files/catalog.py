"""The catalog of a cold copy: which files it has, how large, with which digests (spec I)."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from typing import Any, Final

from django_belay.storage.journal.format.refusal import located, refuse

from . import disk
from .disk import Directory

MAX_BYTES: Final = 67_108_864
_KEYS: Final = frozenset(
    {
        "version",
        "files",
        "durability",
        "filesystem",
        "semantic_validation",
        "source_rpo",
        "sync_order",
        "files_synced",
    }
)
SYNC_ORDER: Final = ["files", "directories_inside_out", "staged_root", "rename", "parents"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One file of a copy."""

    size: int
    sha256: str


def encode_catalog(files: dict[str, Entry], *, synced: bool, filesystem: str) -> bytes:
    """One JSON object and a newline."""
    content = {
        "version": 1,
        "files": {path: {"bytes": item.size, "sha256": item.sha256} for path, item in sorted(files.items())},
        "durability": "synced_copy" if synced else "development_copy",
        "filesystem": filesystem,
        "semantic_validation": "required",
        "source_rpo": "catalog_history_only",
        "sync_order": SYNC_ORDER,
        "files_synced": len(files) if synced else 0,
    }
    return (json.dumps(content, sort_keys=True, separators=(",", ":")) + "\n").encode()


def decode_catalog(data: bytes) -> dict[str, Entry]:
    """The files a catalog lists."""
    try:
        content: Any = json.loads(data)
    except (ValueError, RecursionError):
        raise refuse("argument", "invalid_catalog", "json") from None
    if not isinstance(content, dict) or content.keys() != _KEYS or content["version"] != 1:
        raise refuse("argument", "invalid_catalog", "keys")
    files = content["files"]
    if not isinstance(files, dict):
        raise refuse("argument", "invalid_catalog", "files")
    return {path: _entry(path, item) for path, item in files.items()}


def read_catalog(path: str) -> dict[str, Entry]:
    """Read and check a catalog file; its size is looked at first."""
    try:
        parent = disk.open_path(os.path.dirname(path))
        try:
            file = disk.open_file(parent, os.path.basename(path))
        finally:
            parent.close()
    except OSError as error:
        raise disk.io_error(error, path) from error
    try:
        info = os.fstat(file.fd)
        if not disk.is_single_file(info):
            raise located(refuse("argument", "invalid_catalog", "not a plain file"), path=path)
        if info.st_size > MAX_BYTES:
            raise located(refuse("resource_limit", "catalog_budget", info.st_size), path=path)
        return decode_catalog(disk.read_exactly(file.fd, 0, MAX_BYTES + 1))
    finally:
        file.close()


def write_catalog(directory: Directory, name: str, data: bytes) -> None:
    """Create a catalog exclusively and make it durable."""
    disk.write_new(directory, name, data, "copy.catalog")
    disk.fsync_dir(directory, "copy.catalog.fsync_dir")


def _entry(path: str, item: Any) -> Entry:
    if not isinstance(item, dict) or item.keys() != {"bytes", "sha256"}:
        raise refuse("argument", "invalid_catalog", path)
    size, digest = item["bytes"], item["sha256"]
    if type(size) is not int or size < 0 or not isinstance(digest, str) or len(digest) != 64:
        raise refuse("argument", "invalid_catalog", path)
    return Entry(size=size, sha256=digest)
