"""Building the index: a job a package, a step a file, and one job that publishes."""

from __future__ import annotations

from django.db.models import F, Sum
from django.utils import timezone

from django_belay import job

from .models import IndexedFile, IndexVersion, Posting
from .source import count_terms


@job(queue="index", max_attempts=10)
def index_package(ctx, version: int, package: str, files: list[str]) -> int:
    """Count the terms of a package's files; returns how many there are.

    ``atomic=True`` commits a file's rows together with the step that says it is done,
    so a worker that dies between two files costs nothing and counts nothing twice.
    """
    terms = 0
    for path in files:
        terms += ctx.step(f"file:{path}", index_file, version, package, path, atomic=True)
    ctx.step("finish", finish_package, version, atomic=True)
    return terms


def index_file(version: int, package: str, path: str) -> int:
    """Store one file's term statistics; returns how many terms it has."""
    counts = count_terms(path)
    file = IndexedFile.objects.create(version_id=version, package=package, path=path, terms=counts.total())
    Posting.objects.bulk_create(Posting(file=file, term=term, count=n) for term, n in counts.items())
    return counts.total()


def finish_package(version: int) -> None:
    """Count a package as done; whoever counts the last one enqueues the publication with it."""
    index = IndexVersion.objects.select_for_update().get(pk=version)
    index.packages_done = F("packages_done") + 1
    index.save(update_fields=["packages_done"])
    index.refresh_from_db()
    if index.packages_done == index.packages:
        publish_index.enqueue(version=version)


@job(queue="default")
def publish_index(ctx, version: int) -> dict[str, int]:
    """Write the totals and let searches use the version."""
    return ctx.step("publish", publish, version, atomic=True)


def publish(version: int) -> dict[str, int]:
    """Totals of a version, stored on it together with its publication."""
    files = IndexedFile.objects.filter(version_id=version)
    totals = {"files": files.count(), "terms": files.aggregate(total=Sum("terms"))["total"] or 0}
    IndexVersion.objects.filter(pk=version).update(published_at=timezone.now(), **totals)
    return totals
