"""What a process forked off the owner must not keep: it would hold the store when the owner is gone."""

from __future__ import annotations

import os
from typing import Final

_held: Final[set[int]] = set()
_process_id = os.getpid()


def process_id() -> int:
    """This process's id, without asking the system each time."""
    return _process_id


def hold(fd: int) -> None:
    """A descriptor by which others see that the owner lives: a child lets go of it at once."""
    _held.add(fd)


def let_go(fd: int) -> None:
    """Call before the descriptor is closed: its number may be another file's next."""
    _held.discard(fd)


def _replace_in_child() -> None:
    global _process_id
    _process_id = os.getpid()
    # Replaced, not closed: whoever closes the number later must not hit another file.
    if not _held:
        return
    nothing = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    for fd in _held:
        os.dup2(nothing, fd, inheritable=False)
    os.close(nothing)
    _held.clear()


os.register_at_fork(after_in_child=_replace_in_child)
