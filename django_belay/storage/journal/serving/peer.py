"""One connection of an owner: what has come of its next frame, and what it has not taken yet."""

from __future__ import annotations

import socket
import time
from collections import deque
from typing import Any, Final

from .frames import REQUEST_BYTES, FrameReader
from .handshake import Hello

#: How long a connection may take to greet, to finish a frame it began, and to take an answer on.
GREETING_S: Final = 5.0
STALLED_S: Final = 30.0
#: What a listener may leave unread; it polls when it comes back.
HINT_BYTES: Final = 2**20

_READ_BYTES: Final = 256 * 1024


class Peer:
    """A connection that never blocks its owner.

    Attributes:
        hello: Who it is; ``None`` until it has greeted.
        is_asking: Whether its request waits for an answer.
        is_ending: Whether it is closed once it has taken what there is for it.
    """

    def __init__(self, connection: socket.socket) -> None:
        connection.setblocking(False)
        self.connection = connection
        self.hello: Hello | None = None
        self.is_asking = False
        self.is_ending = False
        self.is_closed = False
        self.reader = FrameReader(REQUEST_BYTES)
        self._out: deque[memoryview] = deque()
        #: By when what it began to say has to be whole, and by when it has to take something on.
        self._say_by: float | None = time.monotonic() + GREETING_S
        self._take_by: float | None = None

    def receive(self) -> bool:
        """Take in what has come; ``False`` when nothing more will.

        Raises:
            OSError: The connection is gone.
        """
        try:
            data = self.connection.recv(_READ_BYTES)
        except (BlockingIOError, InterruptedError):
            return True
        if not data:
            return False
        was_empty = self.reader.is_empty
        self.reader.feed(data)
        if was_empty and self.hello is not None:
            self._say_by = time.monotonic() + STALLED_S
        return True

    def next_frame(self) -> Any:
        """The next whole frame; ``None`` until it is there. Raises ``BadFrame``."""
        found = self.reader.next()
        if self.hello is not None and self.reader.is_empty:
            self._say_by = None
        return found

    def greeted(self, hello: Hello) -> None:
        """Its first frame was well."""
        self.hello = hello
        self._say_by = None if self.reader.is_empty else time.monotonic() + STALLED_S

    def send(self, data: bytes) -> bool:
        """Send now what goes, keep the rest; whether all has gone. Raises ``OSError``."""
        self._out.append(memoryview(data))
        return self.flush()

    def flush(self) -> bool:
        """Send on; whether all has gone. Raises ``OSError``."""
        while self._out:
            try:
                sent = self.connection.send(self._out[0])
            except (BlockingIOError, InterruptedError):
                if self._take_by is None:
                    self._take_by = time.monotonic() + STALLED_S
                return False
            self._take_by = None
            if sent < len(self._out[0]):
                self._out[0] = self._out[0][sent:]
            else:
                self._out.popleft()
        return True

    @property
    def unsent_bytes(self) -> int:
        """What it has not taken yet."""
        return sum(len(part) for part in self._out)

    def is_stalled(self, now: float) -> bool:
        """Whether it has kept its owner waiting for too long."""
        return any(by is not None and now >= by for by in (self._say_by, self._take_by))

    def close(self) -> None:
        """Let it go."""
        self.is_closed = True
        self.connection.close()
