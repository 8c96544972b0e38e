"""The index: ordinary Django models, written by jobs."""

from __future__ import annotations

from django.db import models


class IndexVersion(models.Model):
    """One build of the index; search reads the newest published one."""

    created_at = models.DateTimeField(auto_now_add=True)
    published_at = models.DateTimeField(null=True, blank=True)
    packages = models.PositiveIntegerField()
    packages_done = models.PositiveIntegerField(default=0)
    files = models.PositiveIntegerField(default=0)
    terms = models.PositiveBigIntegerField(default=0)

    def __str__(self) -> str:
        return f"index {self.pk}"


class IndexedFile(models.Model):
    """A source file of one version."""

    version = models.ForeignKey(IndexVersion, models.CASCADE)
    package = models.CharField(max_length=200)
    path = models.CharField(max_length=500)
    terms = models.PositiveIntegerField()

    class Meta:
        constraints = [models.UniqueConstraint(fields=["version", "path"], name="one_row_a_file")]

    def __str__(self) -> str:
        return self.path


class Posting(models.Model):
    """How often a term occurs in a file."""

    file = models.ForeignKey(IndexedFile, models.CASCADE)
    term = models.CharField(max_length=200, db_index=True)
    count = models.PositiveIntegerField()

    def __str__(self) -> str:
        return f"{self.term}: {self.count}"
