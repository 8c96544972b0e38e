"""The state machine: contract §4; rule 5."""

from __future__ import annotations

from typing import get_args

import pytest

from django_belay.contract.state import (
    INCOMPLETE,
    STATES,
    TERMINAL,
    State,
    Writer,
    is_terminal,
    may_write,
    sources,
)

WRITERS: tuple[Writer, ...] = get_args(Writer)


def test_4_the_states() -> None:
    assert set(STATES) == set(get_args(State))
    assert {"succeeded", "failed", "cancelled"} == TERMINAL
    assert {"ready", "running", "awaiting", "held", "paused"} == INCOMPLETE
    assert [state for state in STATES if is_terminal(state)] == ["succeeded", "failed", "cancelled"]


@pytest.mark.parametrize(
    ("writer", "before", "after"),
    [
        ("claim", "ready", "running"),
        ("claim", "awaiting", "running"),
        ("ack", "running", "ready"),
        ("ack", "running", "awaiting"),
        ("ack", "running", "succeeded"),
        ("ack", "running", "failed"),
        ("ack", "running", "cancelled"),
        ("wake", "awaiting", "ready"),
        ("settle", "held", "ready"),
        ("settle", "held", "cancelled"),
        ("reclaim", "running", "ready"),
        ("reclaim", "running", "failed"),
        ("retry", "failed", "ready"),
        ("retry", "cancelled", "held"),
        ("cancel", "held", "cancelled"),
        ("cancel", "paused", "cancelled"),
        ("freeze", "ready", "paused"),
        ("unfreeze", "paused", "awaiting"),
    ],
)
def test_4_legal_writers(writer: Writer, before: State, after: State) -> None:
    assert may_write(writer, before, after)


@pytest.mark.parametrize(
    ("writer", "before", "after"),
    [
        ("claim", "held", "running"),
        ("claim", "paused", "running"),
        ("ack", "running", "held"),
        ("ack", "running", "paused"),
        ("ack", "ready", "succeeded"),
        ("retry", "succeeded", "ready"),
        ("cancel", "running", "cancelled"),
        ("cancel", "succeeded", "cancelled"),
        ("freeze", "running", "paused"),
        ("freeze", "held", "paused"),
        ("settle", "ready", "cancelled"),
    ],
)
def test_4_illegal_writes(writer: Writer, before: State, after: State) -> None:
    assert not may_write(writer, before, after)


def test_4_only_an_operators_retry_leaves_a_terminal_state() -> None:
    for writer in WRITERS:
        left = sources(writer) & TERMINAL
        assert left == ({"failed", "cancelled"} if writer == "retry" else frozenset())


def test_4_held_leaves_only_by_settlement_or_cancel() -> None:
    assert {writer for writer in WRITERS if "held" in sources(writer)} == {"settle", "cancel"}


def test_4_a_succeeded_job_stays_so() -> None:
    assert not any(may_write(writer, "succeeded", after) for writer in WRITERS for after in STATES)
