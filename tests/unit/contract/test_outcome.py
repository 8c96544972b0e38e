"""Column effects of outcomes: contract §7, rules 16, 22, 24."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from django_belay.contract.outcome import (
    CANCEL_REQUESTED,
    Awaiting,
    Cancelled,
    Changes,
    Failed,
    Outcome,
    Retried,
    Snoozed,
    Succeeded,
    apply_outcome,
    iso,
    reclaim_outcome,
)
from django_belay.contract.state import may_write

NOW = datetime(2030, 1, 1, tzinfo=UTC)
LATER = NOW + timedelta(minutes=1)
ERROR = {"error": "no", "attempt": 3}
PARK = Awaiting(scope="s", name="n", read_scopes=("s",), deadline=LATER)

TABLE: list[tuple[Outcome, Changes]] = [
    (
        Succeeded(b"1"),
        Changes(state="succeeded", keep_ready_at=True, result=b"1", finished_at=NOW, keep_await=False),
    ),
    (Retried(ready_at=LATER, error=ERROR), Changes(state="ready", ready_at=LATER, error=ERROR)),
    (Failed(error=ERROR), Changes(state="failed", keep_ready_at=True, error=ERROR, finished_at=NOW)),
    (
        Cancelled(reason="r"),
        Changes(state="cancelled", keep_ready_at=True, error={"reason": "r"}, finished_at=NOW),
    ),
    (Snoozed(until=LATER), Changes(state="ready", ready_at=LATER, attempt_delta=-1)),
    (
        PARK,
        Changes(
            state="awaiting",
            ready_at=LATER,
            attempt_delta=-1,
            await_scope="s",
            await_name="n",
            keep_await=False,
        ),
    ),
]


@pytest.mark.parametrize(("outcome", "changes"), TABLE, ids=lambda part: type(part).__name__)
def test_7_the_table_of_outcomes(outcome: Outcome, changes: Changes) -> None:
    assert apply_outcome(outcome, now=NOW, cancel_requested=False) == changes
    assert may_write("ack", "running", changes.state)


def test_7_a_park_without_a_deadline_has_no_ready_at() -> None:
    park = Awaiting(scope="s", name="n", read_scopes=("s",))
    assert apply_outcome(park, now=NOW, cancel_requested=False).ready_at is None


def test_7_a_park_whose_signal_is_there_is_ready_now_and_returns_the_attempt() -> None:
    changes = apply_outcome(PARK, now=NOW, cancel_requested=False, signal_present=True)
    assert changes == Changes(state="ready", ready_at=NOW, attempt_delta=-1, keep_await=False)


@pytest.mark.parametrize("outcome", [outcome for outcome, _ in TABLE], ids=lambda part: type(part).__name__)
def test_22_a_request_to_cancel_ends_what_would_go_on_and_nothing_else(outcome: Outcome) -> None:
    plain = apply_outcome(outcome, now=NOW, cancel_requested=False)
    asked = apply_outcome(outcome, now=NOW, cancel_requested=True, signal_present=True)
    if plain.finished_at is not None:
        assert asked == plain
        return
    assert (asked.state, asked.finished_at, asked.attempt_delta) == ("cancelled", NOW, 0)
    assert asked.error is not None
    assert asked.error["reason"] == CANCEL_REQUESTED
    if isinstance(outcome, Retried):
        assert asked.error["error"] == "no"


@pytest.mark.parametrize(("attempt", "state"), [(1, "ready"), (2, "ready"), (3, "failed"), (4, "failed")])
def test_6_a_lost_lease_burns_an_attempt(attempt: int, state: str) -> None:
    outcome = reclaim_outcome(attempt=attempt, max_attempts=3, now=NOW, ready_at=LATER)
    changes = apply_outcome(outcome, now=NOW, cancel_requested=False)
    assert changes.state == state
    assert changes.error == {"error": "lease_expired", "at": iso(NOW), "attempt": attempt}
    assert changes.ready_at == (LATER if state == "ready" else None)


def test_iso_ends_in_z() -> None:
    assert iso(NOW) == "2030-01-01T00:00:00Z"
