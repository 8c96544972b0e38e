"""@job and .using(): options, kinds, plain calls."""

from __future__ import annotations

import pickle
from datetime import datetime, timedelta
from typing import Any

import pytest

from django_belay import Budget, Chunk, Unique, job
from django_belay.exceptions import ConfigurationError
from django_belay.registry import registry
from tests.app import jobs


def define(**options: Any) -> Any:
    """A job with a kind of its own."""

    @job(**options)
    def work(ctx: Any) -> None: ...

    return work


@pytest.fixture(autouse=True)
def fresh_registry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_by_kind", dict(registry._by_kind))


def test_the_kind_is_the_app_label_and_the_function() -> None:
    assert jobs.echo.kind == "belay_testapp.echo"
    assert registry.get("belay_testapp.echo").function(None, 3) == 3


def test_without_loaded_apps_the_kind_is_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    from django.apps import apps

    def send(ctx: Any) -> None: ...

    send.__module__, send.__qualname__ = "shop.jobs.mail", "send"
    monkeypatch.setattr(apps, "apps_ready", False)
    assert job(send).kind == "shop.send"


def test_a_nested_function_needs_a_kind() -> None:
    with pytest.raises(ConfigurationError, match=r'@job\(kind="'):
        define()


def test_calling_a_job_runs_it_plainly() -> None:
    assert jobs.plain(2) == 3
    assert jobs.echo(None, "x") == "x"
    assert jobs.echo.__name__ == "echo"
    assert jobs.echo.__doc__


def test_context_and_async_are_seen() -> None:
    assert jobs.echo.definition.takes_context
    assert not jobs.plain.definition.takes_context
    assert jobs.asynchronous.definition.is_async
    assert not jobs.echo.definition.is_async


def test_using_changes_a_copy() -> None:
    other = jobs.send_receipt.using(queue="slow", priority=-5)
    assert (other.options.queue, other.options.priority, other.options.max_attempts) == ("slow", -5, 5)
    assert jobs.send_receipt.options.queue == "mail"


def test_two_functions_of_one_kind_are_refused() -> None:
    define(kind="x.work")

    def other(ctx: Any) -> None: ...

    with pytest.raises(ConfigurationError, match=r"x\.work"):
        job(kind="x.work")(other)
    with pytest.raises(ConfigurationError, match=r"x\.work"):
        job(kind="y.work", aliases=["x.work"])(other)


def test_aliases_find_the_job() -> None:
    renamed = define(kind="x.new", aliases="old.name")
    assert registry.get("old.name") is registry.get("x.new") is renamed.definition


@pytest.mark.parametrize(
    "options",
    [
        {"quue": "x"}, {"queue": ""}, {"queue": "a\0b"}, {"queue": 3}, {"queue": "x" * 256},
        {"priority": 1.5}, {"priority": 2**31}, {"priority": True},
        {"max_attempts": 0}, {"timeout": 0}, {"timeout": "1"}, {"expires": -1}, {"backoff": []},
        {"backoff": ["a"]}, {"backoff": 3}, {"retry_on": ValueError()}, {"give_up_on": ["x"]},
        {"unique": 3}, {"unique": ""}, {"unique": Unique("k", within=timedelta(milliseconds=5))},
        {"unique": Unique("k", scope="always", within=timedelta(1))}, {"budget": 3},
        {"meta": [1]}, {"meta": {"a": float("nan")}}, {"partition_key": ""},
        {"run_after": datetime(2030, 1, 1)}, {"run_after": 5}, {"chunk": 5}, {"chunk": Chunk(size=0)},
        {"isolation": "container"}, {"encrypted": 1}, {"on_failure": 3}, {"aliases": 3}, {"kind": ""},
    ],
    ids=repr,
)  # fmt: skip
def test_an_option_that_does_not_fit_is_refused_by_name(options: dict[str, Any]) -> None:
    (name,) = options
    with pytest.raises(ConfigurationError, match=name):
        define(**{"kind": "x.work", **options})
    assert "x.work" not in registry


def test_an_unknown_option_is_told_the_nearest_one() -> None:
    with pytest.raises(ConfigurationError, match="'max_attempts'"):
        define(kind="x.work", max_attemps=3)


@pytest.mark.parametrize("name", ["timeout", "backoff", "isolation", "kind"])
def test_using_refuses_what_the_row_does_not_carry(name: str) -> None:
    with pytest.raises(ConfigurationError, match=f"{name}.*set it in @job"):
        jobs.echo.using(**{name: 1})


def test_options_are_normalised() -> None:
    options = define(
        kind="x.work", timeout=timedelta(minutes=1), backoff=[1, timedelta(seconds=5)], retry_on=OSError,
        unique="k", on_failure=jobs.echo, budget=Budget(usd="0.50"),
    ).options  # fmt: skip
    assert (options.timeout, options.backoff, options.retry_on) == (60.0, (1.0, 5.0), (OSError,))
    assert (options.unique, options.on_failure) == (Unique("k"), "belay_testapp.echo")


def test_only_functions_can_be_jobs() -> None:
    with pytest.raises(ConfigurationError, match="functions"):
        job(object)
    with pytest.raises(ConfigurationError, match="by name"):
        job(kind="x.star")(lambda ctx, *values: None)


def test_a_job_pickles_by_its_kind() -> None:
    copy = pickle.loads(pickle.dumps(jobs.once))
    assert copy.definition is jobs.once.definition


def test_the_package_imports_without_django() -> None:
    import subprocess
    import sys

    code = "import sys, django_belay; django_belay.Budget; assert 'django' not in sys.modules, 'django'"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_everything_public_is_there() -> None:
    import django_belay

    missing = [name for name in django_belay.__all__ if not hasattr(django_belay, name)]
    assert missing == []
