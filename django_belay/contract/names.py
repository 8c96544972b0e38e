"""Names that every SDK must spell alike: locks, scopes, channels, reserved steps and signals."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

CHILDREN_SIGNAL: Final = "$children"
STEER_SIGNAL: Final = "$steer"

_NOT_IN_CHANNEL = re.compile(r"[^A-Za-z0-9_]")
# PostgreSQL's NAMEDATALEN less one; a longer channel name fails the statement (rule 11).
_CHANNEL_BYTES: Final = 63


def queue_lock(queue: str) -> str:
    """Advisory lock that serialises claimers of a limited queue (§6)."""
    return f"belay:{queue}"


def scope_lock(scope: str) -> str:
    """Advisory lock of a signal scope (§7, §8.1)."""
    return f"belay_sig:{scope}"


def workflow_lock(workflow_id: str) -> str:
    """Advisory lock of a workflow's settlement (§7)."""
    return f"belay_wf:{workflow_id}"


def resource_lock(resource: str) -> str:
    """Advisory lock of a shared rate bucket (rule 12); ours, so hashed to 64 bits (rule 20)."""
    return f"belay_x_resource:{resource}"


def job_scope(job_id: int) -> str:
    """The signal scope of one job (§8.1)."""
    return f"job:{job_id}"


def workflow_scope(workflow_id: str) -> str:
    """The signal scope of a workflow (§8.1)."""
    return f"wf:{workflow_id}"


def read_scopes(job_id: int, workflow_id: str | None, explicit: str | None = None) -> tuple[str, ...]:
    """The scopes that a job reads a signal from, the one that wins first.

    Contract: §8.1; rule 23: explicit scope, job, workflow.
    """
    scopes = [] if explicit is None else [explicit]
    scopes.append(job_scope(job_id))
    if workflow_id is not None:
        scopes.append(workflow_scope(workflow_id))
    return tuple(dict.fromkeys(scopes))


def job_of_scope(scope: str) -> int | None:
    """The job id that ``job:<id>`` names, ``None`` for any other scope."""
    kind, _, number = scope.partition(":")
    if kind != "job" or not number.isascii() or not number.isdigit() or len(number) > 19:
        return None
    job_id = int(number)
    return job_id if job_scope(job_id) == scope and job_id < 2**63 else None


def workflow_of_scope(scope: str) -> str | None:
    """The workflow id that ``wf:<id>`` names, ``None`` for any other scope."""
    return scope[3:] if scope.startswith("wf:") else None


def queue_bucket(queue: str) -> str:
    """Rate bucket of a queue (§6)."""
    return f"queue:{queue}"


def resource_bucket(resource: str) -> str:
    """Rate bucket that several queues share (§6)."""
    return f"resource:{resource}"


def channel(database: str) -> str:
    """The NOTIFY channel of a database, at most 63 bytes.

    Contract: §9.2; rule 11.
    """
    return ("belay_" + _NOT_IN_CHANNEL.sub("_", database))[:_CHANNEL_BYTES]


def sleep_step(name: str) -> str:
    """Reserved step that holds a sleep's wake time."""
    return f"$sleep:{name}"


def spawn_step(name: str) -> str:
    """Reserved step that holds a spawn's child ids (§8.4)."""
    return f"$spawn:{name}"


def spawn_key(parent_id: int, name: str, index: int) -> str:
    """Unique key of one spawned child, mode ``always`` (§8.4)."""
    return f"{spawn_stem(parent_id, name)}:{index}"


def spawn_stem(parent_id: int, name: str) -> str:
    """What the unique keys of a spawn's children start with, without the colon and the index."""
    return f"$spawn:{parent_id}:{name}"


def clear_step(name: str, occurrence: int) -> str:
    """Reserved step that says that the n-th clearing of a signal in a run was done; ours."""
    return f"$clear:{name}:{occurrence}"


def await_step(name: str, occurrence: int) -> str:
    """Reserved step that holds the outcome of the n-th wait on a name in a run (rule 26)."""
    return f"$await:{name}:{occurrence}"


def await_until_step(name: str, occurrence: int) -> str:
    """Reserved step that holds the deadline of the n-th wait on a name in a run (rule 26)."""
    return f"$await:{name}:{occurrence}:until"


def is_reserved(name: str) -> bool:
    """Whether a step or signal name belongs to the engine."""
    return name.startswith("$")


def unique(names: Iterable[str]) -> tuple[str, ...]:
    """Names without repetition, in sorted order."""
    return tuple(sorted(set(names)))
