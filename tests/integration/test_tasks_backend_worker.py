"""Tasks in real worker processes, which know them by autodiscovery."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import django
import pytest

pytest.importorskip("django.tasks" if django.VERSION >= (6, 0) else "django_tasks")

from django_belay._tasks_compat import TaskResultStatus
from tests.app import tasks
from tests.integration.workers import Site, Worker, worker_site

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def site_and_start(tmp_path: Path) -> Iterator[tuple[Site, Callable[..., Worker]]]:
    with worker_site(tmp_path) as found:
        yield found


def test_a_worker_runs_tasks(site_and_start: tuple[Site, Callable[..., Worker]]) -> None:
    site, start = site_and_start
    plain = tasks.marks.enqueue("t")
    coroutine = tasks.echo_async.using(queue_name="work").enqueue([1, 2])
    tried_again = tasks.attempt.using(queue_name="work").enqueue(1)
    failed = tasks.fails.using(queue_name="work", max_attempts=1).enqueue("bad luck")
    assert start("--until-empty").wait() == 0
    for result in (plain, coroutine, tried_again, failed):
        result.refresh()
    assert site.lines("t") == ["ran"]
    assert (plain.return_value, coroutine.return_value, tried_again.return_value) == ("ran", [1, 2], 2)
    assert (tried_again.attempts, len(set(tried_again.worker_ids))) == (2, 1)
    assert "unknown" not in tried_again.worker_ids
    assert failed.status == TaskResultStatus.FAILED
