"""Reaching a journal from a Django process: through its owner, whom a client starts where there is none.

Where no process can be started (``auto_serve`` off, an embedded interpreter, settings without a module),
a client owns the store for its own operation and gives it up again.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any, Final

from django_belay import conf
from django_belay.db.starting import starter, why_not_started
from django_belay.exceptions import JournalLocked, Unavailable
from django_belay.storage.journal.index import start_index
from django_belay.storage.journal.serving.dialing import Dialer
from django_belay.storage.journal.serving.owner import Owner, OwnerOptions
from django_belay.storage.journal.serving.place import Place
from django_belay.storage.journal.serving.remote import RemoteStore
from django_belay.storage.journal.store.store import JournalStore

#: Opening a larger store takes more than a moment: that is not for a web request.
MAX_OWN_BYTES: Final = 32 * 2**20
#: How long an owner that is dead, or handing over, is waited for.
WAIT_S: Final = 5.0
PATIENCE_S: Final = 10.0


def place_of(options: conf.JournalOptions) -> Place:
    """The directory of the settings."""
    return Place(Path(options.directory))


def owner_options(options: conf.JournalOptions, *, idle_exit_s: float | None = None) -> OwnerOptions:
    """How the settings want the store to be owned."""
    found = conf.get()
    sized: dict[str, Any] = {} if options.segment_bytes is None else {"segment_bytes": options.segment_bytes}
    return OwnerOptions(
        durability=options.durability,
        validated_filesystem=options.validated_filesystem,
        profile=options.profile,
        retention=found.retention,
        lease_ttl=timedelta(seconds=found.lease_ttl),
        idle_exit_s=idle_exit_s,
        index=start_index,
        **sized,
    )


def open_owner(
    place: Place, options: conf.JournalOptions, *, wait_s: float, idle_exit_s: float | None = None
) -> Owner:
    """Own the directory in this process; it serves nobody yet.

    Raises:
        JournalLocked: Another process owns it.
    """
    return Owner.open(
        place, owner_options(options, idle_exit_s=idle_exit_s), now=conf.clock().now(), wait_s=wait_s
    )


# -- through the owner ------------------------------------------------------------


def remote_store(
    options: conf.JournalOptions,
    *,
    connections: int = 64,
    start: Callable[[], None] | None = None,
) -> RemoteStore:
    """The storage through the directory's owner, started by ``start`` where there is none."""
    place = place_of(options)
    dial = Dialer(place, start=start or starter(place, options))
    return RemoteStore(dial, connections=connections, patience_s=PATIENCE_S)


# -- owning for a moment -------------------------------------------------------------


class MomentaryOwner:
    """Every operation of the storage: by the owner where there is one, else by this process for that long."""

    def __init__(self, options: conf.JournalOptions) -> None:
        self._options = options
        self._place = place_of(options)
        self._remote = remote_store(options, connections=4)
        self._owning = threading.Lock()

    capabilities = JournalStore.capabilities

    def listener(self) -> Any:
        """Nobody sends hints where nobody serves."""
        return self._remote.listener() if self._place.has_owner() else None

    def close(self) -> None:
        """Close what connections there are."""
        self._remote.close()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or not callable(getattr(JournalStore, name, None)):
            raise AttributeError(name)
        return partial(self._call, name)

    def _call(self, name: str, *args: Any, **kwargs: Any) -> Any:
        deadline = time.monotonic() + PATIENCE_S
        while True:
            if self._place.has_owner():
                return getattr(self._remote, name)(*args, **kwargs)
            try:
                with self._owning, self._owned() as store:
                    return getattr(store, name)(*args, **kwargs)
            except JournalLocked:
                if time.monotonic() >= deadline:
                    raise

    @contextmanager
    def _owned(self) -> Iterator[JournalStore]:
        size = store_bytes(self._place)
        if size > MAX_OWN_BYTES:
            raise Unavailable(
                f"nobody serves the journal {self._place.directory}, no owner is started from here "
                f"({why_not_started(self._options)}), and its {size // 2**20} MiB are too much to read for one "
                "operation: run 'manage.py belay_worker' or 'manage.py belay_journal serve'"
            )
        with open_owner(self._place, self._options, wait_s=WAIT_S) as owner:
            yield owner.storage


def store_bytes(place: Place) -> int:
    """What opening the store would read."""
    total = 0
    for folder, _, names in os.walk(place.store):
        for name in names:
            try:
                total += os.stat(os.path.join(folder, name)).st_size
            except FileNotFoundError:  # a compaction has just removed it
                continue
    return total


# -- a worker's supervisor -----------------------------------------------------------


class SupervisedStore:
    """The storage of a worker's supervisor, which owns the store while it can.

    Where another process owns it, operations go there, and when that one ends this one takes over.
    """

    def __init__(self, options: conf.JournalOptions) -> None:
        self._options = options
        self._place = place_of(options)
        self._owner: Owner | None = None
        self._remote = remote_store(options, connections=6, start=self._take_over)
        self._own(WAIT_S)

    capabilities = JournalStore.capabilities

    def close(self) -> None:
        """Hand over."""
        self._remote.close()
        if self._owner is not None:
            self._owner.close()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._current(), name)

    def _current(self) -> JournalStore | RemoteStore:
        """An owner that gave itself up (a full disk, a dead scribe) is asked nothing more."""
        owner = self._owner
        return self._remote if owner is None or owner.ended.is_set() else owner.storage

    def _own(self, wait_s: float) -> None:
        try:
            owner = open_owner(self._place, self._options, wait_s=wait_s)
        except JournalLocked:
            return  # it is served, or will be: the dialer asks again
        try:
            owner.start()
        except BaseException:
            owner.close()
            raise
        self._owner = owner

    def _take_over(self) -> None:
        self._own(0.0)
