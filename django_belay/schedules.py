"""Schedules: jobs by the clock, set up in ``CRONS`` and at run time.

An entry has a name. Rows that :func:`put` writes go over entries of the settings by name;
every scheduler sees a change at its next look. Slots are fired exactly once however many
workers run.

Contract: §8.5; rules 2, 35.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from itertools import islice
from typing import Any, Literal

from django_belay import _enqueue, conf
from django_belay._cron_job import build_job, settings_entries
from django_belay._options import check_name
from django_belay._twins import twin
from django_belay.contract.cron import parse_schedule
from django_belay.contract.cron_due import CATCH_UP, CatchUp
from django_belay.contract.job import JSON
from django_belay.db import storage_for_client
from django_belay.engine.clock import Clock
from django_belay.engine.scheduler import Scheduler, merge_entries
from django_belay.exceptions import BelayError, ConfigurationError, InvalidCron, InvalidInput
from django_belay.handles import JobHandle
from django_belay.jobs import JobFunction
from django_belay.registry import registry
from django_belay.storage.base import CronRow, Storage

__all__ = [
    "Schedule",
    "acheck",
    "adelete",
    "aget",
    "alist",
    "anext_runs",
    "apause",
    "aput",
    "aresume",
    "arun_now",
    "check",
    "delete",
    "get",
    "list",
    "make_scheduler",
    "next_runs",
    "pause",
    "put",
    "resume",
    "run_now",
]

MAX_NEXT_RUNS = 1_000

Origin = Literal["settings", "row", "row over settings"]


@dataclass(slots=True, kw_only=True, frozen=True)
class Schedule:
    """An entry as it stands now.

    Attributes:
        kind: What is enqueued; ``is_registered`` says whether this project has it.
        input: As it is stored; encrypted where the kind's inputs are, unless the settings hold it.
        options: ``queue``, ``priority`` and the like, over those of the kind.
        catch_up: What happens to slots that nobody was there to fire.
        origin: Where it comes from.
        updated_at: When its row was changed last; ``None`` in the settings.
        last_slot: The newest slot that was fired.
        next_run: The next slot; ``None`` while it is paused or broken.
        problem: Why it is not fired, where it is broken.
    """

    name: str
    expression: str
    kind: str
    input: JSON = field(repr=False)
    options: JSON
    timezone: str
    catch_up: str
    paused: bool
    origin: Origin
    updated_at: datetime | None
    last_slot: datetime | None
    next_run: datetime | None
    problem: str | None
    is_registered: bool


# -- reading ---------------------------------------------------------------------------


def get(name: str) -> Schedule:
    """The entry of a name.

    Raises:
        InvalidCron: There is none; the message names the nearest.

    Contract: §3 ``belay_crons``; rules 2, 35.
    """
    entries = _Entries.read()
    return entries.describe(entries.find(name), _last_slots())


def next_runs(name: str, *, count: int = 5, after: datetime | None = None) -> Sequence[datetime]:
    """The next slots of an entry, in UTC, paused or not.

    Args:
        after: Only slots later than this; by default now.

    Raises:
        InvalidCron: There is no such entry, or its expression or zone is broken.

    Contract: §8.5; rule 35.
    """
    if type(count) is not int or not 0 <= count <= MAX_NEXT_RUNS:
        raise InvalidCron(f"count={count!r:.60}: give a whole number from 0 to {MAX_NEXT_RUNS:,}")
    if after is not None and after.tzinfo is None:
        raise InvalidCron("after has no time zone; use django.utils.timezone.now() or make_aware()")
    entry = _Entries.read().find(name)
    slots = parse_schedule(entry.expression, entry.timezone).after(after or _now())
    return tuple(islice(slots, count))


# -- changing --------------------------------------------------------------------------


def put(
    name: str,
    expression: str,
    kind: str | JobFunction[..., Any],
    input: Mapping[str, Any] | None = None,
    *,
    timezone: str | None = None,
    catch_up: CatchUp | None = None,
    paused: bool | None = None,
    **options: Any,
) -> Schedule:
    """Set an entry up, or change it. What is the same already is not written again.

    The row joins the caller's transaction.

    Args:
        expression: Five fields or a nickname, see :mod:`django_belay.contract.cron`.
        kind: A job, or its kind.
        input: The job's arguments: values for a job, JSON for a kind.
        timezone: Name of the zone whose wall clock counts; ``None`` is the one of the
            settings' entry of this name, else UTC.
        catch_up: ``"latest"`` (also by default): of the slots that nobody was there to fire the
            newest one is fired, ``"all"``: all of them, ``"none"``: none.
        paused: ``None`` leaves it as it is.
        options: ``queue``, ``priority``, ``max_attempts``, ``partition_key``, ``meta``.

    Raises:
        InvalidCron: Name, expression, zone or an option does not fit.
        UnknownKind: No job is registered under the kind.
        InvalidInput, PayloadTooLarge: The input does not fit the job, or cannot be stored.

    Contract: §3 ``belay_crons``; rules 2, 35.
    """
    row = _checked(
        name, expression, kind, input, timezone=timezone, catch_up=catch_up, paused=paused, options=options
    )
    entries = _Entries.read()
    if row != entries.row_as_given(name):
        _storage().put_cron(row, now=_now())
    return get(name)


def check(
    name: str,
    expression: str,
    kind: str | JobFunction[..., Any],
    input: Mapping[str, Any] | None = None,
    *,
    timezone: str | None = None,
    catch_up: CatchUp | None = None,
    paused: bool | None = None,
    **options: Any,
) -> Schedule:
    """What :func:`put` would set up; nothing is written. Raises as it does."""
    row = _checked(
        name, expression, kind, input, timezone=timezone, catch_up=catch_up, paused=paused, options=options
    )
    entries = _Entries.read().with_row(row)
    return entries.describe(entries.find(name), _last_slots())


def pause(name: str) -> Schedule:
    """Fire no more slots of an entry; those that come meanwhile are not caught up.

    An entry of the settings gets a row, which goes over the settings until it is deleted.

    Raises:
        InvalidCron: There is no such entry.

    Contract: §8.5; rules 2, 35.
    """
    return _set_paused(name, paused=True)


def resume(name: str) -> Schedule:
    """Fire the slots from now on."""
    return _set_paused(name, paused=False)


def delete(name: str) -> None:
    """Delete an entry's row; one of the settings under the same name counts again.

    Which slot was fired last is kept: an entry made again fires none twice.

    Raises:
        InvalidCron: There is no such row.

    Contract: §3 ``belay_crons``; rules 2, 35.
    """
    entry = _Entries.read().find(name)
    if not _storage().delete_cron(entry.name):
        raise InvalidCron(
            f'schedule {name!r:.80} stands in BELAY["CRONS"] alone; remove it there, or pause it'
        )


def run_now(name: str) -> JobHandle:
    """Enqueue an entry's job now, paused or not, in the caller's transaction. No slot is used up.

    Raises:
        InvalidCron, InvalidInput, PayloadTooLarge: There is no such entry, or it is broken.

    Contract: §5.1; rule 35.
    """
    now = _now()
    job = build_job(_Entries.read().find(name), now)
    return JobHandle.of_insertion(_enqueue.insert_one(replace(job, cron_name=name), now))


def make_scheduler(storage: Storage, *, clock: Clock | None = None) -> Scheduler:
    """What fires the entries of the settings and of ``storage``; a worker has one."""
    return Scheduler(
        storage=storage,
        clock=clock or conf.clock(),
        build=build_job,
        settings=settings_entries(),
        interval_s=conf.get().cron_interval,
    )


# -- the entries of settings and rows -----------------------------------------------------


@dataclass(slots=True, frozen=True)
class _Entries:
    settings: Mapping[str, CronRow]
    rows: Mapping[str, CronRow]

    @classmethod
    def read(cls) -> _Entries:
        return cls(settings_entries(), {row.name: row for row in _storage().list_crons()})

    def with_row(self, row: CronRow) -> _Entries:
        return _Entries(self.settings, {**self.rows, row.name: row})

    def row_as_given(self, name: str) -> CronRow | None:
        """A row as a caller gives it, to compare with."""
        row = self.rows.get(name)
        return None if row is None else replace(row, updated_at=None)

    @property
    def merged(self) -> dict[str, CronRow]:
        return merge_entries(self.settings, self.rows.values())

    def find(self, name: str) -> CronRow:
        merged = self.merged
        if name in merged:
            return merged[name]
        near = difflib.get_close_matches(name, merged, n=3) if isinstance(name, str) else []
        hint = f"did you mean {', '.join(map(repr, near))}?" if near else "belay_cron list shows them all"
        raise InvalidCron(f"there is no schedule {name!r:.80}; {hint}")

    def describe(self, entry: CronRow, last_slots: Mapping[str, datetime]) -> Schedule:
        problem, next_run = _state(entry)
        return Schedule(
            name=entry.name,
            expression=entry.expression,
            kind=entry.kind,
            input=entry.input,
            options=entry.opts,
            timezone=entry.timezone or "UTC",
            catch_up=entry.catch_up or "latest",
            paused=entry.paused,
            origin=self._origin(entry.name),
            updated_at=entry.updated_at,
            last_slot=last_slots.get(entry.name),
            next_run=next_run,
            problem=problem,
            is_registered=entry.kind in registry,
        )

    def _origin(self, name: str) -> Origin:
        if name not in self.rows:
            return "settings"
        return "row over settings" if name in self.settings else "row"


def _state(entry: CronRow) -> tuple[str | None, datetime | None]:
    """What is wrong with an entry, and its next slot."""
    now = _now()
    try:
        schedule = parse_schedule(entry.expression, entry.timezone)
        build_job(entry, now)
    except BelayError as error:
        return str(error), None
    except Exception as error:  # a callable key of the job; a listing shows the others
        return f"{type(error).__name__}: {error}", None
    return None, None if entry.paused else next(schedule.after(now), None)


def _checked(
    name: str,
    expression: str,
    kind: str | JobFunction[..., Any],
    input: Mapping[str, Any] | None,
    *,
    timezone: str | None,
    catch_up: CatchUp | None,
    paused: bool | None,
    options: dict[str, Any],
) -> CronRow:
    """A caller's entry as the row to write."""
    try:
        check_name(f"name={name!r:.80}", name)
    except ConfigurationError as error:
        raise InvalidCron(str(error)) from error
    parse_schedule(expression, timezone)
    if catch_up is not None and catch_up not in CATCH_UP:
        raise InvalidCron(f"catch_up={catch_up!r:.40}: allowed are {', '.join(CATCH_UP)}")
    if paused is None:
        known = _Entries.read().merged.get(name)
        paused = known is not None and known.paused
    row = CronRow(
        name=name,
        expression=expression,
        kind=_kind(kind),
        input=_json_input(kind, input),
        opts=options,
        paused=bool(paused),
        timezone=timezone,
        catch_up=catch_up,
    )
    return _as_stored(row)


def _kind(kind: str | JobFunction[..., Any]) -> str:
    if isinstance(kind, str):
        return registry.get(kind).kind
    if not isinstance(kind, JobFunction):
        raise InvalidCron(f"kind={kind!r:.60}: give a job, or its kind")
    if kind.options != kind.definition.options:
        raise InvalidCron(f"{kind.kind}.using(): give a schedule's options to the schedule itself")
    return kind.kind


def _json_input(kind: str | JobFunction[..., Any], input: Mapping[str, Any] | None) -> dict[str, Any]:
    given = {} if input is None else input
    if not isinstance(given, Mapping):
        raise InvalidInput(f"is a {type(given).__name__}; give the job's arguments by name", path="input")
    if isinstance(kind, str):
        return dict(given)
    return kind.definition.codec.encode((), given, max_depth=conf.get().max_depth)


def _as_stored(row: CronRow) -> CronRow:
    """The row with its input as the job would hold it: checked, encrypted where the kind says so."""
    return replace(row, input=build_job(row, _now()).input)


def _set_paused(name: str, *, paused: bool) -> Schedule:
    entries = _Entries.read()
    entry = entries.find(name)
    if entry.paused != paused:
        _write_paused(entries, entry, paused=paused)
    return get(name)


def _write_paused(entries: _Entries, entry: CronRow, *, paused: bool) -> None:
    storage, now = _storage(), _now()
    if entry.name in entries.rows:
        change = storage.pause_cron if paused else storage.resume_cron
        if not change(entry.name, now=now):
            raise InvalidCron(f"schedule {entry.name!r:.80} was deleted meanwhile")
        return
    # Zone and catch-up stay the settings'.
    row = replace(_as_stored(entry), paused=paused, timezone=None, catch_up=None)
    storage.put_cron(row, now=now)


def _storage() -> Storage:
    return storage_for_client().storage


def _last_slots() -> Mapping[str, datetime]:
    return _storage().last_cron_slots()


def _now() -> datetime:
    return conf.clock().now()


# The last one, since it hides Python's own ``list``.
def list() -> Sequence[Schedule]:
    """Every entry of settings and rows, by name; broken ones say what is wrong."""
    entries, last_slots = _Entries.read(), _last_slots()
    return tuple(entries.describe(entry, last_slots) for _, entry in sorted(entries.merged.items()))


# -- async twins --------------------------------------------------------------------------

acheck = twin(check)
adelete = twin(delete)
aget = twin(get)
alist = twin(list)
anext_runs = twin(next_runs)
apause = twin(pause)
aput = twin(put)
aresume = twin(resume)
arun_now = twin(run_now)
