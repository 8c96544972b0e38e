"""Retry policy v1, and what becomes of unknown kinds: rules 4, 16."""

from __future__ import annotations

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from django_belay.contract.backoff import retry_delay, unknown_kind_delay

attempts = st.integers(-3, 10**6)
jitters = st.floats(-1, 2)


@pytest.mark.parametrize(
    ("attempt", "seconds"), [(0, 1), (1, 1), (2, 2), (3, 4), (6, 32), (7, 60), (8, 60), (10**9, 60)]
)
def test_policy_v1_doubles_from_a_second_to_a_minute(attempt: int, seconds: float) -> None:
    assert retry_delay(attempt) == timedelta(seconds=seconds)


@given(attempts, jitters)
def test_policy_v1_adds_up_to_a_quarter(attempt: int, jitter: float) -> None:
    least = retry_delay(attempt)
    assert least <= retry_delay(attempt, jitter=jitter) <= least * 1.25


@given(attempts, jitters)
def test_policy_v1_is_monotone(attempt: int, jitter: float) -> None:
    assert retry_delay(attempt, jitter=jitter) <= retry_delay(attempt + 1, jitter=jitter)


@pytest.mark.parametrize(
    ("age_s", "delay_s"), [(-5, 1), (0, 1), (9, 1), (10, 1), (60, 6), (3000, 300), (10**9, 300)]
)
def test_rule_4_an_unknown_kind_waits_a_tenth_of_its_age(age_s: float, delay_s: float) -> None:
    assert unknown_kind_delay(timedelta(seconds=age_s)) == timedelta(seconds=delay_s)
