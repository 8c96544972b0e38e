"""The storage that ``BELAY["STORAGE"]`` names: for clients, workers and their supervisor.

What belongs to one backend stands in a module of its own, imported when that backend is used: a
project on the journal imports no PostgreSQL driver.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from importlib import import_module
from types import ModuleType

from django_belay import conf
from django_belay.db.client_storage import ClientStorage, Insertion
from django_belay.db.transactions import CallersTransaction
from django_belay.storage.base import Storage

__all__ = [
    "CallersTransaction",
    "ClientStorage",
    "Insertion",
    "storage_for_client",
    "storage_for_supervisor",
    "storage_for_worker",
]


def storage_for_client() -> ClientStorage:
    """The storage as this thread's caller uses it.

    Raises:
        ConfigurationError: ``BELAY`` does not fit.
        SchemaError: The database is not one that this version can work with.
        Unavailable: The journal has no owner, and none could be started.
    """
    found: ClientStorage = _backend().storage_for_client()
    return found


def storage_for_worker(*, pool_size: int = 4, application_name: str = "belay") -> Storage:
    """A storage with at most so many connections of its own, for the caller to close."""
    found: Storage = _backend().storage_for_worker(pool_size=pool_size, application_name=application_name)
    return found


def storage_for_supervisor(
    *, pool_size: int = 6, application_name: str = "belay-supervisor"
) -> AbstractContextManager[Storage]:
    """A worker's supervisor's storage. On the journal it owns the store meanwhile, or joins who does."""
    found: AbstractContextManager[Storage] = _backend().storage_for_supervisor(
        pool_size=pool_size, application_name=application_name
    )
    return found


_MODULES = {conf.POSTGRES: "django_belay.db.postgres", conf.JOURNAL: "django_belay.db.journal"}


def _backend() -> ModuleType:
    return import_module(_MODULES[conf.get().backend])
