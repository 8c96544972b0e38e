"""Watches the source files of imported modules, for ``--reload``."""

from __future__ import annotations

import sys
from pathlib import Path


class Sources:
    """The files behind ``sys.modules`` and when they were changed."""

    def __init__(self) -> None:
        self._seen: dict[str, int] = {}
        self.changed()

    def changed(self) -> list[str]:
        """Files that changed since the last call; files seen first are not among them."""
        changed = []
        for path in _module_files():
            stamp = _stamp(path)
            if self._seen.get(path, stamp) != stamp:
                changed.append(path)
            self._seen[path] = stamp
        return changed


def _module_files() -> set[str]:
    files = (getattr(module, "__file__", None) for module in list(sys.modules.values()))
    return {path for path in files if isinstance(path, str) and path.endswith(".py")}


def _stamp(path: str) -> int:
    try:
        return Path(path).stat().st_mtime_ns
    except OSError:
        return 0
