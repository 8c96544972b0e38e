"""The fork server of a child: one process a job, made quickly and killed without regret.

It is a fresh interpreter that has loaded the project and nothing else: one thread, no
connection, no lock, so what it forks inherits none. It runs no job itself.

=========  ==================================================================
request    ``!cQ``: ``r`` and a token, with the socket to run a job over; ``k`` and the
           token of the process to kill
answer     ``!Qi``: a token and the wait status its process ended with
=========  ==================================================================
"""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import socket
import struct
import traceback
from collections.abc import Callable
from typing import Final

REQUEST: Final = struct.Struct("!cQ")
ANSWER: Final = struct.Struct("!Qi")
RUN: Final = b"r"
KILL: Final = b"k"


def serve(control: socket.socket, run_job: Callable[[socket.socket], None]) -> None:
    """Fork for every request until the other side is gone; then kill what is left.

    Args:
        run_job: Called in a new process with its socket; the process ends when it returns.
    """
    ForkServer(control, run_job).serve()


class ForkServer:
    """One thread; the kernel wakes it for requests and for ends."""

    def __init__(self, control: socket.socket, run_job: Callable[[socket.socket], None]) -> None:
        self._control = control
        self._run_job = run_job
        self._tokens: dict[int, int] = {}  # pid -> token, until it is reaped
        self._ended, self._end = socket.socketpair()
        for one in (self._ended, self._end):
            one.setblocking(False)

    def serve(self) -> None:
        signal.signal(signal.SIGCHLD, lambda *_: None)  # only for its wake-up
        signal.set_wakeup_fd(self._end.fileno())
        try:
            self._loop()
        finally:
            for pid in self._tokens:
                os.kill(pid, signal.SIGKILL)

    def _loop(self) -> None:
        with selectors.DefaultSelector() as selector:
            selector.register(self._control, selectors.EVENT_READ)
            selector.register(self._ended, selectors.EVENT_READ)
            while True:
                ready = {key.fileobj for key, _ in selector.select()}
                if self._ended in ready:
                    self._reap()
                if self._control in ready and not self._handle():
                    return

    def _handle(self) -> bool:
        """One request; whether the other side is still there."""
        data, sockets, _, _ = socket.recv_fds(self._control, REQUEST.size, 1)
        if len(data) < REQUEST.size:
            return False
        what, token = REQUEST.unpack(data)
        if what == RUN:
            self._fork(token, socket.socket(fileno=sockets[0]))
        else:
            for pid, held in self._tokens.items():
                if held == token:
                    os.kill(pid, signal.SIGKILL)  # not reaped yet, so the number is still its own
        return True

    def _fork(self, token: int, end: socket.socket) -> None:
        with end:
            try:
                pid = os.fork()
            except OSError:
                self._answer(token, -1)
                return
            if pid:
                self._tokens[pid] = token
                return
            self._become_job(end)

    def _become_job(self, end: socket.socket) -> None:
        code = 1
        try:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            for one in (self._control, self._ended, self._end):
                one.close()
            self._run_job(end)
            code = 0
        except BaseException:
            traceback.print_exc()  # nothing above this frame may run in a fork
        finally:
            os._exit(code)

    def _reap(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while self._ended.recv(4096):
                pass
        while self._tokens:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if not pid:
                return
            self._answer(self._tokens.pop(pid), status)

    def _answer(self, token: int, status: int) -> None:
        with contextlib.suppress(OSError):  # the other side is gone: the loop ends next
            self._control.sendall(ANSWER.pack(token, status))
