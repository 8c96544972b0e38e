"""Which names and dependencies make a workflow: contract §8.3, §8.6."""

from __future__ import annotations

import time

import pytest

from django_belay.contract.settlement import Member
from django_belay.contract.workflow_graph import check_ignore, retriable, topological_order
from django_belay.exceptions import InvalidWorkflow


def test_dependencies_come_first_and_the_given_order_decides_between_equals() -> None:
    assert topological_order({"c": ["b"], "x": [], "b": ["a"], "a": []}) == ["x", "a", "b", "c"]


def test_a_dependency_named_twice_counts_once() -> None:
    assert topological_order({"a": [], "b": ["a", "a"]}) == ["a", "b"]


@pytest.mark.parametrize(
    ("deps", "said"),
    [
        ({"a": ["a"]}, "a → a"),
        ({"a": ["c"], "b": ["a"], "c": ["b"], "d": []}, "a → c → b → a"),
        ({"start": [], "x": ["start", "z"], "y": ["x"], "z": ["y"], "after": ["z"]}, "z → y → x → z"),
    ],
)
def test_a_cycle_is_named(deps: dict[str, list[str]], said: str) -> None:
    with pytest.raises(InvalidWorkflow, match=said):
        topological_order(deps)


def test_a_long_cycle_is_cut() -> None:
    ring = {str(n): [str((n + 1) % 1000)] for n in range(1000)}
    with pytest.raises(InvalidWorkflow, match="… 981 more"):
        topological_order(ring)


def test_an_unknown_dependency_is_named_with_the_nearest_member() -> None:
    with pytest.raises(InvalidWorkflow, match=r"'b' depends on 'ferch'.*did you mean 'fetch'"):
        topological_order({"fetch": [], "b": ["ferch"]})


def test_ten_thousand_members_and_edges_take_no_quadratic_time() -> None:
    deps = {str(n): [str(n - 1)] if n else [] for n in range(10_000)}
    deps["all"] = [str(n) for n in range(10_000)]
    began = time.perf_counter()
    assert topological_order(deps)[-1] == "all"
    assert time.perf_counter() - began < 2


def test_what_can_be_ignored_is_said() -> None:
    assert check_ignore("a", ["cancelled", "failed", "failed"]) == ("failed", "cancelled")
    assert check_ignore("a", "failed") == ("failed",)
    with pytest.raises(InvalidWorkflow, match="'a' ignores 'succeeded'; give 'failed' or 'cancelled'"):
        check_ignore("a", ["succeeded"])


def test_what_would_be_doomed_again_stays_out_of_a_retry() -> None:
    members = [
        Member(job_id=1, name="failed", state="failed"),
        Member(job_id=2, name="doomed", state="cancelled", deps=("failed",)),
        Member(job_id=3, name="stopped", state="cancelled"),
        Member(job_id=4, name="behind", state="cancelled", deps=("stopped", "doomed")),
        Member(job_id=5, name="last", state="cancelled", deps=("doomed",)),
    ]
    assert retriable(members[::-1], {1, 2, 4, 5}) == [1, 2, 5]
    everything = retriable(members, {1, 2, 3, 4, 5})
    assert everything.index(2) < everything.index(5)
    assert everything.index(3) < everything.index(4)


def test_a_foreign_workflow_with_a_cycle_is_retried_by_id() -> None:
    members = [
        Member(job_id=2, name="b", state="cancelled", deps=("a",)),
        Member(job_id=1, name="a", state="cancelled", deps=("b",)),
    ]
    assert retriable(members, {1, 2}) == [1, 2]
