"""System checks: each id once, each with a hint."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import pytest
from django.core.checks import CheckMessage, run_checks
from django.db import ConnectionHandler
from django.test import override_settings

import django_belay
from django_belay import _cron_job, checks, job, registry
from django_belay.checks import check_belay
from django_belay.databases import with_belay_index
from django_belay.registry import Chunk, Registry


@pytest.fixture
def empty_registry(monkeypatch: pytest.MonkeyPatch) -> Registry:
    """A registry that the test fills."""
    fresh = Registry()
    for module in (registry, checks, _cron_job):
        monkeypatch.setattr(module, "registry", fresh)
    monkeypatch.setattr("django_belay.jobs.registry", fresh)
    return fresh


def found(**belay: Any) -> dict[str, CheckMessage]:
    """Messages by id."""
    with override_settings(BELAY=belay):
        return {str(message.id): message for message in check_belay()}


def test_the_tests_own_settings_pass() -> None:
    assert [message for message in run_checks() if str(message.id).startswith("belay.E")] == []


@pytest.mark.usefixtures("empty_registry")
@pytest.mark.parametrize(
    ("belay", "id"),
    [
        ({"QEUES": {}}, "belay.E002"),
        ({"PROCESSES": 0}, "belay.E003"),
        ({"STORAGE": {"BACKEND": "redis"}}, "belay.E004"),
        ({"STORAGE": {"OPTIONS": {"databse": "x"}}}, "belay.E005"),
        ({"STORAGE": {"OPTIONS": {"database": "nowhere"}}}, "belay.E006"),
        ({"BUSY_POLL": 2, "IDLE_POLL": 1}, "belay.E008"),
        ({"CRONS": {"a": {}}}, "belay.E010"),
        ({"CRONS": {"a": {"expression": "@dayly", "kind": "x"}}}, "belay.E011"),
        ({"CRONS": {"a": {"expression": "@daily", "kind": "x", "timezone": "Mars"}}}, "belay.E011"),
        ({"CRONS": {"a": {"expression": "@daily", "kind": "x", "options": {"color": 1}}}}, "belay.E011"),
        ({"QUEUES": {"a": {"rate": {"allowed": 1}}}}, "belay.E003"),
        ({"ENCRYPTION_KEYS": [b""]}, "belay.E012"),
        ({"CLOCK": "tests.nowhere.Clock"}, "belay.E013"),
        ({"CRONS": {"a": {"expression": "@daily", "kind": "no.such"}}}, "belay.W004"),
    ],
)
def test_a_finding_has_its_id_and_a_hint(belay: dict[str, Any], id: str) -> None:
    messages = found(**belay)
    assert id in messages
    assert all(message.hint for message in messages.values())


@pytest.mark.usefixtures("empty_registry")
def test_a_schedule_is_checked_down_to_its_job() -> None:
    @job(kind="shop.digest")
    def digest(days: int) -> None: ...

    def said(**entry: Any) -> str:
        message = found(CRONS={"a": {"expression": "@daily", "kind": "shop.digest", **entry}})["belay.E011"]
        return f"{message.msg} {message.hint}"

    assert 'BELAY["CRONS"]["a"]["expression"]' in said(expression="61 * * * *", input={"days": 1})
    assert "five fields" in said(expression="* * *", input={"days": 1})
    assert 'BELAY["CRONS"]["a"]["timezone"]' in said(timezone="Europe/Berlim", input={"days": 1})
    assert 'BELAY["CRONS"]["a"]["options"]' in said(options={"priority": "high"}, input={"days": 1})
    assert 'BELAY["CRONS"]["a"]["input"]' in said(input={"days": "many"})
    assert 'BELAY["CRONS"]["a"]["input"]' in said()
    good = {
        "expression": "0 8 * * 1-5",
        "kind": "shop.digest",
        "input": {"days": 7},
        "timezone": "Europe/Berlin",
    }
    assert "belay.E011" not in found(CRONS={"a": good})


def test_a_setting_that_is_no_dictionary_is_found() -> None:
    with override_settings(BELAY=["QUEUES"]):
        assert next(message.id for message in check_belay() if "E" in str(message.id)[6:]) == "belay.E001"


def test_a_database_that_is_not_postgresql_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    from django.db import connections

    monkeypatch.setattr(connections["default"], "vendor", "sqlite")
    assert "sqlite" in found()["belay.E007"].msg


@pytest.mark.usefixtures("empty_registry")
def test_a_second_database_without_router_is_warned_about(monkeypatch: pytest.MonkeyPatch) -> None:
    from django.db import connections

    monkeypatch.setitem(connections.settings, "belay_other", connections.settings["default"])
    messages = found(STORAGE={"OPTIONS": {"database": "belay_other"}})
    assert set(messages) == {"belay.W001", "belay.W002"}
    with override_settings(DATABASE_ROUTERS=["django_belay.routers.BelayRouter"]):
        assert set(found(STORAGE={"OPTIONS": {"database": "belay_other"}})) == {"belay.W001"}
    del connections["belay_other"]


JOURNAL = {"BACKEND": "django_belay.storage.journal", "OPTIONS": {"directory": "/srv/belay"}}
ROUTER = "django_belay.routers.BelayRouter"


@pytest.mark.usefixtures("empty_registry")
def test_what_the_models_need_of_a_journal_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def found_with(directory: str | None, *routers: str) -> set[str]:
        databases: dict[str, dict[str, Any]] = {"default": {"ENGINE": "django.db.backends.sqlite3"}}
        if directory is not None:
            databases = with_belay_index(databases, directory)
        handler = ConnectionHandler(databases)
        monkeypatch.setattr(checks, "connections", handler)
        with override_settings(DATABASE_ROUTERS=list(routers)):
            return {code for code in found(STORAGE=JOURNAL) if code >= "belay.W010"}

    assert found_with(None, ROUTER) == {"belay.W010"}
    assert found_with("/srv/other", ROUTER) == {"belay.W011"}
    assert found_with("/srv/belay") == {"belay.W012"}
    assert found_with("/srv/belay", ROUTER) == set()


def journal_findings(tmp_path: Path, **options: Any) -> dict[str, CheckMessage]:
    storage = {"BACKEND": JOURNAL["BACKEND"], "OPTIONS": {"directory": tmp_path / "belay", **options}}
    return {code: message for code, message in found(STORAGE=storage).items() if code < "belay.W010"}


@pytest.mark.usefixtures("empty_registry")
@pytest.mark.parametrize(
    ("options", "id", "said"),
    [
        ({"profile": "loose"}, "belay.E003", "'loose'"),
        ({"durability": "perhaps"}, "belay.E003", "'perhaps'"),
        ({"directory": "/dev/null/belay"}, "belay.E020", "/dev/null is no directory"),
        ({"directory": "/dev/shm/belay"}, "belay.E021", "tmpfs"),
        ({"transaction_alias": "nowhere"}, "belay.E022", "nowhere"),
        ({"durability": "write"}, "belay.W006", "loses power"),
    ],
)
def test_what_is_wrong_with_a_journal_is_found_without_opening_it(
    tmp_path: Path, options: dict[str, Any], id: str, said: str
) -> None:
    findings = journal_findings(tmp_path, **options)
    assert said in str(findings[id].msg)
    assert findings[id].hint
    assert list(tmp_path.iterdir()) == []


@pytest.mark.usefixtures("empty_registry")
def test_an_owner_that_cannot_be_started_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    good = {"validated_filesystem": True}
    assert "belay.W007" not in journal_findings(tmp_path, **good)
    monkeypatch.setitem(sys.modules, "uwsgi", sys)
    assert "embedded in uwsgi" in str(journal_findings(tmp_path, **good)["belay.W007"].msg)
    assert "belay.W007" not in journal_findings(tmp_path, auto_serve=False, **good)  # it is meant so
    monkeypatch.delitem(sys.modules, "uwsgi")
    monkeypatch.delenv("DJANGO_SETTINGS_MODULE")
    assert "no module" in str(journal_findings(tmp_path, **good)["belay.W007"].msg)


def test_a_deployment_is_told_of_the_window_after_the_commit() -> None:
    with override_settings(BELAY={"STORAGE": JOURNAL}):
        [message] = [one for one in run_checks(include_deployment_checks=True) if one.id == "belay.W008"]
    assert "after the commit" in str(message.msg)
    assert "belay.W008" not in found(STORAGE=JOURNAL)


def test_the_helper_changes_no_other_database() -> None:
    databases: dict[str, dict[str, Any]] = {"default": {"ENGINE": "x"}, "belay": {"ENGINE": "mine"}}
    with pytest.raises(ValueError, match="another database 'belay'"):
        with_belay_index(databases, "/srv/belay")
    both = with_belay_index(databases, "/srv/belay", alias="jobs")
    assert {alias: both[alias] for alias in databases} == databases
    assert both["jobs"]["NAME"] == "/srv/belay/index.sqlite3"
    assert "jobs" not in databases
    assert with_belay_index(both, "/srv/belay", alias="jobs") == both


@pytest.mark.usefixtures("empty_registry")
def test_jobs_are_checked() -> None:
    @job(kind="a", queue="other")
    def unserved(ctx: Any) -> None: ...

    @job(kind="b", encrypted=True)
    def encrypted(ctx: Any) -> None: ...

    @job(kind="c", on_failure="no.such")
    def failing(ctx: Any) -> None: ...

    @job(kind="d", isolation="process")
    async def isolated(ctx: Any) -> None: ...

    @job(kind="e", chunk=Chunk(size=5))
    def chunked(ctx: Any, items: list[Any]) -> None: ...

    @job(kind="f")
    def unfit(ctx: Any, connection: Registry) -> None: ...

    ids = {f"belay.E01{n}" for n in (4, 5, 6, 7, 8)} | {"belay.W003"}
    assert set(found(QUEUES={"default": 1})) == ids


def test_the_reference_has_every_id() -> None:
    root = Path(django_belay.__file__).parent
    source = "".join(
        (root / name).read_text()
        for name in ("checks.py", "_journal_checks.py", "conf.py", "_setting.py", "tasks_backend.py")
    )
    written = set(re.findall(r'"(?:belay\.)?([EW]\d{3})"', source))
    page = (root.parent / "docs" / "reference" / "checks.md").read_text()
    assert written == set(re.findall(r"`belay\.([EW]\d{3})`", page))
