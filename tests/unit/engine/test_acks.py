"""The acknowledger against a storage that fails in every way the protocol allows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any

import pytest

from django_belay.contract.job import Lease
from django_belay.contract.outcome import Failed, Succeeded
from django_belay.engine.acks import Acknowledger
from django_belay.exceptions import Contended, StorageError, Unavailable
from django_belay.storage.base import Ack, AckGroupError, AckResult, Applied, Stale
from django_belay.testing.clock import SimClock
from tests.unit.engine.making import make_lease


class FakeStorage:
    """Only what the acknowledger asks; no other part can be made to fail like this on purpose."""

    def __init__(self) -> None:
        self.is_down = False
        self.poison: set[int] = set()
        self.stale: set[int] = set()
        self.held: set[int] = set()
        self.names_members = True
        self.written: list[Ack] = []
        self.groups: list[int] = []

    def ack(self, ack: Ack, *, now: datetime) -> AckResult:
        job_id = ack.lease.job_id
        if self.is_down:
            raise Unavailable("down")
        if job_id in self.held:
            raise Contended("held")
        if self._refuses(ack):
            raise StorageError("refused")
        if job_id in self.stale:
            return Stale(job_id)
        self.written.append(ack)
        return Applied(job_id, "succeeded")

    def _refuses(self, ack: Ack) -> bool:
        return ack.lease.job_id in self.poison and isinstance(ack.outcome, Succeeded)

    def ack_group(self, acks: Sequence[Ack], *, now: datetime) -> list[AckResult]:
        self.groups.append(len(acks))
        if self.is_down:
            raise Unavailable("down")
        if not self.names_members and any(self._refuses(ack) for ack in acks):
            raise StorageError("refused")
        results: list[AckResult | None] = []
        failures: dict[int, Exception] = {}
        for index, ack in enumerate(acks):
            try:
                results.append(self.ack(ack, now=now))
            except StorageError as error:
                results.append(None)
                failures[index] = error
        if failures:
            raise AckGroupError(results, failures)
        return [result for result in results if result is not None]


@pytest.fixture
def storage() -> FakeStorage:
    return FakeStorage()


@pytest.fixture
def done() -> list[Lease]:
    return []


@pytest.fixture
def late() -> list[Lease]:
    return []


MakeAcks = Callable[..., Acknowledger]


@pytest.fixture
def make_acks(storage: FakeStorage, done: list[Lease], late: list[Lease]) -> MakeAcks:
    def make(retry_s: float = 900.0) -> Acknowledger:
        fake: Any = storage
        return Acknowledger(fake, SimClock(), retry_s=retry_s, on_done=done.extend, on_delayed=late.extend)

    return make


def put(acks: Acknowledger, *job_ids: int) -> None:
    for job_id in job_ids:
        acks.put(Ack(lease=make_lease(job_id), outcome=Succeeded(b"1")))


def turn_until_written(acks: Acknowledger, turns: int = 200) -> None:
    for _ in range(turns):
        if not acks.pending:
            return
        acks.turn()
    raise AssertionError(f"{acks.pending} acks are left")


def test_what_waits_is_written_as_one_group(
    make_acks: MakeAcks, storage: FakeStorage, done: list[Lease]
) -> None:
    acks = make_acks()
    put(acks, 1, 2, 3)
    acks.turn()
    assert storage.groups == [3]
    assert [lease.job_id for lease in done] == [1, 2, 3]
    assert (acks.pending, acks.applied) == (0, 3)


def test_stale_acks_are_discarded_silently(
    make_acks: MakeAcks, storage: FakeStorage, done: list[Lease], caplog: pytest.LogCaptureFixture
) -> None:
    acks = make_acks()
    storage.stale = {2}
    put(acks, 1, 2)
    acks.turn()
    assert (acks.applied, acks.stale, len(done)) == (1, 1, 2)
    assert not caplog.records


def test_an_outage_keeps_acks_and_is_said_once(
    make_acks: MakeAcks, storage: FakeStorage, late: list[Lease], caplog: pytest.LogCaptureFixture
) -> None:
    acks = make_acks()
    storage.is_down = True
    put(acks, 1, 2)
    acks.turn()
    put(acks, 3)
    acks.turn()
    acks.turn()
    assert acks.pending == 3
    assert {lease.job_id for lease in late} == {1, 2, 3}
    storage.is_down = False
    turn_until_written(acks)
    assert sorted(ack.lease.job_id for ack in storage.written) == [1, 2, 3]
    assert sum("kept back" in record.message for record in caplog.records) == 1


def test_acks_are_given_up_after_their_time(
    make_acks: MakeAcks, storage: FakeStorage, done: list[Lease], caplog: pytest.LogCaptureFixture
) -> None:
    acks = make_acks(retry_s=0.0)
    storage.is_down = True
    put(acks, 1)
    turn_until_written(acks)
    assert not storage.written
    assert [lease.job_id for lease in done] == [1]
    assert "are dropped" in caplog.text


@pytest.mark.parametrize("names_members", [True, False])
def test_a_poison_ack_becomes_a_failure_and_holds_up_no_other(
    make_acks: MakeAcks, storage: FakeStorage, names_members: bool
) -> None:
    """Rule 25: failing to store an end must not keep a job alive."""
    acks = make_acks()
    storage.poison, storage.names_members = {2}, names_members
    put(acks, 1, 2, 3)
    turn_until_written(acks)
    outcomes = {ack.lease.job_id: type(ack.outcome) for ack in storage.written}
    assert outcomes == {1: Succeeded, 3: Succeeded, 2: Failed}


def test_a_job_claimed_again_drops_its_pending_ack(
    make_acks: MakeAcks, storage: FakeStorage, done: list[Lease]
) -> None:
    """Rule 15."""
    acks = make_acks()
    storage.is_down = True
    put(acks, 1, 2)
    acks.turn()
    acks.forget({1})
    storage.is_down = False
    turn_until_written(acks)
    assert [ack.lease.job_id for ack in storage.written] == [2]
    assert sorted(lease.job_id for lease in done) == [1, 2]


def test_a_held_row_holds_back_no_other_end(
    make_acks: MakeAcks, storage: FakeStorage, late: list[Lease], caplog: pytest.LogCaptureFixture
) -> None:
    """Somebody looks at one job with FOR UPDATE: that is no outage."""
    acks = make_acks()
    storage.held = {1}
    put(acks, 1, 2)
    acks.turn()
    put(acks, 3)
    acks.turn()
    assert [ack.lease.job_id for ack in storage.written] == [2, 3]
    assert [lease.job_id for lease in late] == [1]
    assert not caplog.records
    storage.held = set()
    turn_until_written(acks)
    assert [ack.lease.job_id for ack in storage.written] == [2, 3, 1]


def test_an_end_that_is_held_alone_is_no_outage(make_acks: MakeAcks, storage: FakeStorage) -> None:
    acks = make_acks()
    storage.held = {1}
    put(acks, 1)
    acks.turn()
    put(acks, 2)
    acks.turn()
    assert [ack.lease.job_id for ack in storage.written] == [2]
