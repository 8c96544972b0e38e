"""Which locks an operation takes, and that they come before any row: contract §7, §8.1, rules 19, 23.

The contract's other writers take the same advisory locks. While a test holds one, the
operation has to wait for it, and must not hold a job's row yet.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import psycopg
import pytest

from django_belay.contract.job import Lease
from django_belay.contract.outcome import Failed, Snoozed
from django_belay.storage.base import Storage
from django_belay.testing.clock import SimClock
from tests.behaviour.driving import LEASE_TTL, ack_of, add, claim_one, end, running, states, wait

Held = Callable[..., None]
Connection = psycopg.Connection[Any]

WAITING = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"


@pytest.fixture
def held(connection: Connection, behaviour_params: dict[str, str]) -> Iterator[Held]:
    """Run an operation while a lock is held; let go once it waits and no row is locked."""
    with psycopg.connect(**behaviour_params, autocommit=True) as other:

        def hold(
            lock: str,
            operation: Callable[[], object],
            *,
            meanwhile: str | None = None,
            then: Callable[[], object] | None = None,
        ) -> None:
            failed: list[BaseException] = []

            def body() -> None:
                try:
                    operation()
                except BaseException as error:
                    failed.append(error)

            thread = threading.Thread(target=body)
            with connection.transaction():
                connection.execute("SELECT pg_advisory_xact_lock(hashtext(%s))", (lock,))
                if meanwhile is not None:
                    connection.execute(meanwhile)
                thread.start()
                while other.execute(WAITING).fetchone() == (0,):
                    assert thread.is_alive(), f"the operation ended without waiting for {lock}: {failed}"
                other.execute("SELECT 1 FROM belay_jobs ORDER BY id FOR UPDATE NOWAIT")
                if then is not None:
                    then()
            thread.join()
            assert failed == []

        yield hold


@pytest.mark.parametrize("scope", ["custom", "job", "workflow"])
def test_23_a_park_waits_for_every_scope_that_it_reads_and_finds_what_was_delivered(
    store: Storage, clock: SimClock, held: Held, scope: str
) -> None:
    [job] = running(store, clock, workflow_id="w", wf_name="a")
    name = {"custom": "custom", "job": f"job:{job.id}", "workflow": "wf:w"}[scope]
    held(
        f"belay_sig:{name}",
        lambda: end(store, clock, job, wait(job, scope="custom")),
        meanwhile=f"INSERT INTO belay_signals (scope, name) VALUES ('{name}', 'go')",
    )
    assert states(store, [job.id]) == ["ready"]


@pytest.mark.parametrize("operation", ["put_signal", "wake_awaiting", "resettle_signals", "unfreeze"])
def test_8_1_a_delivery_waits_for_its_scope(
    store: Storage, clock: SimClock, held: Held, operation: str
) -> None:
    [job] = running(store, clock)
    end(store, clock, job, wait(job))
    scope = f"job:{job.id}"
    if operation == "unfreeze":
        store.freeze(job.id, now=clock.now())
    if operation != "put_signal":
        store.write_signal(scope, "go", 1, now=clock.now())
    calls: dict[str, Callable[[], object]] = {
        "put_signal": lambda: store.put_signal(scope, "go", 1, now=clock.now()),
        "wake_awaiting": lambda: store.wake_awaiting(scope, "go", now=clock.now()),
        "resettle_signals": lambda: store.resettle_signals(now=clock.now()),
        "unfreeze": lambda: store.unfreeze(job.id, now=clock.now()),
    }
    held(f"belay_sig:{scope}", calls[operation])
    assert states(store, [job.id]) == ["ready"]


def test_8_4_resettling_a_parent_waits_for_its_scope(
    store: Storage, clock: SimClock, held: Held, connection: Connection
) -> None:
    [parent] = running(store, clock)
    end(store, clock, parent, wait(parent, "$children"))
    add(store, clock, parent_id=parent.id)
    connection.execute("UPDATE belay_jobs SET state = 'succeeded' WHERE parent_id = %s", (parent.id,))
    held(f"belay_sig:job:{parent.id}", lambda: store.resettle_parents(now=clock.now()))
    assert states(store, [parent.id]) == ["ready"]


ENDS: list[str] = ["ack", "retried", "cancel", "tree", "reclaim"]


@pytest.mark.parametrize("lock", ["belay_wf:w", "belay_sig:job:{parent}", "belay_sig:job:777"])
@pytest.mark.parametrize("how", ENDS)
def test_19_whatever_ends_a_member_locks_workflow_parent_and_the_parents_of_the_doomed(
    store: Storage, clock: SimClock, held: Held, how: str, lock: str
) -> None:
    """Job 777 is the parent of the member that is doomed with it."""
    [parent] = running(store, clock, queue="parents")
    end(store, clock, parent, wait(parent, "$children"))
    fields: dict[str, Any] = {"workflow_id": "w", "wf_name": "a", "parent_id": parent.id, "max_attempts": 1}
    [job_id] = add(store, clock, **fields)
    [doomed] = add(store, clock, state="held", workflow_id="w", wf_name="b", wf_deps=("a",), parent_id=777)
    job = None if how in ("cancel", "tree") else claim_one(store, clock)
    if how == "retried":  # a job that goes on, but for the request to cancel it (rule 22)
        store.request_cancel(job_id, reason="enough", now=clock.now())
    if how == "reclaim":
        clock.advance(LEASE_TTL)

    def finish() -> None:
        if how == "reclaim":
            store.reclaim_expired(now=clock.now(), backoff=lambda _: timedelta(0))
        elif how == "cancel":
            store.request_cancel(job_id, reason="enough", now=clock.now())
        elif how == "tree":
            store.request_cancel(4711, reason="enough", tree=True, now=clock.now())
            store.request_cancel(parent.id, reason="enough", tree=True, now=clock.now())
        else:
            assert job is not None
            end(store, clock, job, Failed(error={}) if how == "ack" else Snoozed(until=clock.now()))

    held(lock.format(parent=parent.id), finish)

    assert states(store, [job_id, doomed]) == [
        "failed" if how in ("ack", "reclaim") else "cancelled",
        "cancelled",
    ]
    assert store.get_job(parent.id).state == ("cancelled" if how == "tree" else "ready")
    assert store.find_signal(["job:777"], "$children") is not None


def test_19_reclaim_looks_again_once_it_has_its_locks(store: Storage, clock: SimClock, held: Held) -> None:
    """The lease was renewed between the look and the locks."""
    [job] = running(store, clock, parent_id=777)
    clock.advance(LEASE_TTL)
    held(
        "belay_sig:job:777",
        lambda: store.reclaim_expired(now=clock.now(), backoff=lambda _: timedelta(0)),
        then=lambda: store.renew_leases([Lease.of(job)], until=clock.now() + LEASE_TTL),
    )
    assert store.get_standing(job.id).is_held_by(Lease.of(job))


def test_8_6_a_retry_waits_for_its_workflow(store: Storage, clock: SimClock, held: Held) -> None:
    [job] = running(store, clock, workflow_id="w", wf_name="a")
    end(store, clock, job, Failed(error={}))
    held("belay_wf:w", lambda: store.retry(job.id, now=clock.now()))
    assert states(store, [job.id]) == ["ready"]


def test_8_3_resettling_a_workflow_waits_for_it(
    store: Storage, clock: SimClock, held: Held, connection: Connection
) -> None:
    [first] = add(store, clock, workflow_id="w", wf_name="a")
    [second] = add(store, clock, state="held", workflow_id="w", wf_name="b", wf_deps=("a",))
    connection.execute("UPDATE belay_jobs SET state = 'succeeded' WHERE id = %s", (first,))
    held("belay_wf:w", lambda: store.resettle_workflows(now=clock.now()))
    assert states(store, [second]) == ["ready"]


# -- rows, by id


@pytest.mark.parametrize(
    "operation", ["snoozed", "children", "put_signal", "wake_awaiting", "member", "tree"]
)
def test_19_rows_are_locked_by_id_whatever_they_are_locked_for(
    store: Storage,
    clock: SimClock,
    connection: Connection,
    behaviour_params: dict[str, str],
    operation: str,
) -> None:
    """While somebody has the lowest row, an operation waits for it and holds none above it."""
    first, act = _on_rows(store, clock, operation)
    thread = threading.Thread(target=act)
    with psycopg.connect(**behaviour_params, autocommit=True) as other:
        with connection.transaction():
            connection.execute("SELECT 1 FROM belay_jobs WHERE id = %s FOR UPDATE", (first,))
            thread.start()
            while other.execute("SELECT count(*) FROM pg_locks WHERE NOT granted").fetchone() == (0,):
                assert thread.is_alive(), "the operation ended without waiting for the row"
            other.execute("SELECT 1 FROM belay_jobs WHERE id > %s FOR UPDATE NOWAIT", (first,))
        thread.join()


def _on_rows(store: Storage, clock: SimClock, operation: str) -> tuple[int, Callable[[], object]]:
    """Jobs, and what to do with them: the lowest id, and the operation on the highest first."""
    now = clock.now()
    if operation == "snoozed":
        jobs = running(store, clock, 30)
        acks = [ack_of(job, Snoozed(until=now)) for job in reversed(jobs)]
        return jobs[0].id, lambda: store.ack_group(acks, now=now)
    if operation == "children":  # the parent that wakes is the lowest
        [parent] = running(store, clock)
        end(store, clock, parent, wait(parent, "$children"))
        children = running(store, clock, 3, parent_id=parent.id)
        return parent.id, lambda: store.ack_group([ack_of(child) for child in reversed(children)], now=now)
    if operation == "member":  # the member that is doomed is the lowest
        [held] = add(store, clock, state="held", workflow_id="w", wf_name="b", wf_deps=("a",))
        [job] = running(store, clock, workflow_id="w", wf_name="a")
        return held, lambda: end(store, clock, job, Failed(error={}))
    if operation == "tree":
        [root] = add(store, clock)
        children = add(store, clock, 3, parent_id=root)
        for child in children:
            add(store, clock, parent_id=child)
        store.request_cancel(root, reason="enough", now=now)
        return children[0], lambda: store.request_cancel(root, reason="enough", tree=True, now=now)
    jobs = running(store, clock, 5)
    for job in reversed(jobs):
        end(store, clock, job, wait(job, scope="s"))
    store.write_signal("s", "go", 1, now=now)
    if operation == "put_signal":
        return jobs[0].id, lambda: store.put_signal("s", "go", 1, now=now)
    return jobs[0].id, lambda: store.wake_awaiting("s", "go", now=now)


def test_19_settlement_decides_again_by_the_rows_that_it_locked(
    store: Storage, clock: SimClock, connection: Connection, behaviour_params: dict[str, str]
) -> None:
    """A foreign writer took one of the group's jobs over between the look and the lock."""
    first, second = running(store, clock, 2, workflow_id="w", wf_name="a")
    connection.execute("UPDATE belay_jobs SET wf_name = 'b' WHERE id = %s", (second.id,))
    [held_back] = add(store, clock, state="held", workflow_id="w", wf_name="c", wf_deps=("a", "b"))
    acks = [ack_of(first), ack_of(second)]
    thread = threading.Thread(target=lambda: store.ack_group(acks, now=clock.now()))
    with psycopg.connect(**behaviour_params, autocommit=True) as other:
        with connection.transaction():
            connection.execute("UPDATE belay_jobs SET leased_by = 'other' WHERE id = %s", (second.id,))
            thread.start()
            while other.execute("SELECT count(*) FROM pg_locks WHERE NOT granted").fetchone() == (0,):
                assert thread.is_alive(), "the group ended without waiting for the row"
        thread.join()
    assert states(store, [first.id, second.id, held_back]) == ["succeeded", "running", "held"]
