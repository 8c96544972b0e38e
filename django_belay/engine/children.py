"""Children of one run: spawned once, waited for without a thread (§8.4; rules 3, 32).

A spawn is doubly idempotent: it is a memoized step whose value is the list of the
children's ids, and each child carries a unique key of the spawn, so that an attempt which
died between the inserts and the step inserts no child twice.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, TypeVar

from django_belay.contract import envelope, names
from django_belay.contract.job import JSON, NewJob, Step
from django_belay.contract.job_error import job_error
from django_belay.contract.state import is_terminal
from django_belay.contract.wait_record import wait_record
from django_belay.engine.rows import ChildRows, Spawnable
from django_belay.engine.run import Run
from django_belay.engine.services import Services, persist
from django_belay.engine.steps import Steps
from django_belay.engine.telemetry import call_hook, job_facts, worker_log
from django_belay.exceptions import (
    ChildrenFailed,
    ChildrenGone,
    Conflict,
    ForeignReservedStep,
    InvalidInput,
    JobError,
    Park,
    SpawnChanged,
)
from django_belay.storage.base import ChildEnd

T = TypeVar("T")

#: Rows of one insert: the first children run while the last ones are inserted.
CHUNK = 1_000
#: The ids of a spawn are one step's value, of 1 MiB at most.
MAX_CHILDREN = 50_000

_SPAWN = names.spawn_step("")
_WAIT = names.await_step(names.CHILDREN_SIGNAL, 0)[:-1]


class Children:
    """The spawns of one run and the waits for them."""

    def __init__(self, run: Run, services: Services, steps: Steps) -> None:
        self._run = run
        self._services = services
        self._steps = steps
        self._spawned: dict[str, list[int]] = {}
        self._waits = 0

    # -- spawning ------------------------------------------------------------------

    def spawn(self, name: str, job: Spawnable | str, inputs: Iterable[Mapping[str, Any]]) -> list[int]:
        """Ids of the children in the order of their inputs; see ``JobContext.spawn_many``."""
        given = list(inputs)
        with self._run.engine():
            step_name = names.spawn_step(name)
            self._steps.note_use(step_name)
            step = self._steps.find(step_name)
            if step is None:
                self._steps.check_standing()
                self._steps.record(step_name, self._insert(name, job, given))
                step = self._steps.find(step_name)
                assert step is not None
            ids = _read_ids(step)
            if len(ids) != len(given):
                self._warn_of_other_inputs(name, len(ids), len(given))
            self._spawned[name] = ids
            return list(ids)

    def _insert(self, name: str, job: Spawnable | str, inputs: Sequence[Mapping[str, Any]]) -> list[int]:
        if len(inputs) > MAX_CHILDREN:
            raise InvalidInput(
                f"has {len(inputs):,} inputs; {MAX_CHILDREN:,} are allowed, spawn the rest under another name",
                path=f"spawn {name!r}",
            )
        rows = self._rows(name, job, inputs)
        for chunk in _chunks(rows, CHUNK):
            self._persist(lambda chunk=chunk: self._insert_chunk(chunk))  # type: ignore[misc]
        return self._rebuild(name, len(rows))

    def _rows(self, name: str, job: Spawnable | str, inputs: Sequence[Mapping[str, Any]]) -> list[NewJob]:
        """Every row, checked before the first one is inserted."""
        services, parent_id = self._services, self._run.job.id
        maker = ChildRows(job, services.registry, services.options, now=services.clock.now())
        return [
            maker.make(
                arguments,
                path=f"inputs[{index}]",
                parent_id=parent_id,
                unique_key=names.spawn_key(parent_id, name, index),
                unique_mode="always",
            )
            for index, arguments in enumerate(inputs)
        ]

    def _insert_chunk(self, rows: Sequence[NewJob]) -> None:
        services = self._services
        with services.gate:
            inserted = services.storage.insert_jobs(rows, now=services.clock.now())
        call_hook(services.hooks.jobs_enqueued, rows, inserted)

    def _rebuild(self, name: str, count: int) -> list[int]:
        """The ids by the children's keys, and a look whether an earlier attempt spawned more."""
        parent_id = self._run.job.id
        keys = [names.spawn_key(parent_id, name, index) for index in range(count + 1)]
        found = self._persist(lambda: self._services.storage.find_spawned(parent_id, keys))
        if keys.pop() in found:
            raise SpawnChanged(
                f"job {parent_id}: an earlier attempt began the spawn {name!r} with more than {count} inputs; "
                "what decides the inputs belongs in a step, whose value every attempt sees alike"
            )
        missing = [key for key in keys if key not in found]
        if missing:
            raise Conflict(
                f"job {parent_id}: {len(missing)} children of the spawn {name!r} are not there after their insert, "
                f"the first with key {missing[0]!r}; a job of another parent may hold the key"
            )
        return [found[key] for key in keys]

    def _warn_of_other_inputs(self, name: str, journaled: int, given: int) -> None:
        worker_log.warning(
            "job %s: the spawn %r has %d children, and this run gave it %d inputs; the children stay as they are",
            self._run.job.id,
            name,
            journaled,
            given,
            extra=job_facts(self._run.job),
        )

    # -- waiting -------------------------------------------------------------------

    def wait(self, name: str | None, *, return_exceptions: bool) -> list[JSON]:
        """The children's results, or a park until all have ended; see ``JobContext.wait_children``."""
        spawns = self._chosen(name)
        self._waits += 1
        with self._run.engine():
            ids = [job_id for spawn in spawns for job_id in self._spawned[spawn]]
            ends = self._ends(spawns, ids) if ids else {}
        results = [_result_of(ends[job_id]) for job_id in ids]
        failures = [result for result in results if isinstance(result, JobError)]
        if failures and not return_exceptions:
            raise ChildrenFailed(failures, results)
        return results

    def _chosen(self, name: str | None) -> list[str]:
        if name is None:
            return list(self._spawned)
        if name not in self._spawned:
            known = ", ".join(map(repr, self._spawned)) or "nothing"
            raise ValueError(f"wait_children({name!r}): this run has spawned {known} so far")
        return [name]

    def _ends(self, spawns: Sequence[str], ids: Sequence[int]) -> dict[int, ChildEnd]:
        self._park_while_open(spawns)
        parent_id = self._run.job.id
        ends = self._persist(lambda: self._services.storage.child_ends(parent_id, ids))
        found = {end.job_id: end for end in ends}
        if gone := [job_id for job_id in ids if job_id not in found]:
            raise ChildrenGone(parent_id, gone)
        if not all(is_terminal(end.state) for end in ends):
            # An operator has retried a child between the two looks.
            self._park_while_open(spawns)
            return self._ends(spawns, ids)
        return found

    def _park_while_open(self, spawns: Sequence[str]) -> None:
        if not self._is_open(spawns):
            return
        self._journal_wait(spawns)
        if self._stays_open(spawns):
            raise self._park()

    def _journal_wait(self, spawns: Sequence[str]) -> None:
        """Say in the journal what is waited for, so that a woken run can look before it starts (rule 32)."""
        step = names.await_until_step(names.CHILDREN_SIGNAL, self._waits)
        if self._steps.find(step) is None:
            self._steps.record(step, {**wait_record(until=None), "spawns": list(spawns)})

    def _stays_open(self, spawns: Sequence[str]) -> bool:
        """§8.4: clear the stale signal, and look once more."""
        services = self._services

        def clear() -> None:
            with services.gate:
                services.storage.clear_signal_in_run(
                    self._run.lease, self._scope, names.CHILDREN_SIGNAL, now=services.clock.now()
                )

        self._persist(clear)
        return self._is_open(spawns)

    def _is_open(self, spawns: Sequence[str]) -> bool:
        """Whether a child of these spawns has not ended."""
        parent_id = self._run.job.id
        # Of all children the index knows without their keys.
        only = None if self._journaled_spawns() <= set(spawns) else list(spawns)
        return self._persist(lambda: self._services.storage.has_incomplete_child(parent_id, spawns=only))

    def _journaled_spawns(self) -> set[str]:
        return {step.removeprefix(_SPAWN) for step in self._steps.names() if step.startswith(_SPAWN)}

    def _park(self) -> Park:
        return Park(scope=self._scope, name=names.CHILDREN_SIGNAL, read_scopes=(self._scope,))

    @property
    def _scope(self) -> str:
        return names.job_scope(self._run.job.id)

    # -- before user code ------------------------------------------------------------

    def park_again(self) -> Park | None:
        """The park of a job that was woken by a child while it waits for others (rule 32)."""
        if self._run.is_first:
            return None
        waits = [step for step in self._steps.names() if step.startswith(_WAIT)]
        spawns = {name for step in waits for name in _read_spawns(self._steps.find(step))}
        if not spawns or not self._is_open(sorted(spawns)):
            return None
        return self._park() if self._stays_open(sorted(spawns)) else None

    def _persist(self, operation: Callable[[], T]) -> T:
        return persist(self._run, operation, for_s=self._services.options.ack_retry_s)


def _result_of(end: ChildEnd) -> JSON:
    if end.state == "succeeded":
        return envelope.decode(end.result)
    return job_error(
        end.job_id, end.kind, end.state, end.errors, attempt=end.attempt, max_attempts=end.max_attempts
    )


def _read_ids(step: Step) -> list[int]:
    value = envelope.decode(step.value)
    if not isinstance(value, list) or not all(type(job_id) is int for job_id in value):
        raise ForeignReservedStep(
            f"job {step.job_id} has the spawn {step.name!r} in a form that is not this SDK's; another SDK's "
            "reserved steps are never interpreted; let that SDK finish the job"
        )
    return value


def _read_spawns(step: Step | None) -> list[str]:
    value = None if step is None else envelope.decode_or_opaque(step.value)
    spawns = value.get("spawns") if isinstance(value, dict) else None
    return [name for name in spawns if isinstance(name, str)] if isinstance(spawns, list) else []


def _chunks(rows: Sequence[NewJob], size: int) -> Iterator[list[NewJob]]:
    left = iter(rows)
    while chunk := list(islice(left, size)):
        yield chunk
