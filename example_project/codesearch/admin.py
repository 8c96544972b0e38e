"""The index in the admin."""

from django.contrib import admin

from .models import IndexedFile, IndexVersion


@admin.register(IndexVersion)
class IndexVersionAdmin(admin.ModelAdmin):
    list_display = ["id", "created_at", "published_at", "packages_done", "packages", "files", "terms"]


@admin.register(IndexedFile)
class IndexedFileAdmin(admin.ModelAdmin):
    list_display = ["path", "package", "terms", "version"]
    list_filter = ["version"]
    search_fields = ["path__startswith"]
    list_select_related = ["version"]
