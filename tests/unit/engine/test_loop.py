from __future__ import annotations

import logging
import socket
import threading

import pytest

from django_belay.engine.loop import Loop
from django_belay.engine.patience import Patience
from django_belay.engine.protocol import Channel, ChannelClosed
from django_belay.engine.slots import Slots
from django_belay.exceptions import Unavailable


def test_a_loop_survives_what_its_turns_raise(caplog: pytest.LogCaptureFixture) -> None:
    turns, worked = iter([Unavailable("away"), Unavailable("away"), KeyError("bug")]), threading.Event()

    def turn() -> None:
        error = next(turns, None)
        if error is not None:
            raise error
        worked.set()

    with caplog.at_level(logging.INFO):
        loop = Loop("test", turn, interval_s=0.01)
        loop.start()
        assert worked.wait(10)
        loop.stop()
        assert loop.join(5)
    said = [record.message for record in caplog.records]
    assert sum("waits for the storage" in line for line in said) == 1
    assert sum("failed; it goes on" in line for line in said) == 1
    assert sum(line.endswith("loop goes on") for line in said) == 1


def test_patience_grows_to_its_cap_and_starts_again() -> None:
    patience = Patience(1.0, 4.0)
    delays = [patience.next_s() for _ in range(4)]
    assert all(0.75 * base <= delay <= 1.25 * base for base, delay in zip([1, 2, 4, 4], delays, strict=True))
    patience.reset()
    assert patience.next_s() <= 1.25


def test_messages_come_whole_and_in_order() -> None:
    left, right = (Channel(end) for end in socket.socketpair())
    large = {"t": "held", "j": list(range(20_000))}
    sender = threading.Thread(target=lambda: [left.send(large), left.send({"t": "poke"})])
    sender.start()
    got: list[object] = []
    while len(got) < 2:
        got += right.receive()
    sender.join()
    assert got == [large, {"t": "poke"}]
    left.close()
    with pytest.raises(ChannelClosed):
        right.receive()
    with pytest.raises(ChannelClosed):
        right.send({"t": "poke"})
    right.close()


def test_slots_count_ends_that_other_threads_report() -> None:
    slots = Slots()
    for _ in range(3):
        slots.take("a")
    slots.release("a")
    slots.release("a")
    assert slots.wait(5, ends=2)
    slots.settle()
    assert (slots.total, slots.running, slots.ended) == (1, {"a": 1}, 2)
    slots.poke()
    assert slots.wait(5, ends=0)
    assert not slots.wait(0.001, ends=1)
