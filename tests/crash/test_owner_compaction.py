"""Compaction and retention by policy, in the background of an owner whose clients go on."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from django_belay.contract.job import JSON
from django_belay.contract.state import State
from django_belay.exceptions import JobNotFound
from django_belay.storage.base import JobFilter, NewStep, Storage
from django_belay.storage.journal.serving import upkeep
from django_belay.storage.journal.serving.dialing import Dialer
from django_belay.storage.journal.serving.owner import Owner, OwnerOptions
from django_belay.storage.journal.serving.place import Place
from django_belay.storage.journal.serving.remote import RemoteStore
from django_belay.storage.journal.serving.upkeep import Policy
from django_belay.testing.clock import SimClock
from tests.behaviour.driving import add, claim, end, running

from .owners import Client, Owners, owners_of
from .test_owner_kills import all_go_on, check, open_store
from .test_owners import until

HOUR = timedelta(hours=1)
RETENTION: dict[State, timedelta | None] = {"succeeded": HOUR, "failed": HOUR, "cancelled": HOUR}
#: Only jobs that expired are a reason.
EXPIRED = Policy(
    check_every_s=0.0, min_interval_s=0.0, min_bytes=2**40, most_segments=2**20, min_expired=100, share=0.5
)
CLIENTS = 4


@pytest.fixture
def clock() -> SimClock:
    return SimClock()


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path / "belay")


@pytest.fixture
def owner(place: Place, clock: SimClock, monkeypatch: pytest.MonkeyPatch) -> Iterator[Owner]:
    monkeypatch.setattr(upkeep, "_LOOK_EVERY_S", 0.01)
    with open_owner(place, clock) as owner:
        owner.start()
        yield owner


def open_owner(place: Place, clock: SimClock) -> Owner:
    options = OwnerOptions(
        durability="write", validated_filesystem=True, retention=RETENTION, policy=EXPIRED, clock=clock.now,
        segment_bytes=1 << 18,
    )  # fmt: skip
    return Owner.open(place, options, now=clock.now(), wait_s=5.0)


def size_of(place: Place) -> int:
    return sum(path.stat().st_size for path in place.store.rglob("*") if path.is_file())


def finish(store: Storage, clock: SimClock, count: int) -> list[int]:
    """Jobs with two steps and an event each, ended."""
    jobs = running(store, clock, count)
    for job in jobs:
        for name in ("a", "b"):
            store.put_step(job.id, NewStep(name=name, value=b'"%s"' % (b"x" * 500)), now=clock.now())
        store.append_event(job.id, {"text": "y" * 500}, now=clock.now())
        end(store, clock, job)
    return [job.id for job in jobs]


class Appender(threading.Thread):
    """Inserts jobs, notes events, ends what it claims: until it is stopped."""

    def __init__(self, place: Place, clock: SimClock, number: int) -> None:
        super().__init__(daemon=True)
        self.done = 0
        self.open: list[int] = []
        self.ended: list[int] = []
        self.notes: list[JSON] = []
        self.error: BaseException | None = None
        self._clock = clock
        self._queue = f"queue-{number}"
        self._store = RemoteStore(Dialer(place, start=None), connections=1)
        self.stopping = threading.Event()

    def run(self) -> None:
        try:
            [self.own] = add(self._store, self._clock, queue="own")
            while not self.stopping.is_set():
                self._turn()
                self.done += 1
        except BaseException as error:
            self.error = error
        finally:
            self._store.close()

    def _turn(self) -> None:
        self.open += add(self._store, self._clock, 2, queue=self._queue)
        note: JSON = {"n": len(self.notes)}
        self._store.append_event(self.own, note, now=self._clock.now())
        self.notes.append(note)
        for job in claim(self._store, self._clock, 1, queue=self._queue):
            end(self._store, self._clock, job)
            self.open.remove(job.id)
            self.ended.append(job.id)

    def check(self, store: Storage) -> None:
        assert self.error is None, self.error
        assert {store.get_job(job_id).state for job_id in self.open} <= {"ready"}
        assert {store.get_job(job_id).state for job_id in self.ended} == {"succeeded"}
        assert [event.payload for event in store.list_events(self.own, limit=10**6)] == self.notes


def test_expired_jobs_go_with_all_they_had_while_clients_go_on(
    owner: Owner, place: Place, clock: SimClock
) -> None:
    with closing(RemoteStore(Dialer(place, start=None))) as store:
        old = finish(store, clock, 200)
        clients = [Appender(place, clock, number) for number in range(CLIENTS)]
        clock.advance(HOUR + timedelta(minutes=1))
        for client in clients:
            client.start()
        until(lambda: all(client.done >= 2 or client.error for client in clients))
        before, (generation, _) = size_of(place), store.durable_sequence()
        assert store.prune_jobs(RETENTION, now=clock.now()) == len(old)
        until(lambda: store.durable_sequence()[0] != generation)
        done = [client.done for client in clients]
        until(
            lambda: all(
                client.done >= most + 5 or client.error for client, most in zip(clients, done, strict=True)
            )
        )
        for client in clients:
            client.stopping.set()
            client.join()
        until(lambda: size_of(place) < before)
    owner.close()
    with open_owner(place, clock) as again:
        for client in clients:
            client.check(again.storage)
        with pytest.raises(JobNotFound):
            again.storage.get_job(old[0])
        assert not {job.id for job in again.storage.list_jobs(JobFilter(), limit=10**6)} & set(old)
        tables = again.storage.memory.state.tables
        assert len(tables.get("steps", {})) == 0
        assert len(tables.get("events", {})) == sum(len(client.notes) for client in clients)
        assert again.storage.memory.hidden == set()


def compaction_is_under_way(owners: Owners) -> bool:
    return any((owners.place.store / "epochs").glob(".tay-candidate-*"))


@pytest.mark.parametrize("durability", ["write", "sync"])
def test_owner_killed_while_it_compacts_loses_nothing(tmp_path: Path, durability: str) -> None:
    with owners_of(tmp_path / "belay", durability=durability, compact=1, share=0.1) as owners:
        with closing(owners.dial()) as store:
            clock = SimClock(datetime.now(UTC) - timedelta(hours=2))
            old = finish(store, clock, 100)
            assert store.prune_jobs(RETENTION, now=datetime.now(UTC)) == len(old)
        clients = [Client(owners, number, 7) for number in range(CLIENTS)]
        for client in clients:
            client.start()
        all_go_on(clients)
        for _ in range(3):
            until(lambda: compaction_is_under_way(owners))
            owners.kill()
            all_go_on(clients)
        for client in clients:
            client.stop()
            assert client.error is None, client.error
        with closing(owners.dial()) as store:
            store.prune_jobs(RETENTION, now=datetime.now(UTC))  # the owners before took what they knew along
            for _ in range(2):  # the one under way may have begun before
                generation, _ = store.durable_sequence()
                until(lambda seen=generation: store.durable_sequence()[0] != seen)  # type: ignore[misc]
        owners.end()
        # What killed compactions have left carries no authority, and nothing but its own process removes it.
        assert len(list((owners.place.store / "epochs").glob("e-*"))) == 1
    check(owners.place, clients)
    with closing(open_store(owners.place)) as left:
        assert not {job.id for job in left.list_jobs(JobFilter(), limit=10**6)} & set(old)
