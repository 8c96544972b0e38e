"""The search page with its approvals, and the admin."""

from django.contrib import admin
from django.urls import path

from example_project.codesearch.views import decide, search

urlpatterns = [
    path("", search, name="search"),
    path("versions/<int:version_id>/decide/", decide, name="decide"),
    path("admin/", admin.site.urls),
]
