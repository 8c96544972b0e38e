"""Names that every SDK spells alike: contract §§6-9; rules 11, 20, 23, 26."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from django_belay.contract import names


def test_the_contracts_lock_strings() -> None:
    assert names.queue_lock("mail") == "belay:mail"
    assert names.scope_lock("job:7") == "belay_sig:job:7"
    assert names.workflow_lock("w") == "belay_wf:w"


def test_rule_20_our_own_lock_has_a_namespace_of_its_own() -> None:
    assert names.resource_lock("llm") == "belay_x_resource:llm"


def test_scopes_and_buckets() -> None:
    assert names.job_scope(7) == "job:7"
    assert names.workflow_scope("w") == "wf:w"
    assert names.queue_bucket("q") == "queue:q"
    assert names.resource_bucket("r") == "resource:r"


@pytest.mark.parametrize(
    ("workflow", "explicit", "scopes"),
    [
        (None, None, ("job:7",)),
        ("w", None, ("job:7", "wf:w")),
        ("w", "order:1", ("order:1", "job:7", "wf:w")),
        ("w", "wf:w", ("wf:w", "job:7")),
        (None, "job:7", ("job:7",)),
    ],
)
def test_rule_23_the_scopes_a_job_reads_the_winning_one_first(
    workflow: str | None, explicit: str | None, scopes: tuple[str, ...]
) -> None:
    assert names.read_scopes(7, workflow, explicit) == scopes


@given(st.integers(0, 2**63 - 1))
def test_a_job_scope_is_read_back(job_id: int) -> None:
    assert names.job_of_scope(names.job_scope(job_id)) == job_id


@given(st.text())
def test_any_other_scope_names_no_job_or_workflow(scope: str) -> None:
    job_id = names.job_of_scope(scope)
    assert job_id is None or names.job_scope(job_id) == scope
    workflow_id = names.workflow_of_scope(scope)
    assert workflow_id is None or names.workflow_scope(workflow_id) == scope


@pytest.mark.parametrize(
    "scope", ["job:", "job:07", "job:-1", "job:٣", "job:1 ", f"job:{2**63}", "JOB:1", "job:" + "9" * 5000]
)
def test_odd_scopes_name_no_job(scope: str) -> None:
    assert names.job_of_scope(scope) is None


@pytest.mark.parametrize(
    ("database", "channel"),
    [
        ("belay", "belay_belay"),
        ("My-App.db", "belay_My_App_db"),
        ("größe", "belay_gr__e"),
        ("x" * 80, "belay_" + "x" * 57),
    ],
)
def test_9_2_the_channel_by_example(database: str, channel: str) -> None:
    assert names.channel(database) == channel


@given(st.text(min_size=1))
def test_rule_11_a_channel_fits_postgresql(database: str) -> None:
    assert re.fullmatch(r"belay_[A-Za-z0-9_]{1,57}", names.channel(database))


def test_reserved_names() -> None:
    assert names.sleep_step("nap") == "$sleep:nap"
    assert names.spawn_step("fan") == "$spawn:fan"
    assert names.spawn_key(7, "fan", 0) == "$spawn:7:fan:0"
    assert names.await_step("go", 2) == "$await:go:2"
    assert names.await_until_step("go", 2) == "$await:go:2:until"
    assert all(names.is_reserved(name) for name in (names.CHILDREN_SIGNAL, names.STEER_SIGNAL, "$x"))
    assert not names.is_reserved("go")


def test_unique_sorts_and_drops_repetitions() -> None:
    assert names.unique(["b", "a", "b"]) == ("a", "b")
