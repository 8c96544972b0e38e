"""Starts children as fresh interpreters: a fork would inherit threads, sockets and locks."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from django_belay.engine.protocol import Channel

_LAST_STANDARD_FILE = 2


def spawn(arguments: Sequence[str]) -> tuple[subprocess.Popen[bytes], Channel]:
    """A Python process that runs ``arguments`` plus the number of its socket, and our end of it."""
    open_standard_files()
    ours, theirs = socket.socketpair()
    with theirs:
        process = subprocess.Popen(  # noqa: S603 - our own interpreter and module
            # -P: what lies in the working directory must not shadow modules that this process finds.
            [sys.executable, "-P", *arguments, str(theirs.fileno())],
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(path or os.getcwd() for path in sys.path)},
        )
    return process, Channel(ours)


def open_standard_files() -> None:
    """Put the null device where standard files are closed: a socket there would get what is printed."""
    while (number := os.open(os.devnull, os.O_RDWR)) <= _LAST_STANDARD_FILE:
        os.set_inheritable(number, True)
    os.close(number)


def rss_bytes(pid: int) -> int | None:
    """Resident memory of a process, ``None`` where it cannot be told."""
    try:
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        return _rss_from_ps(pid)


def _rss_from_ps(pid: int) -> int | None:
    try:
        answer = subprocess.run(  # noqa: S603
            ["/bin/ps", "-o", "rss=", "-p", str(pid)], capture_output=True, timeout=5, check=False
        )
        return int(answer.stdout) * 1024
    except (OSError, ValueError, subprocess.TimeoutExpired):
        return None
