"""Queues at run time: options over the settings, pause and resume (§3, rule 2).

A row of ``belay_queues`` holds options that every SDK reads; workers of this one take them
up at their next sync, without a restart. Whether a queue is paused stands in a table of
our own, which only nodes of this SDK read.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from asgiref.sync import sync_to_async

from django_belay import conf
from django_belay._options import check_name
from django_belay.contract import queue_opts
from django_belay.contract.job import JSON
from django_belay.contract.queue_opts import QueueOpts
from django_belay.db import storage_for_client
from django_belay.exceptions import ConfigurationError, InvalidQueue
from django_belay.storage.base import QueueRow

__all__ = [
    "QueueInfo",
    "adelete",
    "aget",
    "alist",
    "apause",
    "aput",
    "aresume",
    "check",
    "delete",
    "get",
    "list",
    "pause",
    "put",
    "resume",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueInfo:
    """A queue as workers take it: the settings, and the row over them.

    Attributes:
        opts: The row's options as stored, ``None`` where there is no row.
        effective: Row over settings, key by key.
        is_paused: By the settings or at run time, for every node.
        paused_nodes: Nodes that it is paused on at run time besides.
        in_settings: Whether ``QUEUES`` names it.
        problems: What is wrong with the row; such a value is as if it were not there.
    """

    name: str
    opts: JSON = None
    effective: QueueOpts = field(default_factory=QueueOpts)
    is_paused: bool = False
    paused_nodes: tuple[str, ...] = ()
    in_settings: bool = False
    problems: tuple[str, ...] = ()
    updated_at: datetime | None = None


def check(name: str, opts: object) -> dict[str, JSON]:
    """Options as they would be stored.

    Raises:
        InvalidQueue: Says what was found where, and what is allowed.
    """
    _check_name(name)
    found, findings = queue_opts.parse(opts)
    if findings:
        said = "; ".join(str(finding) for finding in findings)
        raise InvalidQueue(f"queue {name!r}: {said}")
    return queue_opts.to_json(found)


def put(name: str, **opts: Any) -> QueueInfo:
    """Set a queue's options at run time, all of them: what is not given goes back to the settings.

    Args:
        opts: ``limit`` (a number, or ``{"min", "max"}``), ``global_limit``, ``rate``
            (``{"allowed", "period", "resource", "estimate"}``), ``partition``
            (``("input" or "meta", key)``).

    Raises:
        InvalidQueue: A name or value does not fit; nothing was written.

    Contract: §3; rule 2.
    """
    stored = check(name, opts)
    storage_for_client().storage.put_queue(name, stored, now=conf.clock().now())
    return get(name)


def delete(name: str) -> bool:
    """Forget what was set at run time, pauses included; whether there was anything.

    Contract: §3 ``belay_queues``; rule 2.
    """
    return storage_for_client().storage.delete_queue(_check_name(name))


def pause(name: str, *, node: str | None = None) -> QueueInfo:
    """Stop claims from a queue; running jobs go on.

    Args:
        node: Only on the workers with this ``NODE_NAME``; by default on every node of this SDK.

    Contract: rule 2.
    """
    storage_for_client().storage.pause_queue(
        _check_name(name), node=_check_node(node), now=conf.clock().now()
    )
    return get(name)


def resume(name: str, *, node: str | None = None) -> QueueInfo:
    """Let claims go on: take back the pause for every node, or the one for ``node``.

    The two stand beside each other, and a pause in the settings stays.

    Contract: rule 2.
    """
    storage_for_client().storage.resume_queue(
        _check_name(name), node=_check_node(node), now=conf.clock().now()
    )
    return get(name)


def get(name: str) -> QueueInfo:
    """How a queue is set; one that nobody named has the defaults.

    Contract: §3 ``belay_queues``; rule 2.
    """
    _check_name(name)
    found = [info for info in list() if info.name == name]
    return found[0] if found else QueueInfo(name=name, effective=QueueOpts(limit=conf.DEFAULT_LIMIT))


async def aput(name: str, **opts: Any) -> QueueInfo:
    """As :func:`put`."""
    return await sync_to_async(put)(name, **opts)


async def adelete(name: str) -> bool:
    """As :func:`delete`."""
    return await sync_to_async(delete)(name)


async def apause(name: str, *, node: str | None = None) -> QueueInfo:
    """As :func:`pause`."""
    return await sync_to_async(pause)(name, node=node)


async def aresume(name: str, *, node: str | None = None) -> QueueInfo:
    """As :func:`resume`."""
    return await sync_to_async(resume)(name, node=node)


async def aget(name: str) -> QueueInfo:
    """As :func:`get`."""
    return await sync_to_async(get)(name)


async def alist() -> Sequence[QueueInfo]:
    """As :func:`list`."""
    return await sync_to_async(list)()


def _check_name(name: str) -> str:
    try:
        return check_name(f"queue {name!r:.60}", name)
    except ConfigurationError as error:
        raise InvalidQueue(str(error)) from None


def _check_node(node: str | None) -> str | None:
    if node is None:
        return None
    try:
        return check_name(f"node {node!r:.60}", node)
    except ConfigurationError as error:
        raise InvalidQueue(str(error)) from None


def _info(name: str, row: QueueRow | None) -> QueueInfo:
    static = conf.get().queues.get(name)
    base = QueueOpts(limit=conf.DEFAULT_LIMIT)
    if static is not None:
        base = QueueOpts(limit=static.limit, limits=static.limits)
    opts, findings = queue_opts.parse({} if row is None else row.opts)
    return QueueInfo(
        name=name,
        opts=None if row is None else row.opts,
        effective=opts.over(base),
        is_paused=(static is not None and static.paused) or (row is not None and row.paused),
        paused_nodes=() if row is None else row.paused_nodes,
        in_settings=static is not None,
        problems=tuple(str(finding) for finding in findings),
        updated_at=None if row is None else row.updated_at,
    )


# The last one, since it hides Python's own ``list``.
def list() -> Sequence[QueueInfo]:
    """Every queue of the settings and of the rows, by name; bad rows are listed with their problems."""
    rows = {row.name: row for row in storage_for_client().storage.list_queues()}
    return [_info(name, rows.get(name)) for name in sorted({*rows, *conf.get().queues})]
