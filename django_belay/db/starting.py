"""Starting an owner of the journal from a Django process, where that is possible."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable
from functools import partial
from typing import Final

from django.conf import ENVIRONMENT_VARIABLE

from django_belay import conf
from django_belay.storage.journal.serving.place import Place

#: An owner that a client started ends when nobody has been connected for so long.
IDLE_EXIT_S: Final = 60


def why_not_started(options: conf.JournalOptions) -> str | None:
    """What keeps this process from starting an owner; ``None`` when nothing does."""
    if not options.auto_serve:
        return "auto_serve is off"
    for embedding in ("uwsgi", "mod_wsgi"):
        if embedding in sys.modules:
            return f"this interpreter is embedded in {embedding}"
    if not sys.executable or "python" not in os.path.basename(sys.executable).lower():
        return f"this process runs no Python of its own (sys.executable is {sys.executable!r})"
    if not os.environ.get(ENVIRONMENT_VARIABLE):
        return f"the settings have no module ({ENVIRONMENT_VARIABLE} is not set)"
    return None


def start_detached(place: Place) -> None:
    """Start ``belay_journal serve`` in a session of its own; returns at once."""
    command = [sys.executable, "-P", "-m", "django", "belay_journal", "serve", str(place.directory)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path or os.getcwd() for path in sys.path)}
    log = place.open_log()
    try:
        process = subprocess.Popen(  # noqa: S603 - our own interpreter and module
            [*command, "--idle-exit", str(IDLE_EXIT_S)],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
            env=environment,
        )
    finally:
        os.close(log)
    # It outlives this process, or else ends as its child: somebody must take note of that.
    threading.Thread(target=process.wait, name="belay-journal-started", daemon=True).start()


def starter(place: Place, options: conf.JournalOptions) -> Callable[[], None] | None:
    """What starts an owner from here, if anything may."""
    return partial(start_detached, place) if why_not_started(options) is None else None
