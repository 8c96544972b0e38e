"""Asking the index."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from django.db.models import F

from django_belay.models import Job

from .models import IndexVersion, Posting


@dataclass(frozen=True, slots=True)
class Hit:
    """A file and how often the term occurs in it."""

    path: str
    count: int


@dataclass(frozen=True, slots=True)
class Listed:
    """A version, and whether its job still builds it or waits."""

    version: IndexVersion
    is_at_work: bool

    @property
    def status(self) -> str:
        """A version that its job left unfinished, cancelled or failed, says so."""
        if self.version.is_unfinished and not self.is_at_work:
            return "stopped: its job has ended"
        return str(self.version.get_state_display())

    @property
    def may_be_decided(self) -> bool:
        return self.is_at_work and self.version.state == IndexVersion.State.WAITING


def published_version() -> IndexVersion | None:
    """The version that searches use."""
    return IndexVersion.objects.filter(state=IndexVersion.State.PUBLISHED).order_by("-pk").first()


def recent_versions(limit: int = 5) -> list[Listed]:
    """The newest versions, newest first."""
    return listed(list(IndexVersion.objects.order_by("-pk")[:limit]))


def listed(versions: Sequence[IndexVersion]) -> list[Listed]:
    """The versions, each with what its job is at."""
    jobs = Job.objects.incomplete().filter(pk__in=[version.job_id for version in versions])
    at_work = set(jobs.values_list("pk", flat=True))
    return [Listed(version=version, is_at_work=version.job_id in at_work) for version in versions]


def find(term: str, *, limit: int = 10) -> list[Hit]:
    """The files of the published version where ``term`` occurs most, best first."""
    version = published_version()
    if version is None:
        return []
    rows = (
        Posting.objects.filter(content__indexedfile__version=version, term=term.lower())
        .values("count", path=F("content__indexedfile__path"))
        .order_by("-count", "path")[:limit]
    )
    return [Hit(path=row["path"], count=row["count"]) for row in rows]
