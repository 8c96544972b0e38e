"""Rows that are set at run time: queues, crons and their slots, nodes, waiters (§3, §8.5; rule 2)."""

from __future__ import annotations

from datetime import datetime

from django_belay.contract.job import JSON, NewJob
from django_belay.contract.notification import PokePolicy
from django_belay.storage.base import CronRow, Inserted, NodeRow, QueueRow
from django_belay.storage.postgres.insert import due_pokes, insert_in
from django_belay.storage.postgres.rows import json_text
from django_belay.storage.postgres.session import Session, Transaction, atomically


def read_clock(session: Session) -> datetime:
    """The server's clock, to compare a node's with (rule 18)."""
    [(now,)] = session.run("read_clock")
    assert isinstance(now, datetime)
    return now


# -- queues


def put_queue(session: Session, name: str, opts: JSON, *, now: datetime) -> None:
    """Write a queue's row; its ``opts`` are the contract's (rule 2)."""
    session.run("put_queue", {"name": name, "opts": json_text(opts), "now": now})


def delete_queue(session: Session, name: str) -> bool:
    """Forget what was set at run time about a queue, its pause included; whether there was anything."""
    return bool(session.run("delete_queue", {"name": name}))


def list_queues(session: Session) -> list[QueueRow]:
    """By name; a queue that is only paused has empty ``opts``."""
    return [
        QueueRow(name=name, opts=opts, paused=paused, updated_at=updated_at, paused_nodes=tuple(nodes))
        for name, opts, paused, updated_at, nodes in session.run("list_queues")
    ]


def set_queue_paused(session: Session, name: str, *, node: str | None, paused: bool, now: datetime) -> None:
    """Pause or resume a queue for every node of this SDK, or for one."""
    if node is not None:
        statement = "pause_queue_on_node" if paused else "resume_queue_on_node"
        session.run(statement, {"name": name, "node": node, "now": now})
        return
    session.run("set_queue_paused", {"name": name, "paused": paused, "now": now})


# -- crons


def put_cron(session: Session, cron: CronRow, *, now: datetime) -> None:
    """Write an entry's row, and ours beside it, together."""
    session.run(
        "put_cron",
        {
            "name": cron.name,
            "expression": cron.expression,
            "kind": cron.kind,
            "input": json_text(cron.input),
            "opts": json_text(cron.opts),
            "paused": cron.paused,
            "timezone": cron.timezone,
            "catch_up": cron.catch_up,
            "now": now,
        },
    )


def delete_cron(session: Session, name: str) -> bool:
    """Whether there was one."""
    return bool(session.run("delete_cron", {"name": name}))


def list_crons(session: Session) -> list[CronRow]:
    """By name."""
    return [
        CronRow(
            name=name,
            expression=expression,
            kind=kind,
            input=input_,
            opts=opts,
            paused=paused,
            timezone=timezone,
            catch_up=catch_up,
            updated_at=updated_at,
        )
        for name, expression, kind, input_, opts, paused, timezone, catch_up, updated_at in session.run(
            "list_crons"
        )
    ]


def set_cron_paused(session: Session, name: str, *, paused: bool, now: datetime) -> bool:
    """Whether the entry has a row to pause."""
    return bool(session.run("set_cron_paused", {"name": name, "paused": paused, "now": now}))


def last_cron_slots(session: Session) -> dict[str, datetime]:
    """The newest slot of each entry that was fired, by this SDK or a foreign one."""
    return dict(session.run("last_cron_slots"))


def fire_cron(session: Session, job: NewJob, *, poke: PokePolicy, now: datetime) -> Inserted | None:
    """Insert an entry's job and remember its slot together; ``None`` when it was fired before.

    A job whose unique key is held counts as fired: the answer is its holder.

    Contract: §8.5; rule 35.
    """
    pokes = due_pokes([job], poke=poke, now=now)

    def operation(transaction: Transaction) -> Inserted | None:
        slot = {"name": job.cron_name, "slot": job.cron_slot, "now": now}
        if not transaction.run("remember_cron_slot", slot):
            return None
        [inserted] = insert_in(transaction, [job], pokes=pokes, now=now)
        return None if _is_slot(transaction, inserted, job) else inserted

    return atomically(session, operation)


def _is_slot(transaction: Transaction, inserted: Inserted, job: NewJob) -> bool:
    """Whether the duplicate is the slot's own job, fired by a foreign SDK."""
    if not inserted.duplicate:
        return False
    rows = transaction.run(
        "is_cron_slot", {"id": inserted.job_id, "name": job.cron_name, "slot": job.cron_slot}
    )
    return bool(rows)


# -- nodes and waiters


def beat(session: Session, node: NodeRow) -> None:
    """Write a process's heartbeat row."""
    session.run(
        "beat",
        {
            "incarnation": node.incarnation,
            "node": node.node,
            "started_at": node.started_at,
            "beat_at": node.beat_at,
            "claimed_at": node.claimed_at,
            "facts": json_text(node.facts),
        },
    )


def list_nodes(session: Session) -> list[NodeRow]:
    """By node and start."""
    return [
        NodeRow(
            incarnation=incarnation,
            node=node,
            started_at=started_at,
            beat_at=beat_at,
            claimed_at=claimed_at,
            facts=facts,
        )
        for incarnation, node, started_at, beat_at, claimed_at, facts in session.run("list_nodes")
    ]


def register_waiter(session: Session, job_id: int, *, until: datetime, now: datetime) -> None:
    """Ask for a result hint when the job ends (rule 11)."""
    session.run("register_waiter", {"job_id": job_id, "until": until, "now": now})
