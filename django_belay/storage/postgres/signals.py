"""Signals: an inbox of latest payloads, and waking who waits for them (§8.1, rules 10, 23)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django_belay.contract import names
from django_belay.contract.job import JSON, Lease, Signal
from django_belay.contract.notification import PokePolicy
from django_belay.exceptions import JobNotFound
from django_belay.storage.postgres import hints
from django_belay.storage.postgres.combining import Combiner
from django_belay.storage.postgres.locks import lock
from django_belay.storage.postgres.rows import json_text
from django_belay.storage.postgres.session import Params, Rows, Session, Transaction, atomically


def find_signal(
    session: Session, scopes: Sequence[str], name: str, *, newer_than: datetime | None = None
) -> Signal | None:
    """Of the first scope, in the given order, that has one."""
    rows = session.run("find_signal", {"scopes": list(scopes), "name": name, "newer_than": newer_than})
    return _signal(rows[0]) if rows else None


@dataclass(frozen=True, slots=True)
class Look:
    """What a wait looks for."""

    scopes: tuple[str, ...]
    name: str
    newer_than: datetime | None


def looks(session: Session) -> Combiner[Look, Signal | None]:
    """Finds signals for the threads of a process."""
    return Combiner(
        lambda one: find_signal(session, one.scopes, one.name, newer_than=one.newer_than),
        lambda some: _find_signals(session, some),
        key=lambda one: one,
    )


def _find_signals(session: Session, some: Sequence[Look]) -> list[Signal | Exception | None]:
    asked = [(n, scope, one.name, one.newer_than) for n, one in enumerate(some) for scope in one.scopes]
    rows = session.run(
        "find_signals",
        {
            "ns": [n for n, _, _, _ in asked],
            "scopes": [scope for _, scope, _, _ in asked],
            "names": [name for _, _, name, _ in asked],
            "newer_thans": [newer_than for _, _, _, newer_than in asked],
        },
    )
    found = {row[0]: _signal(row[1:]) for row in rows}
    return [found.get(n) for n in range(len(some))]


def list_signals(session: Session, scope: str) -> list[Signal]:
    """By name."""
    return [_signal(row) for row in session.run("list_signals", {"scope": scope})]


def put_signal(
    session: Session, scope: str, name: str, payload: JSON, *, to_job: bool, poke: PokePolicy, now: datetime
) -> list[int]:
    """Upsert and wake under the scope's lock; ids of the jobs woken.

    The lock is a statement of its own: the next one's snapshot sees whoever parked before.
    The hint follows the commit; lost with this process, polling finds the job.
    """
    params = {
        **_wake_params(scope, name, now),
        "payload": json_text(payload),
        "lock": names.scope_lock(scope),
        "to_job": to_job,
    }
    _, rows = session.run_together(["lock_scope", "put_signal"], params)
    woken = [(job_id, queue) for job_id, queue in rows if job_id is not None]
    if len(woken) < len(rows):
        raise JobNotFound(params["job_id"])
    return _announce(session.run, woken, poke=poke, now=now)


def write_signal(
    session: Session, scope: str, name: str, payload: JSON, *, to_job: bool, now: datetime
) -> None:
    """The upsert alone, in the caller's transaction (rule 10).

    A park that does not see it yet is woken by ``wake_awaiting`` after the commit, or by
    the sweeper where the caller died in between.
    """
    job_id = names.job_of_scope(scope)
    params = {"scope": scope, "name": name, "payload": json_text(payload), "now": now}
    if not session.run("write_signal", {**params, "job_id": job_id, "to_job": to_job}):
        raise JobNotFound(job_id or 0)


def wake_awaiting(session: Session, scope: str, name: str, *, poke: PokePolicy, now: datetime) -> list[int]:
    """Wake whoever waits for a signal that is there, under the scope's lock."""

    def operation(transaction: Transaction) -> list[int]:
        lock(transaction, scopes=[scope])
        woken = transaction.run("wake_awaiting", _wake_params(scope, name, now))
        return _announce(transaction.run, woken, poke=poke, now=now)

    return atomically(session, operation)


def clear_signal(session: Session, scope: str, name: str) -> bool:
    """Whether there was one."""
    return bool(session.run("clear_signal", {"scope": scope, "name": name}))


def clear_signal_in_run(
    session: Session, lease: Lease, scope: str, name: str, *, step: str | None = None, now: datetime
) -> bool | None:
    """Whether there was one; ``None`` when the lease is lost or the step stands already."""
    params = {
        "job_id": lease.job_id,
        "leased_by": lease.leased_by,
        "scope": scope,
        "name": name,
        "step": step,
        "now": now,
    }
    [(is_done, was_there)] = session.run("clear_signal_in_run", params)
    return bool(was_there) if is_done else None


def _wake_params(scope: str, name: str, now: datetime) -> dict[str, Any]:
    return {
        "scope": scope,
        "name": name,
        "job_id": names.job_of_scope(scope),
        "workflow_id": names.workflow_of_scope(scope),
        "now": now,
    }


def _announce(
    run: Callable[[str, Params], Rows], woken: Sequence[tuple[Any, ...]], *, poke: PokePolicy, now: datetime
) -> list[int]:
    hints.send(run, poke=poke, queues={queue for _, queue in woken}, now=now)
    return sorted(job_id for job_id, _ in woken)


def _signal(row: tuple[JSON, ...]) -> Signal:
    scope, name, payload, inserted_at = row
    return Signal(scope=scope, name=name, payload=payload, inserted_at=inserted_at)
