from django.apps import AppConfig


class CodesearchConfig(AppConfig):
    """A full-text index of Django's own source, built by jobs."""

    name = "example_project.codesearch"
    label = "codesearch"
