"""The event stream: contract §3, rules 30, 37."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from django_belay.exceptions import JobNotFound
from django_belay.storage.base import Storage
from django_belay.storage.postgres.store import PostgresStore
from django_belay.testing.clock import SimClock
from tests.behaviour.driving import add


def test_events_are_numbered_and_read_from_a_cursor(store: Storage, clock: SimClock) -> None:
    [job_id] = add(store, clock)
    assert [store.append_event(job_id, {"n": n}, now=clock.now()) for n in range(4)] == [1, 2, 3, 4]
    events = store.list_events(job_id, after=1, limit=2)
    assert [(event.seq, event.payload) for event in events] == [(2, {"n": 1}), (3, {"n": 2})]
    assert events[0].inserted_at == clock.now()


def test_30_an_event_of_a_job_that_is_gone_leaves_no_orphan(store: Storage, clock: SimClock) -> None:
    with pytest.raises(JobNotFound):
        store.append_event(4711, {}, now=clock.now())
    assert store.list_events(4711) == []


def test_37_appends_at_the_same_time_all_get_a_number_of_their_own(
    make_postgres_store: Callable[..., PostgresStore], clock: SimClock
) -> None:
    stores = [make_postgres_store(size=1) for _ in range(4)]
    [job_id] = add(stores[0], clock)
    numbers: list[int] = []
    barrier = threading.Barrier(len(stores))

    def append(store: Storage) -> None:
        barrier.wait()
        for n in range(40):
            numbers.append(store.append_event(job_id, n, now=clock.now()))

    threads = [threading.Thread(target=append, args=(store,)) for store in stores]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(numbers) == list(range(1, 161))
    assert [event.seq for event in stores[0].list_events(job_id)] == list(range(1, 161))
