from __future__ import annotations

import math
from datetime import timedelta
from typing import Any

import pytest

from django_belay.contract.envelope import EnvelopeError
from django_belay.contract.outcome import Cancelled, Failed, Retried, Snoozed
from django_belay.engine.verdict import backoff_delay, judge
from django_belay.exceptions import (
    BudgetStop,
    Cancel,
    ConfigurationError,
    Fail,
    LeaseLost,
    Shutdown,
    Snooze,
    StepTooLarge,
    Timeout,
)
from django_belay.registry import JobOptions
from tests.unit.engine.making import NOW, make_job


def verdict(error: BaseException, *, attempt: int = 1, **options: Any) -> Any:
    return judge(error, make_job(attempt=attempt), JobOptions(**options), now=NOW)


def test_an_error_is_retried_while_attempts_are_left() -> None:
    outcome = verdict(ValueError("no"), backoff=[7.0])
    assert isinstance(outcome, Retried)
    assert outcome.ready_at == NOW + timedelta(seconds=7)
    assert (outcome.error["error"], outcome.error["attempt"]) == ("no", 1)


def test_the_last_attempt_fails() -> None:
    assert isinstance(verdict(ValueError("no"), attempt=3), Failed)


@pytest.mark.parametrize("error", [StepTooLarge("x"), EnvelopeError("x"), ConfigurationError("x")])
def test_what_would_only_happen_again_fails_at_once(error: Exception) -> None:
    assert isinstance(verdict(error), Failed)


def test_give_up_on_and_retry_on_decide() -> None:
    assert isinstance(verdict(KeyError("x"), give_up_on=(LookupError,)), Failed)
    assert isinstance(verdict(KeyError("x"), retry_on=(OSError,)), Failed)
    assert isinstance(verdict(OSError("x"), retry_on=(OSError,)), Retried)


def test_interrupts_are_what_they_say() -> None:
    later = NOW + timedelta(hours=1)
    assert verdict(Snooze(later)) == Snoozed(until=later)
    assert verdict(Shutdown()) == Snoozed(until=NOW)
    assert verdict(Cancel("enough")) == Cancelled(reason="enough")
    assert verdict(LeaseLost()) is None
    assert verdict(Fail("broken")).error["error"] == "broken"
    assert isinstance(verdict(Timeout()), Retried)
    assert isinstance(verdict(SystemExit(3)), Retried)
    budget = verdict(BudgetStop("spent $1 of $0.5"))
    assert (budget.error["error"], budget.error["detail"]) == ("budget_exceeded", "spent $1 of $0.5")


def test_an_error_that_cannot_be_described_still_ends_the_attempt() -> None:
    """Rule 25."""

    class Nasty(Exception):
        def __str__(self) -> str:
            raise RuntimeError("not even this")

    assert verdict(Nasty(), attempt=3).error["error"]
    assert "\x00" not in verdict(ValueError("a\x00\ud800b"), attempt=3).error["error"]


def test_backoff_forms() -> None:
    job = make_job(attempt=3)
    assert backoff_delay([1.0, 2.0], job) == timedelta(seconds=2)
    assert backoff_delay(lambda n: n * 10, job) == timedelta(seconds=30)
    assert backoff_delay(lambda n: timedelta(minutes=n), job) == timedelta(minutes=3)
    assert timedelta(seconds=4) <= backoff_delay(None, job) <= timedelta(seconds=5)


@pytest.mark.parametrize("broken", [lambda n: math.nan, lambda n: "soon", lambda n: 1 / 0, []])
def test_a_broken_backoff_falls_back(broken: Any) -> None:
    assert timedelta(seconds=1) <= backoff_delay(broken, make_job()) <= timedelta(seconds=1.25)


def test_delays_are_bounded() -> None:
    assert backoff_delay(lambda n: -5.0, make_job()) == timedelta(0)
    assert backoff_delay(lambda n: math.inf, make_job()) == timedelta(days=366)
