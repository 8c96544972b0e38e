"""One lock order everywhere: rule 19. Real threads, and no deadlock at all.

A deadlock would be retried and go unseen, so what is asserted is that nobody had to try
again, and that the server counted none.
"""

# ruff: noqa: B008 - each work shuffles once, when it is made
from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import timedelta
from typing import Any

import psycopg
import pytest

from django_belay.contract.job import Job, Lease, NewJob
from django_belay.contract.outcome import Failed, Outcome, Snoozed, Succeeded
from django_belay.exceptions import Contended, JobNotFound
from django_belay.storage.base import Ack, AckGroupError, NewStep, Storage
from django_belay.storage.postgres.pool import PoolSession
from django_belay.storage.postgres.store import PostgresStore
from django_belay.testing.clock import SimClock
from tests.behaviour.driving import LEASE_TTL, ack_of, add, claim, claim_one, end, running, wait

Work = Callable[[Storage], object]
Race = Callable[..., None]

ROUNDS = 12
# Ends of runs as they come: most of them settle something.
MIXED: Sequence[Outcome] = (Succeeded(), Failed(error={}), Succeeded(), Snoozed(until=SimClock().now()))


@pytest.fixture
def race(
    make_postgres_store: Callable[..., PostgresStore],
    connection: psycopg.Connection[Any],
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Race]:
    """Runs works at the same time, each with a storage of its own."""
    stores = [make_postgres_store(size=1) for _ in range(4)]
    errors: list[BaseException] = []
    tried_again: list[float] = []
    monkeypatch.setattr(PoolSession, "pause", lambda _, seconds: tried_again.append(seconds))
    before = deadlocks(connection)

    def run(*works: Work) -> None:
        barrier = threading.Barrier(len(works))

        def body(work: Work, store: Storage) -> None:
            try:
                barrier.wait()
                work(store)
            except BaseException as error:
                errors.append(error)

        threads = [
            threading.Thread(target=body, args=pair) for pair in zip(works, stores[: len(works)], strict=True)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    yield run
    for store in stores:
        store.close()  # a backend reports its counts when it ends at the latest
    assert errors == []
    assert tried_again == []
    assert deadlocks(connection) == before


def deadlocks(connection: psycopg.Connection[Any]) -> int:
    row = connection.execute(
        "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()"
    ).fetchone()
    assert row is not None
    return int(row[0])


@pytest.fixture
def shuffle() -> Callable[[Sequence[Any]], list[Any]]:
    chance = random.Random(19)
    return lambda items: chance.sample(list(items), len(items))


def in_groups(
    store: Storage, clock: SimClock, jobs: Sequence[Job], outcome: Callable[[Job], Outcome]
) -> None:
    for start in range(0, len(jobs), 7):
        send_all(store, clock, [ack_of(job, outcome(job)) for job in jobs[start : start + 7]])


def send_all(store: Storage, clock: SimClock, acks: Sequence[Ack]) -> None:
    """As the acknowledger does: ends whose rows somebody holds are sent again."""
    while acks:
        failures: Mapping[int, Exception] = {}
        try:
            store.ack_group(acks, now=clock.now())
        except AckGroupError as error:
            failures = error.failures
        assert all(isinstance(failure, Contended) for failure in failures.values()), failures
        acks = [acks[index] for index in failures]


def mixed(job: Job) -> Outcome:
    return MIXED[job.id % len(MIXED)]


def test_19_cancel_against_settlement(race: Race, store: Storage, clock: SimClock, shuffle: Any) -> None:
    """Members of crossing families: a doomed one's parent waits in another workflow."""
    for number in range(ROUNDS):
        add(store, clock, 2, queue="parents")
        parents = [end_in_wait(store, clock, job) for job in claim(store, clock, queue="parents")]
        names = [f"a{n}" for n in range(6)]
        new = [
            NewJob(kind="k", workflow_id=f"{number}-{w}", wf_name=name, parent_id=parents[n % 2])
            for w in range(2)
            for n, name in enumerate(names)
        ]
        held = [
            NewJob(
                kind="k", workflow_id=f"{number}-{w}", wf_name=f"b{n}", wf_deps=tuple(names[n : n + 3]),
                state="held", parent_id=parents[(n + w) % 2],
            )
            for w in range(2)
            for n in range(4)
        ]  # fmt: skip
        inserted = [one.job_id for one in store.insert_jobs([*held, *new], now=clock.now())]
        jobs = shuffle(claim(store, clock))
        targets = shuffle(inserted)
        race(
            lambda mine, jobs=jobs: in_groups(mine, clock, jobs[:6], mixed),
            lambda mine, jobs=jobs: in_groups(mine, clock, jobs[6:], mixed),
            lambda mine, targets=targets: cancel_all(mine, clock, targets[:8]),
            lambda mine, targets=targets: cancel_all(mine, clock, targets[8:]),
        )
        tidy(store, clock)


def end_in_wait(store: Storage, clock: SimClock, job: Job) -> int:
    end(store, clock, job, wait(job, "$children"))
    return job.id


def cancel_all(store: Storage, clock: SimClock, ids: Sequence[int], *, tree: bool = False) -> None:
    for job_id in ids:
        store.request_cancel(job_id, reason="enough", tree=tree, now=clock.now())


def tidy(store: Storage, clock: SimClock) -> None:
    """End what is left, so that the next round claims its own jobs only."""
    for queue in ("default", "parents", "running"):
        while jobs := claim(store, clock, queue=queue):
            store.ack_group([ack_of(job) for job in jobs], now=clock.now())


def test_19_renewal_against_grouped_acks(race: Race, store: Storage, clock: SimClock, shuffle: Any) -> None:
    for _ in range(ROUNDS):
        jobs = running(store, clock, 80)
        leases = shuffle([Lease.of(job) for job in jobs])

        def renew(mine: Storage, leases: Any = leases) -> None:
            for _ in range(10):
                mine.renew_leases(leases, until=clock.now() + LEASE_TTL)

        race(
            renew,
            lambda mine, jobs=shuffle(jobs): in_groups(mine, clock, jobs[:50], lambda _: Succeeded()),
            lambda mine, jobs=shuffle(jobs): in_groups(mine, clock, jobs[:50], mixed),
            lambda mine, jobs=shuffle(jobs): in_groups(mine, clock, jobs, wait),
        )
        tidy(store, clock)


def test_19_tree_cancel_against_a_childs_ack(
    race: Race, store: Storage, clock: SimClock, shuffle: Any
) -> None:
    for _ in range(ROUNDS):
        root = end_in_wait(store, clock, running(store, clock)[0])
        children = running(store, clock, 10, parent_id=root)
        grandchildren = [running(store, clock, parent_id=child.id)[0] for child in children]
        for child in children[:5]:
            end_in_wait(store, clock, child)
        jobs = shuffle([*children[5:], *grandchildren])
        race(
            lambda mine, root=root: cancel_all(mine, clock, [root], tree=True),
            lambda mine, ids=shuffle([child.id for child in children]): cancel_all(
                mine, clock, ids, tree=True
            ),
            lambda mine, jobs=jobs: in_groups(mine, clock, jobs[:8], mixed),
            lambda mine, jobs=jobs: in_groups(mine, clock, jobs[8:], mixed),
        )
        clock.advance(LEASE_TTL)
        store.reclaim_expired(now=clock.now(), backoff=lambda _: timedelta(0))
        tidy(store, clock)


def test_19_reclaim_against_late_acks(race: Race, store: Storage, clock: SimClock, shuffle: Any) -> None:
    for number in range(ROUNDS):
        parent = end_in_wait(store, clock, running(store, clock)[0])
        jobs = [
            *running(store, clock, 20),
            *running(store, clock, 10, parent_id=parent, max_attempts=1),
            *running(store, clock, 10, workflow_id=f"w{number}", wf_name="a", max_attempts=1),
        ]
        add(store, clock, 3, state="held", workflow_id=f"w{number}", wf_name="b", wf_deps=("a",))
        clock.advance(LEASE_TTL)

        def reclaim(mine: Storage) -> None:
            for _ in range(4):
                mine.reclaim_expired(now=clock.now(), backoff=lambda _: timedelta(0), limit=15)

        race(
            reclaim,
            reclaim,
            lambda mine, jobs=shuffle(jobs): in_groups(mine, clock, jobs, mixed),
            lambda mine, jobs=shuffle(jobs): in_groups(mine, clock, jobs, wait),
        )
        tidy(store, clock)


def test_19_bulk_signals_against_parks(race: Race, store: Storage, clock: SimClock, shuffle: Any) -> None:
    for number in range(ROUNDS):
        jobs = running(store, clock, 40, workflow_id=f"w{number}", wf_name="a")

        def signal(mine: Storage, jobs: Sequence[Job], workflow: str = f"wf:w{number}") -> None:
            for job in jobs:
                mine.put_signal(f"job:{job.id}", "go", 1, now=clock.now())
                if job.id % 9 == 0:
                    mine.put_signal(workflow, "go", 1, now=clock.now())
                    mine.wake_awaiting(workflow, "go", now=clock.now())

        def reconcile(mine: Storage) -> None:
            for _ in range(3):
                mine.resettle_signals(now=clock.now())
                mine.resettle_workflows(now=clock.now())
                mine.resettle_parents(now=clock.now())

        race(
            lambda mine, jobs=shuffle(jobs): in_groups(mine, clock, jobs, wait),
            lambda mine, jobs=shuffle(jobs): signal(mine, jobs),
            lambda mine, jobs=jobs[::-1]: signal(mine, jobs),
            reconcile,
        )
        tidy(store, clock)


def test_19_retry_against_settlement_and_cancel(
    race: Race, store: Storage, clock: SimClock, shuffle: Any
) -> None:
    for number in range(ROUNDS):
        workflow = f"w{number}"
        names = ("a", "b", "c")
        ids = [add(store, clock, workflow_id=workflow, wf_name=name)[0] for name in names]
        for n, name in enumerate(("d", "e", "f")):
            ids += add(
                store, clock, state="held", workflow_id=workflow, wf_name=name, wf_deps=names[n:],
                parent_id=ids[n],
            )  # fmt: skip
        jobs = claim(store, clock)
        end(store, clock, jobs[0], Failed(error={}))

        def retry(mine: Storage, ids: Sequence[int]) -> None:
            for job_id in ids:
                mine.retry(job_id, now=clock.now())

        race(
            lambda mine, ids=shuffle(ids): retry(mine, ids),
            lambda mine, ids=shuffle(ids): retry(mine, ids),
            lambda mine, jobs=jobs[1:]: in_groups(mine, clock, jobs, mixed),
            lambda mine, ids=shuffle(ids): cancel_all(mine, clock, ids, tree=True),
        )
        tidy(store, clock)


def test_19_pruning_and_erasing_against_retries_and_late_steps(
    race: Race, store: Storage, clock: SimClock, connection: psycopg.Connection[Any]
) -> None:
    for _ in range(ROUNDS):
        jobs = running(store, clock, 30)
        store.ack_group([ack_of(job, Failed(error={})) for job in jobs], now=clock.now())
        clock.advance(10)

        def each(operation: Callable[[int], object], jobs: Sequence[Job]) -> None:
            for job in jobs:
                try:
                    operation(job.id)
                except JobNotFound:
                    continue

        def prune(mine: Storage) -> None:
            for _ in range(3):
                mine.prune_jobs({"failed": timedelta(0)}, now=clock.now(), limit=20)

        race(
            prune,
            lambda mine, jobs=jobs: each(lambda job_id: mine.retry(job_id, now=clock.now()), jobs[::2]),
            lambda mine, jobs=jobs[::-1]: each(
                lambda job_id: mine.put_step(
                    job_id, NewStep(name="s", value=b"1", tokens=1), now=clock.now()
                ),
                jobs,
            ),
            lambda mine, jobs=jobs: each(lambda job_id: mine.erase_payload(job_id, now=clock.now()), jobs),
        )
        tidy(store, clock)
    orphans = connection.execute(
        "SELECT count(*) FROM belay_steps WHERE job_id NOT IN (SELECT id FROM belay_jobs)"
    ).fetchone()
    assert orphans == (0,)


def test_19_a_deadlock_would_be_noticed(
    make_postgres_store: Callable[..., PostgresStore], connection: psycopg.Connection[Any], clock: SimClock
) -> None:
    """What the fixture counts does count: two connections lock two rows in opposite orders."""
    store = make_postgres_store()
    first, second = add(store, clock, 2)
    before = deadlocks(connection)
    barrier = threading.Barrier(2)
    failed: list[BaseException] = []

    def lock(ids: Sequence[int]) -> None:
        with psycopg.connect(**connection.info.get_parameters(), password=connection.info.password) as mine:
            try:
                for job_id in ids:
                    mine.execute("SELECT 1 FROM belay_jobs WHERE id = %s FOR UPDATE", (job_id,))
                    if not failed and job_id == ids[0]:
                        barrier.wait()
            except psycopg.errors.DeadlockDetected as error:
                failed.append(error)

    threads = [threading.Thread(target=lock, args=(ids,)) for ids in ([first, second], [second, first])]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(failed) == 1
    assert deadlocks(connection) == before + 1
    assert claim_one(store, clock).id == first
