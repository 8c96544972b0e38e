"""The journal's profile ``strict``: the contract's own records, and nothing that they cannot say."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from django_belay.contract.job import Lease, NewJob
from django_belay.contract.outcome import Cancelled, Failed, Retried, Snoozed, Succeeded
from django_belay.exceptions import NotSupportedByProfile
from django_belay.storage.base import Ack, CronRow, NewStep
from django_belay.storage.journal.files.initialise import initialise
from django_belay.storage.journal.files.journal import JournalOptions, open_journal
from django_belay.storage.journal.format.manifest import Retention
from django_belay.storage.journal.store.store import JournalStore
from django_belay.testing.clock import SimClock
from tests.behaviour.driving import LEASE_TTL, ack_of, add, claim, claim_one, end, running, states, wait
from tests.unit.journal import by_hand

#: Event v1 in its envelope, and a result: all that jobs of this profile ever write.
CORE = {(8, 1), (10, 2)}


class Strict:
    """A strict store, and what the independent reader finds in its segments."""

    def __init__(self, root: Path, clock: SimClock) -> None:
        self.root = root
        self.clock = clock
        initialise(str(root), now_ms=0, retention=Retention(), durability="write", validated_filesystem=True)
        self.store = self._open()

    def _open(self) -> JournalStore:
        options = JournalOptions(durability="write", validated_filesystem=True, writer="inline")
        return JournalStore(open_journal(str(self.root), options), now=self.clock.now(), profile="strict")

    def reopen(self) -> JournalStore:
        """A new owner, which has read everything from the disk."""
        self.store.close()
        self.store = self._open()
        return self.store

    def pairs(self) -> set[tuple[int, int]]:
        """Type and schema of every record of the tail."""
        return by_hand.pairs_of(self.root)


@pytest.fixture
def strict(tmp_path: Path, clock: SimClock) -> Iterator[Strict]:
    made = Strict(tmp_path / "store", clock)
    yield made
    made.store.close()


def told(store: JournalStore, job_id: int) -> tuple[Any, ...]:
    """What of a job every owner tells alike."""
    job = store.get_job(job_id)
    return (job.state, job.attempt, job.ready_at, job.errors, job.result, job.started_at, job.finished_at)


# -- what it says -------------------------------------------------------------------


def test_a_job_succeeds_with_its_result(strict: Strict, clock: SimClock) -> None:
    store = strict.store
    [job] = running(store, clock, input={"n": 1})
    clock.advance(1)
    end(store, clock, job, Succeeded(b'{"sum":3}'))

    found = strict.reopen().get_job(job.id)

    assert (found.state, found.result, found.finished_at) == ("succeeded", b'{"sum":3}', clock.now())
    assert strict.pairs() == CORE


def test_a_failed_attempt_keeps_its_code_and_runs_again_by_the_stored_policy(
    strict: Strict, clock: SimClock
) -> None:
    store = strict.store
    [job] = running(store, clock, max_attempts=2)
    error = {"error": "boom", "type": "ValueError", "attempt": 1}
    end(store, clock, job, Retried(ready_at=clock.now() + timedelta(hours=3), error=error))

    before = told(store, job.id)
    assert before[:4] == (
        "ready",
        1,
        clock.now() + timedelta(seconds=1.25),
        [{"error": "failure", "attempt": 1}],
    )
    assert told(strict.reopen(), job.id) == before
    clock.advance(2)
    again = claim_one(strict.store, clock, queue="running")
    assert again.attempt == 2
    end(
        strict.store, clock, again, Failed(error={"error": "boom", "type": "django_belay.exceptions.Timeout"})
    )
    found = strict.reopen().get_job(job.id)
    assert (found.state, found.attempt, found.errors) == ("failed", 2, [{"error": "timeout", "attempt": 2}])
    assert strict.pairs() == {(8, 1)}


def test_a_lost_executor_consumes_an_attempt(strict: Strict, clock: SimClock) -> None:
    store = strict.store
    [job] = running(store, clock, max_attempts=2)
    for attempt, state in ((1, "ready"), (2, "failed")):
        clock.advance(LEASE_TTL * 2)
        [reclaimed] = store.reclaim_expired(
            now=clock.now(), backoff=lambda attempt: timedelta(seconds=attempt)
        )
        assert reclaimed.state == state
        store = strict.reopen()
        assert store.get_job(job.id).errors == [{"error": "lease_expired", "attempt": attempt}]
        clock.advance(5)
        claim(store, clock, queue="running")
    assert strict.pairs() == {(8, 1)}


def test_a_job_that_runs_when_its_owner_goes_runs_on(strict: Strict, clock: SimClock) -> None:
    [job] = running(strict.store, clock)
    store = strict.reopen()
    assert store.get_job(job.id).state == "running"
    store.adopt_leases([Lease.of(job)])
    end(store, clock, job)
    assert states(store, [job.id]) == ["succeeded"]


def test_a_job_that_is_handed_back_keeps_its_attempt(strict: Strict, clock: SimClock) -> None:
    [job] = running(strict.store, clock, max_attempts=1)
    strict.store.hand_back([Lease.of(job)], now=clock.now())
    before = told(strict.store, job.id)
    assert before[:2] == ("ready", 0)
    assert told(strict.reopen(), job.id) == before
    clock.advance(2)
    assert claim_one(strict.store, clock, queue="running").attempt == 1
    assert strict.pairs() == {(8, 1)}


def test_cancelling_ends_a_waiting_and_a_running_job_at_once(strict: Strict, clock: SimClock) -> None:
    store = strict.store
    [waiting] = add(store, clock)
    [job, by_itself] = running(store, clock, 2)

    [answer] = store.request_cancel(job.id, reason="an operator", now=clock.now())
    store.request_cancel(waiting, reason="an operator", now=clock.now())
    end(store, clock, by_itself, Cancelled(reason="mine"))

    assert (answer.state, answer.requested) == ("cancelled", False)
    assert end(store, clock, job).__class__.__name__ == "Stale"
    ids = [waiting, job.id, by_itself.id]
    assert states(strict.reopen(), ids) == ["cancelled"] * 3
    assert strict.pairs() == {(8, 1)}


def test_an_operator_retries_a_failed_job_from_its_first_attempt(strict: Strict, clock: SimClock) -> None:
    [job] = running(strict.store, clock, max_attempts=1)
    end(strict.store, clock, job, Failed(error={"error": "boom"}))
    assert strict.store.retry(job.id, now=clock.now()).state == "ready"
    before = told(strict.store, job.id)
    assert told(strict.reopen(), job.id) == before
    end(strict.store, clock, claim_one(strict.store, clock, queue="running"))
    assert told(strict.reopen(), job.id)[:2] == ("succeeded", 1)
    assert strict.pairs() == {(8, 1)}


def test_a_job_that_waits_for_its_next_attempt_is_expedited(strict: Strict, clock: SimClock) -> None:
    [job] = running(strict.store, clock)
    end(strict.store, clock, job, Retried(ready_at=clock.now(), error={"error": "boom"}))
    strict.store.reschedule(job.id, ready_at=clock.now(), now=clock.now())
    assert claim_one(strict.store, clock, queue="running").attempt == 2
    assert strict.pairs() == {(8, 1)}


# -- what it cannot say ----------------------------------------------------------------

BEYOND: dict[str, dict[str, Any]] = {
    "a priority": {"priority": 1},
    "meta": {"meta": {"a": 1}},
    "a partition key": {"partition_key": "p"},
    "a unique key": {"unique_key": "u", "unique_mode": "always"},
    "a workflow": {"workflow_id": "w", "wf_name": "a"},
    "a parent": {"parent_id": 7},
    "a budget": {"budget_tokens": 7},
    "its kind and queue must be Keys": {"kind": "k" * 300},
}


@pytest.mark.parametrize("feature", BEYOND)
def test_a_job_that_needs_more_is_refused_by_name(strict: Strict, clock: SimClock, feature: str) -> None:
    jobs = [NewJob(kind="k"), NewJob(**{"kind": "k", **BEYOND[feature]})]
    with pytest.raises(NotSupportedByProfile, match=feature):
        strict.store.insert_jobs(jobs, now=clock.now())
    assert strict.pairs() == set()
    assert claim(strict.reopen(), clock) == []


Operation = Callable[[JournalStore, SimClock, Lease], object]
REFUSED: dict[str, Operation] = {
    "steps": lambda store, clock, lease: store.put_step(
        lease.job_id, NewStep(name="a", value=b"1"), now=clock.now()
    ),
    "events": lambda store, clock, lease: store.append_event(lease.job_id, {}, now=clock.now()),
    "signals": lambda store, clock, lease: store.put_signal("room", "go", {}, now=clock.now()),
    "rate limits": lambda store, clock, lease: store.debit_rate("b", amount=1, period_s=1, now=clock.now()),
    "options and pauses of queues": lambda store, clock, lease: store.pause_queue("q", now=clock.now()),
    "cron entries": lambda store, clock, lease: store.put_cron(
        CronRow(name="c", expression="* * * * *", kind="k", input={}, opts={}), now=clock.now()
    ),
    "runs again later by its own wish": lambda store, clock, lease: store.ack(
        Ack(lease=lease, outcome=Snoozed(until=clock.now() + timedelta(hours=1))), now=clock.now()
    ),
    "waits for a signal": lambda store, clock, lease: store.ack(
        Ack(lease=lease, outcome=wait(store.get_job(lease.job_id))), now=clock.now()
    ),
    "a failure for good": lambda store, clock, lease: store.ack(
        Ack(lease=lease, outcome=Failed(error={"error": "boom"})), now=clock.now()
    ),
    "a result past its bounds": lambda store, clock, lease: store.ack(
        Ack(lease=lease, outcome=Succeeded(b"\x83a\x07")), now=clock.now()
    ),
    "moving a job": lambda store, clock, lease: store.move(
        add(store, clock)[0], queue="elsewhere", now=clock.now()
    ),
    "rescheduling a job": lambda store, clock, lease: store.reschedule(
        add(store, clock)[0], ready_at=clock.now() + LEASE_TTL, now=clock.now()
    ),
    "a frozen job": lambda store, clock, lease: store.freeze(add(store, clock)[0], now=clock.now()),
}


@pytest.mark.parametrize("feature", REFUSED)
def test_an_operation_that_needs_more_is_refused_and_changes_nothing(
    strict: Strict, clock: SimClock, feature: str
) -> None:
    [job] = running(strict.store, clock)
    before = told(strict.store, job.id)
    with pytest.raises(NotSupportedByProfile, match=feature):
        REFUSED[feature](strict.store, clock, Lease.of(job))
    assert told(strict.store, job.id) == before
    assert told(strict.reopen(), job.id)[0] == "running"
    assert strict.pairs() == {(8, 1)}


def test_a_cancelled_job_is_not_run_again(strict: Strict, clock: SimClock) -> None:
    [job_id] = add(strict.store, clock)
    strict.store.request_cancel(job_id, reason="", now=clock.now())
    with pytest.raises(NotSupportedByProfile, match="retry of a cancelled job"):
        strict.store.retry(job_id, now=clock.now())


def test_what_another_profile_extended_can_be_read_and_not_changed(strict: Strict, clock: SimClock) -> None:
    strict.store.close()
    options = JournalOptions(durability="write", validated_filesystem=True, writer="inline")
    with open_journal(str(strict.root), options) as journal:
        store = JournalStore(journal, now=clock.now())
        [extended, core] = [*add(store, clock, priority=-1), *add(store, clock)]
    store = strict.store = strict._open()
    assert store.get_job(extended).priority == -1
    with pytest.raises(NotSupportedByProfile, match="another profile"):
        store.request_cancel(extended, reason="", now=clock.now())
    store.request_cancel(core, reason="", now=clock.now())
    assert states(store, [extended, core]) == ["ready", "cancelled"]


def test_in_the_usual_profile_a_store_whose_jobs_stayed_core_holds_only_the_contracts_pairs(
    tmp_path: Path, clock: SimClock
) -> None:
    root = tmp_path / "store"
    initialise(str(root), now_ms=0, retention=Retention(), durability="write", validated_filesystem=True)
    options = JournalOptions(durability="write", validated_filesystem=True, writer="inline")
    with open_journal(str(root), options) as journal:
        store = JournalStore(journal, now=clock.now())
        for job in running(store, clock, 3):
            store.ack(ack_of(job, Succeeded(b"[1]")), now=clock.now())
        add(store, clock, ready_at=clock.now() + LEASE_TTL)
        [cancelled] = add(store, clock)
        store.request_cancel(cancelled, reason="cancelled", now=clock.now())
    assert by_hand.pairs_of(root) == CORE
