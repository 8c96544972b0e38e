"""Settings of worker processes that tests start; what differs comes from the environment."""

import json
import os

from django_belay.databases import with_belay_index
from tests.settings import *  # noqa: F403

DATABASES = {"default": json.loads(os.environ["BELAY_TEST_WORKER_DATABASE"])}
BELAY = {"ENCRYPTION_KEYS": [bytes(32)], **json.loads(os.environ["BELAY_TEST_WORKER_OPTIONS"])}
if "directory" in BELAY.get("STORAGE", {}).get("OPTIONS", {}):
    DATABASES = with_belay_index(DATABASES, BELAY["STORAGE"]["OPTIONS"]["directory"])
LOGGING = {
    "version": 1,
    "disable_existing_loggers": False,
    "formatters": {"plain": {"format": "%(process)d %(name)s %(levelname)s %(message)s"}},
    "handlers": {"console": {"class": "logging.StreamHandler", "formatter": "plain"}},
    "loggers": {"django_belay": {"handlers": ["console"], "level": "DEBUG"}},
}
