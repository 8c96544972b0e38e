"""Which file systems a store may be durable on, and how much room is left."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Final, Literal, TypeAlias

from django_belay.exceptions import JournalFull
from django_belay.storage.journal.format.refusal import located, refuse

from . import disk
from .disk import Directory

Durability: TypeAlias = Literal["sync", "write"]
KNOWN_GOOD: Final = frozenset({"ext4", "xfs", "btrfs"})
VOLATILE: Final = frozenset({"tmpfs", "ramfs"})
SWEPT: Final = ("/tmp", "/var/tmp")  # noqa: S108  # named to be refused: systems empty them
RESERVE_BYTES: Final = 67_108_864
# Others fill the disk, too: what was seen longer ago counts for nothing.
_LOOK_AGAIN_S: Final = 0.01


def filesystem_of(directory: Directory) -> str:
    """The type of the file system a directory lies on; ``unknown`` where that cannot be told."""
    if not sys.platform.startswith("linux"):
        return "unknown"
    device = os.fstat(directory.fd).st_dev
    want = f"{os.major(device)}:{os.minor(device)}"
    found = "unknown"
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        fields = line.split(" ")
        if fields[2] == want:
            found = fields[fields.index("-") + 1]
    return found if found != "unknown" else _longest_mount(directory.path)


def check_durable(directory: Directory, durability: Durability, *, validated: bool) -> None:
    """Refuse ``sync`` where a sync is known to mean nothing, or not known to mean something."""
    if durability != "sync":
        return
    kind = filesystem_of(directory)
    if kind in VOLATILE:
        raise located(refuse("argument", "filesystem_not_durable", kind), path=directory.path)
    if any(directory.path == place or directory.path.startswith(place + "/") for place in SWEPT):
        kind = f"{kind} in a directory for temporary files"
    if kind not in KNOWN_GOOD and not validated:
        raise located(
            refuse("argument", "filesystem_not_validated", kind, "set validated_filesystem to vouch for it"),
            path=directory.path,
        )


def check_place(path: str, durability: Durability, *, validated: bool) -> None:
    """:func:`check_durable` for a directory that is yet to be made: nothing is left when it refuses."""
    above = path
    while not os.path.isdir(above):
        above = os.path.dirname(above)
    try:
        directory = disk.open_path(above)
    except OSError as error:
        raise disk.io_error(error, above) from error
    try:
        check_durable(Directory(fd=directory.fd, path=path), durability, validated=validated)
    finally:
        directory.close()


class Room:
    """Free space less a reserve, so that a batch is refused before it is torn.

    Whoever writes later than it takes promises instead, and settles when it has written: the file
    system does not know of the bytes between the two. One thread promises at a time, and one settles.
    """

    def __init__(self, directory: Directory, reserve_bytes: int = RESERVE_BYTES) -> None:
        self._directory = directory
        self._reserve = reserve_bytes
        self._left = 0
        self._looked_at = float("-inf")
        self._settled = 0
        self.mark = 0

    @property
    def promised(self) -> int:
        """Bytes that were promised and not written yet."""
        return self.mark - self._settled

    def promise(self, size: int) -> None:
        """Count ``size`` bytes that will be written later. Raises ``JournalFull``."""
        self.take(size)
        self.mark += size

    def give_back(self, size: int) -> None:
        """Nothing will be written for the last promise."""
        self.mark -= size

    def settle(self, mark: int) -> None:
        """All that was promised up to ``mark`` has been written."""
        self._settled = mark
        self.refresh()

    def take(self, size: int) -> None:
        """Count ``size`` bytes as used, or refuse them with nothing written.

        Raises:
            JournalFull: There is no room for them and the reserve.
        """
        if self._left < size or time.monotonic() - self._looked_at > _LOOK_AGAIN_S:
            self.refresh()
        if self._left < size:
            raise JournalFull(
                f"no room for {size:,} bytes and a reserve of {self._reserve:,} on the file system of "
                f"{self._directory.path}: free space, then go on; nothing was written",
                refusal="insufficient_space",
                kind="resource_limit",
                path=self._directory.path,
            )
        self._left -= size

    def refresh(self) -> None:
        """Ask the file system again."""
        self._looked_at = time.monotonic()
        info = os.fstatvfs(self._directory.fd)
        self._left = info.f_bavail * info.f_frsize - self._reserve - self.promised


def _longest_mount(path: str) -> str:
    best, kind = "", "unknown"
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        fields = line.split(" ")
        mount = fields[4].rstrip("/")
        if (path == mount or path.startswith(mount + "/")) and len(mount) >= len(best):
            best, kind = mount, fields[fields.index("-") + 1]
    return kind
