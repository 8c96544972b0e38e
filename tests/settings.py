"""Django settings of the tests. The server is found at run time: see ``tests/conftest.py``."""

import importlib.util
import os
import sys
import tempfile
from typing import Any

import django

from django_belay.databases import with_belay_index

SECRET_KEY = "for tests only"
USE_TZ = True
TIME_ZONE = "Europe/Berlin"  # not UTC, so that a missing conversion shows
LANGUAGE_CODE = "en"
ROOT_URLCONF = "tests.urls"
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
# Settings come before pytest's options; the variable tells xdist's processes and the workers.
if "--belay-storage=journal" in sys.argv:
    os.environ["BELAY_TEST_STORAGE"] = "journal"
DATABASES: dict[str, dict[str, object]] = {
    "default": {"ENGINE": "django.db.backends.postgresql", "NAME": "belay"}
}
BELAY: dict[str, Any] = {
    "QUEUES": {"default": 10, "mail": 5, "ai": 5},
    "ENCRYPTION_KEYS": [b"a key for tests, 32 bytes long.."],
}
if os.environ.get("BELAY_TEST_STORAGE") == "journal":
    _FILE = os.path.join(tempfile.gettempdir(), f"belay-tests-{os.getpid()}.sqlite3")
    DATABASES["default"] = {
        "ENGINE": "django.db.backends.sqlite3",
        "NAME": _FILE,
        "TEST": {"NAME": _FILE},
        # Workers write to the same file.
        "OPTIONS": {"timeout": 20, "transaction_mode": "IMMEDIATE"},
    }
    BELAY["STORAGE"] = {
        "BACKEND": "django_belay.storage.journal",
        "OPTIONS": {
            # Never made: tests have a journal of their own, or name one.
            "directory": os.path.join(tempfile.gettempdir(), "belay-tests-of-nobody"),
            "durability": "write",
            "validated_filesystem": True,
        },
    }
    DATABASES = with_belay_index(DATABASES, BELAY["STORAGE"]["OPTIONS"]["directory"])
    DATABASE_ROUTERS = ["django_belay.routers.BelayRouter"]
INSTALLED_APPS = [
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django.contrib.messages",
    "django.contrib.admin",
    "rangefilter",
    "django_belay",
    "tests.app",
]
MIDDLEWARE = [
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
]
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
# A hash that costs nothing: the tests log in often.
PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]
# Django 5.2 has its tasks from a package.
if django.VERSION >= (6, 0) or importlib.util.find_spec("django_tasks"):
    TASKS = {
        "default": {
            "BACKEND": "django_belay.tasks_backend.BelayBackend",
            "QUEUES": ["default", "mail", "work"],
        }
    }
