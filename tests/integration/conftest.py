"""Real workers for the tests of this folder."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.workers import Site, StartWorker, worker_site


@pytest.fixture
def site_and_start(tmp_path: Path, belay_wakeups: bool) -> Iterator[tuple[Site, StartWorker]]:
    with worker_site(tmp_path) as (site, start):
        notify = "auto" if belay_wakeups else "off"
        yield site, lambda *arguments, **options: start(*arguments, **{"NOTIFY": notify, **options})


@pytest.fixture
def site(site_and_start: tuple[Site, StartWorker]) -> Site:
    return site_and_start[0]


@pytest.fixture
def start_worker(site_and_start: tuple[Site, StartWorker]) -> StartWorker:
    return site_and_start[1]
