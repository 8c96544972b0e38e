"""What can be said of a journal's options without opening the store."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from django.conf import settings
from django.core import checks
from django.db import connections

from django_belay import conf
from django_belay.db.starting import why_not_started
from django_belay.exceptions import JournalError
from django_belay.storage.journal.files.filesystem import check_place

PATH = 'BELAY["STORAGE"]["OPTIONS"]'


def check_journal(journal: conf.JournalOptions) -> Iterator[checks.CheckMessage]:
    """The directory, what it lies on, who serves it, and the caller's transactions."""
    yield from _directory(journal)
    if journal.transaction_alias not in connections:
        yield checks.Error(
            f'{PATH}["transaction_alias"] is {journal.transaction_alias!r}, which DATABASES does not have.',
            hint=f"Name the database whose commits enqueueing waits for: {', '.join(sorted(connections))}.",
            id="belay.E022",
        )
    if journal.durability == "write" and not settings.DEBUG:
        yield checks.Warning(
            f'{PATH}["durability"] is "write": what was acknowledged is lost when the machine loses power.',
            hint='Leave it out, or set it to "sync".',
            id="belay.W006",
        )
    reason = why_not_started(journal)
    if journal.auto_serve and reason is not None:
        yield checks.Warning(
            f"{reason}, so no owner of the journal can be started from here: without a worker, each "
            "operation opens the store for itself.",
            hint="Run 'manage.py belay_journal serve' or 'manage.py belay_worker' beside this process.",
            id="belay.W007",
        )


def check_window(journal: conf.JournalOptions) -> Iterator[checks.CheckMessage]:
    """For ``check --deploy``: what the journal cannot promise."""
    yield checks.Warning(
        f"jobs enqueued inside atomic() on {journal.transaction_alias!r} are written to the journal after the "
        "commit: a process that dies between the two has committed its rows and enqueued nothing.",
        hint="Let a cron job look for rows whose job is missing, or keep jobs in PostgreSQL, or silence this.",
        id="belay.W008",
    )


def _directory(journal: conf.JournalOptions) -> Iterator[checks.CheckMessage]:
    if not journal.directory:
        return  # said of the setting itself
    directory = Path(journal.directory).absolute()
    fault = _unusable(directory)
    if fault is not None:
        yield checks.Error(
            f'{PATH}["directory"]: {fault}.',
            hint="Name a directory that the user who runs Django and the workers can write to.",
            id="belay.E020",
        )
        return
    try:
        store = os.path.realpath(directory / "store")
        check_place(store, journal.durability, validated=journal.validated_filesystem)
    except JournalError as error:
        yield checks.Error(
            f'{PATH}["directory"]: {error}.',
            hint="Keep the journal on ext4, XFS or Btrfs; validated_filesystem=True vouches for another one, "
            'durability="write" is for development.',
            id="belay.E021",
        )


def _unusable(directory: Path) -> str | None:
    """Why no journal can be kept there; a directory that is yet to be made is judged by what it would lie in."""
    above = directory
    while not above.exists():
        above = above.parent
    if not above.is_dir():
        return f"{above} is no directory"
    if not os.access(above, os.W_OK | os.X_OK):
        return f"{above} cannot be written by this user ({os.geteuid()})"
    return None
