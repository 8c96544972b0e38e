"""The Django app."""

from __future__ import annotations

from django.apps import AppConfig
from django.conf import settings
from django.utils.module_loading import autodiscover_modules, import_string
from django.utils.translation import gettext_lazy as _


class BelayConfig(AppConfig):
    """Registers checks and finds every app's jobs; asks the database nothing."""

    name = "django_belay"
    label = "belay"
    verbose_name = _("Background jobs")
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        from django_belay import checks, conf  # noqa: F401 - importing checks registers them

        # read() never raises: what is wrong with the setting is for the checks to report.
        found, _problems = conf.read(getattr(settings, "BELAY", {}))
        if found.autodiscover:
            autodiscover_modules(found.autodiscover)
        if _has_tasks():
            # A worker runs tasks that it knows by their @task, never by a name that a row holds.
            autodiscover_modules("tasks")


def _has_tasks() -> bool:
    """Whether a backend under ``TASKS`` is ours, or made from it."""
    paths = [str(params.get("BACKEND")) for params in getattr(settings, "TASKS", {}).values()]
    if any(path.startswith("django_belay.") for path in paths):
        return True
    ours = [path for path in paths if not path.startswith(("django.tasks.", "django_tasks."))]
    return any(_is_made_from_ours(path) for path in ours)


def _is_made_from_ours(path: str) -> bool:
    try:
        backend = import_string(path)
        from django_belay.tasks_backend import BelayBackend
    except ImportError:
        return False  # reported at the first task
    return isinstance(backend, type) and issubclass(backend, BelayBackend)
