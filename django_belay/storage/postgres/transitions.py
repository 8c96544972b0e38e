"""One transition of jobs in one transaction: locks, decisions, writes, deliveries, hints.

Every change of a job after its claim goes through :func:`carry_out`, except the plain
ends that :mod:`~django_belay.storage.postgres.acks` writes in a single statement.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from django_belay.contract import names
from django_belay.contract.notification import PokePolicy
from django_belay.contract.outcome import Awaiting, Changes
from django_belay.contract.state import is_terminal
from django_belay.storage.postgres import hints, settling
from django_belay.storage.postgres.changes import JobRow, apply, lock_rows, look
from django_belay.storage.postgres.deliveries import Delivery, deliver
from django_belay.storage.postgres.locks import lock
from django_belay.storage.postgres.session import Transaction

Decide = Callable[[JobRow, bool], Changes | None]


@dataclass(slots=True, kw_only=True, frozen=True)
class Intent:
    """What a transition means to do to one job.

    ``workflow_id`` and ``parent_id`` never change, so their locks come before the row's
    (rule 19). ``decide`` sees the row, and for a park whether its signal is there; it may
    be asked twice, before and under the locks. ``None`` leaves the row alone.
    """

    job_id: int
    workflow_id: str | None
    parent_id: int | None
    decide: Decide
    park: Awaiting | None = None


@dataclass(slots=True)
class Done:
    """What a transition found and did.

    ``changes`` holds what the intents decided, ``settled`` what became of other members
    of their workflows, and of theirs where a settlement changed it once more.
    """

    rows: Mapping[int, JobRow]
    changes: dict[int, Changes]
    settled: dict[int, Changes] = field(default_factory=dict)
    woken: list[int] = field(default_factory=list)

    def change_of(self, job_id: int) -> Changes | None:
        """What was written to a job in the end; ``None`` when nothing was."""
        return self.settled.get(job_id) or self.changes.get(job_id)


def carry_out(
    transaction: Transaction,
    intents: Sequence[Intent],
    *,
    workflows: Collection[str] = (),
    poke: PokePolicy,
    now: datetime,
) -> Done:
    """Lock in the one order, decide by the contract's functions, write, settle, deliver, hint.

    Args:
        workflows: These are settled whatever the intents do to them (§11, R2).

    Contract: §7; rules 19, 21-24.
    """
    foreseen = _foresee(transaction, intents, workflows)
    parents = {intent.parent_id for intent in intents if intent.parent_id is not None}
    parents |= foreseen.moved_parents
    parent_scopes = [names.job_scope(parent) for parent in parents]
    parks = {intent.job_id: intent.park for intent in intents if intent.park is not None}
    lock(transaction, scopes=[*parent_scopes, *_read_scopes(parks.values())])
    present = find_present(transaction, parks)
    rows = lock_rows(
        transaction,
        [*(intent.job_id for intent in intents), *foreseen.moved],
        parents=list(parents),
        scopes=parent_scopes,
    )
    changes = _decide(intents, rows, present)
    done = Done(rows, changes, settling.settled(foreseen, rows, changes, now=now))
    apply(transaction, {**done.changes, **done.settled})
    _announce(transaction, done, poke=poke, now=now)
    return done


def find_present(transaction: Transaction, parks: Mapping[int, Awaiting]) -> frozenset[int]:
    """The jobs whose park finds its signal, under the locks of its scopes (§7, rules 23, 27)."""
    asked = [(job_id, scope, park) for job_id, park in parks.items() for scope in _scopes(park)]
    if not asked:
        return frozenset()
    rows = transaction.run(
        "find_present_signals",
        {
            "job_ids": [job_id for job_id, _, _ in asked],
            "scopes": [scope for _, scope, _ in asked],
            "names": [park.name for _, _, park in asked],
            "newer_thans": [park.newer_than for _, _, park in asked],
        },
    )
    return frozenset(job_id for (job_id,) in rows)


def _foresee(
    transaction: Transaction, intents: Sequence[Intent], workflows: Collection[str]
) -> settling.Foreseen:
    members = [intent for intent in intents if intent.workflow_id is not None]
    if not members and not workflows:
        return settling.Foreseen()
    lock(transaction, workflows={*(str(intent.workflow_id) for intent in members), *workflows})
    rows = look(transaction, [intent.job_id for intent in members]) if members else {}
    changes = _decide(members, rows, frozenset())
    return settling.foresee(transaction, rows, changes, workflows=workflows)


def _decide(
    intents: Iterable[Intent], rows: Mapping[int, JobRow], present: Collection[int]
) -> dict[int, Changes]:
    changes: dict[int, Changes] = {}
    for intent in intents:
        row = rows.get(intent.job_id)
        if row is None:
            continue
        change = intent.decide(row, intent.job_id in present)
        if change is not None:
            changes[intent.job_id] = change
    return changes


def _announce(transaction: Transaction, done: Done, *, poke: PokePolicy, now: datetime) -> None:
    """Deliver ``$children`` of all that ended, once a parent, and send the hints."""
    written = {**done.changes, **done.settled}
    ended = [job_id for job_id, change in written.items() if is_terminal(change.state)]
    queues = {
        done.rows[job_id].queue
        for job_id, change in written.items()
        if is_due(done.rows[job_id], change, now)
    }
    parents = {parent for job_id in ended if (parent := done.rows[job_id].parent_id) is not None}
    if parents:
        woken = deliver(transaction, [Delivery.of_children(parent) for parent in sorted(parents)], now=now)
        done.woken = [job_id for job_id, _ in woken]
        queues |= {queue for _, queue in woken}
    hints.send(transaction.run, poke=poke, queues=queues, ended=ended, now=now)


def is_due(row: JobRow, change: Changes, now: datetime) -> bool:
    """Whether the change leaves a row that may be claimed at once."""
    if change.state != "ready":
        return False
    ready_at = row.ready_at if change.keep_ready_at else change.ready_at
    return ready_at is None or ready_at <= now


def _scopes(park: Awaiting) -> set[str]:
    return {park.scope, *park.read_scopes}


def _read_scopes(parks: Iterable[Awaiting]) -> set[str]:
    return {scope for park in parks for scope in _scopes(park)}
