"""The children of a supervisor: started, told, counted, replaced."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal

from django_belay.engine.patience import Patience
from django_belay.engine.protocol import Channel, ChannelClosed, Message
from django_belay.engine.telemetry import worker_log

#: What a child exits with when its settings do not fit: trying again does not help.
EXIT_CONFIG = 78
START_TIMEOUT_S = 120.0
FAILED_STARTS = 5
STEADY_S = 60.0

Spawn = Callable[[], "tuple[subprocess.Popen[bytes], Channel]"]


@dataclass(slots=True, eq=False)
class Member:
    """One child as its supervisor sees it."""

    number: int
    process: subprocess.Popen[bytes]
    channel: Channel
    started_at: float
    state: Literal["starting", "ready", "draining"] = "starting"
    incarnation: str = ""
    born_at: datetime | None = None
    claimed_at: datetime | None = None
    status: dict[str, Any] = field(default_factory=dict)
    replaces: Member | None = None
    is_replaced: bool = False
    is_silent: bool = False
    is_dismissed: bool = False  # killed before it was ready, since the worker stops

    def tell(self, message: Message) -> None:
        """Send to the child; a child that is gone is noticed by its exit."""
        try:
            if message["t"] == "poke":
                self.channel.offer(message)  # a child that is busy for so long polls afterwards
            else:
                self.channel.send(message)
        except ChannelClosed:
            self.is_silent = True

    def __str__(self) -> str:
        return f"child {self.number} (pid {self.process.pid})"


class CannotStart(Exception):
    """Children end before they are ready, again and again."""


class Crew:
    """Keeps a number of children running.

    A child that died is replaced with growing delays, a recycled one without a gap:
    it goes on until its replacement is ready.
    """

    def __init__(self, spawn: Spawn, size: int) -> None:
        self._spawn = spawn
        self._size = size
        self._patience = Patience(0.5, 30.0)
        self._start_at = 0.0
        self._failed_starts = 0
        self._numbers = 0
        self.members: list[Member] = []

    def fill(self) -> list[Member]:
        """Start what is missing; the new members."""
        serving = [m for m in self.members if m.state != "draining" and m.replaces is None]
        if len(serving) >= self._size or time.monotonic() < self._start_at:
            return []
        started: list[Member] = []
        try:
            while len(serving) + len(started) < self._size:
                started.append(self._start(None))
        except OSError as error:  # no process or no memory to be had: others may give some back
            self._start_at = time.monotonic() + self._patience.next_s()
            worker_log.error("no child can be started now: %s", error)
        return started

    def recycle(self, member: Member, why: str) -> Member | None:
        """Start the replacement of a child that goes on until then."""
        if member.is_replaced or member.state != "ready" or time.monotonic() < self._start_at:
            return None
        worker_log.info("%s is replaced: %s", member, why)
        try:
            replacement = self._start(member)
        except OSError as error:
            worker_log.error("its replacement cannot be started now: %s", error)
            return None
        member.is_replaced = True
        return replacement

    def became_ready(self, member: Member) -> None:
        """A child claims now; the one it replaces ends its jobs and goes."""
        self._failed_starts = 0
        member.state = "ready"
        old = member.replaces
        member.replaces = None
        if old is not None and old in self.members:
            self.drain(old)

    def drain(self, member: Member) -> None:
        member.state = "draining"
        member.tell({"t": "drain"})

    def stop(self, member: Member, grace_s: float) -> None:
        """Let a child end its jobs and go; one that is not ready has none and is killed."""
        if member.state == "starting":
            member.process.kill()
            member.is_dismissed = True
        else:
            member.tell({"t": "stop", "grace": grace_s})
        member.state = "draining"

    def reap(self) -> list[Member]:
        """Members whose process has ended, removed.

        Raises:
            CannotStart: Too many in a row ended before they were ready.
        """
        self._kill_slow_starters()
        gone = [member for member in self.members if member.process.poll() is not None]
        for member in gone:
            self.members.remove(member)
            member.channel.close()
            self._note_end(member)
        return gone

    def kill_all(self) -> None:
        for member in self.members:
            if member.process.poll() is None:
                member.process.kill()

    def has_ready(self) -> bool:
        return any(member.state == "ready" for member in self.members)

    # -- in parts --------------------------------------------------------------------

    def _start(self, replaces: Member | None) -> Member:
        process, channel = self._spawn()
        self._numbers += 1
        member = Member(
            number=self._numbers,
            process=process,
            channel=channel,
            started_at=time.monotonic(),
            replaces=replaces,
        )
        self.members.append(member)
        return member

    def _kill_slow_starters(self) -> None:
        for member in self.members:
            if member.state == "starting" and time.monotonic() - member.started_at > START_TIMEOUT_S:
                worker_log.error("%s is not ready after %.0f s and is killed", member, START_TIMEOUT_S)
                member.process.kill()

    def _note_end(self, member: Member) -> None:
        code = member.process.returncode
        if member.is_dismissed or (member.state == "draining" and code == 0):
            worker_log.info("%s has ended", member)
            return
        if member.state == "starting":
            self._note_failed_start(member, code)
        else:
            worker_log.error("%s died (exit code %s); the leases of its jobs run out", member, code)
            if time.monotonic() - member.started_at > STEADY_S:
                self._patience.reset()
        self._start_at = time.monotonic() + self._patience.next_s()

    def _note_failed_start(self, member: Member, code: int | None) -> None:
        self._failed_starts += 1
        worker_log.error("%s ended before it was ready (exit code %s)", member, code)
        if member.replaces is not None:
            member.replaces.is_replaced = False  # it stays, and its replacement is tried again
        hopeless = code == EXIT_CONFIG or self._failed_starts >= FAILED_STARTS
        if hopeless and not self.has_ready():
            raise CannotStart(
                f"{member} and {self._failed_starts - 1} before it ended before they were ready"
            )
