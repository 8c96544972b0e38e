"""One owner a store: a lock on ``.tay-owner.lock`` for as long as the owner lives (spec C.5)."""

from __future__ import annotations

import errno
import fcntl
import os
import stat

from django_belay.storage.journal.format.refusal import located, refuse

from . import disk, forked, layout, scribe
from .disk import Directory, File


class Ownership:
    """The held lock, with the root it belongs to.

    The descriptor is inheritable on purpose only for the scribe, which shares the lock: a
    store stays owned until owner and scribe are both gone.
    """

    def __init__(self, root: Directory, lock: File) -> None:
        self.root = root
        self.lock = lock
        forked.hold(lock.fd)

    def recheck(self) -> None:
        """Refuse when root or lock are no longer what was locked."""
        good = disk.same_entry(self.root, layout.LOCK, self.lock.fd)
        try:
            fresh = disk.open_path(self.root.path)
        except OSError:
            good = False
        else:
            held, now = os.fstat(self.root.fd), os.fstat(fresh.fd)
            good = good and (held.st_dev, held.st_ino) == (now.st_dev, now.st_ino)
            fresh.close()
        if not good:
            raise located(refuse("changed_view", "path_or_extent_changed"), path=self.root.path)

    def check_noreplace(self) -> None:
        """Refuse a file system without the atomic rename that publication needs."""
        try:
            scribe.rename_noreplace(self.root.fd, layout.LOCK, self.root.fd, layout.LOCK)
        except OSError as error:
            if error.errno == errno.EEXIST:
                return
            raise disk.io_error(error, self.root.path) from error
        raise located(refuse("io", "rename_noreplace_unsupported"), path=self.root.path)

    def release(self) -> None:
        """Give the store up (or leave it to the scribe, which ends with its pipe)."""
        forked.let_go(self.lock.fd)
        self.lock.close()
        self.root.close()

    def __enter__(self) -> Ownership:
        return self

    def __exit__(self, *exc: object) -> None:
        self.release()


def absolute(path: str) -> str:
    """An absolute path without ``..``; links in it are refused when it is opened."""
    return os.path.abspath(path)


def acquire(path: str) -> Ownership:
    """Take the existing lock of an existing store, or refuse at once.

    Raises:
        JournalLocked: ``store_busy``; nothing else was looked at.
        JournalError: ``existing_root_or_lock_missing``, ``eloop``, ``hard_link``, …
    """
    path = absolute(path)
    try:
        root = disk.open_path(path)
    except FileNotFoundError as error:
        raise _missing(path) from error
    except OSError as error:
        raise _translate(error, path) from error
    try:
        return Ownership(root, _take(root))
    except BaseException:
        root.close()
        raise


def create_lock(root: Directory, point: str) -> Ownership:
    """Take the lock of a directory that is about to become a store; create it unless it is there."""
    if disk.entry_stat(root, layout.LOCK) is not None:
        return Ownership(root, _take(root))
    lock = disk.create(root, layout.LOCK, f"{point}.create")
    _flock(root, lock)
    return Ownership(root, lock)


def _take(root: Directory) -> File:
    info = disk.entry_stat(root, layout.LOCK)
    if info is None:
        raise _missing(root.child(layout.LOCK))
    path = root.child(layout.LOCK)
    if stat.S_ISLNK(info.st_mode):
        raise located(refuse("ownership_unavailable", "eloop"), path=path)
    if stat.S_ISDIR(info.st_mode):
        raise located(refuse("ownership_unavailable", "eisdir"), path=path)
    if not stat.S_ISREG(info.st_mode):
        raise located(refuse("ownership_unavailable", "unsupported_entry_type"), path=path)
    if info.st_nlink != 1:
        raise located(refuse("ownership_unavailable", "hard_link"), path=path)
    try:
        lock = disk.open_file(root, layout.LOCK)
    except OSError as error:
        raise _translate(error, path) from error
    _flock(root, lock)
    return lock


def _flock(root: Directory, lock: File) -> None:
    try:
        fcntl.flock(lock.fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        lock.close()
        if error.errno in (errno.EWOULDBLOCK, errno.EACCES):
            raise located(refuse("ownership_busy", "store_busy"), path=root.path) from None
        raise disk.io_error(error, root.path) from error
    if not disk.same_entry(root, layout.LOCK, lock.fd):
        lock.close()
        raise located(refuse("changed_view", "path_or_extent_changed"), path=root.path)


def _missing(path: str) -> Exception:
    return located(refuse("ownership_unavailable", "existing_root_or_lock_missing"), path=path)


def _translate(error: OSError, path: str) -> Exception:
    name = errno.errorcode.get(error.errno or 0, "EIO").lower()
    # A link met where a directory was asked for is ENOTDIR or ELOOP, by the system's taste.
    if name == "enotdir" and os.path.islink(path.rstrip("/")):
        name = "eloop"
    real = os.path.realpath(path)
    hint = () if real == path else (f"its real path is {real}",)
    return located(refuse("ownership_unavailable", name, *hint), path=path)
