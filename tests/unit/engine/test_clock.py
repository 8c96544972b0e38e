from __future__ import annotations

import threading
from datetime import UTC, datetime, timedelta

import pytest

from django_belay.engine.clock import Clock, SystemClock
from django_belay.testing.clock import START, SimClock


def test_system_clock_is_aware_and_in_utc() -> None:
    clock: Clock = SystemClock()
    assert clock.now().utcoffset() == timedelta(0)


def test_sim_clock_moves_only_when_told() -> None:
    clock: Clock = SimClock()
    assert clock.now() == clock.now() == START


def test_sim_clock_advances_by_seconds_or_timedelta() -> None:
    clock = SimClock()
    assert clock.advance(1.5) == START + timedelta(seconds=1.5)
    assert clock.advance(timedelta(days=1)) == clock.now() == START + timedelta(days=1, seconds=1.5)


def test_sim_clock_refuses_naive_instants() -> None:
    with pytest.raises(ValueError, match="time zone"):
        SimClock(datetime(2030, 1, 1))
    with pytest.raises(ValueError, match="time zone"):
        SimClock().set(datetime(2030, 1, 1))


def test_sim_clock_is_thread_safe() -> None:
    clock = SimClock(datetime(2030, 1, 1, tzinfo=UTC))
    threads = [threading.Thread(target=lambda: [clock.advance(1) for _ in range(500)]) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert clock.now() == datetime(2030, 1, 1, tzinfo=UTC) + timedelta(seconds=2000)
