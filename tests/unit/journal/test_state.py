"""The state machine: legal histories keep every rule, illegal steps change nothing."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from django_belay.storage.journal.format.event_v1 import (
    Available,
    Cancelled,
    Finished,
    Inserted,
    Retried,
    Started,
)
from django_belay.storage.journal.format.event_v2 import (
    OccurrenceDelivered,
    ResultRecorded,
    ScheduleAdvanced,
    ScheduleCancelled,
    ScheduleCheckpoint,
    ScheduleRegistered,
)
from django_belay.storage.journal.format.extension import Frame, Operation, Row, TableRows, encode_body
from django_belay.storage.journal.format.snapshot import Job, check_job
from django_belay.storage.journal.state.occurrence import next_cron_ms, next_due_ms
from django_belay.storage.journal.state.retry import draw_due, due_window
from django_belay.storage.journal.state.rows import (
    COLUMNS,
    ExtendedJob,
    FinishedRow,
    columns_of,
    shrink,
    stated_columns,
)
from django_belay.storage.journal.state.store_state import StoreState

from .history import History, definition, schedule, view
from .refusals import reason

JOB = b"j" * 16


def inserted(order: int | None = 1, due: int | None = None, **changes: Any) -> Inserted:
    work = definition(max_attempts=2, scheduled_at=due)
    fields: dict[str, Any] = {"job_id": JOB, "at": 100, "definition": work, "eligible_at": due or 100}
    return Inserted(**{**fields, "availability_order": order, **changes})


def started(revision: int = 1, **changes: Any) -> Started:
    fields = {"job_id": JOB, "expected_revision": revision, "at": 200, "attempt": 1, "cycle_token": 1}
    return Started(**{**fields, **changes})


def finished(revision: int = 2, **changes: Any) -> Finished:
    fields: dict[str, Any] = {
        "job_id": JOB, "expected_revision": revision, "at": 300, "diagnostic": None, "disposition": 0,
        "execution_token": 2, "next_attempt": None, "next_due_at": None, "outcome": 0,
    }  # fmt: skip
    return Finished(**{**fields, **changes})


def failed(revision: int = 2, **changes: Any) -> Finished:
    return finished(
        revision,
        **{
            "diagnostic": 1,
            "disposition": 1,
            "next_attempt": 2,
            "next_due_at": 1300,
            "outcome": 1,
            **changes,
        },
    )


def after(*items: Any) -> StoreState:
    state = StoreState()
    for item in items:
        state.apply(item)
    return state


def row_of(state: StoreState) -> dict[str, Any]:
    found = state.find_row(JOB)
    assert found is not None
    return found.row


def job(state: StoreState) -> Job:
    found = state.find_job(JOB)
    assert found is not None
    return found


@pytest.mark.parametrize("seed", range(4))
def test_every_state_of_a_legal_history_passes_the_snapshot_rules(seed: int) -> None:
    history, state = History(seed=seed), StoreState()
    seen = set()
    for _ in range(400):
        item = history.draw(state)
        state.apply(item)
        job_id = getattr(item, "job_id", None)
        if job_id is not None:
            changed = state.find_job(job_id)
            assert changed is not None
            check_job(changed)
            seen.add(changed.state)
    assert len(seen) == 7


class Kept:
    """A loader over the records of a history, each at the place of its number."""

    def __init__(self) -> None:
        self.items: dict[int, Any] = {}

    def definition(self, where: int) -> Any:
        return self.items[where].definition

    def columns(self, where: int, job_id: bytes) -> dict[str, Any]:
        return columns_of(stated_columns(self.items[where]), job_id)


@pytest.mark.parametrize("seed", range(2))
def test_packed_and_whole_states_are_the_same(seed: int) -> None:
    kept = Kept()
    packed, whole, history = StoreState(kept), StoreState(), History(seed=seed)
    for number in range(1, 400):
        kept.items[number] = history.draw(whole)
        whole.apply(kept.items[number])
        packed.apply(kept.items[number], number)
    assert view(packed) == view(whole)
    assert any(isinstance(entry, bytes) for entry in packed.jobs.values())


def test_finished_rows_keep_what_decisions_need_and_are_put_together_again() -> None:
    kept, name = Kept(), JOB.hex()
    packed, whole = StoreState(kept), StoreState()
    steps = [
        {
            "revision": 1,
            "set": {"id": 9, "state": "ready", "input": {"x": 1}, "workflow_id": "w", "order": 1},
        },
        {"revision": 2, "set": {"state": "running", "leased_by": "n"}},
        {"revision": 3, "set": {"state": "failed", "leased_by": None, "finished_at": 7}},
        {"revision": 4, "set": {"state": "ready", "finished_at": None}},
        {"revision": 5, "set": {"state": "succeeded", "result": "big", "finished_at": 9}},
    ]
    for number, step in enumerate(steps, 1):
        kept.items[number] = operation({"jobs": {name: step}})
        packed.apply(kept.items[number], number)
        whole.apply(kept.items[number])
        entry = packed.extended[JOB]
        assert isinstance(entry, FinishedRow) == (number in (3, 5))
        assert [entry.column(key) for key in ("id", "workflow_id")] == [9, "w"]
        assert packed.find_row(JOB) == whole.find_row(JOB)
    assert packed.extended[JOB].column("finished_at") == 9


def test_a_row_without_a_place_for_every_record_stays_whole() -> None:
    state = StoreState(Kept())
    state.apply(operation({"jobs": {JOB.hex(): {"revision": 1, "set": {"state": "ready"}}}}), 0)
    state.apply(operation({"jobs": {JOB.hex(): {"revision": 2, "set": {"state": "failed"}}}}), 5)
    assert isinstance(state.extended[JOB], ExtendedJob)


@pytest.mark.parametrize(
    ("history", "event", "name"),
    [
        ([inserted()], inserted(2), "duplicate_insert"),
        ([], started(), "missing_job"),
        ([], inserted(2), "availability_order_conflict"),
        ([inserted()], started(2), "revision_conflict"),
        ([inserted()], started(at=99), "invalid_transition"),
        ([inserted()], started(attempt=2), "invalid_transition"),
        ([inserted()], started(cycle_token=2), "invalid_transition"),
        ([inserted(None, 500)], started(at=900), "invalid_transition"),
        ([inserted()], finished(1), "invalid_transition"),
        ([inserted(), started()], finished(execution_token=1), "invalid_transition"),
        ([inserted(), started()], failed(next_attempt=1), "invalid_transition"),
        ([inserted(), started()], failed(next_due_at=1299), "invalid_transition"),
        ([inserted(), started()], failed(next_due_at=1551), "invalid_transition"),
        (
            [inserted(), started()],
            failed(disposition=2, next_attempt=None, next_due_at=None),
            "invalid_transition",
        ),
        ([inserted(), started()], failed(outcome=3, diagnostic=7), "invalid_transition"),
        ([inserted(), started(), finished()], finished(3), "invalid_transition"),
        (
            [inserted()],
            Cancelled(job_id=JOB, expected_revision=1, at=1, execution_token=1),
            "invalid_transition",
        ),
        (
            [inserted(), started()],
            Cancelled(job_id=JOB, expected_revision=2, at=1, execution_token=None),
            "invalid_transition",
        ),
        (
            [inserted(), started(), finished()],
            Cancelled(job_id=JOB, expected_revision=3, at=1, execution_token=None),
            "invalid_transition",
        ),
        (
            [inserted()],
            Available(job_id=JOB, expected_revision=1, at=200, due_at=100, availability_order=2),
            "invalid_transition",
        ),
        (
            [inserted(None, 500)],
            Available(job_id=JOB, expected_revision=1, at=600, due_at=499, availability_order=1),
            "invalid_transition",
        ),
        (
            [inserted(), started(), finished()],
            Retried(job_id=JOB, expected_revision=3, at=9, mode=1, new_due_at=9, availability_order=2),
            "invalid_transition",
        ),
        (
            [inserted()],
            Retried(job_id=JOB, expected_revision=1, at=9, mode=0, new_due_at=9, availability_order=2),
            "invalid_transition",
        ),
    ],
)
def test_illegal_steps_are_refused_and_change_nothing(history: list[Any], event: Any, name: str) -> None:
    state = after(*history)
    before = view(state)
    assert reason(state.apply, event) == name
    assert view(state) == before


def test_interruption_costs_no_attempt_even_at_the_last() -> None:
    state = after(
        inserted(), started(), failed(),
        Available(job_id=JOB, expected_revision=3, at=1300, due_at=1300, availability_order=2),
        started(4, attempt=2, at=1300),
        finished(5, at=1400, diagnostic=7, disposition=1, execution_token=5, next_attempt=2, next_due_at=3400, outcome=3),
    )  # fmt: skip
    assert (job(state).state, job(state).attempt, job(state).next_attempt, job(state).diagnostic) == (
        "retryable",
        2,
        2,
        7,
    )


def test_last_failure_discards_and_a_manual_retry_opens_a_new_cycle() -> None:
    last = failed(5, execution_token=5, at=1400, disposition=2, next_attempt=None, next_due_at=None)
    state = after(
        inserted(), started(), failed(),
        Retried(job_id=JOB, expected_revision=3, at=700, mode=0, new_due_at=700, availability_order=2),
        started(4, attempt=2, at=800), last,
    )  # fmt: skip
    assert (job(state).state, job(state).terminal_at) == ("discarded", 1400)
    state.apply(
        Retried(job_id=JOB, expected_revision=6, at=9000, mode=1, new_due_at=9000, availability_order=3)
    )
    reopened = job(state)
    assert (reopened.state, reopened.attempt, reopened.next_attempt, reopened.cycle) == ("available", 0, 1, 7)
    assert (reopened.diagnostic, reopened.attempted_at, reopened.terminal_at) == (1, None, None)


@pytest.mark.parametrize(
    ("attempt", "first", "last"),
    [
        (1, 1000, 1250),
        (2, 2000, 2500),
        (5, 16_000, 20_000),
        (6, 32_000, 40_000),
        (7, 60_000, 60_000),
        (65_535, 60_000, 60_000),
    ],
)
def test_retry_policy_window(attempt: int, first: int, last: int) -> None:
    assert due_window(attempt, 0) == (first, last)
    assert draw_due(attempt, 0, lambda n: 0) == first
    assert draw_due(attempt, 0, lambda n: n - 1) == last
    assert due_window(attempt, 2**63 - 1) == (2**63 - 1, 2**63 - 1)


def test_a_result_needs_the_completed_revision_and_comes_once() -> None:
    result = ResultRecorded(at=5, expected_revision=3, job_id=JOB, result={"ok": True})
    state = after(inserted(), started())
    assert reason(state.apply, replace(result, expected_revision=2)) == "invalid_transition"
    assert reason(state.apply, result) == "revision_conflict"
    assert reason(after().apply, result) == "missing_job"
    state.apply(finished())
    state.apply(result)
    assert reason(state.apply, result) == "invalid_transition"
    assert job(state).revision == 3


def registered(revision: int = 0) -> ScheduleRegistered:
    return ScheduleRegistered(
        at=1, definition=schedule(), expected_revision=revision, next_at=60, schedule_id="s"
    )


def test_schedule_revisions_are_its_compare_and_set() -> None:
    advanced = ScheduleAdvanced(at=60, due_at=60, expected_revision=1, next_at=120, schedule_id="s")
    assert reason(after().apply, advanced) == "missing_schedule"
    state = after(registered())
    assert reason(state.apply, registered()) == "revision_conflict"
    assert reason(state.apply, replace(advanced, due_at=59)) == "invalid_transition"
    state.apply(advanced)
    assert (state.schedules["s"].revision, state.schedules["s"].membership_complete) == (2, False)
    state.apply(ScheduleCancelled(at=70, expected_revision=2, schedule_id="s"))
    again = replace(advanced, expected_revision=3, due_at=120, at=120, next_at=180)
    assert reason(state.apply, again) == "invalid_transition"
    state.apply(registered(3))
    held = state.schedules["s"]
    assert (held.revision, held.cancelled_at, held.last_at) == (4, None, 60)
    state.apply(
        OccurrenceDelivered(
            active_job_id=JOB, at=60, due_at=60, expected_revision=4, next_at=120, schedule_id="s"
        )
    )
    assert state.schedules["s"].active_job_ids == {JOB}
    check = ScheduleCheckpoint(
        active_job_id=JOB, at=1, cancelled_at=None, definition=schedule(), expected_revision=4, last_at=60,
        next_at=120, registered_at=1, revision=5, schedule_id="s",
    )  # fmt: skip
    before = view(state)
    state.apply(check)
    assert view(state) == before
    assert reason(state.apply, replace(check, revision=6, expected_revision=5)) == "revision_conflict"


HOUR, DAY = 3_600_000, 86_400_000


@pytest.mark.parametrize(
    ("expression", "zone", "after_ms", "want"),
    [
        ("* * * * *", None, 0, 60_000),
        ("* * * * *", None, 59_999, 60_000),
        ("*/15 * * * *", None, 60_000, 900_000),
        ("0 0 * * *", "+01:00", 0, 23 * HOUR),
        ("0 0 * * *", "-02", 0, 2 * HOUR),
        ("0 12 * * 0", "UTC", 0, 3 * DAY + 12 * HOUR),
        ("0 12 * * 7", "Z", 0, 3 * DAY + 12 * HOUR),
        ("0 0 13 * 5", None, 0, DAY),
        ("0 0 29 2 *", None, 0, 789 * DAY),
        ("30 6-18/6 * * 1-5", None, 0, 6 * HOUR + 1_800_000),
        ("0 0 31 2 *", None, 0, None),
    ],
)
def test_cron_times(expression: str, zone: str | None, after_ms: int, want: int | None) -> None:
    assert next_cron_ms(expression, zone, after_ms) == want


@pytest.mark.parametrize(
    "expression",
    [
        "",
        "* * * *",
        "60 * * * *",
        "* 24 * * *",
        "*/0 * * * *",
        "5-1 * * * *",
        "a * * * *",
        "* * 0 * *",
        "* * * * 8",
        "٣ * * * *",
    ],
)
def test_bad_cron_is_refused(expression: str) -> None:
    assert reason(next_cron_ms, expression, None, 0) == "invalid_cron"


@pytest.mark.parametrize("zone", ["Europe/Berlin", "+1", "+24:00", "+01:60", "utc"])
def test_bad_zone_is_refused(zone: str) -> None:
    assert reason(next_cron_ms, "* * * * *", zone, 0) == "invalid_timezone"


@pytest.mark.parametrize(
    ("catch_up", "now", "want"),
    [
        ("all", 500, 110),
        ("latest", 500, 510),
        ("latest", 100, 110),
        ("latest", 110, 120),
        ("latest", 50, 110),
    ],
)
def test_every_catches_up(catch_up: str, now: int, want: int) -> None:
    assert (
        next_due_ms(kind="every", expression=10, timezone=None, due_ms=100, now_ms=now, catch_up=catch_up)
        == want
    )


def test_cron_catches_up() -> None:
    def following(catch_up: str) -> int | None:
        return next_due_ms(
            kind="cron", expression="* * * * *", timezone=None, due_ms=0, now_ms=600_000, catch_up=catch_up
        )

    assert (following("all"), following("latest")) == (60_000, 660_000)


# -- extension -------------------------------------------------------------------


def operation(effects: object) -> Operation:
    return Operation(at=1, client="c", effects=encode_body(effects), op="insert", request=1)


def row(revision: int = 1, **columns: Any) -> Row:
    return Row(job_id=JOB, row=encode_body({"revision": revision, **columns}))


def test_promotion_moves_the_job_and_changes_nothing_else() -> None:
    state = after(inserted())
    assert reason(state.apply, row(2)) == "revision_conflict"
    state.apply(row(1, state="ready", order=1))
    assert (list(state.jobs), list(state.extended)) == ([], [JOB])
    assert reason(state.apply, started()) == "missing_job"
    assert reason(state.apply, inserted(2)) == "duplicate_insert"
    assert reason(after().apply, row()) == "missing_job"


def test_effects_change_rows_and_tables() -> None:
    state = after(inserted(), row(1, state="ready"))
    name = JOB.hex()
    state.apply(
        operation(
            {
                "jobs": {name: {"revision": 2, "set": {"state": "running", "order": 7}}},
                "tables": {"steps": {"1/a": {"v": 1}}},
            }
        )
    )
    assert row_of(state) == {"state": "running", "order": 7}
    assert state.next_order == 8
    assert reason(state.apply, operation({"jobs": {name: {"revision": 2, "set": {}}}})) == "revision_conflict"
    state.apply(operation({"jobs": {name: None}, "tables": {"steps": {"1/a": None}}}))
    assert (state.extended, state.tables) == ({}, {"steps": {}})


@pytest.mark.parametrize(
    "effects",
    [
        [], {"other": {}}, {"jobs": []}, {"jobs": {"zz": None}}, {"jobs": {"0" * 32: None}},
        {"jobs": {JOB.hex().upper(): None}}, {"jobs": {JOB.hex(): {"revision": 0, "set": {}}}},
        {"jobs": {JOB.hex(): {"revision": 1}}}, {"tables": {"other": {}}}, {"tables": {"steps": {"a": 1}}},
    ],
)  # fmt: skip
def test_malformed_effects_are_refused(effects: object) -> None:
    assert reason(after().apply, operation(effects)) == "invalid_extension"


def test_effects_on_a_core_job_are_refused_whole() -> None:
    state = after(inserted())
    fresh = {"revision": 1, "set": {"state": "ready"}}
    effects = {"jobs": {(1).to_bytes(16).hex(): fresh, JOB.hex(): fresh}, "tables": {"steps": {"a": {}}}}
    before = view(state)
    assert reason(state.apply, operation(effects)) == "invalid_transition"
    assert view(state) == before


def test_frames_take_effect_at_their_commit_or_never() -> None:
    state = after(Frame(mark="begin", operation="f"), inserted(), started())
    assert state.jobs == {}
    state.apply(Frame(mark="commit", operation="f"))
    assert job(state).state == "executing"
    state = after(
        Frame(mark="begin", operation="f"), inserted(), Frame(mark="abort", operation="f"), inserted()
    )
    assert job(state).revision == 1
    assert reason(after().apply, Frame(mark="commit", operation="f")) == "invalid_transition"
    open_frame = after(Frame(mark="begin", operation="f"))
    assert reason(open_frame.apply, Frame(mark="begin", operation="g")) == "invalid_transition"
    assert reason(open_frame.apply, Frame(mark="commit", operation="g")) == "invalid_transition"


def base(*items: Any) -> StoreState:
    state = StoreState()
    for item in items:
        state.apply_base(item)
    state.finish_base(None)
    return state


def snap(number: int, order: int | None = None) -> Job:
    made = job(after(inserted()))
    return replace(made, job_id=number.to_bytes(16), availability_order=order or number)


def test_base_ascends_and_is_unique() -> None:
    assert base(snap(1), snap(2)).next_order == 3
    assert reason(base, snap(2), snap(1)) == "snapshot_order"
    assert reason(base, snap(1), snap(1)) == "duplicate_snapshot"
    assert reason(base, snap(1), snap(2, 1)) == "duplicate_availability_order"
    assert reason(base, inserted()) == "record_profile"
    assert (
        reason(base, snap(1), Row(job_id=(1).to_bytes(16), row=encode_body({"revision": 1})))
        == "duplicate_snapshot"
    )
    rows = TableRows(table="steps", rows=encode_body([["a", {}], ["b", {}]]))
    assert base(rows).tables == {"steps": {"a": {}, "b": {}}}
    assert reason(base, rows, rows) == "snapshot_order"
    unsorted = TableRows(table="steps", rows=encode_body([["b", {}], ["a", {}]]))
    assert reason(base, unsorted) == "invalid_extension"


def test_frontier_of_the_manifest_moves_the_next_order() -> None:
    state = StoreState()
    state.apply_base(snap(1))
    state.finish_base(9)
    assert state.next_order == 10


@pytest.mark.parametrize(
    "change",
    [
        {},
        {"workflow_id": "w", "wf_name": "é", "parent_id": 7, "unique_key": "k", "unique_mode": "window"},
        {"state": "failed", "queue": "mail", "cron_name": "daily", "cron_slot": 5},
        {"state": "cancelled", "finished_at": None, "id": 2**53},
        {"parent_id": 2**70},
        {"unique_key": "\ud800"},
    ],
)
def test_packed_row_says_what_the_whole_one_says(change: dict[str, Any]) -> None:
    row = {"id": 1, "state": "succeeded", "finished_at": 10, "input": {"big": "x" * 100}, **change}
    job = ExtendedJob(job_id=JOB, revision=2**60, row=row, trail=(3, 2**63))
    packed = shrink(job)
    assert packed.revision == job.revision
    assert packed.trail == job.trail
    wanted = {name: row.get(name) for name in COLUMNS if name != "queue" or row["state"] == "failed"}
    assert {name: packed.column(name) for name in wanted} == wanted
    if isinstance(packed, FinishedRow):
        assert {name: packed.columns()[name] for name in wanted} == wanted
        moved = packed.moved((9, 8, 7))
        assert moved.trail == (9, 8, 7)
        assert moved.columns() == packed.columns()
    else:
        assert not {"parent_id", "unique_key"}.isdisjoint(change)
