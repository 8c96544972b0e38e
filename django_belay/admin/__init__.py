"""Read-only pages of the wire tables; who may not see payloads is shown none.

Nothing here counts a whole table or searches without an index: the tables grow large.
"""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.db.models import QuerySet
from django.http import HttpRequest
from django.utils.translation import gettext_lazy as _

from django_belay.management.report import printable
from django_belay.models import Cron, Job, Queue, ReadOnlyModel

PAYLOADS = ("input", "meta", "decoded_result", "errors")


class ReadOnlyAdmin(admin.ModelAdmin):  # type: ignore[type-arg]
    """Pages to look at."""

    show_full_result_count = False
    show_facets = admin.ShowFacets.NEVER
    list_per_page = 50

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: ReadOnlyModel | None = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: ReadOnlyModel | None = None) -> bool:
        return False


@admin.register(Job)
class JobAdmin(ReadOnlyAdmin):
    """Jobs, newest first."""

    list_display = ("id", "kind", "queue", "state", "attempt", "inserted_at", "ready_at", "finished_at")
    list_filter = ("state",)
    ordering = ("-id",)
    search_help_text = _("A job's id, or the whole name of a kind.")
    search_fields = ("id", "kind")

    def get_queryset(self, request: HttpRequest) -> QuerySet[Any]:
        return super().get_queryset(request).defer("input", "meta", "result", "errors")

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[Any], search_term: str
    ) -> tuple[QuerySet[Any], bool]:
        """By primary key or by whole kind: either has an index."""
        term = search_term.strip()
        if not term:
            return queryset, False
        if term.isascii() and term.isdigit() and len(term) < 19:
            return queryset.filter(pk=int(term)), False
        return queryset.filter(kind=term), False

    def get_fields(self, request: HttpRequest, obj: Job | None = None) -> list[Any]:
        columns = [
            field.name
            for field in Job._meta.concrete_fields
            if field.name not in (*PAYLOADS, "result", "parent")
        ]
        columns.insert(columns.index("budget_usd_micros"), "parent_id")
        may_see = request.user.has_perm("belay.view_job_payload")
        return [*columns, *PAYLOADS] if may_see else columns

    def get_readonly_fields(self, request: HttpRequest, obj: Job | None = None) -> list[Any]:
        return self.get_fields(request, obj)

    @admin.display(description=_("result"))
    def decoded_result(self, obj: Job) -> str:
        return printable(obj.decoded_result)


@admin.register(Queue)
class QueueAdmin(ReadOnlyAdmin):
    """Queues' options at run time."""

    list_display = ("name", "updated_at")


@admin.register(Cron)
class CronAdmin(ReadOnlyAdmin):
    """Schedules at run time."""

    list_display = ("name", "expression", "worker", "paused", "updated_at")
