"""The pytest plugin: fixtures over :mod:`django_belay.testing`.

Found by its entry point. Tests ask for the database themselves, by ``django_db``, ``db``
or ``transactional_db``. Nothing of Django is imported before a fixture is used.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from django_belay.testing import Crons, DrainReport, SimClock


@pytest.fixture(autouse=True)
def belay_own_journal() -> Iterator[None]:
    """On the journal, each test begins with an empty one in a temporary directory."""
    yield
    if (scratch := sys.modules.get("django_belay.db.scratch")) is not None:
        scratch.forget()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    allow_index(items)


def allow_index(items: list[pytest.Item]) -> None:
    """On the journal, tests that may use the database may read the models, whose database is another."""
    alias = _index_alias()
    if alias is None:
        return
    for item in items:
        marker = item.get_closest_marker("django_db")
        if marker is None and "db" not in getattr(item, "fixturenames", ()):
            continue
        args, kwargs = ((), {}) if marker is None else (marker.args, marker.kwargs)
        if len(args) < 3 and "databases" not in kwargs:
            mark = pytest.mark.django_db(*args, **{**kwargs, "databases": ["default", alias]})
            item.add_marker(mark, append=False)


def _index_alias() -> str | None:
    from django.conf import settings

    if not settings.configured:
        return None
    from django_belay import conf

    found, problems = conf.read(getattr(settings, "BELAY", {}))
    if problems or found.journal is None or found.journal.index_database not in settings.DATABASES:
        return None
    return found.journal.index_database


@pytest.fixture
def belay_drain() -> Callable[..., DrainReport]:
    """``drain()``: run what is due in the test's own process and transaction."""
    from django_belay.testing import drain

    return drain


@pytest.fixture
def belay_clock() -> Iterator[SimClock]:
    """A clock of client and engine that stands still; ``belay_clock.advance(60)`` moves it."""
    from django_belay.testing import simulated_time

    with simulated_time() as clock:
        yield clock


@pytest.fixture
def belay_inline() -> Iterator[None]:
    """Inline mode for the whole test: what is enqueued runs at once, and raises what fails."""
    from django_belay.testing import run_inline

    with run_inline():
        yield


@pytest.fixture
def belay_crons(belay_clock: SimClock) -> Crons:
    """The cron entries under ``belay_clock``; ``belay_crons.fire()`` enqueues what has come due."""
    from django_belay.testing import Crons

    return Crons()


@pytest.fixture
def belay_assert_enqueued() -> Callable[..., object]:
    """``assert_enqueued(job, **arguments)``."""
    from django_belay.testing import assert_enqueued

    return assert_enqueued


@pytest.fixture
def belay_assert_not_enqueued() -> Callable[..., None]:
    """``assert_not_enqueued(job, **arguments)``."""
    from django_belay.testing import assert_not_enqueued

    return assert_not_enqueued
