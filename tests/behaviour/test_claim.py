"""Claiming: contract §6, rules 12-14, 17, 19."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from typing import Any

import psycopg
import pytest

from django_belay.contract.admission import Limits, Partition, Rate
from django_belay.contract.job import Job, NewJob
from django_belay.storage.base import Claimed, ClaimRound, Demand, JobFilter, Storage
from django_belay.storage.postgres.store import PostgresStore
from django_belay.testing.clock import SimClock

TTL = timedelta(seconds=30)


def round_at(now: datetime, name: str = "node:1:1") -> ClaimRound:
    return ClaimRound(leased_by=name, lease_until=now + TTL)


def claim(
    store: Storage,
    clock: SimClock,
    *demands: tuple[str, int],
    limited: Sequence[str] = (),
    name: str = "node:1:1",
) -> Claimed:
    return store.claim(
        round_at(clock.now(), name),
        demands=[Demand(queue=queue, take=take) for queue, take in demands],
        limited=limited,
        now=clock.now(),
    )


def claim_limited(
    store: Storage,
    clock: SimClock,
    limits: Limits,
    *,
    take: int = 100,
    local_limit: int = 10,
    queue: str = "q",
) -> list[Job]:
    return store.claim_limited(
        round_at(clock.now()),
        demand=Demand(queue=queue, take=take),
        limits=limits,
        local_limit=local_limit,
        now=clock.now(),
    )


def put(store: Storage, clock: SimClock, count: int = 1, **columns: Any) -> list[int]:
    jobs = [NewJob(**{"kind": "k", "queue": "q", **columns}) for _ in range(count)]
    return [inserted.job_id for inserted in store.insert_jobs(jobs, now=clock.now())]


def put_keys(store: Storage, clock: SimClock, keys: str, column: str = "input") -> list[int]:
    """One job for each letter, with the letter as its tenant."""
    jobs = [NewJob(kind="k", queue="q", **{column: {"tenant": key}}) for key in keys]
    return [inserted.job_id for inserted in store.insert_jobs(jobs, now=clock.now())]


def ids(jobs: Sequence[Job]) -> list[int]:
    return [job.id for job in jobs]


# -- §6, plain


def test_6_a_claimed_row_has_the_contracts_values(store: Storage, clock: SimClock) -> None:
    [job_id] = put(store, clock)
    clock.advance(1)
    [job] = claim(store, clock, ("q", 5), name="node:inc:7").jobs
    assert (job.id, job.state, job.attempt, job.leased_by) == (job_id, "running", 1, "node:inc:7")
    assert job.lease_until == clock.now() + TTL
    assert job.started_at == clock.now()
    assert job == store.get_job(job_id)


def test_rule_17_started_at_is_the_first_claims_now(
    store: Storage, clock: SimClock, connection: psycopg.Connection[Any]
) -> None:
    put(store, clock)
    first = clock.now()
    claim(store, clock, ("q", 1))
    connection.execute("UPDATE belay_jobs SET state = 'ready', attempt = 0")
    clock.advance(60)
    [job] = claim(store, clock, ("q", 1)).jobs
    assert (job.started_at, job.attempt) == (first, 1)


def test_6_the_order_is_priority_then_ready_at_nulls_first_then_id(
    store: Storage, clock: SimClock, connection: psycopg.Connection[Any]
) -> None:
    now = clock.now()
    late, early, null, tie, better, worse = (
        put(store, clock, ready_at=now - timedelta(seconds=1))[0],
        put(store, clock, ready_at=now - timedelta(seconds=9))[0],
        put(store, clock)[0],
        put(store, clock, ready_at=now - timedelta(seconds=1))[0],
        put(store, clock, priority=-1)[0],
        put(store, clock, priority=1, ready_at=now - timedelta(days=1))[0],
    )
    connection.execute("UPDATE belay_jobs SET ready_at = NULL WHERE id = %s", (null,))
    order = [better, null, early, late, tie, worse]
    assert ids(claim(store, clock, ("q", 2)).jobs) == order[:2]
    assert ids(claim(store, clock, ("q", 10)).jobs) == order[2:]


def test_4_rows_due_later_wait_and_are_claimable_at_their_instant(store: Storage, clock: SimClock) -> None:
    [job_id] = put(store, clock, ready_at=clock.now() + timedelta(seconds=10), priority=-5)
    [other] = put(store, clock)
    assert ids(claim(store, clock, ("q", 5)).jobs) == [other]
    clock.advance(9.999)
    assert claim(store, clock, ("q", 5)).jobs == []
    clock.advance(0.001)
    assert ids(claim(store, clock, ("q", 5)).jobs) == [job_id]


def test_4_an_awaiting_row_is_claimable_only_at_its_deadline_and_keeps_its_await_columns(
    store: Storage, clock: SimClock, connection: psycopg.Connection[Any]
) -> None:
    due, _endless = put(store, clock, 2)
    connection.execute(
        "UPDATE belay_jobs SET state = 'awaiting', await_scope = 'job:1', await_name = 'go', "
        "ready_at = CASE WHEN id = %s THEN %s::timestamptz END",
        (due, clock.now() + timedelta(seconds=5)),
    )
    assert claim(store, clock, ("q", 5)).jobs == []
    clock.advance(5)
    [job] = claim(store, clock, ("q", 5)).jobs
    assert (job.id, job.state, job.await_scope, job.await_name) == (due, "running", "job:1", "go")


def test_6_awaiting_due_rows_stand_in_the_one_order(
    store: Storage, clock: SimClock, connection: psycopg.Connection[Any]
) -> None:
    now = clock.now()
    rows = [
        put(store, clock, priority=priority, ready_at=now - timedelta(seconds=age))[0]
        for priority, age in ((2, 1), (1, 5), (1, 3), (2, 9), (1, 4), (3, 99))
    ]
    connection.execute(
        "UPDATE belay_jobs SET state = 'awaiting', await_scope = 's', await_name = 'n' WHERE id = ANY(%s)",
        ([rows[0], rows[2], rows[4]],),
    )
    order = [rows[1], rows[4], rows[2], rows[3], rows[0], rows[5]]
    assert ids(claim(store, clock, ("q", 4)).jobs) == order[:4]
    assert ids(claim(store, clock, ("q", 4)).jobs) == order[4:]


@pytest.mark.parametrize("state", ["held", "paused", "running", "succeeded", "failed", "cancelled"])
def test_4_no_other_state_is_claimed(
    store: Storage, clock: SimClock, connection: psycopg.Connection[Any], state: str
) -> None:
    put(store, clock)
    connection.execute("UPDATE belay_jobs SET state = %s", (state,))
    assert claim(store, clock, ("q", 5)).jobs == []


def test_rule_12_one_claim_serves_queues_in_order_each_with_its_take(store: Storage, clock: SimClock) -> None:
    a, b, c = (put(store, clock, 3, queue=queue) for queue in "abc")
    found = claim(store, clock, ("c", 1), ("a", 2), ("none", 5), ("b", 0))
    assert ids(found.jobs) == [c[0], *a[:2]]
    assert ids(claim(store, clock, ("b", 9)).jobs) == b


def test_rule_12_a_claim_names_the_limited_queues_with_a_claimable_row(
    store: Storage, clock: SimClock, connection: psycopg.Connection[Any]
) -> None:
    put(store, clock, queue="ready")
    put(store, clock, queue="later", ready_at=clock.now() + timedelta(seconds=1))
    put(store, clock, queue="behind", ready_at=clock.now() + timedelta(seconds=1), priority=-1)
    put(store, clock, queue="behind")
    put(store, clock, queue="null")
    put(store, clock, queue="waits", ready_at=clock.now())
    connection.execute("UPDATE belay_jobs SET ready_at = NULL WHERE queue = 'null'")
    connection.execute("UPDATE belay_jobs SET state = 'awaiting' WHERE queue = 'waits'")
    limited = ("ready", "later", "behind", "null", "waits", "empty")
    found = claim(store, clock, ("q", 1), limited=limited)
    assert found.jobs == []
    assert found.claimable == ("ready", "behind", "null", "waits")
    [job_id] = put(store, clock)
    found = claim(store, clock, ("q", 1), limited=limited)
    assert (ids(found.jobs), found.claimable) == ([job_id], ("ready", "behind", "null", "waits"))


def test_6_concurrent_claims_share_the_rows_and_none_twice(
    make_postgres_store: Callable[..., PostgresStore], clock: SimClock
) -> None:
    store = make_postgres_store()
    expected = set(put(store, clock, 400))
    barrier = threading.Barrier(6)
    taken: list[int] = []

    def work(number: int) -> None:
        barrier.wait()
        while jobs := claim(store, clock, ("q", 7), name=f"n:{number}:1").jobs:
            taken.extend(ids(jobs))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(taken) == 400
    assert set(taken) == expected


def test_6_a_row_that_somebody_holds_is_skipped_and_not_waited_for(
    store: Storage, clock: SimClock, behaviour_params: dict[str, str]
) -> None:
    first, second = put(store, clock, 2)
    with psycopg.connect(**behaviour_params) as other:
        other.execute("SELECT FROM belay_jobs WHERE id = %s FOR UPDATE", (first,))
        assert ids(claim(store, clock, ("q", 5)).jobs) == [second]
    assert ids(claim(store, clock, ("q", 5)).jobs) == [first]


def test_rule_4_odd_rows_and_unknown_columns_stop_no_claim(
    store: Storage, clock: SimClock, connection: psycopg.Connection[Any]
) -> None:
    odd, plain = put(store, clock, 2)
    connection.execute("ALTER TABLE belay_jobs ADD COLUMN odd_extra int DEFAULT 7")
    try:
        connection.execute(
            "UPDATE belay_jobs SET kind = 'No.Such', input = '[1e400, 3]', errors = '\"x\"', "
            "meta = '123456789012345678901234567890', started_at = 'infinity', finished_at = '-infinity' "
            "WHERE id = %s",
            (odd,),
        )
        assert ids(claim(store, clock, ("q", 5)).jobs) == [odd, plain]
    finally:
        connection.execute("ALTER TABLE belay_jobs DROP COLUMN odd_extra")


@pytest.mark.parametrize("partition", [None, Partition(column="input", key="k")])
def test_rule_4_an_attempt_at_its_columns_bound_stops_no_claim(
    store: Storage, clock: SimClock, connection: psycopg.Connection[Any], partition: Partition | None
) -> None:
    odd, plain = put(store, clock, 2)
    connection.execute("UPDATE belay_jobs SET attempt = 2147483647 WHERE id = %s", (odd,))
    if partition is None:
        jobs = claim(store, clock, ("q", 5)).jobs
    else:
        jobs = claim_limited(store, clock, Limits(partition=partition), take=5)
    assert [(job.id, job.attempt) for job in jobs] == [(odd, 2**31 - 1), (plain, 1)]


# -- §6, global limit and rate


def test_6_global_limit_counts_live_leases_only(store: Storage, clock: SimClock) -> None:
    put(store, clock, 10)
    limits = Limits(global_limit=3)
    assert len(claim_limited(store, clock, limits, take=2)) == 2
    assert len(claim_limited(store, clock, limits)) == 1
    assert claim_limited(store, clock, limits) == []
    clock.advance(TTL)  # the leases run out at this instant, and not after it
    assert len(claim_limited(store, clock, limits)) == 3


def test_6_other_queues_do_not_count_against_a_limit(store: Storage, clock: SimClock) -> None:
    put(store, clock, 5, queue="other")
    claim(store, clock, ("other", 5))
    put(store, clock, 5)
    assert len(claim_limited(store, clock, Limits(global_limit=2))) == 2


def test_6_rate_admits_by_the_sliding_window_and_debits_what_was_claimed(
    store: Storage, clock: SimClock, connection: psycopg.Connection[Any]
) -> None:
    put(store, clock, 20)
    limits = Limits(rate=Rate(allowed=10, period_s=60, estimate=2))
    assert len(claim_limited(store, clock, limits, take=3)) == 3
    assert connection.execute("SELECT bucket, count FROM belay_rate").fetchall() == [("queue:q", 6)]
    assert len(claim_limited(store, clock, limits)) == 2
    assert claim_limited(store, clock, limits) == []
    clock.advance(60 + 30)  # half of the previous window's ten still counts
    assert len(claim_limited(store, clock, limits)) == 2
    assert connection.execute("SELECT count FROM belay_rate ORDER BY window_start").fetchall() == [
        (10,),
        (4,),
    ]


def test_6_a_rate_debits_rows_claimed_and_not_rows_admitted(
    store: Storage, clock: SimClock, connection: psycopg.Connection[Any]
) -> None:
    put(store, clock, 2)
    claim_limited(store, clock, Limits(rate=Rate(allowed=100, period_s=60)))
    assert connection.execute("SELECT count FROM belay_rate").fetchall() == [(2,)]


def test_rule_12_queues_share_a_resource(
    store: Storage, clock: SimClock, connection: psycopg.Connection[Any]
) -> None:
    put(store, clock, 10, queue="a")
    put(store, clock, 10, queue="b")
    limits = Limits(rate=Rate(allowed=6, period_s=60, resource="llm"))
    assert len(claim_limited(store, clock, limits, queue="a", take=4)) == 4
    assert len(claim_limited(store, clock, limits, queue="b")) == 2
    assert connection.execute("SELECT bucket, count FROM belay_rate").fetchall() == [("resource:llm", 6)]


def test_rule_12_concurrent_claims_of_queues_that_share_a_resource_stay_within_it(
    make_postgres_store: Callable[..., PostgresStore], clock: SimClock
) -> None:
    store = make_postgres_store()
    for queue in "abcd":
        put(store, clock, 20, queue=queue)
    limits = Limits(rate=Rate(allowed=30, period_s=60, resource="llm"))
    assert race(store, clock, [(queue, limits) for queue in "abcd" for _ in range(2)]) == 30


def test_6_concurrent_claims_never_pass_the_global_limit(
    make_postgres_store: Callable[..., PostgresStore], clock: SimClock
) -> None:
    store = make_postgres_store()
    put(store, clock, 100)
    assert race(store, clock, [("q", Limits(global_limit=10))] * 8) == 10


def test_6_concurrent_partitioned_claims_never_pass_a_keys_limit(
    make_postgres_store: Callable[..., PostgresStore], clock: SimClock
) -> None:
    store = make_postgres_store()
    put_keys(store, clock, "ab" * 40)
    limits = Limits(global_limit=5, partition=Partition(column="input", key="tenant"))
    assert race(store, clock, [("q", limits)] * 8) == 10


def race(store: Storage, clock: SimClock, claims: list[tuple[str, Limits]]) -> int:
    """How many rows concurrent limited claims take together, four a call, until each finds none."""
    barrier = threading.Barrier(len(claims))
    taken: list[int] = []

    def work(queue: str, limits: Limits) -> None:
        barrier.wait()
        while jobs := claim_limited(store, clock, limits, queue=queue, take=4):
            taken.extend(ids(jobs))

    threads = [threading.Thread(target=work, args=one) for one in claims]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(taken) == len(set(taken))
    return len(taken)


def test_rule_13_a_debit_stays_within_int4(
    store: Storage, clock: SimClock, connection: psycopg.Connection[Any]
) -> None:
    for amount, count in (
        (2**31 + 5, 2**31 - 1),
        (10, 2**31 - 1),
        (-(2**40), -(2**31 - 1)),
        (7, -(2**31) + 8),
    ):
        store.debit_rate("queue:q", amount=amount, period_s=60, now=clock.now())
        assert connection.execute("SELECT count FROM belay_rate").fetchall() == [(count,)]


def test_6_a_credit_makes_room_again(store: Storage, clock: SimClock) -> None:
    put(store, clock, 10)
    limits = Limits(rate=Rate(allowed=4, period_s=60, estimate=4))
    assert len(claim_limited(store, clock, limits)) == 1
    store.debit_rate("queue:q", amount=-4, period_s=60, now=clock.now())
    assert len(claim_limited(store, clock, limits)) == 1


# -- §6, partitioned


def test_6_a_partition_caps_each_key_and_not_the_queue(store: Storage, clock: SimClock) -> None:
    rows = put_keys(store, clock, "aaabac")
    limits = Limits(global_limit=2, partition=Partition(column="input", key="tenant"))
    assert ids(claim_limited(store, clock, limits)) == [rows[0], rows[1], rows[3], rows[5]]
    assert claim_limited(store, clock, limits) == []


def test_6_a_partition_without_global_limit_caps_each_key_at_the_local_one(
    store: Storage, clock: SimClock
) -> None:
    rows = put_keys(store, clock, "aab", column="meta")
    limits = Limits(partition=Partition(column="meta", key="tenant"))
    assert ids(claim_limited(store, clock, limits, local_limit=1)) == [rows[0], rows[2]]


def test_6_running_jobs_of_a_key_count_while_their_lease_lives(store: Storage, clock: SimClock) -> None:
    rows = put_keys(store, clock, "aaaab")
    limits = Limits(global_limit=2, partition=Partition(column="input", key="tenant"))
    assert ids(claim_limited(store, clock, limits, take=1)) == [rows[0]]
    assert ids(claim_limited(store, clock, limits)) == [rows[1], rows[4]]
    clock.advance(TTL)
    assert ids(claim_limited(store, clock, limits)) == rows[2:4]


def test_6_rows_without_the_key_share_the_empty_one(store: Storage, clock: SimClock) -> None:
    rows = put(store, clock, 3) + put_keys(store, clock, "a")
    limits = Limits(global_limit=1, partition=Partition(column="input", key="tenant"))
    assert ids(claim_limited(store, clock, limits)) == [rows[0], rows[3]]


def test_rule_14_the_stored_partition_key_is_not_what_claims_rank_by(store: Storage, clock: SimClock) -> None:
    put(store, clock, 3, partition_key="a", input={"tenant": "x"})
    limits = Limits(global_limit=1, partition=Partition(column="input", key="tenant"))
    assert len(claim_limited(store, clock, limits)) == 1


def test_rule_14_a_row_behind_any_number_of_a_full_key_is_found(store: Storage, clock: SimClock) -> None:
    rows = put_keys(store, clock, "a" * 1500 + "b")
    limits = Limits(global_limit=1, partition=Partition(column="input", key="tenant"))
    assert ids(claim_limited(store, clock, limits, take=2)) == [rows[0], rows[-1]]


def test_rule_14_a_partitioned_claim_keeps_the_order_over_priorities_and_awaiting_rows(
    store: Storage, clock: SimClock, connection: psycopg.Connection[Any]
) -> None:
    rows = put_keys(store, clock, "aabbc")
    connection.execute("UPDATE belay_jobs SET priority = 5 WHERE id = ANY(%s)", (rows[:2],))
    connection.execute("UPDATE belay_jobs SET ready_at = NULL WHERE id = %s", (rows[3],))
    connection.execute(
        "UPDATE belay_jobs SET state = 'awaiting', ready_at = %s WHERE id = %s",
        (clock.now() - timedelta(seconds=1), rows[4]),
    )
    limits = Limits(global_limit=1, partition=Partition(column="input", key="tenant"))
    assert ids(claim_limited(store, clock, limits)) == [rows[3], rows[4], rows[0]]


def test_6_a_partition_and_a_rate_hold_together(store: Storage, clock: SimClock) -> None:
    rows = put_keys(store, clock, "aabb")
    limits = Limits(
        global_limit=1, partition=Partition(column="input", key="tenant"), rate=Rate(allowed=1, period_s=60)
    )
    assert ids(claim_limited(store, clock, limits)) == [rows[0]]


def test_a_limited_claim_that_takes_nothing_changes_nothing(store: Storage, clock: SimClock) -> None:
    put(store, clock, 2)
    assert claim_limited(store, clock, Limits(global_limit=0)) == []
    assert claim_limited(store, clock, Limits(global_limit=5), take=0) == []
    assert len(store.list_jobs(JobFilter(states=["ready"]), limit=10)) == 2
