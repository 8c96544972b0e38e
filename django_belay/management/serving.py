"""``belay_journal serve``: a process that owns a journal for others, and runs no jobs."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path

from django_belay import conf
from django_belay.db import reaching
from django_belay.engine.spawn import open_standard_files
from django_belay.exceptions import ConfigurationError, JournalLocked
from django_belay.storage.journal.serving.place import Place

#: How long an owner that is dead, or handing over, is waited for.
WAIT_S = 2.0


def serve(directory: str | None, *, idle_exit_s: float | None, say: Callable[[str], object]) -> bool:
    """Own the directory until a signal, or until nobody has asked for ``idle_exit_s``.

    Args:
        directory: Another one than the settings name; the other options come from them.

    Returns:
        Whether it was owned: ``False`` where another process serves it already.

    Raises:
        ConfigurationError: The settings name no journal.
        JournalError: The store is refused, or could not be written any more.
    """
    open_standard_files()
    options = conf.get().journal
    if options is None:
        raise ConfigurationError(
            f'BELAY["STORAGE"]["BACKEND"] is {conf.get().backend!r}: there is no journal to serve; '
            f"name {conf.JOURNAL!r} with a directory"
        )
    place = Place(Path(directory)) if directory else reaching.place_of(options)
    stop = _stopped_by_signals()
    try:
        owner = reaching.open_owner(place, options, wait_s=WAIT_S, idle_exit_s=idle_exit_s)
    except JournalLocked:
        say(f"the journal {place.directory} is served already")
        return False
    with owner:
        owner.start()
        say(f"process {os.getpid()} serves the journal {place.directory}")
        owner.join_until_idle(stop)
        say(f"process {os.getpid()} gives the journal {place.directory} up")
    return True


def _stopped_by_signals() -> threading.Event:
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        # A handler may interrupt the main thread under the event's own lock.
        signal.signal(number, lambda _number, _frame: threading.Thread(target=stop.set).start())
    return stop
