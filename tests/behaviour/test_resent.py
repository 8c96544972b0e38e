"""A request that comes again to the next owner is answered as before, and is not applied twice."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from django_belay.contract.job import JSON, Job, Lease, NewJob
from django_belay.contract.outcome import Cancelled, Failed, Retried, Snoozed, Succeeded
from django_belay.storage.base import Ack, NewStep
from django_belay.storage.journal.serving import codec
from django_belay.storage.journal.serving.desk import Desk, Request
from django_belay.storage.journal.serving.operations import OPERATIONS
from django_belay.storage.journal.store import answered
from django_belay.storage.journal.store.store import JournalStore
from django_belay.testing.clock import SimClock
from tests.behaviour.driving import ack_of, add, claim, end, running, wait

CLIENT = "c" * 32


class Owned:
    """An owner that another can take over from, and a client's requests to it."""

    def __init__(self, own: Callable[[], JournalStore]) -> None:
        self._own = own
        self.store = own()
        self._desk = Desk(self.store)

    def take_over(self, leases: list[Lease]) -> None:
        """The next owner, which a client has told of its runs."""
        self.store.close()
        self.store = self._own()
        self.store.adopt_leases(leases)
        self._desk = Desk(self.store)

    def ask(self, number: int, name: str, *args: Any, is_resent: bool = False, **kwargs: Any) -> bytes:
        """The frame that answers a request."""
        operation = OPERATIONS[name]
        arguments = operation.decode_call(operation.encode_call(args, kwargs))
        return self._desk.answer(CLIENT, Request(number, operation, arguments, is_resent))


@pytest.fixture
def owned(own_journal: Callable[[], JournalStore]) -> Iterator[Owned]:
    owned = Owned(own_journal)
    yield owned
    owned.store.close()


def observables(store: JournalStore) -> tuple[JSON, ...]:
    """Everything that is there, but the answers and how long leases run."""
    found = {job_id: dict(store.memory.find(job_id) or {}) for job_id in store.memory.newest_first()}
    rows = {
        job_id: {**row, "lease_until": None} for job_id, row in found.items()
    }  # begins anew with an owner
    tables = {name: dict(store.memory.table(name)) for name in ("steps", "events", "signals", "rate")}
    return rows, tables, store.list_queues(), store.list_crons()


#: What is asked, of a job that runs, one that waits, and the clock. Whatever changes extended jobs or tables.
REQUESTS: dict[str, Callable[[Job, Job, SimClock], tuple[str, tuple[Any, ...], dict[str, Any]]]] = {
    "an event": lambda run, _, clock: ("append_event", (run.id, {"n": 1}), {"now": clock.now()}),
    "a step and its price": lambda run, _, clock: (
        "put_step", (run.id, NewStep(name="s", value=b"7", tokens=5)), {"now": clock.now()},
    ),
    "a debit": lambda *given: (
        "debit_rate", ("queue:q",), {"amount": 3, "period_s": 60, "now": given[2].now()},
    ),
    "a signal": lambda _, waiting, clock: (
        "put_signal", (f"job:{waiting.id}", "go", 1), {"to_job": True, "now": clock.now()},
    ),
    "an end": lambda run, _, clock: ("ack", (ack_of(run, Succeeded(b"1")),), {"now": clock.now()}),
    "a follow-up": lambda run, _, clock: (
        "ack", (ack_of(run, Succeeded(), NewJob(kind="next")),), {"now": clock.now()},
    ),
    "ends together": lambda run, waiting, clock: (
        "ack_group", ([ack_of(run), Ack(lease=Lease(job_id=waiting.id, attempt=1, leased_by="w"), outcome=Succeeded())],),
        {"now": clock.now()},
    ),
    "handed back": lambda run, _, clock: ("hand_back", ([Lease.of(run)],), {"now": clock.now()}),
    "a cancellation": lambda _, waiting, clock: (
        "request_cancel", (waiting.id,), {"reason": "enough", "now": clock.now()},
    ),
    "a frozen job": lambda _, waiting, clock: ("freeze", (waiting.id,), {"now": clock.now()}),
    "an erased payload": lambda _, waiting, clock: ("erase_payload", (waiting.id,), {"now": clock.now()}),
    "a paused queue": lambda *given: ("pause_queue", ("q",), {"now": given[2].now()}),
    "a deleted queue": lambda *_: ("delete_queue", ("there",), {}),
}  # fmt: skip


@pytest.mark.parametrize("what", REQUESTS)
def test_a_request_that_comes_again_is_not_applied_again(owned: Owned, clock: SimClock, what: str) -> None:
    run, parked = running(owned.store, clock, 2, meta={"extended": True}, unique_key=None, budget_tokens=100)
    end(owned.store, clock, parked, wait(parked))
    owned.store.put_queue("there", {"limit": 3}, now=clock.now())
    clock.advance(1)
    name, args, kwargs = REQUESTS[what](run, parked, clock)
    told = owned.ask(4, name, *args, **kwargs)
    before = observables(owned.store)
    owned.take_over([Lease.of(run)])
    assert owned.ask(4, name, *args, is_resent=True, **kwargs) == told
    owned.take_over([Lease.of(run)])
    assert observables(owned.store) == before


@pytest.mark.parametrize(
    "outcome",
    [
        Succeeded(b'"x"'),
        Cancelled(reason="no more"),
        lambda clock: Retried(error={"error": "E"}, ready_at=clock.now()),
        lambda clock: Snoozed(until=clock.now()),
        Failed(error={"error": "E"}),
    ],
    ids=["succeeded", "cancelled", "retried", "snoozed", "failed"],
)
def test_the_end_of_a_core_job_is_known_by_its_token(owned: Owned, clock: SimClock, outcome: Any) -> None:
    [run] = running(owned.store, clock)
    ack = ack_of(run, outcome(clock) if callable(outcome) else outcome)
    told = owned.ask(1, "ack", ack, now=clock.now())
    owned.take_over([])
    assert owned.ask(1, "ack", ack, is_resent=True, now=clock.now()) == told


def test_an_end_under_another_attempt_stays_stale(owned: Owned, clock: SimClock) -> None:
    [run] = running(owned.store, clock)
    end(owned.store, clock, run, Retried(error={"error": "E"}, ready_at=clock.now()))
    [again] = claim(owned.store, clock, queue="running")
    end(owned.store, clock, again)
    owned.take_over([])
    answer = owned.ask(1, "ack", ack_of(run), is_resent=True, now=clock.now())
    assert b"Stale" in answer


def test_the_answer_to_another_request_is_not_taken_for_it(owned: Owned, clock: SimClock) -> None:
    [run] = running(owned.store, clock)
    owned.ask(1, "append_event", run.id, "a", now=clock.now())
    owned.take_over([Lease.of(run)])
    owned.ask(2, "append_event", run.id, "b", is_resent=True, now=clock.now())
    assert [event.payload for event in owned.store.list_events(run.id)] == ["a", "b"]


def test_a_core_job_leaves_no_answer(owned: Owned, clock: SimClock) -> None:
    [run] = running(owned.store, clock)
    owned.ask(1, "ack", ack_of(run), now=clock.now())
    assert not owned.store.memory.table(answered.TABLE)


def test_answers_of_idle_clients_are_forgotten(owned: Owned, clock: SimClock) -> None:
    [old, new] = add(owned.store, clock, 2)
    owned.ask(1, "append_event", old, 1, now=clock.now())
    clock.advance(answered.IDLE_MS / 1000)
    owned.ask(2, "append_event", new, 2, now=clock.now())
    clock.advance(1)
    assert answered.idle_keys(owned.store.memory.table(answered.TABLE), now_ms=_ms(clock)) == []
    clock.advance(answered.IDLE_MS / 1000)
    assert len(answered.idle_keys(owned.store.memory.table(answered.TABLE), now_ms=_ms(clock))) == 1


def _ms(clock: SimClock) -> int:
    return codec.form_of(type(clock.now()), where="test").to_json(clock.now()) // 1000
