"""Admission arithmetic: contract §6; rules 13, 14."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from django_belay.contract.admission import (
    MAX_COUNT,
    Limits,
    Partition,
    Rate,
    WindowUse,
    admit_under_global_limit,
    admit_under_rate,
    debit,
    pick_partitioned,
    round_half_away,
    window_start,
)

T0 = datetime(2030, 1, 1, tzinfo=UTC)

counts = st.integers(-MAX_COUNT, MAX_COUNT)
instants = st.datetimes(datetime(1990, 1, 1), datetime(2090, 1, 1), timezones=st.just(UTC))
rates = st.builds(
    Rate,
    allowed=st.integers(0, MAX_COUNT),
    period_s=st.integers(1, 10**6),
    estimate=st.integers(-5, MAX_COUNT),
    resource=st.none(),
)
uses = st.builds(WindowUse, current=counts, previous=counts)
demands = st.integers(0, 10**6)


# -- global limit


@given(st.integers(-5, 10**6), st.integers(0, 10**6), demands)
def test_6_global_limit_is_bounded_by_demand_and_by_what_is_left(
    limit: int, running: int, demand: int
) -> None:
    got = admit_under_global_limit(limit, running, demand=demand)
    assert 0 <= got <= demand
    assert running + got <= max(limit, running)


@given(st.integers(0, 100), st.integers(0, 100), st.integers(0, 100))
def test_6_global_limit_is_monotone(limit: int, running: int, demand: int) -> None:
    got = admit_under_global_limit(limit, running, demand=demand)
    assert admit_under_global_limit(limit + 1, running, demand=demand) >= got
    assert admit_under_global_limit(limit, running + 1, demand=demand) <= got
    assert admit_under_global_limit(limit, running, demand=demand + 1) >= got


# -- rate


@given(rates, uses, demands, instants)
def test_6_rate_is_bounded(rate: Rate, used: WindowUse, demand: int, now: datetime) -> None:
    got = admit_under_rate(rate, used, demand=demand, now=now)
    assert 0 <= got <= demand
    assert got * max(rate.estimate, 1) <= rate.allowed


@given(rates, uses, demands, instants, st.integers(1, 1000))
def test_6_rate_is_monotone(rate: Rate, used: WindowUse, demand: int, now: datetime, more: int) -> None:
    got = admit_under_rate(rate, used, demand=demand, now=now)
    spent = WindowUse(current=used.current + more, previous=used.previous)
    before = WindowUse(current=used.current, previous=used.previous + more)
    wider = Rate(allowed=rate.allowed + more, period_s=rate.period_s, estimate=rate.estimate)
    dearer = Rate(allowed=rate.allowed, period_s=rate.period_s, estimate=max(rate.estimate, 1) + more)
    assert admit_under_rate(rate, spent, demand=demand, now=now) <= got
    assert admit_under_rate(rate, before, demand=demand, now=now) <= got
    assert admit_under_rate(wider, used, demand=demand, now=now) >= got
    assert admit_under_rate(dearer, used, demand=demand, now=now) <= got
    assert admit_under_rate(rate, used, demand=demand + more, now=now) >= got


@given(st.integers(0, 1000), st.integers(0, 1000), st.integers(0, 59), st.integers(1, 59))
def test_6_rate_grows_while_the_window_slides_on(current: int, previous: int, at: int, later: int) -> None:
    rate = Rate(allowed=500, period_s=60)
    used = WindowUse(current=current, previous=previous)
    first, second = (T0 + timedelta(seconds=s) for s in (at, min(at + later, 59)))
    assert admit_under_rate(rate, used, demand=10**6, now=first) <= admit_under_rate(
        rate, used, demand=10**6, now=second
    )


@pytest.mark.parametrize(
    ("current", "previous", "second", "estimate", "admitted"),
    [
        (0, 0, 0, 1, 10),
        (4, 0, 0, 1, 6),
        (0, 10, 0, 1, 0),  # the whole previous window counts at the start of this one
        (0, 10, 30, 1, 5),
        (0, 10, 59, 1, 10),
        (0, 5, 30, 1, 7),  # 2.5 rounds to 3
        (0, 0, 0, 3, 3),
        (0, 0, 0, 0, 10),  # an estimate below one counts as one
        (12, 0, 0, 1, 0),
        (-50, 0, 0, 1, 10),  # credits make room for no more than is allowed
    ],
)
def test_6_rate_by_example(current: int, previous: int, second: int, estimate: int, admitted: int) -> None:
    rate = Rate(allowed=10, period_s=60, estimate=estimate)
    used = WindowUse(current=current, previous=previous)
    assert admit_under_rate(rate, used, demand=100, now=T0 + timedelta(seconds=second)) == admitted


@pytest.mark.parametrize(("value", "rounded"), [(0.5, 1), (1.5, 2), (2.5, 3), (2.49, 2), (0.0, 0)])
def test_rule_13_round_is_half_away_from_zero(value: float, rounded: int) -> None:
    assert round_half_away(value) == rounded


@given(counts, st.integers(-(2**40), 2**40))
def test_rule_13_counters_stay_within_int4(count: int, amount: int) -> None:
    assert -MAX_COUNT <= debit(count, amount) <= MAX_COUNT


@given(instants, st.integers(1, 10**6))
def test_6_a_window_starts_at_a_multiple_of_its_period(now: datetime, period_s: int) -> None:
    start = window_start(now, period_s)
    assert start % period_s == 0
    assert start <= now.timestamp() < start + period_s


def test_6_buckets() -> None:
    assert Rate(allowed=1, period_s=1).bucket("q") == "queue:q"
    assert Rate(allowed=1, period_s=1, resource="llm").bucket("q") == "resource:llm"


@pytest.mark.parametrize(
    ("limits", "is_limited"),
    [
        (Limits(), False),
        (Limits(global_limit=0), True),
        (Limits(rate=Rate(allowed=1, period_s=1)), True),
        (Limits(partition=Partition(column="meta", key="k")), True),
    ],
)
def test_6_any_limit_needs_the_queues_lock(limits: Limits, is_limited: bool) -> None:
    assert limits.is_limited is is_limited


# -- partitions


backlogs = st.lists(st.sampled_from("abc"), max_size=40).map(lambda keys: list(enumerate(keys)))
running = st.dictionaries(st.sampled_from("abc"), st.integers(0, 4))


def by_ranking(
    candidates: list[tuple[int, str]], per_key_limit: int, live: dict[str, int], take: int
) -> list[int]:
    """The contract's query, word for word: rank in the key, keep, order, cut."""
    kept = []
    for place, (job_id, key) in enumerate(candidates):
        rank = sum(1 for _, other in candidates[: place + 1] if other == key)
        if rank <= max(per_key_limit - live.get(key, 0), 0):
            kept.append(job_id)
    return kept[:take]


@given(backlogs, st.integers(0, 5), running, st.integers(0, 12))
def test_6_partitioned_is_the_contracts_ranking(
    candidates: list[tuple[int, str]], per_key_limit: int, live: dict[str, int], take: int
) -> None:
    got = pick_partitioned(candidates, per_key_limit=per_key_limit, running=live, take=take)
    assert got == by_ranking(candidates, per_key_limit, live, take)


@given(backlogs, st.integers(0, 5), running, st.integers(0, 12), st.integers(0, 40))
def test_rule_14_a_prefix_that_fills_the_take_is_exact(
    candidates: list[tuple[int, str]], per_key_limit: int, live: dict[str, int], take: int, width: int
) -> None:
    whole = pick_partitioned(candidates, per_key_limit=per_key_limit, running=live, take=take)
    prefix = pick_partitioned(candidates[:width], per_key_limit=per_key_limit, running=live, take=take)
    assert whole[: len(prefix)] == prefix
    if len(prefix) == take:
        assert prefix == whole


@given(backlogs, st.integers(1, 5), running, st.integers(0, 12))
def test_rule_14_rows_beyond_a_keys_limit_can_be_left_out_beforehand(
    candidates: list[tuple[int, str]], per_key_limit: int, live: dict[str, int], take: int
) -> None:
    """What lets the ranking statement drop them on the server."""
    short = [
        row
        for place, row in enumerate(candidates)
        if sum(1 for _, other in candidates[: place + 1] if other == row[1]) <= per_key_limit
    ]
    assert pick_partitioned(short, per_key_limit=per_key_limit, running=live, take=take) == pick_partitioned(
        candidates, per_key_limit=per_key_limit, running=live, take=take
    )
