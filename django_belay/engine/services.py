"""What the runs of one process share."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

from django_belay.engine.clock import Clock
from django_belay.engine.gate import WriteGate
from django_belay.engine.options import WorkerOptions
from django_belay.engine.patience import Patience
from django_belay.engine.queue_table import QueueTable
from django_belay.engine.run import Run
from django_belay.engine.telemetry import Hooks
from django_belay.exceptions import Unavailable
from django_belay.registry import Registry
from django_belay.storage.base import Storage

T = TypeVar("T")


@dataclass(slots=True, kw_only=True, frozen=True)
class Services:
    """Storage, clock, options, hooks and queues of one process, and the gate its runs write through."""

    storage: Storage
    clock: Clock
    registry: Registry
    options: WorkerOptions = field(default_factory=WorkerOptions)
    hooks: Hooks = field(default_factory=Hooks)
    gate: WriteGate = field(default_factory=WriteGate)
    queues: QueueTable = field(default=None)  # type: ignore[assignment]  # made from the options

    def __post_init__(self) -> None:
        if self.queues is None:
            object.__setattr__(self, "queues", QueueTable(self.options))


def persist(run: Run, operation: Callable[[], T], *, for_s: float) -> T:
    """Do a storage operation for a run; through an outage until it works or the run must stop.

    The operation must bear being done again after an answer was lost.

    Raises:
        Unavailable: The storage was away for longer than ``for_s``.
        Interrupt: The run was told to stop meanwhile.
    """
    give_up_at = time.monotonic() + for_s
    patience = Patience(0.05, 2.0)
    while True:
        try:
            return operation()
        except Unavailable:
            if time.monotonic() >= give_up_at:
                raise
        time.sleep(patience.next_s())
        run.check()
