"""The ``BELAY`` setting as one frozen record.

:func:`get` is cached and cleared by ``setting_changed``, so ``override_settings`` works.
:func:`read` never raises: system checks report all that it finds at once.
"""

from __future__ import annotations

import platform
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from functools import lru_cache
from typing import Any, Literal

from django.conf import settings
from django.core.signals import setting_changed
from django.utils.module_loading import import_string

from django_belay._setting import Problem, Section, as_seconds
from django_belay.contract import queue_opts
from django_belay.contract.admission import Limits, Partition
from django_belay.contract.cron_due import CATCH_UP, CatchUp
from django_belay.contract.envelope import MAX_STEP_BYTES
from django_belay.contract.json_value import MAX_DEPTH
from django_belay.contract.notification import NotifyMode, PokePolicy
from django_belay.contract.state import State
from django_belay.engine.clock import Clock, SystemClock
from django_belay.engine.options import DEFAULT_RETENTION, Middleware, QueueOptions, WorkerOptions
from django_belay.exceptions import ConfigurationError
from django_belay.registry import BackoffOption

POSTGRES = "django_belay.storage.postgres"
JOURNAL = "django_belay.storage.journal"
BACKENDS = (POSTGRES, JOURNAL)

#: What a worker does that was told nothing: the one place where these defaults stand.
_WORKER = WorkerOptions()

NOTIFY_MODES = ("auto", "always", "off")
PROFILES = ("belay", "strict")
DURABILITIES = ("sync", "write")
DAY_S = 86_400.0


@dataclass(frozen=True, slots=True, kw_only=True)
class PostgresOptions:
    """``STORAGE["OPTIONS"]`` of the PostgreSQL storage; durations in seconds."""

    database: str = "default"
    listen_dsn: str | None = field(default=None, repr=False)
    pool_size: int | None = None
    prepare: bool = True
    statement_timeout: float = 30.0
    connect_timeout: float = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class JournalOptions:
    """``STORAGE["OPTIONS"]`` of the journal."""

    directory: str = ""
    profile: Literal["belay", "strict"] = "belay"
    durability: Literal["sync", "write"] = "sync"
    validated_filesystem: bool = False
    segment_bytes: int | None = None
    auto_serve: bool = True
    index_database: str = "belay"
    transaction_alias: str = "default"


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueSettings:
    """One entry of ``QUEUES``; rows of ``belay_queues`` are merged over it by name.

    ``limit`` is the concurrency of one process: the least and the most of it.
    """

    name: str
    limit: tuple[int, int] = (10, 10)
    limits: Limits = field(default_factory=Limits)
    notify: NotifyMode | None = None
    paused: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class CronSettings:
    """One entry of ``CRONS``; rows of ``belay_crons`` are merged over it by name."""

    name: str
    expression: str
    kind: str
    input: Mapping[str, Any] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)
    timezone: str | None = None
    catch_up: CatchUp = "latest"
    paused: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Everything that ``BELAY`` says, defaults filled in; durations in seconds."""

    backend: str = POSTGRES
    postgres: PostgresOptions = field(default_factory=PostgresOptions)
    journal: JournalOptions | None = None
    queues: Mapping[str, QueueSettings] = field(default_factory=dict)
    crons: Mapping[str, CronSettings] = field(default_factory=dict)
    concurrency: int = _WORKER.concurrency
    processes: int = _WORKER.processes
    lease_ttl: float = _WORKER.lease_ttl.total_seconds()
    busy_poll: float = _WORKER.busy_poll_s
    idle_poll: float = _WORKER.idle_poll_s
    sweep_interval: float = _WORKER.sweep_interval_s
    cron_interval: float = _WORKER.cron_interval_s
    sync_interval: float = _WORKER.sync_interval_s
    shutdown_grace: float = _WORKER.shutdown_grace_s
    ack_retry: float = _WORKER.ack_retry_s
    notify: NotifyMode = "auto"
    retention: Mapping[State, timedelta | None] = field(default_factory=lambda: dict(DEFAULT_RETENTION))
    signal_ttl: float = _WORKER.signal_ttl.total_seconds()
    max_input_bytes: int = _WORKER.max_input_bytes
    max_step_bytes: int = _WORKER.max_step_bytes
    max_signal_bytes: int = _WORKER.max_signal_bytes
    max_depth: int = _WORKER.max_depth
    strict_steps: bool = _WORKER.strict_steps
    max_attempts: int = _WORKER.max_attempts
    backoff: BackoffOption | None = None
    encryption_keys: tuple[bytes | Callable[[], bytes], ...] = field(default=(), repr=False)
    middleware: tuple[str, ...] = ()
    autodiscover: str = "jobs"
    clock: str | None = None
    node_name: str = ""


DEFAULTS = Settings()

KEYS = (
    "STORAGE", "QUEUES", "CRONS", "CONCURRENCY", "PROCESSES", "LEASE_TTL", "BUSY_POLL", "IDLE_POLL",
    "SWEEP_INTERVAL", "CRON_INTERVAL", "SYNC_INTERVAL", "SHUTDOWN_GRACE", "ACK_RETRY", "NOTIFY",
    "RETENTION", "SIGNAL_TTL", "MAX_INPUT_BYTES", "MAX_STEP_BYTES", "MAX_SIGNAL_BYTES", "MAX_DEPTH",
    "STRICT_STEPS", "MAX_ATTEMPTS", "BACKOFF", "ENCRYPTION_KEYS", "MIDDLEWARE", "AUTODISCOVER", "CLOCK", "NODE_NAME",
)  # fmt: skip


def get() -> Settings:
    """The settings in force.

    Raises:
        ConfigurationError: Names every key that does not fit, and the mend.
    """
    return _cached()


@lru_cache(maxsize=1)
def _cached() -> Settings:
    found, problems = read(getattr(settings, "BELAY", {}))
    if problems:
        raise ConfigurationError("\n".join(str(problem) for problem in problems))
    return found


def _forget(*, setting: str, **_: Any) -> None:
    if setting in ("BELAY", "DATABASES"):
        _cached.cache_clear()
        poke_policy.cache_clear()
        clock.cache_clear()


setting_changed.connect(_forget, dispatch_uid="django_belay.conf")


@lru_cache(maxsize=1)
def poke_policy() -> PokePolicy:
    """This process's policy of pokes: one, so that it can hold them apart (rule 11)."""
    found = get()
    by_queue = {name: queue.notify for name, queue in found.queues.items() if queue.notify is not None}
    return PokePolicy(mode=found.notify, by_queue=by_queue, interval=timedelta(seconds=found.busy_poll))


@lru_cache(maxsize=1)
def clock() -> Clock:
    """The clock of client and worker in this process."""
    path = get().clock
    return SystemClock() if path is None else load("CLOCK", path)()


def worker_options() -> WorkerOptions:
    """The engine's options, middleware imported.

    Raises:
        ConfigurationError: ``BELAY`` does not fit, or a dotted path leads nowhere.
    """
    found = get()
    return WorkerOptions(
        queues={name: _queue_options(queue) for name, queue in found.queues.items()},
        concurrency=found.concurrency,
        processes=found.processes,
        lease_ttl=timedelta(seconds=found.lease_ttl),
        busy_poll_s=found.busy_poll,
        idle_poll_s=found.idle_poll,
        sweep_interval_s=found.sweep_interval,
        cron_interval_s=found.cron_interval,
        sync_interval_s=found.sync_interval,
        shutdown_grace_s=found.shutdown_grace,
        ack_retry_s=found.ack_retry,
        retention=found.retention,
        signal_ttl=timedelta(seconds=found.signal_ttl),
        max_input_bytes=found.max_input_bytes,
        max_depth=found.max_depth,
        max_step_bytes=found.max_step_bytes,
        max_signal_bytes=found.max_signal_bytes,
        strict_steps=found.strict_steps,
        max_attempts=found.max_attempts,
        backoff=found.backoff,
        middleware=tuple(_middleware(path) for path in found.middleware),
        node_name=found.node_name,
        encryption_keys=found.encryption_keys,
    )


def partitions() -> dict[str, Partition]:
    """The queues that are claimed by key, for the index each of them gets when migrating."""
    found = {name: queue.limits.partition for name, queue in get().queues.items()}
    return {name: partition for name, partition in found.items() if partition is not None}


def load(key: str, path: str) -> Any:
    """What the dotted path under a key names.

    Raises:
        ConfigurationError: It leads nowhere, or cannot be called.
    """
    try:
        found = import_string(path)
    except ImportError as error:
        raise ConfigurationError(f'BELAY["{key}"]: cannot import {path!r}: {error}') from error
    if not callable(found):
        raise ConfigurationError(
            f'BELAY["{key}"]: {path!r} is a {type(found).__name__}, which cannot be called'
        )
    return found


def _middleware(path: str) -> Middleware:
    return load("MIDDLEWARE", path)  # type: ignore[no-any-return]


def _queue_options(queue: QueueSettings) -> QueueOptions:
    least, most = queue.limit
    return QueueOptions(
        limit=most, min_limit=least if least < most else None, limits=queue.limits, paused=queue.paused
    )


# -- reading ---------------------------------------------------------------------


def read(raw: object) -> tuple[Settings, list[Problem]]:
    """The record of a ``BELAY`` value and all that is wrong with it."""
    root = Section.root(raw)
    root.only(KEYS)
    storage = root.section("STORAGE")
    storage.only(("BACKEND", "OPTIONS"))
    backend = _backend(storage)
    found = Settings(
        backend=backend,
        postgres=_postgres(storage) if backend == POSTGRES else PostgresOptions(),
        journal=_journal(storage) if backend == JOURNAL else None,
        queues=_queues(root),
        crons=_crons(root),
        concurrency=root.integer("CONCURRENCY", DEFAULTS.concurrency, most=10_000),
        processes=root.integer("PROCESSES", DEFAULTS.processes, most=1_000),
        lease_ttl=root.seconds("LEASE_TTL", DEFAULTS.lease_ttl, least=0.1),
        busy_poll=root.seconds("BUSY_POLL", DEFAULTS.busy_poll, least=0.001),
        idle_poll=root.seconds("IDLE_POLL", DEFAULTS.idle_poll, least=0.001),
        sweep_interval=root.seconds("SWEEP_INTERVAL", DEFAULTS.sweep_interval, least=0.1),
        cron_interval=root.seconds("CRON_INTERVAL", DEFAULTS.cron_interval, least=0.1),
        sync_interval=root.seconds("SYNC_INTERVAL", DEFAULTS.sync_interval, least=0.1),
        shutdown_grace=root.seconds("SHUTDOWN_GRACE", DEFAULTS.shutdown_grace),
        ack_retry=root.seconds("ACK_RETRY", DEFAULTS.ack_retry),
        notify=root.choice("NOTIFY", DEFAULTS.notify, NOTIFY_MODES),
        retention=_retention(root),
        signal_ttl=root.seconds("SIGNAL_TTL", DEFAULTS.signal_ttl, least=1.0),
        max_input_bytes=root.integer("MAX_INPUT_BYTES", DEFAULTS.max_input_bytes),
        max_step_bytes=root.integer("MAX_STEP_BYTES", DEFAULTS.max_step_bytes, most=MAX_STEP_BYTES),
        # Below the step ceiling (rule 28): a wait journals the payload as a step.
        max_signal_bytes=root.integer("MAX_SIGNAL_BYTES", DEFAULTS.max_signal_bytes, most=MAX_STEP_BYTES),
        max_depth=root.integer("MAX_DEPTH", DEFAULTS.max_depth, most=MAX_DEPTH),
        strict_steps=root.flag("STRICT_STEPS", DEFAULTS.strict_steps),
        max_attempts=root.integer("MAX_ATTEMPTS", DEFAULTS.max_attempts),
        backoff=_backoff(root),
        encryption_keys=_encryption_keys(root),
        middleware=_texts(root, "MIDDLEWARE"),
        autodiscover=root.text("AUTODISCOVER", DEFAULTS.autodiscover),
        clock=root.optional_text("CLOCK"),
        node_name=root.text("NODE_NAME", platform.node() or "node"),
    )
    _check_times(root, found)
    return found, root.problems


def _backend(storage: Section) -> str:
    value = storage.values.get("BACKEND", POSTGRES)
    if value in BACKENDS:
        return str(value)
    storage.refuse("BACKEND", f"is {value!r}", f"Give {POSTGRES!r} or {JOURNAL!r}.", code="E004")
    return POSTGRES


def _postgres(storage: Section) -> PostgresOptions:
    options = storage.section("OPTIONS")
    options.only(PostgresOptions.__slots__, code="E005")
    default = PostgresOptions()
    return PostgresOptions(
        database=options.text("database", default.database),
        listen_dsn=options.optional_text("listen_dsn"),
        pool_size=options.optional_integer("pool_size", most=1_000),
        prepare=options.flag("prepare", default.prepare),
        statement_timeout=options.seconds("statement_timeout", default.statement_timeout, least=0.1),
        connect_timeout=options.seconds("connect_timeout", default.connect_timeout, least=1.0),
    )


def _journal(storage: Section) -> JournalOptions:
    options = storage.section("OPTIONS")
    options.only(JournalOptions.__slots__, code="E005")
    directory = options.values.get("directory")
    if not directory or not (isinstance(directory, str) or hasattr(directory, "__fspath__")):
        options.refuse(
            "directory", "is missing", 'Name the directory to keep the journal in: BASE_DIR / "var/belay".',
            code="E005",
        )  # fmt: skip
    default = JournalOptions()
    return JournalOptions(
        directory=str(directory or ""),
        profile=options.choice("profile", default.profile, PROFILES),
        durability=options.choice("durability", default.durability, DURABILITIES),
        validated_filesystem=options.flag("validated_filesystem", default.validated_filesystem),
        segment_bytes=options.optional_integer("segment_bytes", least=16_777_352, most=2**30),
        auto_serve=options.flag("auto_serve", default.auto_serve),
        index_database=options.text("index_database", default.index_database),
        transaction_alias=options.text("transaction_alias", default.transaction_alias),
    )


QUEUE_KEYS = (*queue_opts.KEYS, "notify", "paused")
DEFAULT_LIMIT = (10, 10)


def _queues(root: Section) -> dict[str, QueueSettings]:
    entries = root.section("QUEUES") if "QUEUES" in root.values else root.below("QUEUES", {"default": 10})
    found = {}
    for name, value in entries.values.items():
        if not isinstance(name, str) or not name or "\0" in name:
            entries.refuse(name, "is no queue name", "Name queues with a text that is not empty.")
            continue
        found[name] = _queue(entries, name, {"limit": value} if isinstance(value, int) else value)
    return found


def _queue(entries: Section, name: str, value: object) -> QueueSettings:
    options = entries.below(name, value)
    options.only(QUEUE_KEYS)
    opts, findings = queue_opts.parse(
        {key: options.values[key] for key in queue_opts.KEYS if key in options.values}
    )
    for finding in findings:
        *above, key = finding.path
        section = options
        for part in above:
            section = section.section(part)
        section.refuse(key, finding.message, finding.hint)
    return QueueSettings(
        name=name,
        limit=opts.limit or DEFAULT_LIMIT,
        limits=opts.limits,
        notify=options.choice("notify", "auto", NOTIFY_MODES) if "notify" in options.values else None,
        paused=options.flag("paused", False),
    )


CRON_KEYS = ("expression", "kind", "input", "options", "timezone", "catch_up", "paused")


def _crons(root: Section) -> dict[str, CronSettings]:
    entries = root.section("CRONS")
    found = {}
    for name in entries.values:
        entry = entries.section(name)
        entry.only(CRON_KEYS)
        for key in ("expression", "kind"):
            if key not in entry.values:
                entry.refuse(key, "is missing", "An entry needs an expression and a kind.", code="E010")
        found[str(name)] = CronSettings(
            name=str(name),
            expression=entry.text("expression", "@daily"),
            kind=entry.text("kind", "?"),
            input=entry.section("input").values,
            options=entry.section("options").values,
            timezone=entry.optional_text("timezone"),
            catch_up=entry.choice("catch_up", "latest", CATCH_UP),
            paused=entry.flag("paused", False),
        )
    return found


def _retention(root: Section) -> dict[State, timedelta | None]:
    given = root.section("RETENTION")
    given.only(tuple(DEFAULT_RETENTION))
    found: dict[State, timedelta | None] = {}
    for state, default in DEFAULT_RETENTION.items():
        keeps = state in given.values and given.values[state] is None
        default_s = default.total_seconds() if default else DAY_S
        found[state] = None if keeps else timedelta(seconds=given.seconds(state, default_s))
    return found


def _backoff(root: Section) -> BackoffOption | None:
    value = root.values.get("BACKOFF")
    if value is None or callable(value):
        return value
    if isinstance(value, list | tuple) and value:
        delays = [as_seconds(item) for item in value]
        if all(delay is not None and delay >= 0 for delay in delays):
            return tuple(delay for delay in delays if delay is not None)
    root.refuse(
        "BACKOFF",
        f"is {value!r}",
        "Give a function of the attempt or a list of seconds; None is the default.",
    )
    return None


def _encryption_keys(root: Section) -> tuple[bytes | Callable[[], bytes], ...]:
    value = root.values.get("ENCRYPTION_KEYS", ())
    if not isinstance(value, list | tuple):
        root.refuse("ENCRYPTION_KEYS", "is no list", "Give a list, the newest key first.", code="E012")
        return ()
    for index, key in enumerate(value):
        # The key itself is never shown.
        if not callable(key) and not (isinstance(key, bytes) and len(key) == 32):
            root.refuse(
                "ENCRYPTION_KEYS", f"has at index {index} neither 32 bytes nor a callable",
                "Make keys with secrets.token_bytes(32); keep them outside the settings file.", code="E012",
            )  # fmt: skip
            return ()
    return tuple(value)


def _texts(root: Section, key: str) -> tuple[str, ...]:
    value = root.values.get(key, ())
    if isinstance(value, list | tuple) and all(isinstance(item, str) and item for item in value):
        return tuple(value)
    root.refuse(key, f"is {value!r}", "Give a list of dotted paths.")
    return ()


def _check_times(root: Section, found: Settings) -> None:
    """Combinations that would lose leases or never poll."""
    if found.busy_poll > found.idle_poll:
        root.refuse(
            "BUSY_POLL", f"is {found.busy_poll:g} s, slower than IDLE_POLL {found.idle_poll:g} s",
            "Poll at least as often while there is work.", code="E008",
        )  # fmt: skip
    if found.lease_ttl / 3 < found.busy_poll * 2:
        root.refuse(
            "LEASE_TTL", f"is {found.lease_ttl:g} s: renewing every third of it leaves no room for a poll",
            f"Give at least {found.busy_poll * 6:g} s, or lower BUSY_POLL.", code="E008",
        )  # fmt: skip
    if found.idle_poll > found.lease_ttl:
        root.refuse(
            "IDLE_POLL", f"is {found.idle_poll:g} s, longer than LEASE_TTL {found.lease_ttl:g} s",
            "Reclaimed jobs would wait longer than their lease; lower IDLE_POLL.", code="E008",
        )  # fmt: skip
    if found.backend == POSTGRES and found.postgres.statement_timeout < 1.0:
        root.refuse(
            "STORAGE", f"has a statement_timeout of {found.postgres.statement_timeout:g} s",
            "Give OPTIONS a statement_timeout of at least 1 s.", code="E008",
        )  # fmt: skip
