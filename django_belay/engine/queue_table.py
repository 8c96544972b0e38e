"""The queues that a process serves: its settings, and the rows of ``belay_queues`` over them.

Rows are put, changed and deleted while workers run; every node takes them up at its next
sync (§3). A worker that was not told which queues to serve also serves those that only a
row names; one that was (``--queue``) serves these alone, and a limit from its command line
stays above the row's.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from django_belay.contract import queue_opts
from django_belay.contract.admission import Rate
from django_belay.contract.job import JSON
from django_belay.contract.queue_opts import QueueOpts
from django_belay.engine.options import QueueOptions, WorkerOptions
from django_belay.engine.telemetry import worker_log
from django_belay.storage.base import QueueRow


@dataclass(slots=True, kw_only=True, frozen=True)
class QueueState:
    """One moment's queues. Replaced as a whole, so that readers need no lock."""

    served: Mapping[str, QueueOptions] = field(default_factory=dict)
    paused: frozenset[str] = frozenset()


class QueueTable:
    """What a process serves now; any thread may read, one applies rows.

    Args:
        reports: Whether bad rows are logged here, each once: one process of a worker does.
    """

    def __init__(self, options: WorkerOptions, *, reports: bool = False) -> None:
        self._static = options.queues
        self._node = options.node_name
        self._serves_rows = options.serves_rows
        self._reports = reports
        self._reported: dict[str, tuple[str, ...]] = {}
        self._state = QueueState(
            served=options.queues,
            paused=frozenset(name for name, queue in options.queues.items() if queue.paused),
        )

    @property
    def served(self) -> Mapping[str, QueueOptions]:
        """Every queue of this process by name, the paused ones too."""
        return self._state.served

    @property
    def paused(self) -> frozenset[str]:
        """Those not to be claimed from, by the settings or at run time."""
        return self._state.paused

    def rates(self, queue: str) -> Iterator[tuple[str, Rate]]:
        """Rates by the queue that has them, the given queue's first."""
        served = self._state.served
        ordered = [queue, *(name for name in served if name != queue)]
        for name in ordered:
            rate = served[name].limits.rate if name in served else None
            if rate is not None:
                yield name, rate

    def apply(self, rows: Sequence[QueueRow]) -> bool:
        """Take up the rows, all of them; whether that changed anything.

        Contract: §3; rules 2, 4.
        """
        by_name = {row.name: row for row in rows}
        names = list(self._static)
        if self._serves_rows:
            names += sorted(name for name in by_name if name not in self._static)
        served = {name: self._merged(name, by_name.get(name)) for name in names}
        paused = {row.name for row in rows if is_paused(row, self._node)}
        paused |= {name for name, queue in served.items() if queue.paused}
        state = QueueState(served=served, paused=frozenset(paused))
        changed = state != self._state
        self._state = state
        self._forget_deleted(by_name)
        return changed

    def _merged(self, name: str, row: QueueRow | None) -> QueueOptions:
        base = self._static.get(name, QueueOptions())
        if row is None:
            return base
        found, findings = queue_opts.parse(row.opts)
        self._report(name, tuple(str(finding) for finding in findings))
        merged = found.over(QueueOpts(limits=base.limits))
        if merged.limit is None or base.is_fixed:
            return replace(base, limits=merged.limits)
        least, most = merged.limit
        return replace(base, limit=most, min_limit=least if least < most else None, limits=merged.limits)

    def _report(self, name: str, problems: tuple[str, ...]) -> None:
        if not self._reports or self._reported.get(name, ()) == problems:
            return
        self._reported[name] = problems
        if problems:
            worker_log.warning(
                "the row of queue %r in belay_queues does not fit; what does not counts as not there: %s",
                name,
                "; ".join(problems),
                extra={"belay_queue": name},
            )

    def _forget_deleted(self, by_name: Mapping[str, QueueRow]) -> None:
        for name in [name for name in self._reported if name not in by_name]:
            del self._reported[name]


def is_paused(row: QueueRow, node: str) -> bool:
    """Whether a row pauses its queue on a node (rule 2)."""
    return row.paused or node in row.paused_nodes


def rows_to_json(rows: Sequence[QueueRow], *, node: str) -> list[list[JSON]]:
    """Rows as they travel to a child on a node: what fits of them, whatever a foreign row holds."""
    return [
        [row.name, queue_opts.to_json(queue_opts.parse(row.opts)[0]), is_paused(row, node)] for row in rows
    ]


def rows_from_json(items: Sequence[Sequence[JSON]]) -> list[QueueRow]:
    """The rows of a message."""
    return [QueueRow(name=name, opts=opts, paused=paused) for name, opts, paused in items]
