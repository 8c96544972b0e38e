"""Messages between the supervisor and a child, over a socket pair.

A message is a JSON object whose ``t`` says what it is, behind its length as four bytes.

===========  ===================================================================
child to supervisor
``ready``    it is set up and claims from now on
``held``     claimed: ``r`` is the round's ``leased_by``, ``j`` a list of
             ``[id, attempt, seconds to renew for or null]``; sent before user code starts
``done``     ``j``: ``[id, leased_by]`` pairs it no longer needs renewed
``late``     ``j``: pairs whose ack is kept back by an outage
``leaving``  it ends of its own accord: its one round is over (``down``: it met an outage), or it was
             told by a signal
``status``   its claim loop turned; counts of running, free, stuck, ran, pending; ``idle``
===========  ===================================================================

===========  ===================================================================
supervisor to child
``poke``     ``q``: queues that may have work
``lost``     ``j``: pairs whose lease is surely gone
``queues``   ``q``: the rows of ``belay_queues``, all of them: ``[name, opts, paused]``
``hold``     ``on``: whether this worker's claims stop until it is told otherwise
``drain``    claim no more, finish what runs, end
``stop``     the same within the grace, then hand back
===========  ===================================================================
"""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from typing import Any, Final

import orjson

Message = dict[str, Any]

_LENGTH: Final = struct.Struct("!I")
_CHUNK = 65536
SEND_TIMEOUT_S: Final = 10.0
_OFFER_S: Final = 0.05


def _framed(message: Message) -> bytes:
    data = orjson.dumps(message)
    return _LENGTH.pack(len(data)) + data


class ChannelClosed(Exception):
    """The other side is gone."""


class Channel:
    """One end of the pair. Any thread may send; one thread receives."""

    def __init__(self, end: socket.socket) -> None:
        self._socket = end
        self._sending = threading.Lock()
        self._buffer = bytearray()
        self.limit_send(SEND_TIMEOUT_S)

    def limit_send(self, seconds: float) -> None:
        """How long a send may wait; a side that reads nothing for so long is as good as gone."""
        whole, part = divmod(seconds, 1.0)
        limit = struct.pack("@ll", int(whole), int(part * 1_000_000))
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)

    @property
    def end(self) -> socket.socket:
        """The socket itself, for a conversation of another kind."""
        return self._socket

    def fileno(self) -> int:
        return self._socket.fileno()

    def send(self, message: Message) -> None:
        """Write a message; it is with the other process when this returns.

        Raises:
            ChannelClosed: The other side is gone, or has not read for ten seconds.
        """
        with self._sending:
            self._send(_framed(message))

    def offer(self, message: Message) -> bool:
        """Send a hint unless that would wait; whether it was sent.

        Raises:
            ChannelClosed: The other side is gone.
        """
        data = _framed(message)
        if not self._sending.acquire(timeout=_OFFER_S):
            return False
        try:
            sent = self._socket.send(data, socket.MSG_DONTWAIT)
            if sent < len(data):
                self._send(data[sent:])
            return True
        except BlockingIOError:
            return False
        except OSError as error:
            raise ChannelClosed(str(error)) from error
        finally:
            self._sending.release()

    def _send(self, data: bytes) -> None:
        try:
            self._socket.sendall(data)
        except OSError as error:
            # Half a message may be out, and would garble whatever followed it.
            with contextlib.suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)
            raise ChannelClosed(str(error)) from error

    def receive(self) -> list[Message]:
        """The messages that one read brings, at least one; blocks.

        Raises:
            ChannelClosed: The other side is gone.
        """
        while True:
            self._read()
            if messages := self._complete():
                return messages

    def receive_some(self) -> list[Message]:
        """The messages complete after one read, perhaps none; for a readable socket."""
        self._read()
        return self._complete()

    def close(self) -> None:
        self._socket.close()

    def _read(self) -> None:
        try:
            data = self._socket.recv(_CHUNK)
        except OSError as error:
            raise ChannelClosed(str(error)) from error
        if not data:
            raise ChannelClosed("end of stream")
        self._buffer += data

    def _complete(self) -> list[Message]:
        messages, start = [], 0
        while len(self._buffer) - start >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(self._buffer, start)
            end = start + _LENGTH.size + length
            if len(self._buffer) < end:
                break
            messages.append(orjson.loads(self._buffer[start + _LENGTH.size : end]))
            start = end
        del self._buffer[:start]
        return messages
