from __future__ import annotations

import logging
import socket
import threading
from collections.abc import Iterator

import pytest

from django_belay.engine.loop import Loop
from django_belay.engine.patience import Patience
from django_belay.engine.protocol import Channel, ChannelClosed, Message
from django_belay.engine.slots import Slots
from django_belay.engine.telemetry import worker_log
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


def test_nothing_that_a_turn_raises_ends_a_loop_in_silence() -> None:
    """User code runs in turns too, the build of a cron's job for instance."""
    turns, worked = iter([SystemExit(1), KeyboardInterrupt(), GeneratorExit()]), threading.Event()

    def turn() -> None:
        error = next(turns, None)
        if error is not None:
            raise error
        worked.set()

    loop = Loop("test", turn, longest_delay_s=0.01)
    loop.start()
    assert worked.wait(10)
    loop.stop()
    assert loop.join(5)


def test_logging_that_raises_stops_no_loop() -> None:
    """A project's filter or handler may be broken; logging lets what a filter raises through."""
    turns, worked = iter([KeyError("bug"), Unavailable("away")]), threading.Event()

    def turn() -> None:
        error = next(turns, None)
        if error is not None:
            raise error
        worked.set()

    def broken(_record: logging.LogRecord) -> bool:
        raise AttributeError("request")

    worker_log.addFilter(broken)
    try:
        loop = Loop("test", turn, longest_delay_s=0.01)
        loop.start()
        assert worked.wait(10)
        loop.stop()
        assert loop.join(5)
    finally:
        worker_log.removeFilter(broken)


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


@pytest.fixture
def channels() -> Iterator[tuple[Channel, Channel]]:
    left, right = (Channel(end) for end in socket.socketpair())
    yield left, right
    left.close()
    right.close()


def test_a_side_that_does_not_read_is_told_nothing_by_halves(channels: tuple[Channel, Channel]) -> None:
    """Half a message would garble all later ones, so the channel is closed instead."""
    left, right = channels
    left.limit_send(0.05)
    sent = 0

    def send_until_full() -> None:
        nonlocal sent
        while True:
            left.send({"t": "lost", "j": list(range(sent, sent + 5_000))})
            sent += 1

    got: list[Message] = []

    def receive_all() -> None:
        while True:
            got.extend(right.receive())

    with pytest.raises(ChannelClosed):
        send_until_full()
    with pytest.raises(ChannelClosed):
        left.send({"t": "stop"})
    with pytest.raises(ChannelClosed):
        receive_all()
    assert [message["j"][0] for message in got] == list(range(sent))


def test_a_hint_is_dropped_where_it_would_wait(channels: tuple[Channel, Channel]) -> None:
    left, right = channels
    sent = 0
    while left.offer({"t": "poke", "n": sent}):
        sent += 1
    got: list[Message] = []
    while len(got) < sent:
        got += right.receive()
    left.send({"t": "stop"})
    assert [message["n"] for message in got] == list(range(sent))
    assert right.receive() == [{"t": "stop"}]


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
