"""Settings of the example project. Start it with ``python3 -m example_project <command>``.

That line finds or starts a PostgreSQL and passes it in ``DATABASE_URL``.
"""

from __future__ import annotations

import os
import secrets
from pathlib import Path

from django.core.exceptions import ImproperlyConfigured
from psycopg.conninfo import conninfo_to_dict

from django_belay.testing.postgres import parse_url

BASE_DIR = Path(__file__).resolve().parent


def _database() -> dict[str, object]:
    url = os.environ.get("DATABASE_URL", "")
    if not url:
        raise ImproperlyConfigured(
            "DATABASE_URL is not set; run commands as 'python3 -m example_project <command>', "
            "which brings a PostgreSQL, or set it to postgresql://user:password@host:port/database"
        )
    found = conninfo_to_dict(parse_url(url, variable="DATABASE_URL"))
    named = {key.upper(): str(found.pop(key, "")) for key in ("host", "port", "user", "password")}
    return {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": found.pop("dbname", "postgres"),
        **named,
        "OPTIONS": found,
        "CONN_MAX_AGE": 60,
        "CONN_HEALTH_CHECKS": True,
    }


DEBUG = True
SECRET_KEY = os.environ.get("SECRET_KEY") or secrets.token_urlsafe(50)
ALLOWED_HOSTS = ["127.0.0.1", "localhost"]
DATABASES = {"default": _database()}
INSTALLED_APPS = [
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django.contrib.messages",
    "django.contrib.staticfiles",
    "rangefilter",
    "django_belay",
    "example_project.codesearch",
]
MIDDLEWARE = [
    "django.middleware.security.SecurityMiddleware",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
]
ROOT_URLCONF = "example_project.urls"
TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ]
        },
    }
]
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
LOGIN_URL = "admin:login"
STATIC_URL = "static/"
USE_TZ = True
TIME_ZONE = "UTC"  # as the commands print it

BELAY = {
    "QUEUES": {"default": 4, "index": 4},
    # Short, so that the demo need not wait long for the jobs of a worker that it kills.
    "LEASE_TTL": 3,
    "SWEEP_INTERVAL": 1,
    "SHUTDOWN_GRACE": 5,
    "CRONS": {
        # Reads again what has changed; python3 -m example_project belay_cron run nightly-refresh does it now.
        "nightly-refresh": {
            "expression": "0 3 * * *",
            "kind": "codesearch.refresh_index",
            "catch_up": "none",
        },
    },
}
