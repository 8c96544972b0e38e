"""Rows of ``belay_queues`` over the settings, as one process takes them."""

from __future__ import annotations

import pytest

from django_belay.contract.admission import Limits, Rate
from django_belay.engine.adaptive import AdaptiveLimits
from django_belay.engine.options import QueueOptions, WorkerOptions
from django_belay.engine.queue_table import QueueTable, rows_from_json, rows_to_json
from django_belay.storage.base import QueueRow


def table(*rows: QueueRow, **options: object) -> QueueTable:
    made = QueueTable(WorkerOptions(queues={"a": QueueOptions(limit=4)}, **options), reports=True)  # type: ignore[arg-type]
    made.apply(rows)
    return made


def test_row_goes_over_the_settings_key_by_key() -> None:
    found = table(QueueRow(name="a", opts={"global_limit": 7})).served["a"]
    assert (found.limit, found.limits) == (4, Limits(global_limit=7))


def test_deleted_row_leaves_the_settings() -> None:
    found = table(QueueRow(name="a", opts={"limit": 9}))
    assert found.apply([])
    assert found.served == {"a": QueueOptions(limit=4)}


def test_queue_that_only_a_row_names_is_served_unless_queues_were_chosen() -> None:
    row = QueueRow(name="b", opts={"limit": {"min": 2, "max": 8}})
    assert table(row).served["b"] == QueueOptions(limit=8, min_limit=2)
    chosen = QueueTable(WorkerOptions(queues={"a": QueueOptions()}).with_queues({"a": None}))
    chosen.apply([row])
    assert list(chosen.served) == ["a"]


def test_limit_of_the_command_line_stays_above_the_row() -> None:
    chosen = QueueTable(WorkerOptions(queues={"a": QueueOptions()}).with_queues({"a": 3}))
    chosen.apply([QueueRow(name="a", opts={"limit": 50, "global_limit": 5})])
    assert (chosen.served["a"].limit, chosen.served["a"].limits.global_limit) == (3, 5)


def test_pause_is_the_settings_or_a_row() -> None:
    paused = QueueTable(WorkerOptions(queues={"a": QueueOptions(paused=True), "b": QueueOptions()}))
    assert paused.paused == {"a"}
    paused.apply([QueueRow(name="b", opts={}, paused=True)])
    assert paused.paused == {"a", "b"}


def test_pause_of_one_node_is_that_nodes_alone() -> None:
    row = QueueRow(name="a", opts={}, paused_nodes=("mars", "venus"))
    assert table(row, node_name="venus").paused == {"a"}
    assert table(row, node_name="earth").paused == frozenset()
    assert [paused for _, _, paused in rows_to_json([row], node="mars")] == [True]
    assert [paused for _, _, paused in rows_to_json([row], node="earth")] == [False]


def test_broken_row_is_logged_once_and_spoils_nothing(caplog: pytest.LogCaptureFixture) -> None:
    broken = QueueRow(name="a", opts={"limit": "many", "global_limit": 2})
    found = table(broken)
    found.apply([broken])
    assert (found.served["a"].limit, found.served["a"].limits.global_limit) == (4, 2)
    [record] = caplog.records
    assert "'many'" in record.getMessage()
    found.apply([QueueRow(name="a", opts={"limit": 0})])
    assert len(caplog.records) == 2


def test_foreign_opts_of_any_shape_travel_to_a_child() -> None:
    rows = [QueueRow(name="a", opts=object()), QueueRow(name="b", opts={"limit": 3}, paused=True)]
    assert rows_from_json(rows_to_json(rows, node="n")) == [
        QueueRow(name="a", opts={}),
        QueueRow(name="b", opts={"limit": 3}, paused=True),
    ]


def test_rates_begin_with_the_queue_itself() -> None:
    rate = Rate(allowed=5, period_s=60)
    rated = QueueOptions(limits=Limits(rate=rate))
    found = QueueTable(WorkerOptions(queues={"a": rated, "b": rated, "c": QueueOptions()}))
    assert [name for name, _ in found.rates("b")] == ["b", "a"]


# -- adaptive limits -----------------------------------------------------------------

ADAPTIVE = {"q": QueueOptions(limit=20, min_limit=2)}


def rounds(limits: AdaptiveLimits, *gots: int | None) -> list[int]:
    """The limit after each round; a number is what it brought, ``None`` is "all that was asked for"."""
    seen = []
    for got in gots:
        room = limits.of(ADAPTIVE)["q"]
        found = room if got is None else got
        limits.note_round("q", ADAPTIVE["q"], room=room, asked=room, got=found, is_idle=not found)
        seen.append(limits.of(ADAPTIVE)["q"])
    return seen


def test_limit_doubles_while_rounds_come_back_full_and_halves_when_idle() -> None:
    assert rounds(AdaptiveLimits(), None, None, None, None, None, 3, 0, 0, 0, 0, 0) == [
        4, 8, 16, 20, 20, 20, 10, 5, 2, 2, 2,
    ]  # fmt: skip


def test_round_that_was_short_of_slots_proves_nothing() -> None:
    limits = AdaptiveLimits()
    limits.note_round("q", ADAPTIVE["q"], room=2, asked=1, got=1, is_idle=False)
    assert limits.of(ADAPTIVE) == {"q": 2}


def test_queue_that_admits_none_is_not_idle() -> None:
    limits = AdaptiveLimits()
    rounds(limits, None, None)
    limits.note_round("q", ADAPTIVE["q"], room=8, asked=8, got=0, is_idle=False)
    assert limits.of(ADAPTIVE) == {"q": 8}


def test_bounds_that_change_at_run_time_hold_at_once() -> None:
    limits = AdaptiveLimits()
    rounds(limits, None, None, None)
    assert limits.of({"q": QueueOptions(limit=5, min_limit=1)}) == {"q": 5}
    assert limits.of({"q": QueueOptions(limit=7)}) == {"q": 7}
