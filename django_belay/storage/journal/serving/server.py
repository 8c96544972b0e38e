"""The owner's loop: one thread that serves every client of a store.

It takes requests, applies them one after the other, and answers each once what it saw and wrote is
durable. While a batch is on its way to the disk it goes on; the journal's writer wakes it.
"""

from __future__ import annotations

import contextlib
import logging
import selectors
import socket
import threading
import time
from collections import deque
from dataclasses import dataclass
from typing import Final

from django_belay.contract.notification import Hint
from django_belay.storage.journal.store.store import JournalStore

from .codec import Unreadable, form_of
from .desk import Desk, Request
from .frames import ANSWER_BYTES, BadFrame, frame
from .handshake import Refused, check_user, read_hello, say_refused, say_welcome
from .peer import HINT_BYTES, Peer

logger = logging.getLogger("django_belay.journal")

#: How often it is looked for clients that stall.
_LOOK_S: Final = 1.0
#: How often kept answers are gone through.
_FORGET_S: Final = 600.0
_HINTS: Final = form_of(list[Hint], where="hints")


@dataclass(frozen=True, slots=True)
class _Held:
    """An answer that waits until what it speaks of is durable."""

    mark: tuple[str, int]
    peer: Peer
    data: bytes


class Server:
    """Serves one store on a listening Unix socket.

    Args:
        listener: Closed by the server when it ends.
        epoch: Tells this owner from another.
    """

    def __init__(self, store: JournalStore, listener: socket.socket, *, epoch: str) -> None:
        self._store = store
        self._desk = Desk(store)
        self._listener = listener
        self._welcome = frame(
            say_welcome(store=store.journal.store_id.hex(), epoch=epoch), limit=ANSWER_BYTES
        )
        self._selector = selectors.DefaultSelector()
        self._waking, self._woken = socket.socketpair()
        self._peers: set[Peer] = set()
        self._held: deque[_Held] = deque()
        self._hints: deque[list[Hint]] = deque()
        self._greeted = 0
        self._idle_since = time.monotonic()
        self._stop_at: float | None = None
        self._is_broken = False
        self._is_waking = False
        self._thread: threading.Thread | None = None

    @property
    def clients(self) -> int:
        """Connections that have greeted."""
        return self._greeted

    @property
    def idle_for_s(self) -> float:
        """Seconds since the last client went; 0.0 while one is connected."""
        return 0.0 if self._greeted else time.monotonic() - self._idle_since

    def stop(self, grace_s: float = 1.0) -> None:
        """End the loop: what is in hand is answered within ``grace_s``, then every client is closed.

        From any thread; returns at once.
        """
        self._stop_at = time.monotonic() + grace_s
        self._wake()

    def serve(self) -> None:
        """Serve until stopped; runs in the caller's thread."""
        self._thread = threading.current_thread()
        self._listener.setblocking(False)
        self._woken.setblocking(False)
        self._waking.setblocking(False)
        self._selector.register(self._listener, selectors.EVENT_READ, self._accept)
        self._selector.register(self._woken, selectors.EVENT_READ, self._drain_wakes)
        leaving = [self._store.journal.follow(self._on_batch), self._store.hub.subscribe(self._on_hints)]
        try:
            self._loop()
        finally:
            for leave in leaving:
                leave()
            self._close()

    def _loop(self) -> None:
        look_at = time.monotonic() + _LOOK_S
        forget_at = time.monotonic() + _FORGET_S
        while not self._is_over():
            timeout_s = _LOOK_S if self._stop_at is None else 0.01
            for key, events in self._selector.select(timeout_s):
                if isinstance(key.data, Peer):
                    self._turn(key.data, events)
                else:
                    key.data()
            self._release()
            self._send_hints()
            if time.monotonic() >= look_at:
                look_at = time.monotonic() + _LOOK_S
                self._close_stalled()
            if time.monotonic() >= forget_at:
                forget_at = time.monotonic() + _FORGET_S
                self._desk.forget_idle()

    def _is_over(self) -> bool:
        if self._stop_at is None:
            return False
        is_done = not self._held and not any(peer.unsent_bytes for peer in self._peers)
        return is_done or self._is_broken or time.monotonic() >= self._stop_at

    # -- waking up ------------------------------------------------------------

    def _on_batch(self, _through: int, error: BaseException | None) -> None:
        """In the journal's thread: look whose answers may go. After an error none may, ever."""
        self._is_broken = self._is_broken or error is not None
        self._wake()

    def _on_hints(self, hints: list[Hint]) -> None:
        self._hints.append(hints)
        if threading.current_thread() is not self._thread:
            self._wake()

    def _wake(self) -> None:
        if self._is_waking:
            return
        self._is_waking = True
        with contextlib.suppress(OSError):  # full: it wakes anyway; closed: it has ended
            self._waking.send(b"\0")

    def _drain_wakes(self) -> None:
        with contextlib.suppress(BlockingIOError):
            self._woken.recv(4096)
        # Only now: a wake between the two finds its news looked at in this turn. The other way about, its
        # byte would be taken with the rest, and every later one spared.
        self._is_waking = False

    # -- connections ------------------------------------------------------------

    def _accept(self) -> None:
        try:
            connection, _ = self._listener.accept()
        except OSError as error:  # gone already, or no descriptor is left
            logger.warning("A connection could not be taken: %s", error)
            return
        peer = Peer(connection)
        self._peers.add(peer)
        self._selector.register(connection, selectors.EVENT_READ, peer)
        try:
            check_user(connection)
        except (Refused, OSError) as error:
            self._refuse(peer, str(error))

    def _turn(self, peer: Peer, events: int) -> None:
        """Whatever goes wrong with one client ends that client alone."""
        if peer.is_closed:
            return
        try:
            if events & selectors.EVENT_WRITE:
                self._flush(peer)
            if events & selectors.EVENT_READ and not peer.is_closed and not peer.is_ending:
                self._read(peer)
        except OSError:
            self._drop(peer)
        except (BadFrame, Refused, Unreadable) as error:
            self._refuse(peer, str(error))

    def _read(self, peer: Peer) -> None:
        if not peer.receive():
            self._drop(peer)
            return
        found = peer.next_frame()
        if found is None:
            return
        if peer.hello is None:
            self._greet(peer, found)
            found = peer.next_frame()
        if found is not None:
            self._ask(peer, found)

    def _greet(self, peer: Peer, found: object) -> None:
        hello = read_hello(found)
        for other in self._peers:
            if other.hello is not None and other.hello.client == hello.client:
                self._drop(other)  # it has come back before its old connection was seen to end
                break
        peer.greeted(hello)
        self._greeted += 1
        self._send(peer, self._welcome)

    def _ask(self, peer: Peer, found: object) -> None:
        assert peer.hello is not None
        if peer.is_asking or peer.hello.role != "calls":
            raise Refused("one request at a time: this one came before the last was answered")
        if self._stop_at is not None:
            return  # the next owner is asked
        request = Request.read(found)
        peer.is_asking = True
        answer = self._desk.answer(peer.hello.client, request)
        self._held.append(_Held(self._store.durable_sequence(), peer, answer))

    def _release(self) -> None:
        """Send the answers that what is durable now allows."""
        while self._held and not self._is_broken and self._store.is_durable(self._held[0].mark):
            held = self._held.popleft()
            held.peer.is_asking = False
            self._send(held.peer, held.data)

    def _send(self, peer: Peer, data: bytes) -> None:
        if peer.is_closed:
            return
        try:
            if not peer.send(data):
                self._selector.modify(peer.connection, selectors.EVENT_READ | selectors.EVENT_WRITE, peer)
        except OSError:
            self._drop(peer)

    def _flush(self, peer: Peer) -> None:
        if not peer.flush():
            return
        self._selector.modify(peer.connection, selectors.EVENT_READ, peer)
        if peer.is_ending:
            self._drop(peer)

    def _send_hints(self) -> None:
        if not self._hints:
            return
        hints = dict.fromkeys(hint for some in self._take_hints() for hint in some)
        data = frame(_HINTS.to_json(list(hints)), limit=ANSWER_BYTES)
        for peer in list(self._peers):
            if peer.hello is not None and peer.hello.role == "hints" and not peer.is_ending:
                if peer.unsent_bytes > HINT_BYTES:
                    self._drop(peer)
                else:
                    self._send(peer, data)

    def _take_hints(self) -> list[list[Hint]]:
        return [self._hints.popleft() for _ in range(len(self._hints))]

    def _refuse(self, peer: Peer, why: str) -> None:
        """Tell it why, and let it go once it has taken that."""
        logger.warning("A connection to the journal is refused: %s", why)
        if peer.is_closed or peer.is_ending:
            return
        peer.is_ending = True
        self._send(peer, frame(say_refused(why), limit=ANSWER_BYTES))
        if not peer.is_closed and not peer.unsent_bytes:
            self._drop(peer)

    def _close_stalled(self) -> None:
        now = time.monotonic()
        for peer in [peer for peer in self._peers if peer.is_stalled(now)]:
            self._drop(peer)

    def _drop(self, peer: Peer) -> None:
        if peer.is_closed:
            return
        self._selector.unregister(peer.connection)
        peer.close()
        self._peers.discard(peer)
        if peer.hello is not None:
            self._greeted -= 1
            self._idle_since = time.monotonic()

    def _close(self) -> None:
        self._selector.unregister(self._listener)
        self._listener.close()
        for peer in list(self._peers):
            self._drop(peer)
        self._selector.close()
        self._woken.close()
        self._waking.close()
