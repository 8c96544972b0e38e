"""From a cron entry to its job: what the settings, a row or a caller of ``schedules`` gave, checked.

An entry travels as a :class:`~django_belay.storage.base.CronRow`, from wherever it comes.

Contract: §3 ``belay_crons``, §8.5; rules 2, 35.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime
from typing import Any

from django_belay import conf
from django_belay._enqueue import row_maker
from django_belay._options import check_name, merge
from django_belay.contract.encryption import is_encrypted, plain
from django_belay.contract.job import NewJob
from django_belay.contract.json_value import dump_jsonb
from django_belay.exceptions import ConfigurationError, InvalidCron
from django_belay.registry import JobDefinition, JobOptions, registry
from django_belay.storage.base import CronRow

#: What ``belay_crons.opts`` may hold: what every SDK writes alike (rule 2). The rest of an
#: entry's options are those of its kind.
OPTIONS = ("queue", "priority", "max_attempts", "partition_key", "meta")


def settings_entries() -> dict[str, CronRow]:
    """The entries of ``CRONS``, by name."""
    return {
        cron.name: CronRow(
            name=cron.name,
            expression=cron.expression,
            kind=cron.kind,
            input=dict(cron.input),
            opts=dict(cron.options),
            paused=cron.paused,
            timezone=cron.timezone,
            catch_up=cron.catch_up,
        )
        for cron in conf.get().crons.values()
    }


def build_job(entry: CronRow, now: datetime) -> NewJob:
    """The job of an entry, without its slot.

    A kind that is not registered here is another SDK's; its jobs are written as the row says.

    Raises:
        InvalidCron: Kind or options do not fit.
        InvalidInput: The input does not fit the kind's signature, or cannot be stored.
        PayloadTooLarge: It is over ``MAX_INPUT_BYTES``.
    """
    try:
        check_name("kind", entry.kind)
        definition = registry.find(entry.kind)
        options = _options(entry, definition)
    except ConfigurationError as error:
        raise InvalidCron(str(error)) from error
    value = entry.input
    if not isinstance(value, dict):
        raise InvalidCron(f"the input is a {type(value).__name__}; an input is a JSON object")
    if definition is None:
        return row_maker(entry.kind, options, now=now).make(value, _dump(value))
    if is_encrypted(value):
        return _build_encrypted(definition, replace(options, encrypted=False), value, now)
    definition.codec.decode(value)
    rows = row_maker(definition.kind, options, now=now, decode=definition.codec.decode)
    return rows.make(value, _dump(value))


def _build_encrypted(
    definition: JobDefinition, options: JobOptions, value: dict[str, Any], now: datetime
) -> NewJob:
    """The input stays as it is; it is only opened where a callable key asks for its arguments."""

    def decode(sealed: dict[str, Any]) -> Mapping[str, Any]:
        return definition.codec.decode(plain(sealed, conf.get().encryption_keys))

    # Its JSON was measured before it was encrypted.
    return row_maker(definition.kind, options, now=now, decode=decode).make(value, b"")


def _options(entry: CronRow, definition: JobDefinition | None) -> JobOptions:
    if not isinstance(entry.opts, Mapping):
        raise InvalidCron(f"the options are a {type(entry.opts).__name__}; they are a JSON object")
    given = {name: value for name, value in entry.opts.items() if value is not None}
    if callable(given.get("partition_key")):
        raise InvalidCron("partition_key: give a text; a row holds no callable, @job may have one")
    base = JobOptions() if definition is None else definition.options
    return merge(base, given, where="a cron entry", allowed=OPTIONS)


def _dump(value: dict[str, Any]) -> bytes:
    return dump_jsonb(value, path="input", max_depth=conf.get().max_depth)
