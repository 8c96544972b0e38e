"""Several storages through one history: the same operations at the same instants, compared after each.

Ids are compared by the order in which their jobs were inserted, instants to the millisecond. What is
compared stands in :data:`OBSERVED` and :meth:`World.observe_all`; rows that tie in claim order may come in
any order, since there the storages differ (mapping page, order).
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from django_belay.contract import names
from django_belay.contract.job import Job, Lease, Signal
from django_belay.contract.state import is_terminal
from django_belay.exceptions import BelayError
from django_belay.storage.base import AckGroupError, JobFilter, Storage
from django_belay.testing.clock import SimClock

# Every column of a job that the wire contract has.
OBSERVED = tuple(one.name for one in dataclasses.fields(Job))

#: The id of a job that never was.
NOBODY = 5

_DIGITS = re.compile(r"\d{9,}")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_ALL = 1_000_000


class Difference(AssertionError):
    """Two storages answered differently, or hold different rows."""


@dataclass(slots=True)
class Side:
    """One storage, with the ids that its jobs have.

    ``reading`` gives the storage to look at; for one whose owner is replaced before each operation
    it is the owner that did the last one.
    """

    name: str
    store: Storage
    reading: Callable[[], Storage]
    ids: list[int] = field(default_factory=list)
    numbers: dict[int, int] = field(default_factory=dict)

    def id(self, number: int) -> int:
        """The id of the job that was inserted as the n-th; a number of no job gives one that never was."""
        return self.ids[number] if 0 <= number < len(self.ids) else NOBODY

    def note(self, jobs: Sequence[Job]) -> None:
        """Number what is new."""
        for job_id in sorted(job.id for job in jobs if job.id not in self.numbers):
            self.numbers[job_id] = len(self.ids)
            self.ids.append(job_id)

    def scope(self, scope: str) -> str:
        """``job#3`` as this storage spells the scope of that job."""
        return names.job_scope(self.id(int(scope[4:]))) if scope.startswith("job#") else scope

    def lease(self, lease: Lease) -> Lease:
        """A lease with this storage's ids."""
        parent = lease.parent_id
        return dataclasses.replace(
            lease, job_id=self.id(lease.job_id), parent_id=None if parent is None else self.id(parent)
        )

    def plain(self, value: Any) -> Any:
        """A value that can be compared: ids as ``#n``, instants as milliseconds, records as mappings."""
        if isinstance(value, bool) or value is None or isinstance(value, float):
            return value
        if isinstance(value, int):
            return f"#{self.numbers[value]}" if value in self.numbers else value
        if isinstance(value, str):
            return _DIGITS.sub(self._spelt, value)
        if isinstance(value, bytes):
            return _DIGITS.sub(self._spelt, _told(value))
        if isinstance(value, datetime):
            return (value - _EPOCH) // timedelta(milliseconds=1)
        if isinstance(value, AckGroupError):
            failed = {index: type(error).__name__ for index, error in value.failures.items()}
            return {"results": self.plain(value.results), "failures": failed}
        if isinstance(value, Exception):
            return f"raised {type(value).__name__}"
        if isinstance(value, Signal) and value.name == names.CHILDREN_SIGNAL:
            # Ends that are written together tell their parent once or each for itself: its instant moves on.
            value = dataclasses.replace(value, inserted_at=None)
        if dataclasses.is_dataclass(value):
            fields = {one.name: self.plain(getattr(value, one.name)) for one in dataclasses.fields(value)}
            return {"": type(value).__name__, **fields}
        if isinstance(value, Mapping):
            return {self.plain(key): self.plain(entry) for key, entry in value.items()}
        if isinstance(value, set | frozenset):
            return sorted(map(self.plain, value), key=str)
        return [self.plain(entry) for entry in value]

    def _spelt(self, match: re.Match[str]) -> str:
        number = self.numbers.get(int(match[0]))
        return match[0] if number is None else f"#{number}"


class World:
    """The storages of one history, their clock, and what is known of their jobs.

    Attributes:
        jobs: The jobs as all storages have them, plain, by number; gone ones are missing.
        is_broken: A difference was found: nothing more of this history says anything.
        leases: Every lease that a claim gave, with numbers for ids, the ended ones too.
    """

    def __init__(self, sides: Sequence[Side], clock: SimClock) -> None:
        self.sides = sides
        self.clock = clock
        self.jobs: dict[int, dict[str, Any]] = {}
        self.leases: list[Lease] = []
        self.scopes: dict[str, None] = {}
        self.log: list[str] = []
        self.is_broken = False

    def now(self) -> datetime:
        return self.clock.now()

    def do(self, what: str, call: Callable[[Side], Any], *, sort: Callable[[Any], Any] | None = None) -> Any:
        """Do the same on each storage and compare the answers and the jobs; the answer, plain.

        Args:
            sort: Brings an answer whose order is free into one that is not.
        """
        self.log.append(f"{self.clock.now():%H:%M:%S.%f} {what}")
        raw = [_called(call, side) for side in self.sides]
        rows = [side.reading().list_jobs(JobFilter(), limit=_ALL) for side in self.sides]
        for side, jobs in zip(self.sides, rows, strict=True):
            side.note(jobs)
        answers = [side.plain(answer) for side, answer in zip(self.sides, raw, strict=True)]
        if sort is not None:
            answers = [sort(answer) for answer in answers]
        self._agree(f"the answer of {what}", answers)
        observed = [
            {side.numbers[job.id]: _job(side, job) for job in jobs}
            for side, jobs in zip(self.sides, rows, strict=True)
        ]
        self._agree(f"the jobs after {what}", observed)
        self.jobs = observed[0]
        return answers[0]

    def look(self, what: str, call: Callable[[Side], Any]) -> Any:
        """Compare what is only read."""
        answers = [side.plain(_called(call, side)) for side in self.sides]
        self._agree(what, answers)
        return answers[0]

    def observe_all(self) -> None:
        """Compare everything that the protocol shows."""
        for number in self.jobs:
            self.observe_job(number)
        self.observe_scopes()
        for workflow_id in sorted({job["workflow_id"] for job in self.jobs.values() if job["workflow_id"]}):
            self.look(f"the workflow {workflow_id}", lambda s, w=workflow_id: s.reading().workflow_states(w))
            self.look(
                f"an open member of {workflow_id}", lambda s, w=workflow_id: s.reading().has_open_member(w)
            )
        now = self.now()
        self.look("the counts of the queues", lambda s: s.reading().queue_stats(now=now))
        self.observe_queues()
        self.look("the entries", lambda s: s.reading().list_crons())
        self.look("the last slots", lambda s: s.reading().last_cron_slots())

    def observe_job(self, number: int) -> None:
        """Compare the journal and the children of a job."""
        self.look(f"the steps of #{number}", lambda s: s.reading().get_steps(s.id(number)))
        self.look(f"the events of #{number}", lambda s: s.reading().list_events(s.id(number)))
        self.look(f"the standing of #{number}", lambda s: s.reading().get_standing(s.id(number)))
        self.look(
            f"the children of #{number}", lambda s: [job.id for job in s.reading().children(s.id(number))]
        )
        self.look(f"an open child of #{number}", lambda s: s.reading().has_incomplete_child(s.id(number)))

    def observe_queues(self) -> None:
        """Compare what is set about queues, but for when: a resumption leaves no row on PostgreSQL."""
        self.look(
            "the queues",
            lambda s: [dataclasses.replace(one, updated_at=None) for one in s.reading().list_queues()],
        )

    def observe_scopes(self) -> None:
        """Compare the signals of every scope that was named, and of every parent."""
        parents = {job["parent_id"] for job in self.jobs.values()}
        for parent in sorted(one[1:] for one in parents if isinstance(one, str)):
            self.scopes[f"job#{parent}"] = None
        for scope in self.scopes:
            self.look(f"the signals of {scope}", lambda s, c=scope: s.reading().list_signals(s.scope(c)))

    # -- claim order --------------------------------------------------------

    def due(self, queue: str) -> list[dict[str, Any]]:
        """The jobs of a queue that may be claimed now, in claim order."""
        now = (self.now() - _EPOCH) // timedelta(milliseconds=1)
        due = [
            job
            for job in self.jobs.values()
            if job["queue"] == queue
            and (
                (job["state"] == "ready" and (job["ready_at"] is None or job["ready_at"] <= now))
                or (job["state"] == "awaiting" and job["ready_at"] is not None and job["ready_at"] <= now)
            )
        ]
        return sorted(due, key=place)

    def settle_take(self, queue: str, take: int) -> int:
        """``take``, or more so that no rows that tie are parted."""
        places = [place(job) for job in self.due(queue)]
        while 0 < take < len(places) and places[take - 1] == places[take]:
            take += 1
        return take

    def has_ties(self, queue: str) -> bool:
        """Whether two rows of a queue have the same place in it."""
        places = [place(job) for job in self.due(queue)]
        return len(places) != len(set(places))

    # -- who ----------------------------------------------------------------

    def numbers(self, *states: str) -> list[int]:
        """The jobs in these states, in all when none is named."""
        return [number for number, job in self.jobs.items() if not states or job["state"] in states]

    def ended(self) -> list[int]:
        return [number for number, job in self.jobs.items() if is_terminal(job["state"])]

    def running(self) -> list[Lease]:
        """The leases that hold."""
        held = {
            (number, job["attempt"], job["leased_by"])
            for number, job in self.jobs.items()
            if job["state"] == "running"
        }
        return [one for one in self.leases if (one.job_id, one.attempt, one.leased_by) in held]

    def remember_claimed(self, jobs: Sequence[dict[str, Any]]) -> None:
        """Keep the leases of claimed jobs."""
        for job in jobs:
            self.leases.append(
                Lease(
                    job_id=int(job["id"][1:]),
                    attempt=job["attempt"],
                    leased_by=job["leased_by"],
                    workflow_id=job["workflow_id"],
                    parent_id=_number(job["parent_id"]),
                )
            )

    def _agree(self, what: str, found: Sequence[Any]) -> None:
        for side, one in zip(self.sides[1:], found[1:], strict=True):
            if one != found[0]:
                self.is_broken = True
                history = "\n  ".join(self.log)
                differing = "\n  ".join(_differences(found[0], one))
                raise Difference(
                    f"{what}: {self.sides[0].name} and {side.name} differ:\n  {differing}\nafter\n  {history}"
                )


def place(job: Mapping[str, Any]) -> tuple[int, int, int]:
    """Where a job stands in its queue, as far as both storages define it (§6)."""
    ready_at = job["ready_at"]
    return (job["priority"], ready_at is not None, ready_at or 0)


def _number(name: Any) -> int | None:
    if name is None:
        return None
    return int(name[1:]) if isinstance(name, str) else NOBODY_NUMBER


#: Of a parent that never was: no job has this number.
NOBODY_NUMBER = -1


def _told(envelope: bytes) -> str:
    """What an envelope says: a core job's result is kept as a Value, not as its text."""
    try:
        return json.dumps(json.loads(envelope), sort_keys=True)
    except ValueError:
        return envelope.decode("latin-1")


def _called(call: Callable[[Side], Any], side: Side) -> Any:
    try:
        return call(side)
    except (BelayError, AckGroupError) as error:
        return error


def _job(side: Side, job: Job) -> dict[str, Any]:
    return {name: side.plain(getattr(job, name)) for name in OBSERVED}


def _differences(one: Any, other: Any, path: str = "") -> list[str]:
    if isinstance(one, dict) and isinstance(other, dict):
        found = []
        for key in sorted({*one, *other}, key=str):
            found += _differences(one.get(key, "(missing)"), other.get(key, "(missing)"), f"{path}.{key}")
        return found
    if isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        return [
            text
            for n, pair in enumerate(zip(one, other, strict=True))
            for text in _differences(*pair, f"{path}[{n}]")
        ]
    return [] if one == other else [f"{path}: {one!r} and {other!r}"]
