"""Building the index: a child a package, a step a file, and a human who lets it out."""

from __future__ import annotations

from datetime import timedelta

from django.conf import settings

from django_belay import job
from django_belay.exceptions import SignalTimeout

from . import building

#: Where the jobs are in the database of the models, a step commits together with its rows. A journal is
#: no such database: there a worker that dies between the two does the step again, and nothing is counted
#: twice because each step finds what it has done before.
ATOMIC = "STORAGE" not in settings.BELAY

#: The signal that a waiting version is decided by: ``{"approved": true, "by": "ann"}``.
APPROVAL = "approval"
#: Shorter than a day, so that a version nobody looked at is gone before the next nightly one.
APPROVAL_TIMEOUT = timedelta(hours=20)


@job(queue="default", max_attempts=10, unique="build")
def build_index(ctx, full: bool = False) -> dict:
    """Build a version and publish it once somebody approves; one build at a time.

    Each ``ctx.…`` below is remembered: wherever a worker dies, the next one goes on there. While
    the children run, and while the human thinks, this job holds no thread and no connection.

    Args:
        full: Read every file, also those that have not changed since the published version.
    """
    plan = ctx.step("plan", building.plan, ctx.id, full=full, atomic=ATOMIC)
    version = plan["version"]
    counts = ctx.map_children(
        "packages",
        index_package,
        [
            {"version": version, "package": package, "files": files}
            for package, files in plan["packages"].items()
        ],
    )
    totals = ctx.step("totals", building.store_totals, version, plan["kept"], counts, atomic=ATOMIC)
    try:
        answer = ctx.wait_signal(APPROVAL, timeout=APPROVAL_TIMEOUT)
    except SignalTimeout:
        answer = None
    state = ctx.step("decide", building.decide, version, answer, atomic=ATOMIC)
    return {"version": version, "state": state, **totals}


@job(queue="index", max_attempts=10)
def index_package(ctx, version: int, package: str, files: list[str]) -> dict:
    """Count the terms of a package's files.

    A file's rows are committed together with the step that says it is done, or found again: a worker
    that dies between two files costs nothing and counts nothing twice.
    """
    terms = [ctx.step(f"file:{path}", building.index_file, version, path, atomic=ATOMIC) for path in files]
    return {"package": package, "files": len(terms), "terms": sum(terms)}


@job(queue="default", max_attempts=3)
def refresh_index(ctx) -> dict:
    """Every night: start a build where a file has changed since the published version."""
    return ctx.step("start", start_refresh, atomic=ATOMIC)


def start_refresh() -> dict:
    """How many files differ, and the id of the job that builds; ``None`` where none is needed."""
    changes = building.find_changes()
    if not changes.count:
        return {"changes": 0, "build": None}
    # While the build before has not ended, its key makes this the same job.
    return {"changes": changes.count, "build": build_index.enqueue().id}
