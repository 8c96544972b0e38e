"""The BELAY setting: defaults, durations, findings."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.test import override_settings

from django_belay import conf
from django_belay.contract.admission import Partition, Rate
from django_belay.exceptions import ConfigurationError


def problems(**belay: object) -> dict[str, str]:
    """Findings by path."""
    return {problem.path: str(problem) for problem in conf.read(belay)[1]}


def test_every_key_is_optional() -> None:
    found, wrong = conf.read({})
    assert wrong == []
    assert found.lease_ttl == 30
    assert found.queues["default"].limit == (10, 10)
    assert found.retention == {
        "succeeded": timedelta(days=1), "failed": timedelta(days=7), "cancelled": timedelta(days=7),
    }  # fmt: skip


def test_durations_are_seconds_or_timedeltas() -> None:
    found, wrong = conf.read(
        {"LEASE_TTL": timedelta(minutes=1), "IDLE_POLL": 1, "RETENTION": {"failed": None}}
    )
    assert wrong == []
    assert (found.lease_ttl, found.idle_poll, found.retention["failed"]) == (60.0, 1.0, None)
    assert found.retention["succeeded"] == timedelta(days=1)


def test_queues_take_a_number_or_options() -> None:
    options = {
        "limit": {"min": 2, "max": 20}, "global_limit": 40, "partition": ("input", "tenant"),
        "rate": {"allowed": 2_000_000, "period": 60, "resource": "llm", "estimate": 3000},
        "notify": "off", "paused": True,
    }  # fmt: skip
    found, wrong = conf.read({"QUEUES": {"mail": 5, "ai": options}})
    assert wrong == []
    assert found.queues["mail"].limit == (5, 5)
    assert "default" not in found.queues
    ai = found.queues["ai"]
    assert (ai.limit, ai.limits.global_limit, ai.notify, ai.paused) == ((2, 20), 40, "off", True)
    assert ai.limits.partition == Partition(column="input", key="tenant")
    assert ai.limits.rate == Rate(allowed=2_000_000, period_s=60, estimate=3000, resource="llm")


@pytest.mark.parametrize(
    ("belay", "path"),
    [
        ({"QEUES": {}}, 'BELAY["QEUES"]'),
        ({"LEASE_TTL": "30"}, 'BELAY["LEASE_TTL"]'),
        ({"LEASE_TTL": True}, 'BELAY["LEASE_TTL"]'),
        ({"CONCURRENCY": 0}, 'BELAY["CONCURRENCY"]'),
        ({"SHUTDOWN_GRACE": -1}, 'BELAY["SHUTDOWN_GRACE"]'),
        ({"MAX_STEP_BYTES": 1_048_577}, 'BELAY["MAX_STEP_BYTES"]'),
        ({"NOTIFY": "sometimes"}, 'BELAY["NOTIFY"]'),
        ({"STORAGE": {"BACKEND": "redis"}}, 'BELAY["STORAGE"]["BACKEND"]'),
        ({"STORAGE": {"OPTIONS": {"databse": "x"}}}, 'BELAY["STORAGE"]["OPTIONS"]["databse"]'),
        ({"STORAGE": {"BACKEND": conf.JOURNAL}}, 'BELAY["STORAGE"]["OPTIONS"]["directory"]'),
        ({"QUEUES": {"a": {"limits": 3}}}, 'BELAY["QUEUES"]["a"]["limits"]'),
        ({"QUEUES": {"a": {"limit": {"min": 3, "max": 2}}}}, 'BELAY["QUEUES"]["a"]["limit"]["min"]'),
        ({"QUEUES": {"a": {"rate": {"allowed": 1}}}}, 'BELAY["QUEUES"]["a"]["rate"]["period"]'),
        ({"QUEUES": {"a": {"partition": ("errors", "x")}}}, 'BELAY["QUEUES"]["a"]["partition"]'),
        (
            {"QUEUES": {"a": {"rate": {"allowed": 2**31, "period": 1}}}},
            'BELAY["QUEUES"]["a"]["rate"]["allowed"]',
        ),
        ({"CRONS": {"a": {"expression": "* * * * *"}}}, 'BELAY["CRONS"]["a"]["kind"]'),
        ({"RETENTION": {"succeded": 1}}, 'BELAY["RETENTION"]["succeded"]'),
        ({"ENCRYPTION_KEYS": [b"short"]}, 'BELAY["ENCRYPTION_KEYS"]'),
        ({"LEASE_TTL": 0.2, "BUSY_POLL": 0.1, "IDLE_POLL": 0.1}, 'BELAY["LEASE_TTL"]'),
        ({"BUSY_POLL": 2, "IDLE_POLL": 1}, 'BELAY["BUSY_POLL"]'),
        ({"LEASE_TTL": 5, "IDLE_POLL": 6}, 'BELAY["IDLE_POLL"]'),
        ({"BACKOFF": ["soon"]}, 'BELAY["BACKOFF"]'),
    ],
)
def test_a_bad_value_is_found_with_its_path(belay: dict[str, object], path: str) -> None:
    assert list(problems(**belay)) == [path]


def test_an_unknown_key_is_told_the_nearest_one() -> None:
    assert "'QUEUES'" in problems(QEUES={})['BELAY["QEUES"]']
    assert "'LEASE_TTL'" in problems(lease_ttl=3)['BELAY["lease_ttl"]']


def test_all_findings_come_at_once() -> None:
    assert len(problems(LEASE_TTL="x", QEUES=1, NOTIFY=3)) == 3


def test_a_key_of_the_encryption_is_never_shown() -> None:
    assert "hunter2" not in problems(ENCRYPTION_KEYS=[b"hunter2"])['BELAY["ENCRYPTION_KEYS"]']
    assert "32 bytes" not in repr(conf.read({"ENCRYPTION_KEYS": [b"a key for tests, 32 bytes long.."]})[0])


def test_get_is_cached_and_follows_override_settings() -> None:
    assert conf.get() is conf.get()
    with override_settings(BELAY={"PROCESSES": 7}):
        assert conf.get().processes == 7
    assert conf.get().processes == 1


@override_settings(BELAY={"QEUES": {}, "PROCESSES": 0})
def test_get_refuses_a_bad_setting_and_names_every_key() -> None:
    with pytest.raises(ConfigurationError, match=r"QEUES(.|\n)*PROCESSES"):
        conf.get()


@override_settings(BELAY={"NOTIFY": "off", "QUEUES": {"mail": {"notify": "always"}}})
def test_poke_policy_follows_the_settings() -> None:
    policy = conf.poke_policy()
    assert policy is conf.poke_policy()
    assert policy.due(["mail", "default"], now=conf.clock().now()) == ["mail"]


@override_settings(BELAY={"MIDDLEWARE": ["tests.app.jobs.plain"], "LEASE_TTL": 9, "QUEUES": {"a": 3}})
def test_worker_options_follow_the_settings() -> None:
    options = conf.worker_options()
    assert (options.lease_ttl, options.queues["a"].limit) == (timedelta(seconds=9), 3)
    assert len(options.middleware) == 1


@override_settings(BELAY={"MIDDLEWARE": ["tests.nowhere.middleware"]})
def test_a_middleware_that_is_not_there_is_named() -> None:
    with pytest.raises(ConfigurationError, match=r"MIDDLEWARE.*tests\.nowhere"):
        conf.worker_options()


@pytest.mark.parametrize(
    ("size", "good"),
    [(16_777_351, False), (16_777_352, True), (2**30, True), (2**30 + 1, False), (None, True)],
)
def test_a_segment_holds_the_largest_record_and_no_more_than_the_format_allows(
    size: int | None, good: bool
) -> None:
    options = {"directory": "/var/lib/belay", "segment_bytes": size}
    path = 'BELAY["STORAGE"]["OPTIONS"]["segment_bytes"]'
    assert (
        path not in problems(STORAGE={"BACKEND": "django_belay.storage.journal", "OPTIONS": options})
    ) is good
