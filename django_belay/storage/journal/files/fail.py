"""Named failpoints: they do nothing unless a test arms them.

Every write, sync, rename and unlink of a store passes ``point(name)`` just before it is
done; ``trace`` then tells an observer what was done, so that a test can rebuild what a
power cut would have left on the disk.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal, Protocol


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One thing done to the file system. ``path`` and ``target`` are absolute."""

    action: Literal["create", "write", "fsync", "fsync_dir", "rename", "replace", "unlink", "mkdir", "rmdir"]
    point: str
    path: str
    target: str = ""
    offset: int = 0
    data: bytes = b""


class Watcher(Protocol):
    """What a test arms: it may raise at a point, and sees every step done."""

    def before(self, name: str) -> None:
        """Called before the step named ``name``; raising stops it."""

    def after(self, step: Step) -> None:
        """Called after a step succeeded."""


_watcher: Watcher | None = None


def point(name: str) -> None:
    """Pass the failpoint ``name``."""
    if _watcher is not None:
        _watcher.before(name)


def done(step: Step) -> None:
    """Tell the watcher, if there is one, what was done."""
    if _watcher is not None:
        _watcher.after(step)


def watched() -> bool:
    """Whether a watcher is armed; spares building steps nobody sees."""
    return _watcher is not None


@contextmanager
def arm(watcher: Watcher) -> Iterator[None]:
    """Arm the failpoints of this process while the block runs."""
    global _watcher
    before, _watcher = _watcher, watcher
    try:
        yield
    finally:
        _watcher = before
