"""A client that breaks the rules is told why and let go; nobody else notices."""

from __future__ import annotations

import json
import socket
import struct
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from django_belay.storage.journal.serving import peer, server
from django_belay.storage.journal.serving.frames import REQUEST_BYTES, FrameReader, frame
from django_belay.storage.journal.serving.handshake import PROTOCOL, say_hello
from django_belay.storage.journal.serving.operations import OPERATIONS
from django_belay.storage.journal.serving.remote import RemoteStore
from django_belay.storage.journal.store.store import JournalStore
from django_belay.testing.clock import SimClock
from tests.behaviour.driving import add, running
from tests.behaviour.serving import Serving
from tests.behaviour.supervised import eventually

HELLO = say_hello("a" * 32, "calls")


def framed(content: Any) -> bytes:
    return frame(content, limit=2**31)


def raw(body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + body


def request(number: Any, name: Any = "read_clock", cells: Any = (), is_resent: Any = False) -> bytes:
    return framed([number, name, list(cells) if isinstance(cells, tuple) else cells, is_resent])


@pytest.fixture
def serving(own_journal: Callable[[], JournalStore]) -> Iterator[Serving]:
    with tempfile.TemporaryDirectory(prefix="belay-") as directory:
        serving = Serving(own_journal(), Path(directory) / "s")
        yield serving
        serving.stop()
        serving.store.close()


@pytest.fixture
def well(serving: Serving) -> Iterator[RemoteStore]:
    """A client that keeps to the rules."""
    store = RemoteStore(serving.dial, patience_s=30.0)
    yield store
    store.close()


def last_words(connection: socket.socket) -> list[Any]:
    """Every frame that comes until the owner hangs up."""
    reader, found = FrameReader(2**31), []
    connection.settimeout(20)
    while data := connection.recv(65536):
        reader.feed(data)
        while (content := reader.next()) is not None:
            found.append(content)
    return found


#: What is sent, whether a greeting goes before it, and what the owner says of it.
BROKEN: dict[str, tuple[bytes, bool, str]] = {
    "text": (b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", False, "a frame of"),
    "nothing in a frame": (raw(b""), False, "a frame of 0 bytes"),
    "no greeting": (request(1), False, "speaks protocol None"),
    "another protocol": (framed({**HELLO, "belay": PROTOCOL + 1}), False, f"protocol {PROTOCOL + 1}"),
    "a client id that is none": (framed({**HELLO, "client": "../x"}), False, "no greeting"),
    "a role that is none": (framed({**HELLO, "role": "owner"}), False, "no greeting"),
    "a huge length": (struct.pack(">I", 2**32 - 1), True, "4,294,967,295 bytes"),
    "one byte too many": (struct.pack(">I", REQUEST_BYTES + 1), True, "are allowed"),
    "no JSON": (raw(b"\xff\xfe{"), True, "no JSON"),
    "null": (raw(b"null"), True, "null"),
    "deep": (raw(b"[" * 100_000 + b"]" * 100_000), True, "no JSON"),
    "many values": (raw(b"[" + b"0," * 5_000_000 + b"0]"), True, "more than 4,000,000 values"),
    "no request": (framed({"claim": 1}), True, "a request is"),
    "a number that is none": (request("1"), True, "a request is"),
    "a number below one": (request(0), True, "a request is"),
    "an operation that is none": (request(1, "__class__"), True, "no operation is called"),
    "an operation of the owner's": (request(1, "close"), True, "no operation is called"),
    "too few arguments": (request(1, "get_job", ()), True, "1 arguments expected"),
    "an argument of another type": (request(1, "get_job", ("7",)), True, "int expected"),
    "an instant beyond time": (request(1, "prune_nodes", (2**63,)), True, "found"),
    "two at once": (request(1, "reserve_ids", (1, 10**15)) + request(2), True, ""),
}


@pytest.mark.parametrize("what", BROKEN)
def test_who_breaks_the_rules_is_told_why(
    serving: Serving, well: RemoteStore, clock: SimClock, what: str
) -> None:
    data, is_greeted, said = BROKEN[what]
    [before] = add(well, clock)
    with serving.dial(5.0) as hostile:
        hostile.sendall(framed(HELLO) if is_greeted else b"")
        hostile.sendall(data)
        if what == "two at once":
            hostile.shutdown(socket.SHUT_WR)
            last_words(hostile)
        else:
            assert said in json.dumps(last_words(hostile)[-1])
    [after] = add(well, clock)
    assert [well.get_job(one).state for one in (before, after)] == ["ready", "ready"]


def test_a_request_number_that_went_before_is_refused(serving: Serving, clock: SimClock) -> None:
    reserve = OPERATIONS["reserve_ids"].encode_call([1], {"now": clock.now()})
    with serving.dial(5.0) as hostile:
        hostile.sendall(framed(HELLO) + request(5, "reserve_ids", reserve))
        reader = FrameReader(2**31)
        found: list[Any] = []
        while len(found) < 2:
            reader.feed(hostile.recv(65536))
            while (content := reader.next()) is not None:
                found.append(content)
        hostile.sendall(request(4, "reserve_ids", reserve))
        assert "request 4 came after 5" in json.dumps(last_words(hostile))


@pytest.mark.parametrize(
    "sent", [b"", framed(HELLO)[:3], framed(HELLO) + request(1)[:7], framed(HELLO) + struct.pack(">I", 1000)]
)
def test_who_says_half_a_thing_and_no_more_is_let_go(
    serving: Serving, well: RemoteStore, clock: SimClock, monkeypatch: pytest.MonkeyPatch, sent: bytes
) -> None:
    monkeypatch.setattr(peer, "GREETING_S", 0.2)
    monkeypatch.setattr(peer, "STALLED_S", 0.2)
    monkeypatch.setattr(server, "_LOOK_S", 0.05)
    with serving.dial(5.0) as hostile:
        hostile.sendall(sent)
        last_words(hostile)  # it hangs up
    assert add(well, clock)


def test_who_takes_no_answer_holds_up_nobody(
    serving: Serving, well: RemoteStore, clock: SimClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(peer, "STALLED_S", 0.2)
    monkeypatch.setattr(server, "_LOOK_S", 0.05)
    [job] = running(well, clock)
    for _ in range(40):
        well.append_event(job.id, "x" * 200_000, now=clock.now())
    listing = OPERATIONS["list_events"].encode_call([job.id], {})
    with serving.dial(5.0) as hostile:
        hostile.sendall(framed(HELLO) + request(1, "list_events", listing))
        eventually(lambda: add(well, clock) and serving.server.clients == 1)
        assert len(last_words(hostile)) == 1  # the greeting: the answer was cut off in the middle
    assert add(well, clock)


def test_a_hundred_that_come_and_go_leave_nothing(
    serving: Serving, well: RemoteStore, clock: SimClock
) -> None:
    add(well, clock)
    for number in range(100):
        connection = serving.dial(5.0)
        if number % 2:
            connection.sendall(framed({**HELLO, "client": f"{number:032x}"}))
        connection.close()
        assert add(well, clock)
    well.close()
    with serving.dial(5.0) as last:
        last.sendall(framed(HELLO))
        last.shutdown(socket.SHUT_WR)
        last_words(last)
    assert len(serving.server._peers) <= 1
