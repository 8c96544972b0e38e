"""A progress bar on one line of a terminal; nothing where the output goes elsewhere."""

from __future__ import annotations

import shutil
import time
from typing import Final

from django.core.management.base import OutputWrapper

_WIDTH: Final = 30
_INTERVAL_S: Final = 0.1


class Bar:
    """Drawn ten times a second at most, and always when a step ends or another begins."""

    def __init__(self, out: OutputWrapper) -> None:
        self._out = out
        self._drawn_at = 0.0
        self._length = 0  # of the line that stands there, 0 for none
        self._step = ""

    def show(self, done: int, total: int, text: str, *, step: str = "") -> None:
        """Draw how much of a step is done."""
        now = time.monotonic()
        if now - self._drawn_at < _INTERVAL_S and done < total and step == self._step:
            return
        self._drawn_at, self._step = now, step
        share = min(1.0, done / total) if total > 0 else 1.0
        filled = "#" * int(share * _WIDTH)
        self._draw(f"[{filled:<{_WIDTH}}] {int(share * 100):>3}% {text}")

    def end(self) -> None:
        """Leave the line, so that what is printed next has one of its own."""
        if self._length:
            self._out.write("", str, ending="\n")
            self._length = 0

    def _draw(self, line: str) -> None:
        # A line that wraps could not be drawn over.
        line = line[: max(1, shutil.get_terminal_size().columns - 1)]
        self._out.write(f"\r{line:<{self._length}}", str, ending="")
        self._out.flush()
        self._length = len(line)
