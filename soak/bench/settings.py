"""Django settings of the worker benches; the database comes from the environment."""

import json
import os

SECRET_KEY = "for benches only"
USE_TZ = True
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
DATABASES = {"default": json.loads(os.environ["BELAY_BENCH_DATABASE"])}
INSTALLED_APPS = ["django_belay", "soak.bench"]
BELAY = json.loads(os.environ.get("BELAY_BENCH_OPTIONS", "{}"))
LOGGING = {
    "version": 1,
    "disable_existing_loggers": False,
    "handlers": {"console": {"class": "logging.StreamHandler"}},
    "root": {"handlers": ["console"], "level": os.environ.get("BELAY_BENCH_LOG", "WARNING")},
}
