"""System checks of the ``BELAY`` setting, the database it names, and the registered jobs.

Every message says what was found and its hint how to mend it. Ids never change:
``belay.E001`` to ``E005``, ``E008``, ``E010``, ``E012`` come from :mod:`django_belay.conf`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any

from django.apps import AppConfig
from django.conf import settings
from django.core import checks
from django.db import connections, router

from django_belay import conf
from django_belay._cron_job import build_job, settings_entries
from django_belay._journal_checks import check_journal, check_window
from django_belay._setting import Problem
from django_belay.contract.cron import find_zone, parse_schedule
from django_belay.databases import ENGINE, INDEX, ROUTER
from django_belay.exceptions import BelayError, ConfigurationError, InvalidCron, InvalidInput, PayloadTooLarge
from django_belay.registry import JobDefinition, registry

DATABASE_PATH = 'BELAY["STORAGE"]["OPTIONS"]["database"]'


@checks.register("belay")
def check_belay(app_configs: Sequence[AppConfig] | None = None, **_: Any) -> list[checks.CheckMessage]:
    """Everything that can be known without asking a database."""
    found, problems = conf.read(getattr(settings, "BELAY", {}))
    messages: list[checks.CheckMessage] = [_error(problem) for problem in problems]
    if found.backend == conf.POSTGRES:
        messages += _database(found.postgres.database)
    if found.journal is not None:
        messages += check_journal(found.journal)
        messages += _journal_index(found.journal)
    messages += _paths(found)
    for definition in registry:
        messages += _job(definition, found)
    messages += _chunk_queues(registry)
    messages += _crons(found)
    if not problems:
        messages += _cron_jobs()
    return messages


@checks.register("belay", deploy=True)
def check_belay_deployment(
    app_configs: Sequence[AppConfig] | None = None, **_: Any
) -> list[checks.CheckMessage]:
    """What to know before a deployment."""
    found, _problems = conf.read(getattr(settings, "BELAY", {}))
    return list(check_window(found.journal)) if found.journal is not None else []


def _error(problem: Problem) -> checks.Error:
    return checks.Error(f"{problem.path} {problem.message}.", hint=problem.hint, id=f"belay.{problem.code}")


def _database(alias: str) -> Iterator[checks.CheckMessage]:
    if alias not in connections:
        yield checks.Error(
            f"{DATABASE_PATH} is {alias!r}, which DATABASES does not have.",
            hint=f"Name one of {', '.join(sorted(connections))}.",
            id="belay.E006",
        )
        return
    vendor = connections[alias].vendor
    if vendor != "postgresql":
        yield checks.Error(
            f"{DATABASE_PATH} is {alias!r}, a database of {vendor}.",
            hint="Name a PostgreSQL database, or set BACKEND to 'django_belay.storage.journal'.",
            id="belay.E007",
        )
    if alias != "default":
        yield from _second_database(alias)


def _second_database(alias: str) -> Iterator[checks.CheckMessage]:
    yield checks.Warning(
        f"{DATABASE_PATH} is {alias!r}: enqueueing does not commit with the rows of other databases.",
        hint="Use enqueue_on_commit() for jobs about them, or silence this check.",
        id="belay.W001",
    )
    from django_belay.models import Job

    if router.db_for_read(Job) != alias:
        yield checks.Warning(
            f"the models of belay are read from {router.db_for_read(Job)!r}, the jobs stand in {alias!r}.",
            hint="Add 'django_belay.routers.BelayRouter' to DATABASE_ROUTERS.",
            id="belay.W002",
        )


def _journal_index(journal: conf.JournalOptions) -> Iterator[checks.CheckMessage]:
    """What the models and the admin need: jobs run without it."""
    alias = journal.index_database
    helper = "DATABASES = with_belay_index(DATABASES, directory)"
    if alias not in connections:
        yield checks.Warning(
            f"DATABASES has no {alias!r}, which the models and the admin read the journal through.",
            hint=f"Add it in your settings: {helper}, from django_belay.databases.",
            id="belay.W010",
        )
        return
    settings_dict = connections[alias].settings_dict
    file = os.path.join(journal.directory, INDEX)
    if settings_dict["ENGINE"] != ENGINE or os.path.realpath(settings_dict["NAME"]) != os.path.realpath(file):
        yield checks.Warning(
            f"DATABASES[{alias!r}] is {settings_dict['NAME']} by {settings_dict['ENGINE']}; the journal's "
            f"index is {file}.",
            hint=f"Make it with the journal's own directory: {helper}, from django_belay.databases.",
            id="belay.W011",
        )
    from django_belay.models import Job

    if router.db_for_read(Job) != alias:
        yield checks.Warning(
            f"the models of belay are read from {router.db_for_read(Job)!r}, the journal's index is {alias!r}.",
            hint=f"Add {ROUTER!r} to DATABASE_ROUTERS.",
            id="belay.W012",
        )


def _paths(found: conf.Settings) -> Iterator[checks.CheckMessage]:
    """Dotted paths that lead nowhere."""
    named = [("MIDDLEWARE", path) for path in found.middleware]
    if found.clock is not None:
        named.append(("CLOCK", found.clock))
    for key, path in named:
        try:
            conf.load(key, path)
        except ConfigurationError as error:
            yield checks.Error(str(error), hint="Correct the dotted path, or remove it.", id="belay.E013")


def _job(definition: JobDefinition, found: conf.Settings) -> Iterator[checks.CheckMessage]:
    kind, options = definition.kind, definition.options
    try:
        definition.codec.compile()
    except ConfigurationError as error:
        yield checks.Error(str(error), hint="Annotate with types that an input can hold.", id="belay.E014")
    if options.encrypted and not found.encryption_keys:
        yield checks.Error(
            f'job {kind!r} has encrypted=True, and BELAY["ENCRYPTION_KEYS"] is empty.',
            hint="Give a list of 32-byte keys, newest first; secrets.token_bytes(32) makes one.",
            id="belay.E015",
        )
    if options.queue not in found.queues:
        yield checks.Warning(
            f'job {kind!r} is for queue {options.queue!r}, which BELAY["QUEUES"] does not have.',
            hint=f'Add it to BELAY["QUEUES"], or see that a worker runs with --queue {options.queue}.',
            id="belay.W003",
        )
    if options.on_failure is not None and options.on_failure not in registry:
        yield checks.Error(
            f"job {kind!r} has on_failure={options.on_failure!r}, and no job is registered under it.",
            hint="Give a registered job or its kind.",
            id="belay.E016",
        )
    if definition.is_async and options.is_isolated:
        yield checks.Error(
            f'job {kind!r} is async and has isolation="process".',
            hint="Make it an ordinary function, or leave isolation out.",
            id="belay.E017",
        )


def _chunk_queues(definitions: Iterable[JobDefinition]) -> Iterator[checks.CheckMessage]:
    """A chunk kind has its queue alone: rows of others would wait for its gathering (rule 12)."""
    by_queue: dict[str, list[JobDefinition]] = {}
    for definition in definitions:
        by_queue.setdefault(definition.options.queue, []).append(definition)
    for queue, sharing in by_queue.items():
        chunked = [definition for definition in sharing if definition.options.chunk is not None]
        if chunked and len(sharing) > 1:
            kinds = ", ".join(sorted(definition.kind for definition in sharing))
            yield checks.Error(
                f"queue {queue!r} is shared by {kinds}, and {chunked[0].kind!r} takes its jobs in chunks.",
                hint="Give a chunk job a queue of its own.",
                id="belay.E018",
            )


def _crons(found: conf.Settings) -> Iterator[checks.CheckMessage]:
    for cron in found.crons.values():
        yield from _cron_fault(cron.name, "expression", partial(parse_schedule, cron.expression))
        yield from _cron_fault(cron.name, "timezone", partial(find_zone, cron.timezone))
        if cron.kind not in registry:
            yield checks.Warning(
                f'BELAY["CRONS"]["{cron.name}"]["kind"] is {cron.kind!r}, which no job is registered under.',
                hint="Correct it, unless it is another SDK's.",
                id="belay.W004",
            )


def _cron_jobs() -> Iterator[checks.CheckMessage]:
    """Entries whose job could not be made, every time its slot comes."""
    for entry in settings_entries().values():
        yield from _cron_fault(entry.name, "options", partial(build_job, entry, conf.clock().now()))


def _cron_fault(name: str, key: str, look: Callable[[], object]) -> Iterator[checks.CheckMessage]:
    try:
        look()
    except (InvalidInput, PayloadTooLarge) as error:
        yield _cron_error(name, "input", error, "Give the arguments that the job's function takes, by name.")
    except InvalidCron as error:
        yield _cron_error(name, key, error, "Correct it, or remove the entry.")
    except BelayError:
        pass  # a missing key, for one: said of the job itself
    except Exception as error:  # a callable of the job, as unique= may be
        yield _cron_error(name, "input", error, "Its job cannot be made of this input; correct one of them.")


def _cron_error(name: str, key: str, error: Exception, hint: str) -> checks.Error:
    found, _, mend = str(error).partition("; ")
    said = found if isinstance(error, BelayError) else f"{type(error).__name__}: {error}"
    return checks.Error(
        f'BELAY["CRONS"]["{name}"]["{key}"]: {said.rstrip(".")}.',
        hint=mend[:1].upper() + mend[1:] if mend else hint,
        id="belay.E011",
    )
