"""Chunk jobs in a worker's child: one call over many rows, an end for each."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from django_belay.contract import envelope
from django_belay.engine.options import QueueOptions
from django_belay.exceptions import Cancel, Fail
from django_belay.registry import Chunk
from tests.behaviour.supervised import DEADLINE_S, MakeChild, Supervised, eventually


@dataclass
class Page:
    number: int
    title: str = "none"


def start(make_child: MakeChild, function: Callable[..., Any], count: int, **options: Any) -> Any:
    """A child of one chunk kind with so many jobs, each with its number as input."""
    chunk = options.pop("chunk", Chunk(size=count, gather=5.0))
    definition = {"chunk": chunk, "backoff": [0.0], **options.pop("definition", {})}
    child: Supervised = make_child(function, definition, **options)
    ids = [child.add(input={"number": number}) for number in range(count)]
    child.start()
    return child, ids


def states(child: Supervised, ids: list[int]) -> list[str]:
    return [child.state(job_id) for job_id in ids]


def results(child: Supervised, ids: list[int]) -> list[Any]:
    return [envelope.decode(child.bench.storage.get_job(job_id).result) for job_id in ids]


def ended(child: Supervised, ids: list[int]) -> None:
    eventually(lambda: not {"ready", "running"} & set(states(child, ids)))


def test_one_call_runs_many_jobs_and_gives_each_its_result(make_child: MakeChild) -> None:
    calls: list[list[int]] = []

    def job(ctx: Any, items: list[dict[str, int]]) -> list[int]:
        calls.append([row.id for row in ctx.jobs])
        return [item["number"] * 10 for item in items]

    child, ids = start(make_child, job, 5)
    ended(child, ids)
    assert calls == [ids]
    assert results(child, ids) == [0, 10, 20, 30, 40]


def test_items_come_typed_as_the_dataclass(make_child: MakeChild) -> None:
    seen: list[Page] = []

    def job(items: list[Page]) -> None:
        seen.extend(items)

    child, ids = start(make_child, job, 2)
    ended(child, ids)
    assert seen == [Page(0), Page(1)]


def test_what_gathers_too_slowly_runs_after_its_time(make_child: MakeChild) -> None:
    calls: list[int] = []

    def job(items: list[Page]) -> None:
        calls.append(len(items))

    child, ids = start(make_child, job, 3, chunk=Chunk(size=100, gather=0.1))
    ended(child, ids)
    assert sum(calls) == 3


def test_each_job_has_an_end_of_its_own(make_child: MakeChild) -> None:
    tries: list[int] = []

    def job(ctx: Any, items: list[Page]) -> list[Any]:
        tries.append(len(items))
        ctx.cancel_item(1, "not wanted")
        return ["ok", "ignored", ValueError("again"), Fail("never"), Cancel("no")][: len(items)]

    def again(ctx: Any, items: list[Page]) -> list[Any]:
        return job(ctx, items) if len(items) > 1 else ["second try"]

    child, ids = start(make_child, again, 5, chunk=Chunk(size=5, gather=0.3))
    ended(child, ids)
    assert states(child, ids) == ["succeeded", "cancelled", "succeeded", "failed", "cancelled"]
    row = child.bench.storage.get_job(ids[2])
    assert (row.attempt, row.errors[0]["type"]) == (2, "ValueError")
    assert results(child, [ids[2]]) == ["second try"]
    assert tries == [5]


def test_a_call_that_raises_fails_those_that_are_not_decided(make_child: MakeChild) -> None:
    def job(ctx: Any, items: list[Page]) -> None:
        ctx.succeed(0, "done")
        ctx.fail_item(1, "bad")
        raise RuntimeError("broke")

    child, ids = start(make_child, job, 3, definition={"give_up_on": (RuntimeError,)})
    ended(child, ids)
    assert states(child, ids) == ["succeeded", "failed", "failed"]
    errors = [child.bench.storage.get_job(job_id).errors for job_id in ids]
    assert [found[-1]["error"] if found else None for found in errors] == [None, "bad", "broke"]


def test_a_mapping_names_jobs_and_a_forgotten_one_is_not_done(make_child: MakeChild) -> None:
    def job(ctx: Any, items: list[Page]) -> dict[int, str]:
        return {ctx.jobs[0].id: "first"}

    child, ids = start(make_child, job, 2, definition={"give_up_on": (LookupError,)})
    ended(child, ids)
    assert states(child, ids) == ["succeeded", "failed"]
    assert "does not name this job" in child.bench.storage.get_job(ids[1]).errors[0]["error"]


def test_a_list_of_another_length_fails_all(make_child: MakeChild) -> None:
    child, ids = start(make_child, lambda items: [1], 2, definition={"give_up_on": (TypeError,)})
    ended(child, ids)
    assert states(child, ids) == ["failed", "failed"]
    assert "1 values for 2 jobs" in child.bench.storage.get_job(ids[0]).errors[0]["error"]


def test_an_input_that_does_not_fit_spoils_no_other(make_child: MakeChild) -> None:
    def job(items: list[Page]) -> list[int]:
        return [item.number for item in items]

    child: Supervised = make_child(job, {"chunk": Chunk(size=2, gather=5.0)})
    bad = child.add(input={"numbers": 1}, max_attempts=1)
    good = child.add(input={"number": 7})
    child.start()
    ended(child, [bad, good])
    assert states(child, [bad, good]) == ["failed", "succeeded"]


def test_a_call_is_one_slot_and_limits_count_rows(make_child: MakeChild) -> None:
    """Rule 12: demand is free slots × size."""
    go, sizes = threading.Event(), []

    def job(items: list[Page]) -> None:
        sizes.append(len(items))
        assert go.wait(DEADLINE_S)

    child, ids = start(
        make_child,
        job,
        30,
        chunk=Chunk(size=10, gather=0.1),
        concurrency=2,
        queues={"default": QueueOptions(limit=2)},
    )
    eventually(lambda: len(sizes) == 2)
    assert (sizes, child.child.slots.total) == ([10, 10], 2)
    assert states(child, ids).count("running") == 20
    go.set()
    ended(child, ids)
    assert sum(sizes) == 30


def test_a_global_limit_counts_the_rows_of_a_chunk(make_child: MakeChild) -> None:
    go, sizes = threading.Event(), []

    def job(items: list[Page]) -> None:
        sizes.append(len(items))
        assert go.wait(DEADLINE_S)

    child: Supervised = make_child(job, {"chunk": Chunk(size=10, gather=0.1)})
    child.bench.storage.put_queue("default", {"global_limit": 4}, now=child.bench.clock.now())
    ids = [child.add(input={"number": number}) for number in range(12)]
    child.start()
    eventually(lambda: sum(sizes) == 4)
    assert states(child, ids).count("running") == 4
    go.set()
    ended(child, ids)


def test_gathered_jobs_are_leased_and_handed_back_by_a_stop(make_child: MakeChild) -> None:
    ran: list[int] = []
    child, ids = start(
        make_child, lambda items: ran.append(len(items)), 2, chunk=Chunk(size=50, gather=600.0)
    )
    eventually(lambda: states(child, ids) == ["running", "running"])
    held = eventually(lambda: [m for m in child.messages if m["t"] == "held"])
    assert [entry[0] for message in held for entry in message["j"]] == ids
    child.stop()
    assert states(child, ids) in (["ready", "ready"], ["succeeded", "succeeded"])
    assert child.bench.storage.get_job(ids[0]).attempt == (1 if ran else 0)
