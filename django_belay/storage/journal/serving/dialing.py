"""Reaching the owner of a directory, and having one started where there is none."""

from __future__ import annotations

import logging
import os
import socket
import threading
import time
from collections.abc import Callable
from typing import Final

from django_belay.exceptions import Unavailable

from .place import Place

logger = logging.getLogger("django_belay.journal")

#: An owner that was started and is not heard of is started again after so long, then twice as long.
RESTART_S: Final = 2.0
_LONGEST_RESTART_S: Final = 60.0
#: Whoever has been starting one for longer is taken for stopped: the store's lock decides between two.
LONGEST_START_S: Final = 15.0
# How often it is looked whether an owner answers: at first often, it may be handing over.
_FIRST_WAIT_S: Final = 0.002
_LONGEST_WAIT_S: Final = 0.05


class Dialer:
    """Gives connected sockets to the owner of ``place``; may be called by many threads.

    Where nobody listens, one of all processes that dial starts an owner, the others wait for it. An
    owner that says it is opening the store is waited for, not started again.

    Args:
        start: Starts an owner that outlives this process, and returns at once; ``None`` where
            that is not possible or not wanted.
    """

    def __init__(self, place: Place, *, start: Callable[[], None] | None) -> None:
        self.place = place
        self._start = start
        self._starting = threading.Lock()
        self._next_start = 0.0
        self._pause_s = RESTART_S
        self._others_since: float | None = None

    def __call__(self, patience_s: float) -> socket.socket:
        """A connected socket within so many seconds.

        Raises:
            Unavailable: Nobody answered in that time; the message says what was waited for.
        """
        deadline = time.monotonic() + patience_s
        wait_s = _FIRST_WAIT_S
        while True:
            found = self._try(max(deadline - time.monotonic(), 0.05))
            if isinstance(found, socket.socket):
                return found
            if self._start is None and not self._is_on_its_way(found):
                raise self._unavailable(found)
            if time.monotonic() >= deadline:
                raise self._unavailable(found)
            self._have_one_started(found, deadline)
            time.sleep(min(wait_s, max(deadline - time.monotonic(), 0.0)))
            wait_s = min(wait_s * 1.5, _LONGEST_WAIT_S)

    def _try(self, timeout_s: float) -> socket.socket | OSError:
        try:
            connection = self.place.connect(min(timeout_s, 1.0))
        except OSError as error:
            return error
        self._next_start, self._pause_s, self._others_since = 0.0, RESTART_S, None
        return connection

    def _is_on_its_way(self, found: OSError) -> bool:
        """Whether somebody owns the store who will answer soon."""
        return not _is_nobody(found) or self.place.told() is not None

    def _have_one_started(self, found: OSError, deadline: float) -> None:
        """Start an owner, unless one is there, on its way, or being started by another."""
        if self._start is None or self._is_on_its_way(found) or not self._starting.acquire(blocking=False):
            return
        try:
            if time.monotonic() < self._next_start:
                return
            with self.place.starting() as is_mine:
                may_start = is_mine or self._is_given_up()
                if may_start and not self.place.has_owner() and self.place.told() is None:
                    self._others_since = None
                    self._start_and_wait(deadline)
        except OSError as error:
            raise Unavailable(
                f"nobody serves the journal {self.place.directory}, and no owner can be started: {error}"
            ) from error
        finally:
            self._starting.release()

    def _is_given_up(self) -> bool:
        """Whether another process has been starting an owner for too long, as far as was seen from here."""
        now = time.monotonic()
        if self._others_since is None:
            self._others_since = now
        return now - self._others_since >= LONGEST_START_S

    def _start_and_wait(self, deadline: float) -> None:
        """Keep the others from starting one, until this one is heard of."""
        assert self._start is not None
        now = time.monotonic()
        self._next_start = now + self._pause_s
        self._pause_s = min(2 * self._pause_s, _LONGEST_RESTART_S)
        logger.info("Nobody serves the journal %s: starting an owner", self.place.directory)
        self._start()
        while time.monotonic() < min(deadline, self._next_start):
            if self.place.told() is not None or self.place.has_owner():
                return
            time.sleep(_LONGEST_WAIT_S / 5)

    def _unavailable(self, found: OSError) -> Unavailable:
        directory = self.place.directory
        told = self.place.told()
        if told is not None:
            return Unavailable(
                f"the journal {directory} is not served yet: process {told['pid']} is {_in_words(told)}; "
                "nothing was sent, try again later"
            )
        if isinstance(found, PermissionError):
            return Unavailable(
                f"the journal {directory} is served by another user: run this process as that user "
                f"(now {os.geteuid()})"
            )
        if not _is_nobody(found):
            return Unavailable(f"the owner of the journal {directory} takes no connection now: {found}")
        if self.place.is_held():
            return Unavailable(
                f"nobody serves the journal {directory} yet, but a process holds its store: an owner that serves "
                "nobody, or the scribe (scribe.py) of a dead one, which ends after its last batch; try again later, "
                "and if it lasts end that process"
            )
        if self._start is None:
            return Unavailable(
                f"nobody serves the journal {directory}, and none is started from here: run "
                "'manage.py belay_worker' or 'manage.py belay_journal serve'"
            )
        last = self.place.last_words()
        why = f"; the last lines of {self.place.log}: {last}" if last else ""
        return Unavailable(f"nobody serves the journal {directory} yet, though an owner was started{why}")


def _is_nobody(error: OSError) -> bool:
    return isinstance(error, FileNotFoundError | ConnectionRefusedError | NotADirectoryError)


def _in_words(told: dict[str, object]) -> str:
    doing = str(told["doing"])
    percent = told.get("percent")
    return f"{doing} ({percent} % done)" if isinstance(percent, int) else doing
