"""What a waiting job's journal says of its wait (rules 23, 27)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Protocol

from django_belay.contract.wait_record import latest_newer_than
from django_belay.storage.postgres.session import Params, Rows


class Runner(Protocol):
    """A session or a transaction."""

    @property
    def run(self) -> Callable[[str, Params | None], Rows]: ...


def newer_thans(runner: Runner, waits: Mapping[int, str]) -> dict[int, datetime]:
    """For jobs that wait for a payload newer than one they saw: the instant it must pass.

    Args:
        waits: The name that each job waits for.
    """
    if not waits:
        return {}
    steps: defaultdict[int, list[tuple[str, bytes | None]]] = defaultdict(list)
    for job_id, name, value in runner.run("find_wait_records", {"ids": list(waits)}):
        steps[job_id].append((name, value))
    found = {job_id: latest_newer_than(waits[job_id], of_job) for job_id, of_job in steps.items()}
    return {job_id: instant for job_id, instant in found.items() if instant is not None}
