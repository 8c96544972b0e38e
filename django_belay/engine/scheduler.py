"""Fires cron entries. Any number of schedulers may run: the storage decides who fires a slot.

Contract: §8.5; rules 2, 4, 35.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import TypeAlias

from django_belay.contract.cron import parse_schedule
from django_belay.contract.cron_due import CATCH_UP, CatchUp, due_slots
from django_belay.contract.job import NewJob
from django_belay.engine.clock import Clock
from django_belay.engine.telemetry import cron_log
from django_belay.exceptions import BelayError, InvalidCron, Unavailable
from django_belay.storage.base import CronRow, Inserted, Storage

#: Makes an entry's job, without its slot; raises what is wrong with the entry.
JobBuilder: TypeAlias = Callable[[CronRow, datetime], NewJob]

# A slot is on time in its own minute, however seldom a scheduler looks.
ON_TIME = timedelta(minutes=1)
# Clocks differ by seconds. What lies further ahead was written by a clock that was wrong.
AHEAD = timedelta(hours=1)


@dataclass(slots=True, kw_only=True, frozen=True)
class Fired:
    """A slot that this scheduler fired, and its job."""

    name: str
    slot: datetime
    inserted: Inserted


def merge_entries(settings: Mapping[str, CronRow], rows: Iterable[CronRow]) -> dict[str, CronRow]:
    """Rows over the entries of the settings, by name; paused ones are still in it.

    A row without zone or catch-up policy, as another SDK writes it, keeps those of the settings.

    Contract: §8.5; rules 2, 35.
    """
    merged = dict(settings)
    for row in rows:
        under = settings.get(row.name)
        merged[row.name] = row if under is None else _over(under, row)
    return merged


def _over(under: CronRow, row: CronRow) -> CronRow:
    return replace(row, timezone=row.timezone or under.timezone, catch_up=row.catch_up or under.catch_up)


class Scheduler:
    """One process's part in firing the entries; ``tick`` is called every ``interval_s`` seconds.

    Args:
        settings: The entries of the settings, by name.
        build: Makes an entry's job.
        interval_s: How often ``tick`` is called; slots between two ticks are on time.
    """

    def __init__(
        self,
        *,
        storage: Storage,
        clock: Clock,
        build: JobBuilder,
        settings: Mapping[str, CronRow] | None = None,
        interval_s: float = 20.0,
    ) -> None:
        self._storage = storage
        self._clock = clock
        self._build = build
        self._settings = dict(settings or {})
        self._interval = timedelta(seconds=interval_s)
        self._ticked_at: datetime | None = None
        # By name: slots up to here have been offered to the storage, or are not to be.
        self._settled: dict[str, datetime] = {}
        # By name: what was said about an entry, so that it is said once.
        self._said: dict[str, str] = {}

    def tick(self) -> None:
        """Fire what is due; see :meth:`fire_due`."""
        self.fire_due()

    def fire_due(self) -> list[Fired]:
        """Fire the slots that came since the last tick, and those missed as each entry's policy says.

        An entry that cannot be fired is logged once and stops no other.

        Raises:
            Unavailable: The storage is away; the slots are due at the next tick.
        """
        now = self._clock.now()
        entries = merge_entries(self._settings, self._storage.list_crons())
        memory = self._storage.last_cron_slots()
        self._forget_all_but(entries)
        fired: list[Fired] = []
        for entry in entries.values():
            fired.extend(self._try_entry(entry, memory.get(entry.name), now))
        self._ticked_at = now
        return fired

    def _try_entry(self, entry: CronRow, last: datetime | None, now: datetime) -> list[Fired]:
        try:
            fired = self._fire_entry(entry, last, now)
        except Unavailable:
            raise
        except BelayError as error:
            self._say(entry.name, f"is skipped: {error}")
            return []
        except Exception as error:
            self._say(entry.name, f"is skipped: {type(error).__name__}: {error}", error)
            return []
        if not _is_ahead(last, now):
            self._said.pop(entry.name, None)
        return fired

    def _fire_entry(self, entry: CronRow, last: datetime | None, now: datetime) -> list[Fired]:
        if entry.paused:
            # What comes while it is paused is not caught up afterwards.
            self._settled[entry.name] = now
            return []
        if _is_ahead(last, now):
            self._say(
                entry.name,
                f"waits until {last}: its newest slot was fired by a clock that was ahead of this one",
            )
        since = self._settled.setdefault(entry.name, self._start(last, now))
        slots = due_slots(
            parse_schedule(entry.expression, entry.timezone),
            since=max(since, _changed_at(entry, now)),
            on_time_since=self._on_time_since(now),
            now=now,
            catch_up=_catch_up(entry),
        )
        if not slots:
            return []
        fired = self._fire_slots(entry, slots, last, now)
        self._settled[entry.name] = slots[-1]
        return fired

    def _fire_slots(
        self, entry: CronRow, slots: list[datetime], last: datetime | None, now: datetime
    ) -> list[Fired]:
        job = self._build(entry, now)
        fired = []
        for slot in slots:
            # The newest is offered even when its job is there: where another SDK fired it, only
            # so does our memory of slots come to know it, which outlives the job (rule 35).
            if last is not None and slot <= last and slot != slots[-1]:
                continue
            inserted = self._storage.fire_cron(replace(job, cron_name=entry.name, cron_slot=slot), now=now)
            if inserted is not None:
                fired.append(Fired(name=entry.name, slot=slot, inserted=inserted))
                _report(entry, slot, inserted)
        return fired

    def _start(self, last: datetime | None, now: datetime) -> datetime:
        """From where on an entry's slots count when this scheduler sees it for the first time.

        An entry that nobody ever fired catches nothing up; one that is new to a running
        scheduler counts from its last look.
        """
        if last is not None:
            return last
        return now if self._ticked_at is None else min(self._ticked_at, now)

    def _on_time_since(self, now: datetime) -> datetime:
        since = now - ON_TIME
        ticked_at = self._ticked_at
        if ticked_at is None or now - ticked_at > 2 * self._interval:
            return since
        return min(since, ticked_at)

    def _forget_all_but(self, entries: Mapping[str, CronRow]) -> None:
        self._settled = {name: at for name, at in self._settled.items() if name in entries}
        self._said = {name: text for name, text in self._said.items() if name in entries}

    def _say(self, name: str, text: str, error: Exception | None = None) -> None:
        if self._said.get(name) == text:
            return
        self._said[name] = text
        cron_log.error("cron entry %.80r %s", name, text, exc_info=error, extra={"belay_cron": name})


def _is_ahead(instant: datetime | None, now: datetime) -> bool:
    return instant is not None and instant > now + AHEAD


def _changed_at(entry: CronRow, now: datetime) -> datetime:
    """When the entry was put, changed or resumed: earlier slots were never meant by it."""
    changed_at = entry.updated_at
    if changed_at is None or _is_ahead(changed_at, now):
        return now - timedelta(days=36500)
    return changed_at


def _catch_up(entry: CronRow) -> CatchUp:
    if entry.catch_up is None:
        return "latest"
    if entry.catch_up not in CATCH_UP:
        raise InvalidCron(f"catch_up is {entry.catch_up!r:.40}; allowed are {', '.join(CATCH_UP)}")
    return entry.catch_up


def _report(entry: CronRow, slot: datetime, inserted: Inserted) -> None:
    cron_log.debug(
        "cron entry %s fired %s: job %s%s",
        entry.name,
        slot,
        inserted.job_id,
        " (it holds the unique key)" if inserted.duplicate else "",
        extra={"belay_cron": entry.name, "belay_job_id": inserted.job_id, "belay_kind": entry.kind},
    )
