"""Schedules as their records leave them (spec E.7)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TypeAlias

from django_belay.storage.journal.format.event_v2 import (
    OccurrenceDelivered,
    ScheduleAdvanced,
    ScheduleCancelled,
    ScheduleCheckpoint,
    ScheduleDefinition,
    ScheduleRegistered,
    ScheduleState,
)
from django_belay.storage.journal.format.limits import MAX_U64
from django_belay.storage.journal.format.refusal import refuse

ScheduleEvent: TypeAlias = (
    ScheduleRegistered
    | ScheduleAdvanced
    | ScheduleCancelled
    | OccurrenceDelivered
    | ScheduleCheckpoint
    | ScheduleState
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """One schedule. ``revision`` is its compare-and-set identity; compaction keeps it."""

    schedule_id: str
    revision: int
    definition: ScheduleDefinition
    registered_at: int
    next_at: int
    last_at: int | None = None
    cancelled_at: int | None = None
    active_job_ids: frozenset[bytes] = frozenset()
    membership_complete: bool = True


def restore(event: ScheduleCheckpoint | ScheduleState) -> Schedule:
    """The schedule a checkpoint in a base states."""
    return Schedule(
        schedule_id=event.schedule_id,
        revision=event.revision,
        definition=event.definition,
        registered_at=event.registered_at,
        next_at=event.next_at,
        last_at=event.last_at,
        cancelled_at=event.cancelled_at,
        active_job_ids=_members(event),
        membership_complete=isinstance(event, ScheduleState) and event.membership_complete,
    )


def advance(schedule: Schedule | None, event: ScheduleEvent) -> Schedule:
    """The schedule after a record of the tail."""
    if isinstance(event, ScheduleCheckpoint):
        return _check_against(schedule, event)
    _check_revision(schedule, event)
    if isinstance(event, ScheduleState):
        return restore(event)
    if isinstance(event, ScheduleRegistered):
        return _register(schedule, event)
    assert schedule is not None
    if isinstance(event, ScheduleCancelled):
        at = event.at if schedule.cancelled_at is None else schedule.cancelled_at
        return replace(schedule, revision=schedule.revision + 1, cancelled_at=at)
    if schedule.cancelled_at is not None or event.due_at != schedule.next_at:
        raise refuse("consumer_rejected", "invalid_transition", event.schedule_id)
    members, complete = schedule.active_job_ids, schedule.membership_complete
    if isinstance(event, OccurrenceDelivered):
        members = members if event.active_job_id is None else members | {event.active_job_id}
    else:
        complete = False  # the historical form does not say which job it started
    return replace(
        schedule,
        revision=schedule.revision + 1,
        last_at=event.due_at,
        next_at=event.next_at,
        active_job_ids=members,
        membership_complete=complete,
    )


def checkpoint(schedule: Schedule, *, at: int, active_job_ids: frozenset[bytes]) -> ScheduleState:
    """The (13,2) record that states a schedule in a base; it changes nothing."""
    return ScheduleState(
        active_job_ids=tuple(sorted(active_job_ids)),
        at=at,
        cancelled_at=schedule.cancelled_at,
        definition=schedule.definition,
        expected_revision=schedule.revision - 1,
        last_at=schedule.last_at,
        membership_complete=schedule.membership_complete,
        next_at=schedule.next_at,
        registered_at=schedule.registered_at,
        revision=schedule.revision,
        schedule_id=schedule.schedule_id,
    )


def _check_revision(schedule: Schedule | None, event: ScheduleEvent) -> None:
    if schedule is None and not isinstance(event, ScheduleRegistered | ScheduleState):
        raise refuse("consumer_rejected", "missing_schedule", event.schedule_id)
    current = 0 if schedule is None else schedule.revision
    if current >= MAX_U64:
        raise refuse("consumer_rejected", "logical_revision_exhausted", event.schedule_id)
    if event.expected_revision != current:
        raise refuse(
            "consumer_rejected", "revision_conflict", event.schedule_id, event.expected_revision, current
        )


def _check_against(schedule: Schedule | None, event: ScheduleCheckpoint) -> Schedule:
    if schedule is None:
        raise refuse("consumer_rejected", "missing_schedule", event.schedule_id)
    if event.revision != schedule.revision:
        raise refuse(
            "consumer_rejected", "revision_conflict", event.schedule_id, event.revision, schedule.revision
        )
    return schedule


def _register(schedule: Schedule | None, event: ScheduleRegistered) -> Schedule:
    """A new registration begins a new life of the schedule but keeps what it already delivered."""
    return Schedule(
        schedule_id=event.schedule_id,
        revision=event.expected_revision + 1,
        definition=event.definition,
        registered_at=event.at,
        next_at=event.next_at,
        last_at=None if schedule is None else schedule.last_at,
        active_job_ids=frozenset() if schedule is None else schedule.active_job_ids,
        membership_complete=schedule is None or schedule.membership_complete,
    )


def _members(event: ScheduleCheckpoint | ScheduleState) -> frozenset[bytes]:
    if isinstance(event, ScheduleState):
        return frozenset(event.active_job_ids)
    return frozenset() if event.active_job_id is None else frozenset({event.active_job_id})
