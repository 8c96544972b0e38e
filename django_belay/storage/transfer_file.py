"""The file that carries an installation from one storage to another: one JSON object a line.

The first says what it is and how many rows of each table follow, the last that this was all, with a
SHA-256 of every line before it. Tables follow one another as in
:data:`~django_belay.storage.transferring.TABLES`.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final, TypeAlias

from django_belay.exceptions import StorageError
from django_belay.storage.transferring import TABLES, Row, Transferable

FORMAT: Final = "django_belay rows"
VERSION: Final = 1

#: Called with a table, how many of all rows are done, and how many there are.
Progress: TypeAlias = Callable[[str, int, int], None]


class TransferError(StorageError):
    """What was to be moved cannot be, or the file is none that this version reads; nothing was changed."""


def write(path: Path, source: Transferable, *, storage: str, progress: Progress) -> dict[str, int]:
    """Write every row; the file appears under its name once it is whole.

    Returns:
        How many rows of each table there are.

    Raises:
        TransferError: The file is there already, or rows came or went while they were read.
    """
    if path.exists():
        raise TransferError(f"{path} is there already: name another file, or remove it")
    counts = source.count()
    part = path.with_name(f"{path.name}.part")
    try:
        with part.open("xb") as file:
            _write_lines(_Digesting(file.write), source, counts, storage, progress)
            file.flush()
            os.fsync(file.fileno())
        os.link(part, path)  # never over another file
    except FileExistsError:
        raise TransferError(
            f"{path} or {part} is there already: another export writes it, or was killed"
        ) from None
    except BaseException:
        part.unlink(missing_ok=True)
        raise
    part.unlink()
    return counts


def _write_lines(
    out: _Digesting, source: Transferable, counts: Mapping[str, int], storage: str, progress: Progress
) -> None:
    total, done = sum(counts.values()), 0
    out.line({"format": FORMAT, "version": VERSION, "storage": storage, "counts": counts})
    for table in TABLES:
        before = done
        for row in source.dump(table):
            out.line({"table": table, "row": row})
            done += 1
            progress(table, done, total)
        if done - before != counts[table]:
            raise TransferError(
                f"{table}: {counts[table]:,} rows were counted and {done - before:,} read: somebody works on this storage"
            )
    digest = out.hexdigest()
    out.line({"end": True, "sha256": digest})


class _Digesting:
    """Writes lines and digests them."""

    def __init__(self, write: Callable[[bytes], Any]) -> None:
        self._write = write
        self._hash = hashlib.sha256()

    def line(self, content: Mapping[str, Any]) -> None:
        data = json.dumps(content, ensure_ascii=False, separators=(",", ":")).encode() + b"\n"
        self._hash.update(data)
        self._write(data)

    def hexdigest(self) -> str:
        return self._hash.hexdigest()


def check(path: Path) -> dict[str, int]:
    """Read the whole file; how many rows of each table it has.

    Raises:
        TransferError: It is none, of another version, cut short, or damaged; the line is named.
    """
    counts: dict[str, int] = dict.fromkeys(TABLES, 0)
    digest = hashlib.sha256()
    head: dict[str, Any] | None = None
    try:
        file = path.open("rb")
    except OSError as error:
        raise TransferError(f"{path} cannot be read: {error.strerror}") from error
    with contextlib.closing(file):
        for number, data in enumerate(file, 1):
            line = _parsed(path, number, data)
            if head is None:
                head = _head(path, line)
            elif "end" in line:
                _check_end(path, line, digest.hexdigest(), counts, head, is_last=not file.read(1))
                return counts
            else:
                counts[_table(path, number, line)] += 1
            digest.update(data)
    if head is None:
        raise TransferError(f"{path} is empty: it is no export")
    raise TransferError(
        f"{path} is cut short: it has {sum(counts.values()):,} of {sum(head['counts'].values()):,} rows; export again"
    )


def _parsed(path: Path, number: int, data: bytes) -> dict[str, Any]:
    try:
        line = json.loads(data)
    except ValueError:
        line = None
    if not isinstance(line, dict):
        what = "no export of django_belay" if number == 1 else f"damaged: line {number:,} is no JSON object"
        raise TransferError(f"{path} is {what}")
    return line


def _head(path: Path, line: dict[str, Any]) -> dict[str, Any]:
    counts = line.get("counts")
    if line.get("format") != FORMAT or not isinstance(counts, dict):
        raise TransferError(f"{path} is no export of django_belay")
    if line.get("version") != VERSION:
        raise TransferError(
            f"{path} has version {line.get('version')!r}, this one reads {VERSION}: import it with what wrote it"
        )
    return line


def _table(path: Path, number: int, line: dict[str, Any]) -> str:
    table = line.get("table")
    if table not in TABLES or not isinstance(line.get("row"), dict):
        raise TransferError(f"{path} is damaged: line {number:,} is a row of no table that is known")
    return str(table)


def _check_end(
    path: Path,
    line: dict[str, Any],
    digest: str,
    counts: Mapping[str, int],
    head: dict[str, Any],
    *,
    is_last: bool,
) -> None:
    if line.get("sha256") != digest or counts != head["counts"] or not is_last:
        raise TransferError(f"{path} is damaged: its rows are not those that were written; export again")


def rows(path: Path) -> Iterator[tuple[str, Row]]:
    """The rows of a file that was checked, with their tables."""
    with path.open("rb") as file:
        for data in file:
            line = json.loads(data)
            if "row" in line:
                yield line["table"], line["row"]
