"""kill -9 of the owner with eight clients in flight: nothing acknowledged is lost, nothing is applied twice."""

from __future__ import annotations

import os
import random
import statistics
import threading
import time
from collections.abc import Callable
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path

import pytest

from django_belay.contract.job import NewJob
from django_belay.storage.base import JobFilter
from django_belay.storage.journal.files.journal import JournalOptions, open_journal
from django_belay.storage.journal.serving.place import Place
from django_belay.storage.journal.serving.remote import RemoteStore
from django_belay.storage.journal.store.store import JournalStore
from tests.unit.journal import by_hand

from .owners import Client, Owners, owners_of

CLIENTS = 8
ROUNDS = 200  # for each durability
#: Kills after which a store is begun anew: it stays a small one.
ROUNDS_A_STORE = 20
BACK_WITHIN_S = 2.0
#: For the few kills of every run, on machines that are busy with others.
BACK_AT_ALL_S = 20.0


def until(is_so: Callable[[], bool], *, within_s: float = 60.0) -> None:
    """Look until it is so: other processes decide when."""
    deadline = time.monotonic() + within_s
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.002)


def all_go_on(clients: list[Client]) -> None:
    """Return once each client has been answered twice more: the second was sent after this began."""
    before = [client.done for client in clients]

    def are_on() -> bool:
        for client in clients:
            if client.error is not None:
                raise client.error
        return all(client.done >= done + 2 for client, done in zip(clients, before, strict=True))

    until(are_on)


def open_store(place: Place) -> JournalStore:
    options = JournalOptions(durability="write", validated_filesystem=True, lock_wait_s=20.0)
    return JournalStore(open_journal(str(place.store), options), now=datetime.now(UTC))


def check(place: Place, clients: list[Client]) -> None:
    """Compare what clients were told with what is there."""
    with closing(open_store(place)) as store:
        there = {job.id: job for job in store.list_jobs(JobFilter(kind="k"), limit=10**6)}
        told = [job_id for client in clients for job_id in client.told.inserted]
        assert len(told) == len(set(told))
        assert set(there) == set(told)
        for client in clients:
            for job_id, result in client.told.ended.items():
                assert there[job_id].state == "succeeded"
                assert there[job_id].attempt == 1
                assert there[job_id].result == result
            events = store.list_events(client.own, limit=10**6)
            assert [event.payload for event in events] == [{"n": number} for number in client.told.events]
            assert store.get_job(client.own).spent_tokens == client.told.tokens
            bucket = f"bucket-{client.number}"
            rows = [row for row in store.memory.table("rate").values() if row["bucket"] == bucket]
            assert sum(row["count"] for row in rows) == client.told.debits
        following = store.list_jobs(JobFilter(kind="following"), limit=10**6)
        assert sorted(job.input["after"] for job in following) == sorted(
            job_id for client in clients for job_id in client.told.followed
        )
        ended = [job_id for client in clients for job_id in client.told.ended]
        assert {job_id for job_id, job in there.items() if job.state == "succeeded"} == set(ended)
        count = len(there) + len(following) + len(clients)
    seen = by_hand.read_store(place.store)  # the independent reader
    assert len(seen["jobs"]) + len(seen["extended"]) == count


def work_and_kill(owners: Owners, rng: random.Random, rounds: int, backs: list[float]) -> list[Client]:
    """Kill the owner again and again while clients work; how long until each of them was served again."""
    clients = [Client(owners, number, rng.randrange(1 << 30)) for number in range(CLIENTS)]
    for client in clients:
        client.start()
    all_go_on(clients)
    for _ in range(rounds):
        time.sleep(rng.uniform(0.0, 0.05))  # the moment of the kill is what is tested
        owners.kill()
        killed_at = time.monotonic()
        all_go_on(clients)
        backs.append(time.monotonic() - killed_at)
    for client in clients:
        client.stop()
        assert client.error is None, client.error
    return clients


@pytest.mark.parametrize("durability", ["write", "sync"])
def test_killed_owner_loses_nothing_and_applies_nothing_twice(tmp_path: Path, durability: str) -> None:
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    backs: list[float] = []
    with owners_of(tmp_path / "belay", durability=durability) as owners:
        clients = work_and_kill(owners, random.Random(seed), 2, backs)
    check(owners.place, clients)
    print(f"served again after {', '.join(f'{back:.2f}' for back in backs)} s")
    assert max(backs) < BACK_AT_ALL_S


@pytest.mark.slow
@pytest.mark.parametrize("durability", ["write", "sync"])
def test_two_hundred_kills(tmp_path: Path, durability: str) -> None:
    seed = random.randrange(1 << 32)
    rng = random.Random(seed)
    backs: list[float] = []
    requests = 0
    for number in range(ROUNDS // ROUNDS_A_STORE):
        with owners_of(tmp_path / f"belay{number}", durability=durability) as owners:
            clients = work_and_kill(owners, rng, ROUNDS_A_STORE, backs)
        check(owners.place, clients)
        requests += sum(client.done for client in clients)
    backs.sort()
    print(
        f"{durability}, seed {seed}: {len(backs)} kills, {requests:,} requests; all {CLIENTS} clients served again "
        f"after {statistics.median(backs):.2f} s (median), {backs[-1]:.2f} s (longest); "
        f"{sum(back > BACK_WITHIN_S for back in backs)} over {BACK_WITHIN_S:g} s; load {os.getloadavg()[0]:.1f}"
    )
    assert len(backs) == ROUNDS


def test_killed_owner_leaves_no_part_of_an_operation_of_many_records(tmp_path: Path) -> None:
    told: list[list[int]] = []
    errors: list[BaseException] = []
    stop = threading.Event()
    rng = random.Random(1)

    def insert_many(store: RemoteStore) -> None:
        jobs = [NewJob(kind="k", priority=1, input={"text": "x" * 15_000})] * 600  # more than a record holds
        try:
            while not stop.is_set():
                told.append([one.job_id for one in store.insert_jobs(jobs, now=datetime.now(UTC))])
        except BaseException as error:
            errors.append(error)

    with owners_of(tmp_path / "belay") as owners, closing(owners.dial()) as store:
        client = threading.Thread(target=insert_many, args=(store,))
        client.start()
        for _ in range(2):
            many = len(told) + 1
            until(lambda many=many: len(told) >= many or bool(errors))  # type: ignore[misc]
            time.sleep(rng.uniform(0.05, 0.4))  # the moment of the kill is what is tested
            owners.kill()
        stop.set()
        client.join()
        assert errors == []
        owners.end()
        with closing(open_store(owners.place)) as left:
            there = [job.id for job in left.list_jobs(JobFilter(), limit=10**6)]
        assert sorted(there) == sorted(job_id for ids in told for job_id in ids)


def test_independent_reader_opens_the_store_beside_its_owner_and_after_its_death(tmp_path: Path) -> None:
    with owners_of(tmp_path / "belay") as owners:
        client = Client(owners, 0, 1)
        client.start()
        all_go_on([client])
        client.pause()  # a reader beside a writer may see half a batch
        beside = by_hand.read_store(owners.place.store)
        client.go_on()
        all_go_on([client])
        owners.kill()
        all_go_on([client])
        client.pause()
        owners.kill()
        after = by_hand.read_store(owners.place.store)
        client.stop()
    for seen, told in ((beside, 1), (after, len(client.told.inserted) + 1)):
        assert len(seen["jobs"]) + len(seen["extended"]) >= told
    assert beside["next_sequence"] < after["next_sequence"]
