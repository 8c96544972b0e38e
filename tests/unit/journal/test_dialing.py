"""Reaching an owner: the one that is there, one on its way, one that has to be started."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from django_belay.exceptions import Unavailable
from django_belay.storage.journal.serving import dialing
from django_belay.storage.journal.serving.dialing import Dialer
from django_belay.storage.journal.serving.place import Place, Word


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path / "belay")


@pytest.fixture
def serve(place: Place) -> Iterator[Callable[[], None]]:
    """Starts an owner that takes connections and says nothing."""
    with contextlib.ExitStack() as opened:

        def start() -> None:
            opened.enter_context(place.listen())

        yield start


def test_owner_that_is_there_is_reached(place: Place, serve: Callable[[], None]) -> None:
    serve()
    with Dialer(place, start=None)(1.0) as connection:
        assert isinstance(connection, socket.socket)


def test_without_a_start_the_way_on_is_named(place: Place) -> None:
    with pytest.raises(Unavailable, match="belay_journal serve"):
        Dialer(place, start=None)(5.0)  # at once: there is nothing to wait for


def test_owner_is_started_and_waited_for(place: Place, serve: Callable[[], None]) -> None:
    started: list[threading.Timer] = []

    def start() -> None:
        started.append(threading.Timer(0.1, serve))
        started[-1].start()

    Dialer(place, start=start)(5.0).close()
    assert len(started) == 1


def test_of_all_that_dial_one_starts(place: Place, serve: Callable[[], None]) -> None:
    started: list[int] = []
    barrier = threading.Barrier(20)

    def start() -> None:
        started.append(1)
        threading.Timer(0.1, serve).start()

    dialers = [Dialer(place, start=start) for _ in range(5)]  # as many processes

    def dial(number: int) -> None:
        barrier.wait()
        dialers[number % 5](5.0).close()

    threads = [threading.Thread(target=dial, args=(number,)) for number in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert started == [1]


def test_opening_owner_is_waited_for_and_named(place: Place) -> None:
    started: list[int] = []
    place.prepare()
    word = Word(place)
    word.tell("reading the store", percent=40)
    with pytest.raises(Unavailable, match=r"is reading the store \(40 % done\)"):
        Dialer(place, start=lambda: started.append(1))(0.1)
    with pytest.raises(Unavailable, match=r"40 % done"):
        Dialer(place, start=None)(0.1)
    assert started == []
    word.end()


def test_owner_that_does_not_come_up_is_started_again_later(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dialing, "RESTART_S", 0.05)
    started: list[int] = []
    place.prepare()
    place.log.write_text("Traceback\nConfigurationError: no such setting\n")
    dialer = Dialer(place, start=lambda: started.append(1))
    with pytest.raises(Unavailable, match="ConfigurationError: no such setting"):
        dialer(0.4)
    assert 2 <= len(started) <= 4  # after 0.05, 0.1, 0.2 seconds


def test_starter_that_was_stopped_is_not_waited_for_for_ever(
    place: Place, serve: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dialing, "LONGEST_START_S", 0.3)
    with place.starting():  # another process, which does not go on
        dialer = Dialer(place, start=serve)
        with pytest.raises(Unavailable):
            dialer(0.1)
        dialer(5.0).close()
