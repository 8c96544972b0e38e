"""Gathering jobs into calls, by a clock of the test's own."""

from __future__ import annotations

from django_belay.engine.gather import ChunkRun, Gatherer
from django_belay.engine.run import Run
from django_belay.exceptions import LeaseLost
from django_belay.registry import Chunk
from tests.unit.engine.making import NOW, make_definition, make_job


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


DEFINITION = make_definition(lambda ctx: None, chunk=Chunk(size=3, gather=1.0))


def run(job_id: int, queue: str = "q") -> Run:
    return Run(make_job(id=job_id, queue=queue), DEFINITION, claimed_at=NOW)


def ids(calls: list[ChunkRun]) -> list[list[int]]:
    return [[member.job.id for member in call.members] for call in calls]


def make(longest_s: float = 15.0) -> tuple[Gatherer, Clock]:
    clock = Clock()
    return Gatherer(longest_s=longest_s, monotonic=clock), clock


def test_full_call_is_due_at_once_and_each_call_takes_one_slot() -> None:
    gatherer, _ = make()
    assert [gatherer.add(run(number)) for number in range(1, 6)] == [True, False, False, True, False]
    assert gatherer.next_s() == 0.0
    assert ids(gatherer.due()) == [[1, 2, 3]]
    assert gatherer.due() == []
    assert gatherer.room("q") == 1


def test_other_call_is_due_after_its_time() -> None:
    gatherer, clock = make()
    gatherer.add(run(1))
    clock.now = 0.75
    gatherer.add(run(2))
    assert (gatherer.next_s(), gatherer.due()) == (0.25, [])
    clock.now = 1.0
    assert ids(gatherer.due()) == [[1, 2]]
    assert gatherer.next_s() is None


def test_gathering_is_bounded_by_half_the_lease() -> None:
    gatherer, clock = make(longest_s=0.5)
    gatherer.add(run(1))
    clock.now = 0.5
    assert ids(gatherer.due()) == [[1]]


def test_queues_are_gathered_apart() -> None:
    gatherer, _ = make()
    for number, queue in enumerate(("a", "b", "a")):
        gatherer.add(run(number, queue))
    assert sorted(ids(gatherer.due(all_=True))) == [[0, 2], [1]]


def test_call_stops_when_all_its_leases_are_lost() -> None:
    call = ChunkRun([run(1), run(2)])
    call.interrupt_member(1, "n:1:1", LeaseLost)
    assert [member.is_interrupted for member in call.members] == [True, False]
    assert not call.is_interrupted
    call.interrupt_member(2, "n:1:1", LeaseLost)
    assert call.is_interrupted


def test_job_whose_lease_is_lost_while_it_waits_is_known() -> None:
    gatherer, _ = make()
    gatherer.add(run(1))
    gatherer.add(run(2))
    gatherer.interrupt(1, "n:1:1", LeaseLost)
    [call] = gatherer.due(all_=True)
    assert [member.is_interrupted for member in call.members] == [True, False]
