"""A client's connections to the owner: asked one at a time, dialled again when they are lost."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
from collections.abc import Callable
from typing import Any, Final, TypeAlias

from django_belay.exceptions import StorageError, Unavailable

from .codec import Unreadable
from .errors import decode_error
from .frames import ANSWER_BYTES, REQUEST_BYTES, BadFrame, FrameReader, frame
from .handshake import Refused, Role, read_welcome, say_hello
from .operations import Operation

#: Gives a connected socket within so many seconds, or raises ``Unavailable``.
Dial: TypeAlias = Callable[[float], socket.socket]

_READ_BYTES: Final = 256 * 1024


class Lost(Exception):
    """The connection is gone; whether the owner has done what it was asked is unknown."""


class Connection:
    """A greeted connection: frames there and back, each within a time.

    Attributes:
        store: The id of the store that is owned there.
    """

    def __init__(self, connection: socket.socket, *, client: str, role: Role, timeout_s: float) -> None:
        self._socket = connection
        self._process_id = os.getpid()
        self._reader = FrameReader(ANSWER_BYTES)
        try:
            self.send(frame(say_hello(client, role), limit=REQUEST_BYTES), timeout_s=timeout_s)
            welcome = read_welcome(self.receive(timeout_s=timeout_s))
        except BaseException:
            connection.close()
            raise
        self.store = welcome.store
        self.epoch = welcome.epoch

    def send(self, data: bytes, *, timeout_s: float) -> None:
        """Raises :class:`Lost`."""
        try:
            self._socket.settimeout(max(timeout_s, 0.001))
            self._socket.sendall(data)
        except OSError as error:
            raise Lost(str(error)) from error

    def receive(self, *, timeout_s: float) -> Any:
        """The next frame.

        Raises:
            TimeoutError: It has not come.
            Lost: It will not come.
        """
        deadline = time.monotonic() + timeout_s
        while True:
            try:
                found = self._reader.next()
            except BadFrame as error:
                raise Lost(f"the owner sent {error}") from error
            if found is not None:
                return found
            self._reader.feed(self._receive_some(deadline))

    def _receive_some(self, deadline: float) -> bytes:
        try:
            self._socket.settimeout(max(deadline - time.monotonic(), 0.001))
            data = self._socket.recv(_READ_BYTES)
        except TimeoutError:
            raise
        except OSError as error:
            raise Lost(str(error)) from error
        if not data:
            raise Lost("the owner closed the connection")
        return data

    def close(self) -> None:
        """Let it go; another thread that receives is woken. A forked child hangs up on nobody."""
        if self._process_id == os.getpid():
            with contextlib.suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()


class Line:
    """One client of the owner, whatever connection it has just now. For one thread at a time."""

    def __init__(self, lines: Lines) -> None:
        self._lines = lines
        self._client = os.urandom(16).hex()
        self._number = 0
        self._connection: Connection | None = None

    def ask(self, operation: Operation, cells: list[Any]) -> Any:
        """What the owner answers; the request goes out again until it does, or patience ends.

        Raises:
            Unavailable: Nobody answered in time.
        """
        self._number += 1
        deadline = time.monotonic() + self._lines.patience_s
        content = [self._number, operation.name, cells, False]
        data = frame(content, limit=REQUEST_BYTES)
        while True:
            try:
                found = self._exchange(data, deadline)
            except Lost as lost:
                self.close()
                if time.monotonic() >= deadline:
                    raise _gave_up(operation, str(lost)) from lost
            except TimeoutError as error:
                raise _gave_up(operation, f"no answer in {self._lines.patience_s:g} s") from error
            else:
                return self._read(operation, found)
            content[3] = True
            data = frame(content, limit=REQUEST_BYTES)

    def _exchange(self, data: bytes, deadline: float) -> Any:
        if self._connection is None:
            self._connection = self._lines.connect(self._client, "calls", deadline)
        self._connection.send(data, timeout_s=deadline - time.monotonic())
        return self._connection.receive(timeout_s=deadline - time.monotonic())

    def _read(self, operation: Operation, found: Any) -> Any:
        match found:
            case [int(number), 0, answer] if number == self._number:
                try:
                    return operation.answer.of_json(answer)
                except Unreadable as error:
                    raise StorageError(
                        f"{operation.name}: the owner's answer is not readable: {error}"
                    ) from error
            case [int(number), 1, failure] if number == self._number:
                raise decode_error(failure)
            case {"refused": str(why)}:
                self.close()
                raise StorageError(f"{operation.name}: the journal's owner refused: {why}")
        self.close()
        raise StorageError(f"{operation.name}: the owner's answer is to another question")

    def close(self) -> None:
        """Hang up."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()


def _gave_up(operation: Operation, why: str) -> Unavailable:
    done = "" if operation.is_reading else "; whether it was done is not known"
    return Unavailable(f"{operation.name}: the journal's owner cannot be reached: {why}{done}")


class Lines:
    """The lines of one process, shared by its threads: the one used last is used next."""

    def __init__(self, dial: Dial, *, most: int, patience_s: float) -> None:
        self.patience_s = patience_s
        self._dial = dial
        self._most = most
        self._store: str | None = None
        self._is_closed = False
        self._epoch: str | None = None
        #: Called with a line of its own before anything else is asked of an owner that took over.
        self.on_take_over: Callable[[Line], None] = lambda line: None
        self._begin()

    def _begin(self) -> None:
        self._process_id = os.getpid()
        self._free: list[Line] = []
        self._lock = threading.Lock()
        self._meeting = threading.RLock()
        self._room = threading.Semaphore(self._most)

    def ask(self, operation: Operation, cells: list[Any]) -> Any:
        """Ask on a free line; see :meth:`Line.ask`."""
        if self._process_id != os.getpid():
            self._begin()  # a child forgets its parent's lines: two would speak on one
        room = self._room
        if not room.acquire(timeout=self.patience_s):
            raise Unavailable(
                f"{operation.name}: all {self._most} connections to the journal's owner were busy for "
                f"{self.patience_s:g} s"
            )
        try:
            line = self._take()
            try:
                answer = line.ask(operation, cells)
            except StorageError as error:
                if isinstance(error, Unavailable):
                    line.close()
                else:
                    self._put_back(line)
                raise
            except BaseException:
                line.close()  # what it has asked may be answered yet: nobody asks on it any more
                raise
            self._put_back(line)
            return answer
        finally:
            room.release()

    def _take(self) -> Line:
        with self._lock:
            return self._free.pop() if self._free else Line(self)

    def _put_back(self, line: Line) -> None:
        with self._lock:
            if not self._is_closed:
                self._free.append(line)
                return
        line.close()

    def connect(self, client: str, role: Role, deadline: float) -> Connection:
        """A new connection.

        Raises:
            Unavailable: Nobody answers, or who does is not to be talked with.
            Lost: It was lost at once; dial again.
            StorageError: Another store is there now.
        """
        left_s = max(deadline - time.monotonic(), 0.001)
        connected = self._dial(left_s)
        try:
            connection = Connection(
                connected, client=client, role=role, timeout_s=max(deadline - time.monotonic(), 0.001)
            )
        except TimeoutError as error:
            raise Unavailable("the journal's owner takes connections but does not answer") from error
        except Refused as error:
            raise Unavailable(f"the journal's owner refuses this process: {error}") from error
        if self._store is None:
            self._store = connection.store
        if connection.store != self._store:
            connection.close()
            raise StorageError(
                f"the journal's directory holds store {connection.store} now, this process began with "
                f"{self._store}: start it anew"
            )
        if role == "calls":
            try:
                self._meet(connection.epoch)
            except BaseException:
                connection.close()
                raise
        return connection

    def _meet(self, epoch: str) -> None:
        """Tell an owner that took over what it has to know first; others wait until it does."""
        with self._meeting:
            before = self._epoch
            if epoch == before:
                return
            self._epoch = epoch
            if before is None:
                return
            line = Line(self)
            try:
                self.on_take_over(line)
            except BaseException:
                self._epoch = before  # whoever comes next tells it
                raise
            finally:
                line.close()

    def close(self) -> None:
        """Hang up: at once what nobody uses now, the others once they are answered."""
        with self._lock:
            self._is_closed = True
            lines, self._free = self._free, []
        for line in lines:
            line.close()
