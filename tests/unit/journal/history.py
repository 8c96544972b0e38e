"""Random legal histories: what an engine might write, drawn from a seeded generator."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from django_belay.storage.journal.format.definition import JobDefinition, define_job
from django_belay.storage.journal.format.event_v1 import (
    Available,
    Cancelled,
    Finished,
    Inserted,
    JobEvent,
    Retried,
    Started,
)
from django_belay.storage.journal.format.event_v2 import (
    OccurrenceDelivered,
    ResultRecorded,
    ScheduleCancelled,
    ScheduleDefinition,
    ScheduleState,
)
from django_belay.storage.journal.format.pair import Payload
from django_belay.storage.journal.format.snapshot import Job
from django_belay.storage.journal.state.retry import draw_due
from django_belay.storage.journal.state.store_state import StoreState


def definition(**changes: object) -> JobDefinition:
    fields: dict[str, object] = {"worker_key": "shop.mail", "args": {"order": 42, "note": "héllo"}}
    return define_job(**{**fields, **changes})  # type: ignore[arg-type]


def schedule(**changes: object) -> ScheduleDefinition:
    fields: dict[str, object] = {
        "args": {"n": 1}, "catch_up": "latest", "expression": 60_000, "kind": "every",
        "options": {}, "overlap": "skip", "task": "shop.report", "timezone": None,
    }  # fmt: skip
    return ScheduleDefinition(**{**fields, **changes})  # type: ignore[arg-type]


@dataclass
class History:
    """Draws the next legal record for a state it is told about."""

    seed: int = 0
    now: int = 1_700_000_000_000
    jobs: int = 40
    rng: random.Random = field(init=False)
    ids: list[bytes] = field(default_factory=list)
    schedules: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.rng = random.Random(self.seed)

    def draw(self, state: StoreState) -> Payload:
        """One record that ``state`` accepts."""
        self.now += self.rng.randrange(0, 2_000)
        pick = self.rng.random()
        if pick < 0.06:
            return self._schedule(state)
        if len(self.ids) < 3 or pick < 0.25:
            return self._insert(state)
        for _ in range(8):
            job = state.find_job(self.rng.choice(self.ids))
            event = None if job is None else self._event(job, state)
            if event is not None:
                return event
        return self._insert(state)

    def _insert(self, state: StoreState) -> Inserted:
        job_id = self.rng.randbytes(16)
        self.ids.append(job_id)
        later = self.rng.random() < 0.3
        due = self.now + 5_000 if later else self.now
        text = "é" * self.rng.randrange(0, 60)
        return Inserted(
            job_id=job_id,
            at=self.now,
            definition=definition(
                args={"text": text, "list": [1, -1, 1.5, None, True, {"k": ""}]},
                max_attempts=self.rng.randrange(1, 4),
                scheduled_at=due if later else None,
                queue_key=self.rng.choice(["default", "mail"]),
            ),
            eligible_at=due,
            availability_order=None if later else state.next_order,
        )

    def _event(self, job: Job, state: StoreState) -> JobEvent | ResultRecorded | None:
        common = {"job_id": job.job_id, "expected_revision": job.revision}
        if job.state == "completed":
            if job.job_id in state.results:
                return None
            result = {"ok": True, "rows": [1, 2, 3]}
            return ResultRecorded(at=self.now, result=result, **common)  # type: ignore[arg-type]
        if job.state == "cancelled":
            return None
        if job.state == "discarded":
            if self.rng.random() < 0.8:
                return None
            return Retried(
                at=self.now, mode=1, new_due_at=self.now, availability_order=state.next_order, **common
            )  # type: ignore[arg-type]
        if self.rng.random() < 0.05:
            return Cancelled(at=self.now, execution_token=job.execution, **common)  # type: ignore[arg-type]
        if job.state == "executing":
            return self._finish(job)
        if job.state == "available":
            assert job.next_attempt is not None
            assert job.eligible_at is not None
            at = max(self.now, job.eligible_at)
            return Started(at=at, attempt=job.next_attempt, cycle_token=job.cycle, **common)  # type: ignore[arg-type]
        if job.state == "retryable" and self.rng.random() < 0.2:
            return Retried(
                at=self.now, mode=0, new_due_at=self.now, availability_order=state.next_order, **common
            )  # type: ignore[arg-type]
        assert job.eligible_at is not None
        at = max(self.now, job.eligible_at)
        return Available(at=at, due_at=job.eligible_at, availability_order=state.next_order, **common)  # type: ignore[arg-type]

    def _finish(self, job: Job) -> Finished:
        assert job.execution is not None
        common = {
            "job_id": job.job_id, "expected_revision": job.revision, "at": self.now,
            "execution_token": job.execution,
        }  # fmt: skip
        outcome = self.rng.choice([0, 0, 0, 1, 2, 3])
        if outcome == 0:
            return Finished(
                diagnostic=None, disposition=0, next_attempt=None, next_due_at=None, outcome=0, **common
            )  # type: ignore[arg-type]
        code = {1: self.rng.choice([1, 2, 3, 4, 6]), 2: 5, 3: 7}[outcome]
        if outcome != 3 and job.attempt >= job.definition.max_attempts:
            return Finished(
                diagnostic=code, disposition=2, next_attempt=None, next_due_at=None, outcome=outcome, **common,  # type: ignore[arg-type]
            )  # fmt: skip
        following = job.attempt if outcome == 3 else job.attempt + 1
        due = draw_due(job.attempt, self.now, self.rng.randrange)
        return Finished(
            diagnostic=code, disposition=1, next_attempt=following, next_due_at=due, outcome=outcome, **common,  # type: ignore[arg-type]
        )  # fmt: skip

    def _schedule(self, state: StoreState) -> Payload:
        if len(self.schedules) < 4:
            name = f"every-{len(self.schedules)}-ü"
            self.schedules.append(name)
            return ScheduleState(
                active_job_ids=(), at=self.now, cancelled_at=None, definition=schedule(),
                expected_revision=0, last_at=None, membership_complete=True, next_at=self.now + 60_000,
                registered_at=self.now, revision=1, schedule_id=name,
            )  # fmt: skip
        name = self.rng.choice(self.schedules)
        current = state.schedules[name]
        if current.cancelled_at is not None:
            return self._insert(state)
        if self.rng.random() < 0.1:
            return ScheduleCancelled(at=self.now, expected_revision=current.revision, schedule_id=name)
        member = self.rng.choice([*self.ids, None])
        return OccurrenceDelivered(
            active_job_id=member, at=max(self.now, current.next_at), due_at=current.next_at,
            expected_revision=current.revision, next_at=current.next_at + 60_000, schedule_id=name,
        )  # fmt: skip


def view(state: StoreState) -> dict[str, object]:
    """Everything a state holds, whole, for comparison."""
    return {
        "jobs": {job_id: state.find_job(job_id) for job_id in state.jobs},
        "results": set(state.results),
        "schedules": dict(state.schedules),
        "extended": {job_id: state.find_row(job_id) for job_id in state.extended},
        "tables": {name: rows for name, rows in state.tables.items() if rows},
        "next_order": state.next_order,
    }
