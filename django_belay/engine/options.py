"""What a worker is told to do: the engine's side of the ``BELAY`` setting."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any, TypeAlias

from django_belay.contract.admission import Limits
from django_belay.contract.encryption import Key
from django_belay.contract.state import State

if TYPE_CHECKING:
    from django_belay.engine.context import JobContext

Backoff: TypeAlias = Callable[[int], float | timedelta] | Sequence[float]
CallNext: TypeAlias = Callable[["JobContext"], Any]
Middleware: TypeAlias = Callable[["JobContext", CallNext], Any]

DEFAULT_RETENTION: Mapping[State, timedelta | None] = {
    "succeeded": timedelta(days=1),
    "failed": timedelta(days=7),
    "cancelled": timedelta(days=7),
}


@dataclass(slots=True, kw_only=True, frozen=True)
class QueueOptions:
    """One queue a worker serves.

    ``limit`` caps its running jobs in one process, from ``min_limit`` on where the limit
    follows the work; ``limits`` is what the whole fleet shares (§6). A paused queue is not
    asked. The limit of a fixed one is the command line's: no row changes it.
    """

    limit: int = 10
    min_limit: int | None = None
    limits: Limits = field(default_factory=Limits)
    paused: bool = False
    is_fixed: bool = False


@dataclass(slots=True, kw_only=True, frozen=True)
class WorkerOptions:
    """A worker's settings, validated by whoever builds them. ``_s`` fields are seconds.

    ``concurrency`` caps the jobs that run in one process over all queues. ``backoff`` is what
    a job without its own gets; ``None`` is retry policy v1. With ``serves_rows`` the
    queues that only rows of ``belay_queues`` name are served, too.
    """

    queues: Mapping[str, QueueOptions] = field(default_factory=lambda: {"default": QueueOptions()})
    serves_rows: bool = True
    concurrency: int = 100
    processes: int = 1
    lease_ttl: timedelta = timedelta(seconds=30)
    busy_poll_s: float = 0.025
    idle_poll_s: float = 0.5
    sweep_interval_s: float = 5.0
    cron_interval_s: float = 20.0
    sync_interval_s: float = 5.0
    shutdown_grace_s: float = 15.0
    ack_retry_s: float = 900.0
    retention: Mapping[State, timedelta | None] = field(default_factory=lambda: dict(DEFAULT_RETENTION))
    signal_ttl: timedelta = timedelta(days=7)
    max_input_bytes: int = 262_144
    max_depth: int = 32
    max_step_bytes: int = 1_048_576
    max_signal_bytes: int = 262_144
    strict_steps: bool = False
    max_attempts: int = 20
    backoff: Backoff | None = None
    middleware: tuple[Middleware, ...] = ()
    node_name: str = "node"
    encryption_keys: tuple[Key, ...] = field(default=(), repr=False)

    @property
    def renew_interval_s(self) -> float:
        """Leases are renewed every third of their time to live (§6)."""
        return self.lease_ttl.total_seconds() / 3

    def with_queues(self, chosen: Mapping[str, int | None]) -> WorkerOptions:
        """Serve only these queues; a number overrides the queue's limit, ``None`` keeps it.

        A queue that no setting names gets the defaults. An empty mapping changes nothing.
        """
        if not chosen:
            return self
        queues = {}
        for name, limit in chosen.items():
            known = self.queues.get(name, QueueOptions())
            queues[name] = (
                known if limit is None else replace(known, limit=limit, min_limit=None, is_fixed=True)
            )
        return replace(self, queues=queues, serves_rows=False)
