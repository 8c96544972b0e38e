"""The system calls that change a store, each behind a named failpoint.

Paths are always a name in an open directory: no component is ever looked up twice, and
no symbolic link is followed.
"""

from __future__ import annotations

import errno
import os
import stat
from dataclasses import dataclass

from django_belay.exceptions import JournalError
from django_belay.storage.journal.format.refusal import located, refuse

from . import fail, scribe
from .fail import Step

DIRECTORY_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
# A directory on the way to a store is often one that may be passed through and not listed.
PASSING_FLAGS = getattr(os, "O_PATH", os.O_RDONLY) | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
READ_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK


@dataclass(frozen=True, slots=True, kw_only=True)
class Directory:
    """An open directory and the path it was opened by."""

    fd: int
    path: str

    def close(self) -> None:
        """Let go of it."""
        os.close(self.fd)

    def child(self, name: str) -> str:
        """The path of an entry."""
        return f"{self.path}/{name}"


@dataclass(frozen=True, slots=True, kw_only=True)
class File:
    """An open file and the path it was opened by."""

    fd: int
    path: str

    def close(self) -> None:
        """Let go of it."""
        os.close(self.fd)


def io_error(error: OSError, path: str) -> JournalError:
    """A system call's failure as a refusal; its name is that of the errno, such as ``enoent``."""
    if error.errno == scribe.MISMATCH:
        return located(refuse("io", "write_mismatch"), path=path)
    name = errno.errorcode.get(error.errno or 0, "EIO").lower()
    return located(refuse("io", name, error.strerror or ""), path=path)


def open_directory(name: str, *, within: Directory | None = None) -> Directory:
    """Open a directory. Raises OSError."""
    fd = os.open(name, DIRECTORY_FLAGS, dir_fd=within.fd if within else None)
    return Directory(fd=fd, path=within.child(name) if within else name)


def open_path(path: str) -> Directory:
    """Open an absolute path one component at a time, so that no link is followed anywhere."""
    names = ["/", *filter(None, path.split("/"))]
    fd: int | None = None
    for number, name in enumerate(names, start=1):
        flags = DIRECTORY_FLAGS if number == len(names) else PASSING_FLAGS
        try:
            following = os.open(name, flags, dir_fd=fd)
        finally:
            if fd is not None:
                os.close(fd)
        fd = following
    assert fd is not None
    return Directory(fd=fd, path="/" + "/".join(names[1:]))


def open_file(directory: Directory, name: str, flags: int = READ_FLAGS) -> File:
    """Open an existing file. Raises OSError."""
    return File(fd=os.open(name, flags, dir_fd=directory.fd), path=directory.child(name))


def read_exactly(fd: int, offset: int, size: int) -> bytes:
    """Up to ``size`` bytes at ``offset``; fewer only at the end of the file."""
    data = os.pread(fd, size, offset)
    if len(data) == size or not data:
        return data
    parts = [data]
    have = len(data)
    while have < size:
        more = os.pread(fd, size - have, offset + have)
        if not more:
            break
        parts.append(more)
        have += len(more)
    return b"".join(parts)


def create(directory: Directory, name: str, point: str) -> File:
    """Create a file exclusively, mode 0600."""
    fail.point(point)
    file = File(fd=scribe.create(directory.fd, name), path=directory.child(name))
    fail.done(Step(action="create", point=point, path=file.path))
    return file


def write(file: File, offset: int, data: bytes, point: str, *, cuts: list[int] | None = None) -> None:
    """Write at the exact end of a file and read it back; nothing is retried."""
    fail.point(point)
    scribe.append(file.fd, offset, data, cuts or [len(data)], sync=False)
    if fail.watched():
        fail.done(Step(action="write", point=point, path=file.path, offset=offset, data=data))


def fsync(file: File, point: str) -> None:
    """Make a file's bytes durable."""
    fail.point(point)
    os.fsync(file.fd)
    fail.done(Step(action="fsync", point=point, path=file.path))


def fsync_dir(directory: Directory, point: str) -> None:
    """Make a directory's entries durable."""
    fail.point(point)
    os.fsync(directory.fd)
    fail.done(Step(action="fsync_dir", point=point, path=directory.path))


def fsync_ancestors(path: str, point: str) -> None:
    """Make the entries of every directory above ``path`` durable, as far as they may be opened."""
    while path != "/":
        path = os.path.dirname(path)
        try:
            directory = open_path(path)
        except PermissionError:
            continue
        try:
            fsync_dir(directory, point)
        finally:
            directory.close()


def mkdir(directory: Directory, name: str, point: str) -> Directory:
    """Make a directory, mode 0700, and open it."""
    fail.point(point)
    os.mkdir(name, 0o700, dir_fd=directory.fd)
    fail.done(Step(action="mkdir", point=point, path=directory.child(name)))
    return open_directory(name, within=directory)


def rename_new(directory: Directory, old: str, new: str, point: str) -> None:
    """Rename inside a directory; the new name must be free."""
    fail.point(point)
    scribe.rename_noreplace(directory.fd, old, directory.fd, new)
    fail.done(Step(action="rename", point=point, path=directory.child(old), target=directory.child(new)))


def replace(directory: Directory, old: str, new: str, point: str) -> None:
    """Rename over an existing name, atomically."""
    fail.point(point)
    os.rename(old, new, src_dir_fd=directory.fd, dst_dir_fd=directory.fd)
    fail.done(Step(action="replace", point=point, path=directory.child(old), target=directory.child(new)))


def unlink(directory: Directory, name: str, point: str) -> None:
    """Remove a file."""
    fail.point(point)
    os.unlink(name, dir_fd=directory.fd)
    fail.done(Step(action="unlink", point=point, path=directory.child(name)))


def rmdir(directory: Directory, name: str, point: str) -> None:
    """Remove an empty directory."""
    fail.point(point)
    os.rmdir(name, dir_fd=directory.fd)
    fail.done(Step(action="rmdir", point=point, path=directory.child(name)))


def write_new(directory: Directory, name: str, data: bytes, prefix: str) -> None:
    """Create, write, read back, sync and close a small file; points are ``<prefix>.create`` and so on."""
    file = create(directory, name, f"{prefix}.create")
    try:
        write(file, 0, data, f"{prefix}.write")
        fsync(file, f"{prefix}.fsync")
    finally:
        file.close()


def entry_stat(directory: Directory, name: str) -> os.stat_result | None:
    """What an entry is, following no link; None when it is not there."""
    try:
        return os.stat(name, dir_fd=directory.fd, follow_symlinks=False)
    except FileNotFoundError:
        return None


def is_single_file(info: os.stat_result | None) -> bool:
    """Whether an entry is a regular file with exactly one link."""
    return info is not None and stat.S_ISREG(info.st_mode) and info.st_nlink == 1


def same_entry(directory: Directory, name: str, fd: int) -> bool:
    """Whether ``name`` still is the open file or directory ``fd``."""
    info, held = entry_stat(directory, name), os.fstat(fd)
    return info is not None and (info.st_dev, info.st_ino) == (held.st_dev, held.st_ino)
