"""What the steps of the jobs do. Each is one transaction, and done again it finds what is there."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import Any

from django.db import transaction
from django.db.models import Sum
from django.utils import timezone

from . import source
from .models import Content, IndexedFile, IndexVersion, Posting
from .search import published_version

State = IndexVersion.State


@dataclass(frozen=True, slots=True)
class Changes:
    """The files as they are now, beside a version.

    Attributes:
        changed: Paths of new files and of those that hold something else.
        kept: Rows of the files that are as they were.
        removed: How many are gone.
    """

    changed: list[str]
    kept: list[IndexedFile]
    removed: int

    @property
    def count(self) -> int:
        return len(self.changed) + self.removed


def find_changes(*, full: bool = False) -> Changes:
    """Compare with the published version; ``full`` takes every file for changed."""
    version = None if full else published_version()
    rows = IndexedFile.objects.filter(version=version).select_related("content")
    known = {row.path: row for row in rows} if version else {}
    changed, kept = [], []
    for path, digest in source.digests():
        row = known.pop(path, None)
        if row is not None and row.content.digest == digest:
            kept.append(row)
        else:
            changed.append(path)
    return Changes(changed=changed, kept=kept, removed=len(known))


@transaction.atomic
def plan(job_id: int, *, full: bool) -> dict[str, Any]:
    """Make the version, with the files that have not changed; the others are returned by package."""
    found = find_changes(full=full)
    version, is_new = IndexVersion.objects.get_or_create(
        job_id=job_id, defaults={"files_indexed": len(found.changed)}
    )
    if is_new:
        IndexedFile.objects.bulk_create(
            IndexedFile(version=version, package=row.package, path=row.path, content=row.content)
            for row in found.kept
        )
    packages: defaultdict[str, list[str]] = defaultdict(list)
    for path in found.changed:
        packages[source.package_of(path)].append(path)
    kept = {"files": len(found.kept), "terms": sum(row.content.terms for row in found.kept)}
    return {"version": version.pk, "packages": dict(packages), "kept": kept}


@transaction.atomic
def index_file(version: int, path: str) -> int:
    """Store one file's term statistics; returns how many terms it has."""
    found = source.read(path)
    content, is_new = Content.objects.get_or_create(
        digest=found.digest, defaults={"terms": found.terms.total()}
    )
    if is_new:
        Posting.objects.bulk_create(
            Posting(content=content, term=term, count=count) for term, count in found.terms.items()
        )
    IndexedFile.objects.get_or_create(
        version_id=version, path=path, defaults={"package": source.package_of(path), "content": content}
    )
    return content.terms


def store_totals(version: int, kept: dict[str, int], counts: list[dict[str, Any]]) -> dict[str, int]:
    """Add up what the children counted and what was kept; the version waits for approval then."""
    totals = {key: kept[key] + sum(count[key] for count in counts) for key in ("files", "terms")}
    IndexVersion.objects.filter(pk=version).update(state=State.WAITING, **totals)
    return totals


def decide(version: int, answer: Any) -> str:
    """Publish or discard the version as the answer says; without one it has expired."""
    if answer is None:
        changes: dict[str, Any] = {"state": State.EXPIRED}
    elif isinstance(answer, dict) and answer.get("approved") is True:
        changes = {"state": State.PUBLISHED, "published_at": timezone.now()}
    else:
        changes = {"state": State.DISCARDED}
    if isinstance(answer, dict):
        changes["decided_by"] = str(answer.get("by", ""))[:150]
    IndexVersion.objects.filter(pk=version).update(**changes)
    return str(changes["state"])


def count_rows(version: IndexVersion) -> dict[str, int]:
    """Files and terms of a version, added up from its postings rather than from what jobs returned."""
    files = IndexedFile.objects.filter(version=version)
    terms = files.aggregate(total=Sum("content__posting__count"))["total"] or 0
    return {"files": files.count(), "terms": terms}
