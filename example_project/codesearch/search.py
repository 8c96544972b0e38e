"""Asking the index."""

from __future__ import annotations

from dataclasses import dataclass

from django.db.models import Sum

from .models import IndexVersion, Posting


@dataclass(frozen=True, slots=True)
class Hit:
    """A file and how often the term occurs in it."""

    path: str
    count: int


def published_version() -> IndexVersion | None:
    """The version that searches use."""
    return IndexVersion.objects.filter(published_at__isnull=False).order_by("-pk").first()


def find(term: str, *, limit: int = 10) -> list[Hit]:
    """The files of the published version where ``term`` occurs most, best first."""
    version = published_version()
    if version is None:
        return []
    rows = (
        Posting.objects.filter(file__version=version, term=term.lower())
        .values("file__path")
        .annotate(total=Sum("count"))
        .order_by("-total", "file__path")[:limit]
    )
    return [Hit(path=row["file__path"], count=row["total"]) for row in rows]
