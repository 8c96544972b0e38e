"""``ctx.step(…, atomic=True)``: the body's ORM work and the step commit together (rule 31)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from django.contrib.auth.models import Group
from django.db import transaction

from django_belay import db
from django_belay.contract.job import Lease
from django_belay.contract.money import Cost
from django_belay.engine.context import JobContext
from django_belay.storage.base import NewStep
from django_belay.testing.clock import SimClock
from tests.behaviour.running import Workbench

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.postgres]


@pytest.fixture
def bench() -> Iterator[Workbench]:
    storage = db.storage_for_worker(pool_size=3)
    yield Workbench(storage, SimClock())
    storage.close()


def groups() -> list[str]:
    return sorted(Group.objects.values_list("name", flat=True))


def create(name: str) -> str:
    Group.objects.create(name=name)
    return name


def test_work_and_step_commit_together(bench: Workbench) -> None:
    row = bench.run_once(lambda ctx: ctx.step("a", create, "x", atomic=True, cost=Cost(tokens=3)))
    assert (row.state, row.spent_tokens, groups()) == ("succeeded", 3, ["x"])
    assert [step.name for step in bench.storage.get_steps(row.id)] == ["a"]


def test_an_error_of_the_body_rolls_both_back(bench: Workbench) -> None:
    def body() -> None:
        create("x")
        raise ValueError("after the insert")

    row = bench.run_once(lambda ctx: ctx.step("a", body, atomic=True))
    assert (row.state, groups(), bench.storage.get_steps(row.id)) == ("ready", [], [])


def test_a_step_that_another_run_journaled_rolls_the_body_back(bench: Workbench) -> None:
    def body(ctx: JobContext) -> str:
        create("ours")
        step = NewStep(name="a", value=b'"theirs"')
        bench.storage.put_step(ctx.id, step, now=bench.clock.now())
        return "ours"

    row = bench.run_once(lambda ctx: ctx.step("a", body, ctx, atomic=True))
    assert (row.state, row.result, groups()) == ("succeeded", b'"theirs"', [])


def test_a_value_that_does_not_fit_rolls_the_body_back(bench: Workbench) -> None:
    def body() -> Any:
        create("x")
        return object()

    assert bench.run_once(lambda ctx: ctx.step("a", body, atomic=True)).state == "failed"
    assert groups() == []


def test_inside_an_open_transaction_it_is_an_error(bench: Workbench) -> None:
    def job(ctx: JobContext) -> None:
        with transaction.atomic():
            ctx.step("a", create, "x", atomic=True)

    row = bench.run_once(job)
    assert (row.state, groups()) == ("failed", [])
    assert "transaction" in row.errors[0]["error"]


def test_the_lease_can_be_renewed_while_the_body_runs(bench: Workbench) -> None:
    """The job's row is locked only between the step's insert and the commit."""
    renewed: list[frozenset[int]] = []

    def body(ctx: JobContext) -> None:
        create("x")
        lease = Lease.of(ctx.job)
        until = bench.clock.now() + bench.services.options.lease_ttl
        renewed.append(bench.storage.renew_leases([lease], until=until).renewed)

    row = bench.run_once(lambda ctx: ctx.step("a", body, ctx, atomic=True))
    assert renewed == [frozenset({row.id})]


def test_a_cancel_during_the_body_stops_after_the_commit(bench: Workbench) -> None:
    def body(ctx: JobContext) -> None:
        create("x")
        bench.storage.request_cancel(ctx.id, reason="operator", now=bench.clock.now())

    row = bench.run_once(lambda ctx: ctx.step("a", body, ctx, atomic=True))
    assert (row.state, groups()) == ("cancelled", ["x"])
