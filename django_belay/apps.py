"""The Django app."""

from __future__ import annotations

from django.apps import AppConfig
from django.conf import settings
from django.utils.module_loading import autodiscover_modules
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
