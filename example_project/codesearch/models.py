"""The index: ordinary Django models, written by jobs."""

from __future__ import annotations

from django.db import models


class IndexVersion(models.Model):
    """One build of the index; search reads the newest published one.

    Attributes:
        job_id: The job that builds it, and that waits for its approval.
        files_indexed: How many of its files were read for this version; the others are
            as they were in the version before.
    """

    class State(models.TextChoices):
        BUILDING = "building", "building"
        WAITING = "waiting", "waiting for approval"
        PUBLISHED = "published", "published"
        DISCARDED = "discarded", "discarded"
        EXPIRED = "expired", "expired: nobody approved it"

    state = models.CharField(max_length=20, choices=State.choices, default=State.BUILDING)
    job_id = models.BigIntegerField(unique=True)
    created_at = models.DateTimeField(auto_now_add=True)
    published_at = models.DateTimeField(null=True, blank=True)
    decided_by = models.CharField(max_length=150, blank=True)
    files = models.PositiveIntegerField(default=0)
    files_indexed = models.PositiveIntegerField(default=0)
    terms = models.PositiveBigIntegerField(default=0)

    class Meta:
        permissions = [("approve_index", "Can approve and discard versions of the index")]

    def __str__(self) -> str:
        return f"index {self.pk}"

    @property
    def is_unfinished(self) -> bool:
        """Whether something is still to happen to it."""
        return self.state in (self.State.BUILDING, self.State.WAITING)


class Content(models.Model):
    """What a file holds, by its digest; versions and files that hold the same share it."""

    digest = models.CharField(max_length=64, unique=True)
    terms = models.PositiveIntegerField()

    def __str__(self) -> str:
        return self.digest[:12]


class IndexedFile(models.Model):
    """A source file of one version."""

    version = models.ForeignKey(IndexVersion, models.CASCADE)
    package = models.CharField(max_length=200)
    path = models.CharField(max_length=500)
    content = models.ForeignKey(Content, models.PROTECT)

    class Meta:
        constraints = [models.UniqueConstraint(fields=["version", "path"], name="one_row_a_file")]

    def __str__(self) -> str:
        return self.path


class Posting(models.Model):
    """How often a term occurs in a content."""

    content = models.ForeignKey(Content, models.CASCADE)
    term = models.CharField(max_length=200, db_index=True)
    count = models.PositiveIntegerField()

    def __str__(self) -> str:
        return f"{self.term}: {self.count}"
