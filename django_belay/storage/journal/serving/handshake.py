"""What both sides say first, and whom an owner listens to."""

from __future__ import annotations

import os
import re
import socket
import struct
from dataclasses import dataclass
from typing import Any, Final, Literal

from django_belay._version import __version__

#: Raised with every change of what goes over the wire.
PROTOCOL: Final = 1

Role = Literal["calls", "hints"]

_CLIENT_ID: Final = re.compile(r"[0-9a-f]{32}")
_ROOT: Final = 0


class Refused(Exception):
    """The other side is not to be talked with; the message says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hello:
    """Who a client is, and what it comes for."""

    client: str
    role: Role
    pid: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Welcome:
    """Whom a client has reached.

    Attributes:
        store: The id of the store.
        epoch: Tells one owner of it from another.
    """

    store: str
    epoch: str


def say_hello(client: str, role: Role) -> dict[str, Any]:
    """A client's first frame."""
    return {
        "belay": PROTOCOL,
        "version": __version__,
        "client": client,
        "role": role,
        "pid": os.getpid(),
    }


def read_hello(found: Any) -> Hello:
    """Raises :class:`Refused`."""
    _check_protocol(found, other="client")
    match found:
        case {"client": str(client), "role": "calls" | "hints" as role, "pid": int(pid)} if (
            _CLIENT_ID.fullmatch(client)
        ):
            return Hello(client=client, role=role, pid=pid)
    raise Refused("the first frame is no greeting: client id, role and pid were expected")


def say_welcome(*, store: str, epoch: str) -> dict[str, Any]:
    """The owner's first frame."""
    return {"belay": PROTOCOL, "version": __version__, "store": store, "epoch": epoch}


def say_refused(why: str) -> dict[str, Any]:
    """An owner's last frame."""
    return {"refused": why}


def read_welcome(found: Any) -> Welcome:
    """Raises :class:`Refused`."""
    if isinstance(found, dict) and isinstance(found.get("refused"), str):
        raise Refused(found["refused"])
    _check_protocol(found, other="owner")
    match found:
        case {"store": str(store), "epoch": str(epoch)}:
            return Welcome(store=store, epoch=epoch)
    raise Refused("the owner's first frame is no greeting: store and epoch were expected")


def _check_protocol(found: Any, *, other: str) -> None:
    spoken = found.get("belay") if isinstance(found, dict) else None
    if spoken != PROTOCOL:
        version = found.get("version") if isinstance(found, dict) else None
        raise Refused(
            f"the {other} (version {version!r:.40}) speaks protocol {spoken!r:.40}, this {__version__} speaks "
            f"{PROTOCOL}: let all processes of a directory run the same version"
        )


def check_user(connection: socket.socket) -> None:
    """Refuse another user's process; where the system names no peer, the socket's mode alone guards.

    Raises:
        Refused: With both users' numbers.
    """
    if not hasattr(socket, "SO_PEERCRED"):
        return
    packed = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    _pid, uid, _gid = struct.unpack("3i", packed)
    if uid not in (os.geteuid(), _ROOT):
        raise Refused(f"user {uid} may not use a journal of user {os.geteuid()}")
