"""The index in the admin, to look at: jobs write it, and the search page decides about versions."""

from typing import Any

from django.contrib import admin
from django.http import HttpRequest

from .models import IndexedFile, IndexVersion


class ReadOnlyAdmin(admin.ModelAdmin):
    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False


@admin.register(IndexVersion)
class IndexVersionAdmin(ReadOnlyAdmin):
    list_display = ["id", "state", "created_at", "published_at", "decided_by", "files_indexed", "files"]
    list_filter = ["state"]


@admin.register(IndexedFile)
class IndexedFileAdmin(ReadOnlyAdmin):
    list_display = ["path", "package", "content", "version"]
    list_filter = ["version"]
    search_fields = ["path__startswith"]
    list_select_related = ["version", "content"]
