"""Settings of the example project. Start it with ``python3 -m example_project <command>``.

Without a database server everything is in ``var/``: SQLite, and the jobs in a journal. With
``--storage postgres`` that line finds or starts a PostgreSQL and passes it in ``DATABASE_URL``.
"""

from __future__ import annotations

import os
import secrets
from pathlib import Path
from typing import Any

from psycopg.conninfo import conninfo_to_dict

from django_belay.databases import with_belay_index
from django_belay.testing.postgres import parse_url

BASE_DIR = Path(__file__).resolve().parent


VAR_DIR = Path(os.environ.get("BELAY_EXAMPLE_VAR") or BASE_DIR / "var")
JOURNAL = VAR_DIR / "belay"


def _postgres(url: str) -> dict[str, object]:
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


def _sqlite() -> dict[str, object]:
    VAR_DIR.mkdir(parents=True, exist_ok=True)
    # Several workers write: each takes its turn from the begin of a transaction.
    options = {"timeout": 30, "transaction_mode": "IMMEDIATE", "init_command": "PRAGMA journal_mode=wal"}
    return {"ENGINE": "django.db.backends.sqlite3", "NAME": VAR_DIR / "example.sqlite3", "OPTIONS": options}


DEBUG = True
SECRET_KEY = os.environ.get("SECRET_KEY") or secrets.token_urlsafe(50)
ALLOWED_HOSTS = ["127.0.0.1", "localhost"]
DATABASE_URL = os.environ.get("DATABASE_URL", "")
DATABASES = {"default": _postgres(DATABASE_URL) if DATABASE_URL else _sqlite()}
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

BELAY: dict[str, Any] = {
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
if not DATABASE_URL:
    BELAY["STORAGE"] = {
        "BACKEND": "django_belay.storage.journal",
        # A checkout may lie on any file system; for data of yours, read what the setting says.
        "OPTIONS": {"directory": JOURNAL, "validated_filesystem": True},
    }
    # The models read the journal's inspection index.
    DATABASES = with_belay_index(DATABASES, JOURNAL)
    DATABASE_ROUTERS = ["django_belay.routers.BelayRouter"]
