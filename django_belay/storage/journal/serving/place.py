"""The directory of a journal: the store, the owner's socket and log, the inspection index.

====================== =====================================================================
``store/``             the Store-v2 root; nothing foreign may lie in it
``run/owner.sock``     the owner's socket
``run/owner.json``     what an owner that does not serve yet is at
``run/owner.log``      the output of owners that were started on demand, and of the one before
``run/ids``            the number that no owner has drawn an id beyond
``run/*.lock``         held by who makes the store, starts an owner, or has left word: one at a time
``index.sqlite3``      the disposable inspection index
====================== =====================================================================
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
import socket as sockets
import stat
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any, Final

from django_belay.exceptions import ConfigurationError, StorageError, Unavailable
from django_belay.storage.journal.files import disk, forked, layout
from django_belay.storage.journal.files.filesystem import Durability, check_place
from django_belay.storage.journal.files.initialise import initialise
from django_belay.storage.journal.files.scribe import rename_noreplace
from django_belay.storage.journal.format.manifest import Retention

#: A log that has grown beyond this is kept once as ``owner.log.1`` and begun anew.
LOG_BYTES: Final = 4 * 2**20
# sun_path with its final zero: 108 bytes on Linux, 104 elsewhere.
_LONGEST_ADDRESS: Final = 107 if sys.platform.startswith("linux") else 103
_BACKLOG: Final = 512
_DESCRIPTORS: Final = "/proc/self/fd"
_MAKING: Final = ".new"
_WORD: Final = "owner.json"
_SPEAKING: Final = "owner.lock"
_IDS: Final = "ids"


@dataclass(frozen=True, slots=True)
class Place:
    """A journal's directory. Nothing is made or read before a method is called.

    Args:
        directory: Its links are resolved once, here: a store's path has none.
    """

    directory: Path

    def __post_init__(self) -> None:
        object.__setattr__(self, "directory", Path(os.path.realpath(self.directory)))

    @property
    def store(self) -> Path:
        """The Store-v2 root."""
        return self.directory / "store"

    @property
    def run(self) -> Path:
        """What belongs to the processes at work, not to the data."""
        return self.directory / "run"

    @property
    def socket(self) -> Path:
        """The owner's socket."""
        return self.run / "owner.sock"

    @property
    def log(self) -> Path:
        """The output of owners that were started on demand."""
        return self.run / "owner.log"

    @property
    def index(self) -> Path:
        """The inspection index."""
        return self.directory / "index.sqlite3"

    # -- importing ----------------------------------------------------------

    @contextlib.contextmanager
    def importing(self) -> Iterator[None]:
        """While rows of another storage are written: what is left by a process that dies there is opened by nobody."""
        self._half.touch()
        self._sync_directory()
        yield
        self._half.unlink()
        self._sync_directory()

    def check_whole(self) -> None:
        """Raises ``StorageError`` where an import has not come to its end."""
        if self._half.exists():
            raise StorageError(
                f"an import into the journal {self.directory} did not come to its end, and half of an installation "
                "is none: remove that directory, and import again"
            )

    @property
    def _half(self) -> Path:
        return self.directory / "importing"

    def _sync_directory(self) -> None:
        directory = os.open(self.directory, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)

    # -- making -------------------------------------------------------------

    def prepare(self) -> None:
        """Make the directory and ``run/`` where they are missing, mode 0700.

        Raises:
            ConfigurationError: What is there belongs to somebody else, or is no directory.
        """
        try:
            self.directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            self.run.mkdir(mode=0o700, exist_ok=True)
        except OSError as error:
            raise ConfigurationError(
                f"the journal's directory {self.directory} cannot be made: {error.strerror}; make it for the "
                "user that runs Django and the workers, or name another one"
            ) from error
        for path in (self.run, self.store):
            self._check_mine(path)
        if stat.S_IMODE(self.run.stat().st_mode) != 0o700:
            self.run.chmod(0o700)

    def make_store(
        self,
        *,
        now_ms: int,
        retention: Retention,
        durability: Durability = "sync",
        validated_filesystem: bool = False,
    ) -> bool:
        """Make the store unless it is there; whether it was made now.

        It appears whole or not at all, whenever the process is killed; of several that make it, one does.

        Raises:
            JournalError: The file system is refused, or has no room.
            ConfigurationError: The directory is closed to this user.
        """
        self._check_mine(self.store)
        if self.store.exists():
            return False
        check_place(str(self.store), durability, validated=validated_filesystem)
        self.prepare()
        with self._holding("make.lock"):
            if self.store.exists():
                return False
            for left in self.directory.glob(f"store.*{_MAKING}"):
                shutil.rmtree(left)
            making = self.directory / f"store.{os.getpid()}{_MAKING}"
            initialise(
                str(making), now_ms=now_ms, retention=retention, durability=durability,
                validated_filesystem=validated_filesystem,
            )  # fmt: skip
            self._publish(making)
        return True

    def _publish(self, making: Path) -> None:
        directory = disk.open_directory(str(self.directory))
        try:
            rename_noreplace(directory.fd, making.name, directory.fd, self.store.name)
            os.fsync(directory.fd)
        except OSError as error:
            raise disk.io_error(error, str(self.store)) from error
        finally:
            directory.close()

    def _check_mine(self, path: Path) -> None:
        try:
            info = path.lstat()
        except (FileNotFoundError, NotADirectoryError):
            return
        except PermissionError as error:
            raise ConfigurationError(
                f"{path} is closed to user {os.geteuid()}, as whom this process runs: run it as the user whose "
                "journal it is, or name another directory"
            ) from error
        if not stat.S_ISDIR(info.st_mode):
            raise ConfigurationError(f"{path} is not a directory: move it away, the journal makes its own")
        if info.st_uid != os.geteuid():
            raise ConfigurationError(
                f"{path} belongs to user {info.st_uid}, this process runs as user {os.geteuid()}: an owner of "
                "another user would leave files there that the first cannot read; run it as that user"
            )

    # -- the socket ---------------------------------------------------------

    def listen(self) -> sockets.socket:
        """A listening socket at :attr:`socket`, mode 0600, in place of whatever lay there.

        Call it only while the store's lock is held: that is what makes the one before dead.
        """
        self.prepare()
        for pattern in ("owner.*.sock", "owner.*.json"):
            for left in self.run.glob(pattern):
                left.unlink(missing_ok=True)
        making = self._name_kept()
        listener = sockets.socket(sockets.AF_UNIX, sockets.SOCK_STREAM)
        try:
            with _address(self.run, making.name) as address:
                listener.bind(address)
            making.chmod(0o600)
            listener.listen(_BACKLOG)
            self.restore_socket()
        except BaseException:
            listener.close()
            making.unlink(missing_ok=True)
            raise
        return listener

    def restore_socket(self) -> None:
        """Give the socket that this process listens on its name again; it has another that nobody knows.

        Raises:
            OSError: That one is gone, too: nobody can find the owner any more.
        """
        making = self._name_kept().with_suffix(".link.sock")
        os.link(self._name_kept(), making)
        making.replace(self.socket)

    def is_reachable(self) -> bool:
        """Whether :attr:`socket` is the socket that this process listens on."""
        try:
            return self.socket.lstat().st_ino == self._name_kept().lstat().st_ino
        except FileNotFoundError:
            return False

    def remove_socket(self) -> None:
        """Remove this process's socket; that of another owner stays."""
        if self.is_reachable():
            self.socket.unlink(missing_ok=True)
        self._name_kept().unlink(missing_ok=True)

    def _name_kept(self) -> Path:
        return self.run / f"owner.{os.getpid()}.sock"

    def connect(self, timeout_s: float) -> sockets.socket:
        """A connection to the owner.

        Raises:
            OSError: Nobody listens (``FileNotFoundError``, ``ConnectionRefusedError``), or who
                listens takes no more connections (``TimeoutError``, ``BlockingIOError``).
        """
        connection = sockets.socket(sockets.AF_UNIX, sockets.SOCK_STREAM)
        try:
            connection.settimeout(max(timeout_s, 0.001))
            with _address(self.run, self.socket.name) as address:
                connection.connect(address)
            connection.settimeout(None)
        except BaseException:
            connection.close()
            raise
        return connection

    def has_owner(self) -> bool:
        """Whether somebody listens on the socket."""
        try:
            self.connect(1.0).close()
        except (FileNotFoundError, ConnectionRefusedError, NotADirectoryError):
            return False
        except OSError:
            return True  # it is there, and too busy to answer
        return True

    def is_held(self) -> bool:
        """Whether a process holds the store, be it an owner or the scribe of a dead one.

        Looking takes the lock for an instant where nobody holds it: ask only for an error's message.
        """
        try:
            lock = os.open(self.store / layout.LOCK, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return False
        try:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError:
            return True
        finally:
            os.close(lock)
        return False

    # -- one at a time ------------------------------------------------------

    @contextlib.contextmanager
    def _holding(self, name: str) -> Iterator[None]:
        lock = _Lock(self.run / name)
        try:
            fcntl.flock(lock.fd, fcntl.LOCK_EX)
            yield
        finally:
            lock.close()

    @contextlib.contextmanager
    def starting(self) -> Iterator[bool]:
        """Whether this process is the one that starts an owner now, for as long as the block lasts."""
        self.prepare()
        lock = _Lock(self.run / "start.lock")
        try:
            yield lock.take()
        finally:
            lock.close()

    # -- ids ----------------------------------------------------------------

    def given_ids(self) -> int | None:
        """The number that no owner has drawn an id beyond; ``None`` where nothing says so."""
        try:
            return int((self.run / _IDS).read_bytes())
        except (OSError, ValueError):
            return None

    def promise_ids(self, number: int) -> None:
        """Draw no id beyond ``number`` before this is called again.

        Who was given an id and has not inserted it yet dies with the machine, so nothing is synced.

        Raises:
            JournalError: It cannot be written down.
        """
        path = self.run / _IDS
        try:
            fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                os.pwrite(fd, b"%016d\n" % number, 0)  # as long each time: a kill leaves the old or the new
            finally:
                os.close(fd)
        except OSError as error:
            raise disk.io_error(error, str(path)) from error

    # -- what an owner is at ------------------------------------------------

    def told(self) -> dict[str, Any] | None:
        """What an owner that does not serve yet is at (see :class:`Word`); ``None`` when there is none."""
        try:
            lock = os.open(self.run / _SPEAKING, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return None
        try:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
            return None  # whoever held it is dead, or serves
        except BlockingIOError:
            return self._read_word()
        finally:
            os.close(lock)

    def _read_word(self) -> dict[str, Any] | None:
        try:
            told = json.loads((self.run / _WORD).read_bytes())
            return {"pid": told["pid"], "doing": told["doing"], **told}
        except (OSError, ValueError, KeyError, TypeError):
            return None

    # -- log ----------------------------------------------------------------

    def open_log(self) -> int:
        """A descriptor that appends to the log, for an owner that is being started.

        A log beyond :data:`LOG_BYTES` is kept once, as ``owner.log.1``.
        """
        self.prepare()
        with contextlib.suppress(FileNotFoundError):
            if self.log.stat().st_size > LOG_BYTES:
                self.log.replace(self.log.with_name("owner.log.1"))
        return os.open(self.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)

    def last_words(self, lines: int = 3) -> str:
        """The last lines of the log: why an owner that was started did not come up."""
        try:
            with self.log.open("rb") as file:
                file.seek(max(self.log.stat().st_size - 2000, 0))
                text = file.read().decode(errors="replace")
        except OSError:
            return ""
        return " / ".join([line.strip() for line in text.splitlines() if line.strip()][-lines:])


class Word:
    """What an owner leaves for clients that wait while it does not serve yet.

    It counts for as long as the owner lives and has not ended it, however it dies.
    """

    def __init__(self, place: Place) -> None:
        self._run = place.run
        self._lock: _Lock | None = None

    def tell(self, doing: str, **facts: Any) -> None:
        """Say what this process is at, in place of what it said before. Raises OSError."""
        told = {"pid": os.getpid(), "doing": doing, **facts}
        making = self._run / f"owner.{os.getpid()}.json"
        making.write_text(json.dumps(told))
        making.replace(self._run / _WORD)
        if self._lock is None:
            self._lock = _Lock(self._run / _SPEAKING)
            fcntl.flock(self._lock.fd, fcntl.LOCK_EX)

    def end(self) -> None:
        """There is nothing to say any more. Safe to call twice."""
        if self._lock is not None:
            (self._run / _WORD).unlink(missing_ok=True)
            self._lock.close()
            self._lock = None


class _Lock:
    """A lock file, held until it is closed or the process ends; its forked children let go of it."""

    def __init__(self, path: Path) -> None:
        self.fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        forked.hold(self.fd)

    def take(self) -> bool:
        """Take it, unless another holds it."""
        try:
            fcntl.flock(self.fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def close(self) -> None:
        forked.let_go(self.fd)
        os.close(self.fd)


@contextlib.contextmanager
def _address(directory: Path, name: str) -> Iterator[str]:
    """A path to ``name`` that a socket's address can hold, however deep the directory lies."""
    if os.path.isdir(_DESCRIPTORS):
        fd = os.open(directory, disk.DIRECTORY_FLAGS)
        try:
            yield f"{_DESCRIPTORS}/{fd}/{name}"
        finally:
            os.close(fd)
    elif _fits(directory / name):
        yield str(directory / name)
    else:
        yield str(_short_link(directory, name) / name)


def _fits(path: Path) -> bool:
    return len(os.fsencode(path)) <= _LONGEST_ADDRESS


def _short_link(directory: Path, name: str) -> Path:
    """A link to the directory in a folder of this user's that lies less deep. Others may use another link."""
    own, link = f"belay-{os.geteuid()}", sha256(os.fsencode(directory)).hexdigest()[:16]
    candidates = [Path(root) / own for root in (os.environ.get("XDG_RUNTIME_DIR"), *_temporary()) if root]
    for folder in candidates:
        if _fits(folder / link / name) and folder.parent.is_dir():
            return _link(directory, folder, link)
    raise Unavailable(
        f"no address of a socket can hold {directory / name}, nor a link to it from {candidates[-1].parent}: "
        "name a directory less deep, or set XDG_RUNTIME_DIR to one"
    )


def _temporary() -> tuple[str, str]:
    return tempfile.gettempdir(), "/tmp"  # noqa: S108 - the folder's owner and mode are checked


def _link(directory: Path, folder: Path, name: str) -> Path:
    folder.mkdir(mode=0o700, exist_ok=True)
    info = folder.lstat()
    if not stat.S_ISDIR(info.st_mode) or info.st_uid != os.geteuid() or stat.S_IMODE(info.st_mode) & 0o077:
        raise Unavailable(f"{folder} must be a directory of this user alone (mode 0700): remove it")
    link = folder / name
    with contextlib.suppress(FileExistsError):
        link.symlink_to(directory)
    return link
