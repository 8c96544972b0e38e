"""What ``@job`` and ``.using()`` take, checked when they are called."""

from __future__ import annotations

import re
import reprlib
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

from django_belay._setting import as_seconds, nearest
from django_belay.contract.json_value import check_json
from django_belay.contract.money import Budget
from django_belay.exceptions import ConfigurationError, InvalidInput
from django_belay.registry import Chunk, Isolation, JobOptions, Unique

#: Options that the row carries, so that each enqueueing can choose them.
OF_THE_ROW = (
    "queue", "priority", "max_attempts", "unique", "budget", "meta", "partition_key", "run_after",
    "encrypted",
)  # fmt: skip

#: Options that are read from the code when the job runs: the wire tables have no column for them.
OF_THE_CODE = (
    "backoff", "retry_on", "give_up_on", "timeout", "expires", "chunk", "isolation", "on_failure",
)  # fmt: skip

MAX_NAME = 255
INT4 = 2**31 - 1
# Less is surely meant in another unit.
MIN_MEMORY = 1024 * 1024
# Control characters, lone surrogates: no name, and a text column refuses some.
_UNFIT = re.compile("[\x00-\x1f\x7f\ud800-\udfff]")


def merge(base: JobOptions, given: Mapping[str, Any], *, where: str, allowed: Collection[str]) -> JobOptions:
    """``base`` with the given options over it.

    Args:
        where: How the call reads in a message: ``@job``, ``.using()``.
        allowed: Names that this call takes.

    Raises:
        ConfigurationError: Names the option, what was found and what is allowed.
    """
    checked = {}
    for name, value in given.items():
        if name not in allowed:
            raise ConfigurationError(f"{where} takes no {name!r}: {_why_not(name, allowed)}")
        checked[name] = _CHECKS[name](f"{where}: {name}={reprlib.repr(value)}", value)
    return replace(base, **checked)


def check_name(place: str, value: object) -> str:
    """A queue, kind or alias: text of at most 255 characters without control characters.

    Raises:
        ConfigurationError: It is something else.
    """
    if not isinstance(value, str) or not value or len(value) > MAX_NAME or _UNFIT.search(value):
        raise ConfigurationError(
            f"{place}: give a text of 1 to {MAX_NAME} characters without control characters"
        )
    return value


def _why_not(name: str, allowed: Collection[str]) -> str:
    if name in OF_THE_CODE:
        return "it is read from the code when the job runs, not stored with the job; set it in @job"
    if name in ("kind", "aliases"):
        return "it names the function; set it in @job"
    return nearest(name, allowed)


# -- one check an option ----------------------------------------------------------


def _integer(least: int, most: int) -> Callable[[str, object], int]:
    def check(place: str, value: object) -> int:
        if type(value) is not int or not least <= value <= most:
            raise ConfigurationError(f"{place}: give a whole number from {least:,} to {most:,}")
        return value

    return check


def _check_seconds(place: str, value: object) -> float | None:
    if value is None:
        return None
    seconds = as_seconds(value)
    if seconds is None or seconds <= 0:
        raise ConfigurationError(f"{place}: give seconds above 0, or a timedelta")
    return seconds


def _check_backoff(place: str, value: Any) -> Any:
    if value is None or callable(value):
        return value
    if isinstance(value, list | tuple) and value:
        delays = [as_seconds(item) for item in value]
        if all(delay is not None and delay >= 0 for delay in delays):
            return tuple(delays)
    raise ConfigurationError(f"{place}: give a function of the attempt (1, 2, …) or a list of seconds")


def _check_errors(place: str, value: Any) -> Any:
    errors = value if isinstance(value, tuple | list) else (value,)
    if not all(isinstance(error, type) and issubclass(error, BaseException) for error in errors):
        raise ConfigurationError(f"{place}: give exception classes")
    return tuple(errors)


def _check_retry_on(place: str, value: Any) -> Any:
    return None if value is None else _check_errors(place, value)


def check_unique(place: str, value: Any) -> Unique | None:
    """A key, a callable or a ``Unique`` as ``Unique``."""
    if value is None:
        return None
    unique = value if isinstance(value, Unique) else Unique(value)
    if not callable(unique.key) and not (isinstance(unique.key, str) and unique.key):
        raise ConfigurationError(f"{place}: give a key (text), a callable, or Unique(key, within=, scope=)")
    if unique.scope not in ("incomplete", "always"):
        raise ConfigurationError(f'{place}: scope is "incomplete" or "always"')
    if unique.within is None:
        return unique
    seconds = as_seconds(unique.within)
    if unique.scope == "always" or seconds is None or seconds < 1 or seconds != int(seconds):
        raise ConfigurationError(
            f'{place}: within is a timedelta of whole seconds, at least one, and goes without scope="always"'
        )
    return replace(unique, within=timedelta(seconds=seconds))


def _check_budget(place: str, value: Any) -> Budget | None:
    if value is None or isinstance(value, Budget):
        return value
    raise ConfigurationError(f'{place}: give Budget(usd="1.50", tokens=100_000)')


def _check_meta(place: str, value: Any) -> dict[str, Any]:
    if not isinstance(value, Mapping):
        raise ConfigurationError(f"{place}: give a dictionary")
    meta = dict(value)
    try:
        check_json(meta, path="meta")
    except InvalidInput as error:
        raise ConfigurationError(str(error)) from None
    return meta


def _check_partition_key(place: str, value: Any) -> Any:
    if value is None or callable(value):
        return value
    return check_name(place, value)


def check_run_after(place: str, value: Any) -> datetime | timedelta | None:
    """When the job may start: an aware datetime, or a timedelta from the enqueueing."""
    if value is None or isinstance(value, timedelta):
        return value
    if isinstance(value, datetime):
        if value.tzinfo is None or value.utcoffset() is None:
            raise ConfigurationError(
                f"{place}: the datetime has no time zone; use django.utils.timezone.now() or make_aware()"
            )
        return value
    raise ConfigurationError(f"{place}: give an aware datetime or a timedelta")


def _check_chunk(place: str, value: Any) -> Chunk | None:
    if value is None:
        return None
    gather = as_seconds(value.gather) if isinstance(value, Chunk) else None
    if gather is None or gather < 0 or type(value.size) is not int or not 1 <= value.size <= 10_000:
        raise ConfigurationError(f"{place}: give Chunk(size=1 to 10,000, gather=seconds)")
    return Chunk(size=value.size, gather=gather)


def _check_isolation(place: str, value: Any) -> Any:
    if isinstance(value, Isolation):
        memory = value.memory
        if memory is None or (type(memory) is int and memory >= MIN_MEMORY):
            return value
        raise ConfigurationError(f"{place}: memory is a number of bytes, at least {MIN_MEMORY:,}")
    if value not in ("thread", "process"):
        raise ConfigurationError(f'{place}: give "thread", "process", or Isolation(memory=bytes)')
    return value


def _check_flag(place: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise ConfigurationError(f"{place}: give True or False")
    return value


def _check_kind(place: str, value: Any) -> str | None:
    kind = getattr(value, "kind", value)  # a job may be given for its kind
    return None if kind is None else check_name(place, kind)


_CHECKS: dict[str, Callable[[str, Any], Any]] = {
    "queue": check_name,
    "priority": _integer(-INT4 - 1, INT4),
    "max_attempts": lambda place, value: None if value is None else _integer(1, INT4)(place, value),
    "backoff": _check_backoff,
    "retry_on": _check_retry_on,
    "give_up_on": _check_errors,
    "timeout": _check_seconds,
    "expires": _check_seconds,
    "unique": check_unique,
    "budget": _check_budget,
    "meta": _check_meta,
    "partition_key": _check_partition_key,
    "run_after": check_run_after,
    "chunk": _check_chunk,
    "isolation": _check_isolation,
    "encrypted": _check_flag,
    "on_failure": _check_kind,
}
