"""Children as a job spawns and awaits them (§8.4; rules 3, 21, 32, 36)."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from django_belay.contract import envelope
from django_belay.contract.job import Job, Lease
from django_belay.contract.names import spawn_key
from django_belay.contract.outcome import Succeeded
from django_belay.engine.context import JobContext
from django_belay.exceptions import ChildrenFailed, JobCancelled, JobFailed
from django_belay.registry import JobOptions, Unique
from django_belay.storage.base import Ack, ClaimRound, Demand, NewStep, Storage
from django_belay.testing.clock import SimClock
from tests.behaviour.running import Workbench


@pytest.fixture
def bench(store: Storage, clock: SimClock) -> Workbench:
    return Workbench(store, clock)


def double(n: int) -> int:
    return 2 * n


def picky(n: int) -> int:
    if n < 0:
        raise ValueError(f"{n} is negative")
    return n


def inputs(count: int) -> list[dict[str, Any]]:
    return [{"n": n} for n in range(count)]


def parent_of(bench: Workbench, function: Any, **fields: Any) -> int:
    """A parent in the queue ``parents``, with children of the kinds ``double`` and ``picky`` at hand."""
    bench.define(function, "parent")
    bench.define(double, "double")
    bench.define(picky, "picky")
    return bench.add("parent", priority=-1, **fields)


def run_all(bench: Workbench, limit: int = 1000) -> int:
    """Run whatever is due, one by one; how many runs."""
    for runs in range(limit):
        try:
            bench.run()
        except ValueError:  # nothing was claimed
            return runs
    raise AssertionError("does not end")


def result(bench: Workbench, job_id: int) -> Any:
    row = bench.storage.get_job(job_id)
    assert row.state == "succeeded", (row.state, row.errors)
    return envelope.decode(row.result)


def children(bench: Workbench, job_id: int) -> list[Job]:
    return bench.storage.children(job_id)


def test_8_4_results_come_in_the_order_of_the_inputs(bench: Workbench) -> None:
    parent = parent_of(bench, lambda ctx: ctx.map_children("fan", "double", [{"n": n} for n in (5, 1, 9)]))
    row = bench.run()
    assert (row.state, row.await_scope, row.await_name, row.attempt) == (
        "awaiting", f"job:{parent}", "$children", 0,
    )  # fmt: skip
    for child in reversed(children(bench, parent)):
        bench.storage.move(child.id, priority=-child.id, now=bench.clock.now())
    run_all(bench)
    assert result(bench, parent) == [10, 2, 18]
    assert [c.unique_key for c in children(bench, parent)] == [spawn_key(parent, "fan", n) for n in range(3)]
    assert {c.unique_mode for c in children(bench, parent)} == {"always"}


def test_ten_thousand_children_of_one_call_come_back_in_order(bench: Workbench, connection: Any) -> None:
    count = 10_000
    bench.define(lambda ctx: ctx.map_children("fan", "double", inputs(count)), "parent")
    bench.define(double, "double", queue="children")
    parent = bench.add("parent")
    assert bench.run().state == "awaiting"
    while claimed := claim_children(bench, take=1_000):
        acks = [
            Ack(lease=Lease.of(job), outcome=Succeeded(envelope.encode(double(**job.input))))
            for job in claimed
        ]
        bench.storage.ack_group(acks, now=bench.clock.now())
    bench.run()
    assert result(bench, parent) == [2 * n for n in range(count)]


def claim_children(bench: Workbench, *, take: int) -> list[Job]:
    now = bench.clock.now()
    round_ = ClaimRound(leased_by="many:1:1", lease_until=now + timedelta(minutes=5))
    return bench.storage.claim(round_, demands=[Demand(queue="children", take=take)], now=now).jobs


def test_zero_children_return_at_once(bench: Workbench) -> None:
    parent = parent_of(bench, lambda ctx: [ctx.map_children("fan", "double", []), ctx.wait_children()])
    assert bench.run().state == "succeeded"
    assert result(bench, parent) == [[], []]


def test_8_4_a_crash_between_insert_and_journal_spawns_nothing_twice(
    bench: Workbench, clock: SimClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also when the insert was a part of the children only."""
    monkeypatch.setattr("django_belay.engine.children.CHUNK", 4)
    parent = parent_of(bench, lambda ctx: ctx.map_children("fan", "double", inputs(10)))
    insert, chunks = bench.storage.insert_jobs, []

    def dies(jobs: Any, *, now: Any) -> Any:
        chunks.append(insert(jobs, now=now))
        if len(chunks) == 2:
            raise KeyboardInterrupt
        return chunks[-1]

    monkeypatch.setattr(bench.storage, "insert_jobs", dies)
    bench.execute()  # the process dies; its ack is lost
    assert len(children(bench, parent)) == 8
    monkeypatch.setattr(bench.storage, "insert_jobs", insert)
    clock.advance(60)
    bench.storage.reclaim_expired(now=clock.now(), backoff=lambda n: timedelta(0))
    run_all(bench)
    assert result(bench, parent) == [2 * n for n in range(10)]
    assert len(children(bench, parent)) == 10


def test_8_4_an_answer_that_was_lost_spawns_nothing_twice(bench: Workbench, clock: SimClock) -> None:
    parent = parent_of(bench, lambda ctx: ctx.map_children("fan", "double", inputs(3)))
    bench.execute()  # journaled, its park is lost
    clock.advance(60)
    bench.storage.reclaim_expired(now=clock.now(), backoff=lambda n: timedelta(0))
    run_all(bench)
    assert result(bench, parent) == [0, 2, 4]
    assert len(children(bench, parent)) == 3


def test_a_spawn_that_an_earlier_attempt_began_with_more_inputs_fails_loudly(
    bench: Workbench, clock: SimClock
) -> None:
    parent = parent_of(bench, lambda ctx: ctx.map_children("fan", "double", inputs(3)))
    bench.add(
        "double",
        input={"n": 1},
        parent_id=parent,
        unique_key=spawn_key(parent, "fan", 3),
        unique_mode="always",
    )
    row = bench.run()
    assert row.state == "failed"
    assert row.errors[0]["type"].endswith("SpawnChanged")


def test_a_key_that_another_job_holds_is_no_child(bench: Workbench) -> None:
    parent = parent_of(bench, lambda ctx: ctx.map_children("fan", "double", inputs(1)))
    bench.add("double", queue="x", unique_key=spawn_key(parent, "fan", 0), unique_mode="always")
    row = bench.run()
    assert row.errors[0]["type"].endswith("Conflict")


def test_a_child_inherits_nothing(bench: Workbench) -> None:
    parent = parent_of(
        bench, lambda ctx: ctx.spawn("one", "double", {"n": 1}), queue="default", meta={"m": 1},
        workflow_id="w", wf_name="a", budget_tokens=9, max_attempts=3, partition_key="p",
    )  # fmt: skip
    bench.run()
    [child] = children(bench, parent)
    assert result(bench, parent) == child.id
    assert (child.priority, child.meta, child.workflow_id, child.budget_tokens, child.partition_key) == (
        0, {}, None, None, None,
    )  # fmt: skip
    assert child.max_attempts == 20


class Function:
    """What ``@job`` makes, as far as the engine knows it."""

    def __init__(self, bench: Workbench, kind: str, **options: Any) -> None:
        self.definition = bench.services.registry.get(kind)
        self.options = JobOptions(**options)


def test_a_child_has_the_options_of_its_own_job(bench: Workbench, clock: SimClock) -> None:
    def parent(ctx: JobContext) -> int:
        job = Function(
            bench, "double", queue="side", priority=7, meta={"of": "child"}, max_attempts=2,
            run_after=timedelta(seconds=9), partition_key=lambda n: f"p{n}",
        )  # fmt: skip
        return ctx.spawn("one", job, {"n": 1})

    job_id = parent_of(bench, parent)
    bench.run()
    [child] = children(bench, job_id)
    assert (child.queue, child.priority, child.meta, child.max_attempts, child.partition_key) == (
        "side", 7, {"of": "child"}, 2, "p1",
    )  # fmt: skip
    assert child.ready_at == clock.now() + timedelta(seconds=9)


def test_a_foreign_kind_is_spawned_with_its_input_as_it_is(bench: Workbench) -> None:
    parent = parent_of(bench, lambda ctx: ctx.spawn("mail", "MyApp.Mailer", {"to": [7]}))
    bench.run()
    [child] = children(bench, parent)
    assert (child.kind, child.input) == ("MyApp.Mailer", {"to": [7]})


def test_one_input_that_does_not_fit_spawns_nothing(bench: Workbench) -> None:
    parent = parent_of(bench, lambda ctx: ctx.spawn_many("fan", "double", [{"n": 1}, {"n": "x"}]))
    row = bench.run()
    assert "inputs[1]" in row.errors[0]["error"]
    assert children(bench, parent) == []


@pytest.mark.parametrize("key", ["", 7, b"p"])
def test_a_callable_partition_key_gives_a_text_as_at_any_enqueue(bench: Workbench, key: Any) -> None:
    def spawning(ctx: JobContext) -> int:
        return ctx.spawn("one", Function(bench, "double", partition_key=lambda n: key), {"n": 1})

    parent = parent_of(bench, spawning)
    row = bench.run()
    assert "give a text or None" in row.errors[0]["error"]
    assert children(bench, parent) == []


def test_an_oversized_input_is_refused(store: Storage, clock: SimClock) -> None:
    bench = Workbench(store, clock, max_input_bytes=20)
    parent_of(bench, lambda ctx: ctx.spawn("fan", "Foreign", {"text": "x" * 20}))
    assert bench.run().errors[0]["type"].endswith("PayloadTooLarge")


@pytest.mark.parametrize("name", ["", "$x", 7, "n" * 256])
def test_a_bad_name_is_refused(bench: Workbench, name: Any) -> None:
    def parent(ctx: JobContext) -> None:
        with pytest.raises(ValueError, match="name"):
            ctx.spawn(name, "double", {"n": 1})

    parent_of(bench, parent)
    assert bench.run().state == "succeeded"


def test_what_is_no_job_is_refused(bench: Workbench) -> None:
    parent_of(bench, lambda ctx: ctx.spawn("a", double, {"n": 1}))  # type: ignore[arg-type]
    assert bench.run().errors[0]["type"] == "TypeError"


def test_a_job_with_a_unique_key_of_its_own_is_refused(bench: Workbench) -> None:
    parent_of(bench, lambda ctx: ctx.spawn("a", Function(bench, "double", unique=Unique("k")), {"n": 1}))
    assert bench.run().errors[0]["type"].endswith("ConfigurationError")


# -- failures are seen


def failing(bench: Workbench, function: Any) -> int:
    parent = parent_of(bench, function)
    bench.run()
    good, bad, gone = children(bench, parent)
    bench.storage.request_cancel(gone.id, reason="enough", now=bench.clock.now())
    assert (good.state, bad.state) == ("ready", "ready")
    run_all(bench)
    return parent


def three(ctx: JobContext, **options: Any) -> Any:
    job = [{"n": 1}, {"n": -1}, {"n": 2}]
    return ctx.map_children("fan", "picky", job, **options)


def once(bench: Workbench) -> None:
    for definition in list(bench.services.registry):
        object.__setattr__(definition, "options", JobOptions(max_attempts=1, give_up_on=(ValueError,)))


def test_children_that_failed_fail_their_parent_once(bench: Workbench) -> None:
    def parent(ctx: JobContext) -> Any:
        once(bench)
        return three(ctx)

    job_id = failing(bench, parent)
    row = bench.storage.get_job(job_id)
    assert (row.state, row.attempt) == ("failed", 1)
    assert row.errors[0]["type"].endswith("ChildrenFailed")
    assert "-1 is negative" in row.errors[0]["error"]
    assert "enough" in row.errors[0]["error"]


def test_the_error_lists_the_children_and_has_the_other_results(bench: Workbench) -> None:
    seen: list[ChildrenFailed] = []

    def parent(ctx: JobContext) -> Any:
        once(bench)
        try:
            return three(ctx)
        except ChildrenFailed as error:
            seen.append(error)
            return "handled"

    job_id = failing(bench, parent)
    assert result(bench, job_id) == "handled"
    [error] = seen
    _, bad, gone = children(bench, job_id)
    assert [(type(f), f.job_id) for f in error.failures] == [(JobFailed, bad.id), (JobCancelled, gone.id)]
    assert error.results == [1, *error.failures]


def test_failed_children_can_be_taken_as_values(bench: Workbench) -> None:
    def parent(ctx: JobContext) -> Any:
        once(bench)
        return [str(type(r).__name__) for r in three(ctx, return_exceptions=True)]

    assert result(bench, failing(bench, parent)) == ["int", "JobFailed", "JobCancelled"]


def test_a_retried_child_and_then_its_parent_succeed(bench: Workbench, clock: SimClock) -> None:
    fail = [True]

    def parent(ctx: JobContext) -> Any:
        return ctx.map_children("fan", "flaky", [{}])

    def flaky(ctx: JobContext) -> str:
        if fail.pop():
            ctx.fail("not yet")
        return "done"

    fail.insert(0, False)
    job_id = parent_of(bench, parent)
    bench.define(flaky, "flaky")
    run_all(bench)
    assert bench.storage.get_job(job_id).state == "failed"
    [child] = children(bench, job_id)
    bench.storage.retry(child.id, now=clock.now())
    bench.storage.retry(job_id, now=clock.now())
    run_all(bench)
    assert result(bench, job_id) == ["done"]


def test_32_a_child_that_is_gone_fails_loudly(bench: Workbench, connection: Any) -> None:
    parent = parent_of(bench, lambda ctx: ctx.map_children("fan", "double", inputs(2)))
    bench.run()
    [gone, _] = children(bench, parent)
    connection.execute("DELETE FROM belay_jobs WHERE id = %s", [gone.id])
    run_all(bench)
    row = bench.storage.get_job(parent)
    assert (row.state, row.attempt) == ("failed", 1)
    assert str(gone.id) in row.errors[0]["error"]


# -- rule 32


def test_32_a_parent_that_one_child_woke_does_not_run_while_another_is_left(bench: Workbench) -> None:
    runs: list[int] = []
    started: list[int] = []

    def parent(ctx: JobContext) -> Any:
        runs.append(ctx.id)
        return ctx.map_children("fan", "double", inputs(3))

    bench.hook(job_started=lambda ctx: started.append(ctx.id))
    job_id = parent_of(bench, parent)
    claims = run_all(bench)
    assert claims == 1 + 3 + 3
    assert result(bench, job_id) == [0, 2, 4]
    assert len(runs) == started.count(job_id) == 2
    assert bench.storage.get_job(job_id).attempt == 1


def test_32_a_parent_that_waits_for_a_signal_runs_though_a_child_is_left(bench: Workbench) -> None:
    def parent(ctx: JobContext) -> Any:
        ctx.spawn_many("fan", "double", inputs(2))
        return ctx.wait_signal("go")

    job_id = parent_of(bench, parent)
    bench.run()
    bench.storage.put_signal(f"job:{job_id}", "go", 7, now=bench.clock.now())
    bench.run()
    assert result(bench, job_id) == 7


@pytest.mark.parametrize("name", ["b", "b:1"])
def test_32_a_wait_for_one_spawn_is_not_held_up_by_another(bench: Workbench, name: str) -> None:
    def parent(ctx: JobContext) -> Any:
        ctx.spawn("b:1" if name == "b" else "b", "Foreign.Kind", {})
        ctx.spawn_many(name, "double", inputs(2))
        return ctx.wait_children(name)

    job_id = parent_of(bench, parent)
    bench.run()
    [other, *_] = children(bench, job_id)
    bench.storage.move(other.id, queue="elsewhere", now=bench.clock.now())
    run_all(bench)
    assert result(bench, job_id) == [0, 2]
    assert bench.storage.get_job(other.id).state == "ready"


def test_32_a_wait_that_is_over_does_not_look_at_later_children(bench: Workbench) -> None:
    def parent(ctx: JobContext) -> Any:
        first = ctx.map_children("a", "double", inputs(2))
        later = ctx.spawn("b", "Foreign.Kind", {})
        bench.storage.move(later, queue="elsewhere", now=bench.clock.now())
        return [first, ctx.wait_signal("go")]

    job_id = parent_of(bench, parent)
    run_all(bench)
    bench.storage.put_signal(f"job:{job_id}", "go", 7, now=bench.clock.now())
    run_all(bench)
    assert result(bench, job_id) == [[0, 2], 7]


def test_wait_children_takes_all_spawns_so_far(bench: Workbench) -> None:
    def parent(ctx: JobContext) -> Any:
        ctx.spawn_many("a", "double", inputs(2))
        ctx.spawn("b", "double", {"n": 10})
        first = ctx.wait_children()
        ctx.spawn("c", "double", {"n": 20})
        return [first, ctx.wait_children(), ctx.wait_children("a")]

    job_id = parent_of(bench, parent)
    run_all(bench)
    assert result(bench, job_id) == [[0, 2, 20], [0, 2, 20, 40], [0, 2]]


def test_waiting_for_a_spawn_that_was_not_made_is_an_error(bench: Workbench) -> None:
    parent_of(bench, lambda ctx: ctx.wait_children("x"))
    assert "'x'" in bench.run().errors[0]["error"]


def test_trees_nest(bench: Workbench) -> None:
    def tree(ctx: JobContext, depth: int) -> int:
        if depth == 0:
            return 1
        return sum(ctx.map_children("down", "tree", [{"depth": depth - 1}] * 2))

    bench.define(tree, "tree")
    root = bench.add("tree", input={"depth": 3})
    run_all(bench)
    assert result(bench, root) == 8


def test_36_cancelling_with_the_tree_cancels_every_descendant(bench: Workbench, clock: SimClock) -> None:
    def tree(ctx: JobContext, depth: int) -> Any:
        return (
            ctx.map_children("down", "tree", [{"depth": depth - 1}] * 2) if depth else ctx.wait_signal("go")
        )

    bench.define(tree, "tree")
    root = bench.add("tree", input={"depth": 2})
    run_all(bench)
    bench.storage.request_cancel(root, reason="enough", tree=True, now=clock.now())
    below = children(bench, root)
    rows = [bench.storage.get_job(root), *below, *(leaf for row in below for leaf in children(bench, row.id))]
    assert [row.state for row in rows] == ["cancelled"] * 7


def test_3_a_foreign_spawn_is_not_interpreted(bench: Workbench, clock: SimClock) -> None:
    def parent(ctx: JobContext) -> Any:
        if ctx.job.ready_at == ctx.job.inserted_at:
            ctx.snooze(1)
        return ctx.map_children("fan", "double", inputs(2))

    job_id = parent_of(bench, parent)
    step = NewStep(name="$spawn:fan", value=envelope.encode({"ids": [1]}))
    bench.storage.put_step(job_id, step, now=clock.now())
    bench.run()
    clock.advance(1)
    row = bench.run()
    assert row.errors[-1]["type"].endswith("ForeignReservedStep")
    assert children(bench, job_id) == []
