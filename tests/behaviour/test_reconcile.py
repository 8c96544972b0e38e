"""Reconcilers: contract §8.4, §11 R2, rules 10, 23, 27, 33."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest

from django_belay.contract import envelope
from django_belay.contract.names import await_until_step
from django_belay.contract.wait_record import wait_record
from django_belay.storage.base import NewStep, Storage
from django_belay.testing.clock import SimClock
from tests.behaviour.driving import add, end, running, states, wait

Connection = psycopg.Connection[Any]


def parked(store: Storage, clock: SimClock, name: str, **fields: Any) -> int:
    [job] = running(store, clock, queue="parked", **fields)
    end(store, clock, job, wait(job, name))
    return job.id


# -- children


def test_r2_a_parent_whose_children_have_all_ended_is_woken(
    store: Storage, clock: SimClock, connection: Connection
) -> None:
    lost, unfinished, childless = (parked(store, clock, "$children") for _ in range(3))
    add(store, clock, parent_id=lost)
    add(store, clock, 2, parent_id=unfinished)
    connection.execute(
        "UPDATE belay_jobs SET state = 'succeeded' WHERE parent_id = %s"
        " OR id = (SELECT min(id) FROM belay_jobs WHERE parent_id = %s)",
        (lost, unfinished),
    )
    clock.advance(1)
    assert store.resettle_parents(now=clock.now()) == 1
    assert states(store, [lost, unfinished, childless]) == ["ready", "awaiting", "awaiting"]
    assert store.get_job(lost).ready_at == clock.now()
    assert store.resettle_parents(now=clock.now()) == 0


# -- signals


def test_10_a_wake_that_was_lost_is_made_up_for(
    store: Storage, clock: SimClock, connection: Connection
) -> None:
    ids = [parked(store, clock, "go", workflow_id=f"w{n}", wf_name="a") for n in range(4)]
    store.write_signal(f"job:{ids[0]}", "go", 1, now=clock.now())
    store.write_signal("wf:w1", "go", 1, now=clock.now())
    store.write_signal("wf:w2", "other", 1, now=clock.now())
    assert store.resettle_signals(now=clock.now()) == 2
    assert states(store, ids) == ["ready", "ready", "awaiting", "awaiting"]


def test_23_a_foreign_park_on_another_scope_is_found(
    store: Storage, clock: SimClock, connection: Connection
) -> None:
    """It checked its own scope only, and missed the signal of its workflow's."""
    job_id = parked(store, clock, "go", workflow_id="w", wf_name="a")
    connection.execute("UPDATE belay_jobs SET await_scope = 'elsewhere' WHERE id = %s", (job_id,))
    store.write_signal("wf:w", "go", 1, now=clock.now())
    assert store.resettle_signals(now=clock.now()) == 1


def test_27_a_wait_for_a_newer_payload_is_left_until_there_is_one(store: Storage, clock: SimClock) -> None:
    """The record of the highest n speaks; waits like this one stop no page."""
    ids = []
    for _ in range(5):
        [job] = running(store, clock, queue="parked")
        store.put_signal(f"job:{job.id}", "go", 1, now=clock.now())
        seen = clock.now()
        for n in (9, 10):
            record = wait_record(until=None, newer_than=seen if n == 10 else None)
            step = NewStep(name=await_until_step("go", n), value=envelope.encode(record))
            store.put_step(job.id, step, now=clock.now())
        end(store, clock, job, wait(job, newer_than=seen))
        ids.append(job.id)
    plain = parked(store, clock, "go")
    store.write_signal(f"job:{plain}", "go", 1, now=clock.now())

    assert store.resettle_signals(now=clock.now(), limit=2) == 1
    assert states(store, [*ids, plain]) == ["awaiting"] * 5 + ["ready"]

    store.write_signal(f"job:{ids[3]}", "go", 2, now=clock.advance(1))
    assert store.resettle_signals(now=clock.now()) == 1
    assert states(store, ids)[3] == "ready"


def test_3_a_foreign_record_of_a_wait_is_not_interpreted(
    store: Storage, clock: SimClock, connection: Connection
) -> None:
    job_id = parked(store, clock, "go")
    connection.execute(
        "INSERT INTO belay_steps (job_id, seq, name, value) VALUES (%s, 1, '$await:go:1:until', %s)",
        (job_id, b"\x83t\x00\x00"),
    )
    store.write_signal(f"job:{job_id}", "go", 1, now=clock.now())
    assert store.resettle_signals(now=clock.now()) == 1


# -- workflows


def test_8_3_a_workflow_that_nobody_settled_is_settled(
    store: Storage, clock: SimClock, connection: Connection
) -> None:
    for workflow in ("released", "doomed", "waits", ""):
        add(store, clock, workflow_id=workflow, wf_name="a")
        add(store, clock, state="held", workflow_id=workflow, wf_name="b", wf_deps=("a",))
        add(store, clock, state="held", workflow_id=workflow, wf_name="c", wf_deps=("b",), parent_id=777)
    connection.execute(
        "UPDATE belay_jobs SET state = 'succeeded' WHERE workflow_id IN ('released', '') AND wf_name = 'a'"
    )
    connection.execute(
        "UPDATE belay_jobs SET state = 'failed' WHERE workflow_id = 'doomed' AND wf_name = 'a'"
    )

    assert store.resettle_workflows(now=clock.now()) == 4
    assert store.resettle_workflows(now=clock.now()) == 0

    assert [job.state for job in store.workflow_jobs("")] == ["succeeded", "ready", "held"]
    found = [[job.state for job in store.workflow_jobs(name)] for name in ("released", "doomed", "waits")]
    assert found == [
        ["succeeded", "ready", "held"], ["failed", "cancelled", "cancelled"], ["ready", "held", "held"],
    ]  # fmt: skip
    assert store.find_signal(["job:777"], "$children") is not None


def test_8_3_a_bounded_look_sees_every_workflow_in_turn(
    store: Storage, clock: SimClock, connection: Connection
) -> None:
    for number in range(7):
        add(store, clock, workflow_id=f"w{number}", wf_name="a")
        add(store, clock, state="held", workflow_id=f"w{number}", wf_name="b", wf_deps=("a",))
    connection.execute("UPDATE belay_jobs SET state = 'succeeded' WHERE workflow_id = 'w6' AND wf_name = 'a'")
    counts = [store.resettle_workflows(now=clock.now(), limit=2) for _ in range(4)]
    assert sum(counts) == 1
    connection.execute("UPDATE belay_jobs SET state = 'succeeded' WHERE workflow_id = 'w0' AND wf_name = 'a'")
    assert sum(store.resettle_workflows(now=clock.now(), limit=2) for _ in range(4)) == 1


def test_4_one_workflow_that_fails_stops_no_other(
    store: Storage, clock: SimClock, connection: Connection
) -> None:
    for workflow, kind in (("a", "poison"), ("b", "k")):
        add(store, clock, workflow_id=workflow, wf_name="a")
        add(store, clock, kind=kind, state="held", workflow_id=workflow, wf_name="b", wf_deps=("a",))
    connection.execute("UPDATE belay_jobs SET state = 'succeeded' WHERE wf_name = 'a'")
    connection.execute(
        "ALTER TABLE belay_jobs ADD CONSTRAINT refuse CHECK (kind <> 'poison' OR state = 'held')"
    )
    try:
        assert store.resettle_workflows(now=clock.now()) == 1
    finally:
        connection.execute("ALTER TABLE belay_jobs DROP CONSTRAINT refuse")


@pytest.mark.parametrize(
    "spoil", ["wf_deps = '{{a,x},{y,z}}'", "wf_deps = '{NULL}'", "wf_ignore = '{{failed},{NULL}}'"]
)
def test_4_odd_deps_stop_no_other_workflow(
    store: Storage, clock: SimClock, connection: Connection, spoil: str
) -> None:
    """A ``text[]`` holds arrays of arrays and NULLs as well."""
    for workflow in ("a", "b"):
        add(store, clock, workflow_id=workflow, wf_name="a")
        add(store, clock, state="held", workflow_id=workflow, wf_name="b", wf_deps=("a",))
    connection.execute(f"UPDATE belay_jobs SET {spoil} WHERE workflow_id = 'a' AND wf_name = 'b'")
    connection.execute("UPDATE belay_jobs SET state = 'succeeded' WHERE wf_name = 'a'")
    store.resettle_workflows(now=clock.now())
    assert [job.state for job in store.workflow_jobs("b")] == ["succeeded", "ready"]


def test_reconcilers_are_bounded(store: Storage, clock: SimClock) -> None:
    ids = [parked(store, clock, "go") for _ in range(5)]
    for job_id in ids:
        store.write_signal(f"job:{job_id}", "go", 1, now=clock.now())
    assert [store.resettle_signals(now=clock.now(), limit=2) for _ in range(4)] == [2, 2, 1, 0]
