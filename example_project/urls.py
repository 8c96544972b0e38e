"""The search page, and the admin."""

from django.contrib import admin
from django.urls import path

from example_project.codesearch.views import search

urlpatterns = [
    path("", search, name="search"),
    path("admin/", admin.site.urls),
]
