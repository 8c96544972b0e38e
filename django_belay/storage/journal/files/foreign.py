"""What lies where a store was asked for and none could be taken: for messages, never a decision."""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass
from itertools import islice
from typing import Final

from . import layout

_MOST_LISTED: Final = 1_000
_MOST_NAMED: Final = 4
_ROOT: Final = (
    f"name a store's root: it holds {layout.MARKER}, {layout.CURRENT}, {layout.EPOCHS} and {layout.LOCK}"
)
_OURS: Final = frozenset({layout.MARKER, layout.CURRENT, layout.EPOCHS})
_STAGES: Final = (".tay-v2-marker-", ".tay-current-")
_KNOWN: Final = {
    ".git": "a git checkout",
    "PG_VERSION": "a PostgreSQL data directory",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What lies at a path, and what an operator can do about it."""

    what: str
    advice: str


def look_at(path: str) -> Found | None:
    """What lies at an absolute path; None where it is a store's root as far as can be seen."""
    here = "/"
    for name in filter(None, path.split("/")):
        above, here = here, os.path.join(here, name)
        try:
            info = os.lstat(here)
        except FileNotFoundError:
            return Found(
                what=f"nothing is there; {_shown(above)} is the last directory of that path",
                advice="correct the path, or make a store there with `belay_journal init`",
            )
        except OSError:
            return look_at_denied(here)
        if stat.S_ISLNK(info.st_mode):
            real = _shown(os.path.realpath(path))
            return Found(
                what=f"{_shown(here)} is a symbolic link, its real path is {real}",
                advice=f"no link is followed: name {real}",
            )
        if not stat.S_ISDIR(info.st_mode):
            return _file(here, info)
    return _directory(path)


def look_at_denied(path: str) -> Found | None:
    """The first thing on the way to ``path`` that this user may not read or pass through."""
    here = "/"
    for name in filter(None, path.split("/")):
        above, here = here, os.path.join(here, name)
        try:
            os.lstat(here)
        except PermissionError:
            return _denied(above)
        except OSError:
            return None
    try:
        os.close(os.open(here, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC))
    except PermissionError:
        return _denied(here)
    except OSError:
        return None
    return None


def _denied(path: str) -> Found:
    info = os.lstat(path)
    return Found(
        what=f"user {os.geteuid()} may not read {_shown(path)}, which belongs to user {info.st_uid} "
        f"with mode {stat.S_IMODE(info.st_mode):04o}",
        advice="run this as the user that runs the workers",
    )


def _file(path: str, info: os.stat_result) -> Found:
    what = f"a file of {info.st_size:,} bytes" if stat.S_ISREG(info.st_mode) else "a special file"
    root = _store_above(path)
    if root is not None:
        return Found(what=f"{what} of the store {root}", advice=f"name {root}")
    return Found(what=f"{what}, not a directory", advice=_ROOT)


def _directory(path: str) -> Found | None:
    try:
        with os.scandir(path) as entries:
            names = sorted(entry.name for entry in islice(entries, _MOST_LISTED))
    except OSError:
        return look_at_denied(path)
    if all(name == layout.LOCK or name.startswith(_STAGES) for name in names):
        left = "left by an init that was broken off, without work"
        return Found(
            what=left if names else "an empty directory",
            advice=f"make a store there with `belay_journal init {_shown(path)} --use-empty`, or {_ROOT}",
        )
    if _OURS & set(names):
        return None if layout.LOCK in names else _lock_lost()
    if layout.LEGACY_MARKER in names:
        return Found(
            what="a Store-v1 root",
            advice="open and migrate it with Tay 1.4.x first: only Store v2 is read here",
        )
    return _near_a_store(path, names) or _stranger(names)


def _lock_lost() -> Found:
    return Found(
        what=f"a store without its {layout.LOCK}",
        advice=f"copy the store again with its lock, or restore a backup; where nothing can be using the store, "
        f"an empty file named {layout.LOCK} will do",
    )


def _near_a_store(path: str, names: list[str]) -> Found | None:
    inside = [name for name in names if _is_store(os.path.join(path, name))]
    if inside:
        roots = " or ".join(_shown(os.path.join(path, name)) for name in inside[:_MOST_NAMED])
        return Found(what="the directory above a store", advice=f"name {roots}")
    root = _store_above(path)
    return None if root is None else Found(what=f"a part of the store {root}", advice=f"name {root}")


def _store_above(path: str) -> str | None:
    while path != "/":
        path = os.path.dirname(path)
        if _is_store(path):
            return _shown(path)
    return None


def _is_store(path: str) -> bool:
    return os.path.lexists(os.path.join(path, layout.MARKER)) and os.path.isdir(
        os.path.join(path, layout.EPOCHS)
    )


def _stranger(names: list[str]) -> Found:
    kind = next((kind for name, kind in _KNOWN.items() if name in names), "a directory of something else")
    listed = ", ".join(_shown(name) for name in names[:_MOST_NAMED])
    more = ", …" if len(names) > _MOST_NAMED else ""
    return Found(what=f"{kind} ({listed}{more})", advice=_ROOT)


def _shown(text: str) -> str:
    """A name as it can be printed anywhere."""
    return text if text.isprintable() else ascii(text)
