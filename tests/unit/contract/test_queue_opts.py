"""``belay_queues.opts``: contract §3, rules 2 and 13."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from django_belay.contract.admission import Limits, Partition, Rate
from django_belay.contract.queue_opts import QueueOpts, parse, to_json

FULL: dict[str, Any] = {
    "limit": {"min": 2, "max": 20},
    "global_limit": 40,
    "rate": {"allowed": 100, "period": 60, "resource": "llm", "estimate": 3},
    "partition": ["input", "tenant"],
}


def test_opts_of_the_contract_come_back_as_they_were() -> None:
    found, findings = parse(FULL)
    assert findings == []
    assert found == QueueOpts(
        limit=(2, 20),
        limits=Limits(
            global_limit=40,
            rate=Rate(allowed=100, period_s=60, estimate=3, resource="llm"),
            partition=Partition(column="input", key="tenant"),
        ),
    )
    assert to_json(found) == FULL


def test_what_is_not_said_is_not_written() -> None:
    assert to_json(parse({"limit": 5, "global_limit": None})[0]) == {"limit": 5}
    assert to_json(parse({})[0]) == {}


def test_periods_are_whole_seconds() -> None:
    found, findings = parse({"rate": {"allowed": 1, "period": timedelta(minutes=1)}})
    assert not findings
    assert to_json(found) == {"rate": {"allowed": 1, "period": 60, "estimate": 1}}


@pytest.mark.parametrize(
    ("opts", "path"),
    [
        (7, ()),
        ({"limits": 1}, ("limits",)),
        ({"paused": True}, ("paused",)),
        ({"limit": -1}, ("limit",)),
        ({"limit": True}, ("limit",)),
        ({"limit": 10**9}, ("limit",)),
        ({"limit": {"min": 3, "max": 2}}, ("limit", "min")),
        ({"limit": {"least": 3}}, ("limit", "least")),
        ({"global_limit": 0}, ("global_limit",)),
        ({"global_limit": 2**31}, ("global_limit",)),
        ({"rate": 5}, ("rate",)),
        ({"rate": {"allowed": 1, "period": 0.5}}, ("rate", "period")),
        ({"rate": {"allowed": 1, "period": float("nan")}}, ("rate", "period")),
        ({"rate": {"allowed": 1, "period": 60, "resource": ""}}, ("rate", "resource")),
        ({"rate": {"allowed": 1, "period": 60, "estimate": -1}}, ("rate", "estimate")),
        ({"rate": {"allowed": 1, "period": 60, "burst": 2}}, ("rate", "burst")),
        ({"rate": {"allowed": 1, "period": 60, "resource": "\ud800"}}, ("rate", "resource")),
        ({"partition": ["errors", "x"]}, ("partition",)),
        ({"partition": ["input", "a\0"]}, ("partition",)),
        ({"partition": ["input", "x\udfff"]}, ("partition",)),
        ({"partition": "input"}, ("partition",)),
        ({"partition": ["input", "x", "y"]}, ("partition",)),
    ],
)
def test_what_does_not_fit_is_found_with_its_path(opts: Any, path: tuple[str, ...]) -> None:
    _, findings = parse(opts)
    assert path in [finding.path for finding in findings]


def test_a_bad_value_spoils_no_other() -> None:
    found, findings = parse({"limit": "many", "global_limit": 4, "colour": "red"})
    assert len(findings) == 2
    assert to_json(found) == {"global_limit": 4}


def test_a_row_goes_over_the_settings_key_by_key() -> None:
    base = parse({"limit": 3, "rate": {"allowed": 1, "period": 1}})[0]
    row = parse({"limit": 7, "partition": ["meta", "k"]})[0]
    assert to_json(row.over(base)) == {
        "limit": 7, "rate": {"allowed": 1, "period": 1, "estimate": 1}, "partition": ["meta", "k"],
    }  # fmt: skip
