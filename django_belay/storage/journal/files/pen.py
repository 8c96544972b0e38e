"""Who writes the segments: this process, or a scribe that outlives it.

Both do the same few things to files that the owner names. The inline pen passes failpoints;
the scribe's receives each batch whole before it writes (see ``scribe``).
"""

from __future__ import annotations

import os
import socket
import struct
import subprocess
import sys
import threading
from typing import Protocol

from . import disk, fail, forked, scribe
from .disk import Directory, File
from .fail import Step
from .ownership import Ownership

_SCRIBE_FILE = scribe.__file__


class Pen(Protocol):
    """Writes to segment files. Every call raises OSError and is never retried."""

    def adopt(self, file: File) -> None:
        """Take over an open segment for appending."""

    def append(
        self, file: File, offset: int, data: bytes, cuts: list[int], *, sync: bool, point: str = "append"
    ) -> None:
        """Write at the exact end, check, and sync when asked."""

    def fsync(self, file: File, point: str) -> None:
        """Make a segment durable."""

    def create(self, directory: Directory, name: str, data: bytes, point: str) -> None:
        """Create a small file, write it, sync it, close it."""

    def rename_new(self, directory: Directory, old: str, new: str, point: str) -> None:
        """Rename where the new name is free, and sync the directory."""

    def release(self, file: File) -> None:
        """Forget a segment."""

    def close(self) -> None:
        """End, with everything handed over written."""


class InlinePen:
    """Writes in this process; its batches are the failpoints ``append.write`` and ``append.fsync``."""

    def adopt(self, file: File) -> None:
        return None

    def append(
        self, file: File, offset: int, data: bytes, cuts: list[int], *, sync: bool, point: str = "append"
    ) -> None:
        fail.point(f"{point}.write")
        scribe.append(file.fd, offset, data, cuts, sync=False)
        if fail.watched():
            fail.done(Step(action="write", point=f"{point}.write", path=file.path, offset=offset, data=data))
        if sync:
            disk.fsync(file, f"{point}.fsync")

    def fsync(self, file: File, point: str) -> None:
        disk.fsync(file, point)

    def create(self, directory: Directory, name: str, data: bytes, point: str) -> None:
        disk.write_new(directory, name, data, point)

    def rename_new(self, directory: Directory, old: str, new: str, point: str) -> None:
        disk.rename_new(directory, old, new, f"{point}.rename")
        disk.fsync_dir(directory, f"{point}.fsync_dir")

    def release(self, file: File) -> None:
        return None

    def close(self) -> None:
        return None


class ScribePen:
    """Hands every write to a scribe process that shares the lock."""

    def __init__(self, ownership: Ownership, *, log_fd: int | None = None) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        with theirs:
            self._process = subprocess.Popen(  # noqa: S603  # our own interpreter and file
                [sys.executable, "-I", "-S", _SCRIBE_FILE, str(theirs.fileno())],
                pass_fds=(theirs.fileno(), ownership.lock.fd),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL if log_fd is None else log_fd,
                start_new_session=True,
                close_fds=True,
            )
        self._socket = ours
        forked.hold(ours.fileno())
        self._slots: dict[int, int] = {}
        self._lock = threading.Lock()

    @property
    def pid(self) -> int:
        """The scribe's process id."""
        return self._process.pid

    def adopt(self, file: File) -> None:
        with self._lock:
            head = scribe.MESSAGE.pack(0, ord("A"))
            socket.send_fds(self._socket, [head], [file.fd])
            self._slots[file.fd] = self._answer()

    def append(
        self, file: File, offset: int, data: bytes, cuts: list[int], *, sync: bool, point: str = "append"
    ) -> None:
        head = scribe.WRITE.pack(self._slots[file.fd], offset, sync, len(cuts))
        self._call("W", head + struct.pack(f">{len(cuts)}I", *cuts) + data)

    def fsync(self, file: File, point: str) -> None:
        self._call("S", scribe.SLOT.pack(self._slots[file.fd]))

    def create(self, directory: Directory, name: str, data: bytes, point: str) -> None:
        self.adopt(File(fd=directory.fd, path=directory.path))
        folder = self._slots[directory.fd]
        slot = self._call("N", scribe.SLOT.pack(folder) + os.fsencode(name))
        self._call("W", scribe.WRITE.pack(slot, 0, True, 1) + struct.pack(">I", len(data)) + data)
        self._call("C", scribe.SLOT.pack(slot))

    def rename_new(self, directory: Directory, old: str, new: str, point: str) -> None:
        folder = scribe.SLOT.pack(self._slots[directory.fd])
        self._call("R", folder + os.fsencode(old) + b"\x00" + os.fsencode(new))
        self._call("S", folder)
        self.release(File(fd=directory.fd, path=directory.path))

    def release(self, file: File) -> None:
        self._call("C", scribe.SLOT.pack(self._slots.pop(file.fd)))

    def close(self) -> None:
        forked.let_go(self._socket.fileno())
        self._socket.close()
        self._process.wait()

    def _call(self, operation: str, body: bytes) -> int:
        with self._lock:
            self._socket.sendall(scribe.MESSAGE.pack(len(body), ord(operation)) + body)
            return self._answer()

    def _answer(self) -> int:
        data = b""
        while len(data) < scribe.ANSWER.size:
            part = self._socket.recv(scribe.ANSWER.size - len(data))
            if not part:
                raise BrokenPipeError("the scribe is gone")
            data += part
        number, value = scribe.ANSWER.unpack(data)
        if number:
            raise OSError(number, "the scribe could not write")
        return int(value)
