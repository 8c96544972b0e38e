"""Unique keys: contract §5.2, §8.7; rule 36."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from django_belay.contract.job import UniqueMode
from django_belay.contract.state import INCOMPLETE, STATES, State
from django_belay.contract.uniqueness import holds_key, window_ends_at, window_key

T0 = datetime(2030, 1, 1, tzinfo=UTC)

instants = st.datetimes(datetime(1990, 1, 1), datetime(2090, 1, 1), timezones=st.just(UTC))
windows = st.integers(1, 10**7).map(lambda s: timedelta(seconds=s))


def test_5_2_the_key_embeds_the_bucket() -> None:
    now = datetime.fromtimestamp(7_200, tz=UTC)
    assert window_key("mail:7", window=timedelta(hours=1), now=now) == "mail:7@2"
    assert window_key("mail:7", window=timedelta(hours=1), now=now - timedelta(microseconds=1)) == "mail:7@1"


@given(instants, windows)
def test_5_2_a_key_holds_for_one_window_and_changes_after_it(now: datetime, window: timedelta) -> None:
    key = window_key("k", window=window, now=now)
    bucket = int(key.removeprefix("k@"))
    start = datetime.fromtimestamp(bucket * window.total_seconds(), tz=UTC)
    assert start <= now < start + window
    assert window_key("k", window=window, now=start) == key
    assert window_key("k", window=window, now=start + window) != key


@given(instants, windows)
def test_rule_36_a_stored_key_tells_when_its_window_is_surely_over(now: datetime, window: timedelta) -> None:
    key = window_key("k@x", window=window, now=now)
    ends_at = window_ends_at(key, now)
    bucket = int(key.rpartition("@")[2])
    if bucket == 0:
        assert ends_at is None
        return
    assert ends_at is not None
    true_end = datetime.fromtimestamp((bucket + 1) * window.total_seconds(), tz=UTC)
    assert ends_at >= true_end - timedelta(milliseconds=1)
    # Never more than one window too late.
    assert ends_at <= true_end + window + timedelta(milliseconds=1)


@pytest.mark.parametrize(
    "key", ["", "k", "k@", "k@x", "@", "k@-1", "k@1.5", "k@٣", "k@0", "k@" + "9" * 400, "k@" + "9" * 5000]
)
def test_rule_36_a_key_without_a_bucket_has_no_end(key: str) -> None:
    assert window_ends_at(key, T0) is None


@given(st.datetimes(timezones=st.just(UTC)), st.integers(0, 10**20))
def test_rule_4_any_instant_and_bucket_have_an_answer(inserted_at: datetime, bucket: int) -> None:
    """A foreign row that says the year 9999 or BC must not end a sweep."""
    ends_at = window_ends_at(f"k@{bucket}", inserted_at)
    assert ends_at is None or ends_at >= inserted_at - timedelta(seconds=1)


@pytest.mark.parametrize("state", STATES)
def test_5_2_which_rows_hold_their_key(state: State) -> None:
    assert holds_key("incomplete", state) is (state in INCOMPLETE)
    modes: tuple[UniqueMode, ...] = ("window", "always")
    for mode in modes:
        assert holds_key(mode, state)
    assert not holds_key(None, state)
