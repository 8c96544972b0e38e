"""Indexes over the rows in memory: what a decision looks up without reading all of them.

Open jobs are held whole. Of a finished one only what decisions need stays here, and only where
it has it: its place in a workflow, its parent, its unique key, its cron slot.
"""

from __future__ import annotations

import heapq
from array import array
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final

from django_belay.contract.names import read_scopes
from django_belay.contract.state import TERMINAL, State

from .lane import Lane, is_claimable
from .row import Row

WINDOWED: Final = frozenset({"window", "always"})


@dataclass(slots=True)
class Workflow:
    """The members of a workflow, and which held ones wait for whom (§8.3)."""

    states: dict[int, State] = field(default_factory=dict)
    names: dict[int, str | None] = field(default_factory=dict)
    newest: dict[str, int] = field(default_factory=dict)
    dependents: defaultdict[str, set[int]] = field(default_factory=lambda: defaultdict(set))
    #: Of a held member, the dep that was open when it was last looked at.
    open_deps: dict[int, str] = field(default_factory=dict)
    open: int = 0


@dataclass(slots=True)
class Children:
    """How the children of a job stand (§8.4)."""

    states: dict[int, State] = field(default_factory=dict)
    open: set[int] = field(default_factory=set)


class View:
    """What is in the store, found by what is asked for."""

    def __init__(self) -> None:
        self.open: dict[int, Row] = {}
        self.lanes: dict[str, Lane] = {}
        self.running: defaultdict[str, set[int]] = defaultdict(set)
        self.leases: list[tuple[int, int]] = []
        self.waiting: defaultdict[tuple[str, str], set[int]] = defaultdict(set)
        self.workflows: dict[str, Workflow] = {}
        self.children: dict[int, Children] = {}
        self.open_keys: dict[str, int] = {}
        self.kept_keys: dict[str, int] = {}
        self.slots: dict[tuple[str, int], int] = {}
        self.failed: Counter[str] = Counter()
        self.steps: defaultdict[int, dict[str, str]] = defaultdict(dict)
        self.events: Counter[int] = Counter()
        # finished_at and id in turn, in the order in which the jobs ended: 16 bytes a job.
        self.ended: dict[State, array[int]] = {state: array("q") for state in TERMINAL}

    def lane(self, queue: str) -> Lane:
        """The backlog of a queue."""
        found = self.lanes.get(queue)
        if found is None:
            found = self.lanes[queue] = Lane(queue, self.open.get)
        return found

    # -- changes ------------------------------------------------------------

    def replace(self, before: Row | None, after: Row | None) -> None:
        """A job is now as in ``after``; ``before`` is what it was, ``None`` for one that was not."""
        if before is not None:
            self._leave_state(before)
        if after is not None:
            self._enter_state(after)
        if before is None:
            assert after is not None
            self._relate(after)
        elif after is None:
            self._part(before)
        else:
            self._move_relations(before, after)

    def _enter_state(self, row: Row) -> None:
        job_id, state = row["id"], row["state"]
        if state in TERMINAL:
            if state == "failed":
                self.failed[row["queue"]] += 1
            if row["finished_at"] is not None:
                self.ended[state].extend((row["finished_at"], job_id))
            return
        self.open[job_id] = row
        if is_claimable(row):
            self.lane(row["queue"]).push(row)
        if state == "running":
            self.running[row["queue"]].add(job_id)
            heapq.heappush(self.leases, (row["lease_until"] or 0, job_id))
        elif state == "awaiting":
            for place in waits_of(row):
                self.waiting[place].add(job_id)
        if row["unique_mode"] == "incomplete" and row["unique_key"] is not None:
            self.open_keys[row["unique_key"]] = job_id

    def _leave_state(self, row: Row) -> None:
        job_id, state = row["id"], row["state"]
        if state in TERMINAL:
            if state == "failed":
                self.failed[row["queue"]] -= 1
            return
        self.open.pop(job_id, None)
        if state == "running":
            self.running[row["queue"]].discard(job_id)
        elif state == "awaiting":
            for place in waits_of(row):
                found = self.waiting[place]
                found.discard(job_id)
                if not found:
                    del self.waiting[place]
        key = row["unique_key"]
        if row["unique_mode"] == "incomplete" and key is not None and self.open_keys.get(key) == job_id:
            del self.open_keys[key]

    def _relate(self, row: Row) -> None:
        job_id, is_open = row["id"], row["state"] not in TERMINAL
        if row["unique_key"] is not None and row["unique_mode"] in WINDOWED:
            self.kept_keys[row["unique_key"]] = job_id
        if row["cron_name"] is not None and row["cron_slot"] is not None:
            self.slots[row["cron_name"], row["cron_slot"]] = job_id
        if row["parent_id"] is not None:
            children = self.children.setdefault(row["parent_id"], Children())
            children.states[job_id] = row["state"]
            if is_open:
                children.open.add(job_id)
        if row["workflow_id"] is not None:
            workflow = self.workflows.setdefault(row["workflow_id"], Workflow())
            workflow.states[job_id] = row["state"]
            workflow.names[job_id] = name = row["wf_name"]
            workflow.open += is_open
            if name is not None:
                workflow.newest[name] = max(job_id, workflow.newest.get(name, 0))
            self._wait_for_deps(workflow, row)

    def _part(self, row: Row) -> None:
        job_id = row["id"]
        key = row["unique_key"]
        if key is not None and row["unique_mode"] in WINDOWED and self.kept_keys.get(key) == job_id:
            del self.kept_keys[key]
        if row["cron_name"] is not None and row["cron_slot"] is not None:
            self.slots.pop((row["cron_name"], row["cron_slot"]), None)
        if row["parent_id"] is not None:
            children = self.children[row["parent_id"]]
            del children.states[job_id]
            children.open.discard(job_id)
            if not children.states:
                del self.children[row["parent_id"]]
        if row["workflow_id"] is not None:
            self._leave_workflow(row["workflow_id"], row)

    def _leave_workflow(self, workflow_id: str, row: Row) -> None:
        workflow = self.workflows[workflow_id]
        job_id = row["id"]
        del workflow.states[job_id]
        name = workflow.names.pop(job_id)
        workflow.open -= row["state"] not in TERMINAL
        self._wait_for_no_dep(workflow, row)
        if not workflow.states:
            del self.workflows[workflow_id]
        elif name is not None and workflow.newest[name] == job_id:
            left = [other for other, its_name in workflow.names.items() if its_name == name]
            workflow.newest.pop(name)
            if left:
                workflow.newest[name] = max(left)

    def _move_relations(self, before: Row, after: Row) -> None:
        """The same job in another state; what it is related to never changes."""
        job_id = after["id"]
        opened = (after["state"] not in TERMINAL) - (before["state"] not in TERMINAL)
        if after["parent_id"] is not None:
            children = self.children[after["parent_id"]]
            children.states[job_id] = after["state"]
            if after["state"] in TERMINAL:
                children.open.discard(job_id)
            else:
                children.open.add(job_id)
        if after["workflow_id"] is not None:
            workflow = self.workflows[after["workflow_id"]]
            workflow.states[job_id] = after["state"]
            workflow.open += opened
            self._wait_for_no_dep(workflow, before)
            self._wait_for_deps(workflow, after)

    def _wait_for_deps(self, workflow: Workflow, row: Row) -> None:
        if row["state"] == "held":
            for dep in row["wf_deps"]:
                workflow.dependents[dep].add(row["id"])

    def _wait_for_no_dep(self, workflow: Workflow, row: Row) -> None:
        if row["state"] == "held":
            for dep in row["wf_deps"]:
                workflow.dependents[dep].discard(row["id"])

    def sort_ended(self) -> None:
        """Put what has ended into the order of its ends, after it came in another."""
        for ended in self.ended.values():
            times, ids = ended[::2], ended[1::2]
            # Positions, not pairs: a million pairs would take more memory than the store itself.
            order = sorted(range(len(times)), key=times.__getitem__)
            for place, at in enumerate(order):
                ended[2 * place] = times[at]
                ended[2 * place + 1] = ids[at]

    def renew(self, row: Row, until_ms: int) -> None:
        """A running job's lease goes on; that is known in memory alone."""
        renewed = row.copy()
        renewed["lease_until"] = until_ms
        self.open[row["id"]] = renewed
        heapq.heappush(self.leases, (until_ms, row["id"]))

    def note_table(
        self, table: str, key: str, row: dict[str, Any] | None, before: dict[str, Any] | None
    ) -> None:
        """A row of an extension table is now as in ``row``."""
        if table == "steps":
            if row is not None:
                self.steps[row["job_id"]][row["name"]] = key
            elif before is not None:
                self.steps[before["job_id"]].pop(before["name"], None)
                if not self.steps[before["job_id"]]:
                    del self.steps[before["job_id"]]
        elif table == "events" and row is not None:
            self.events[row["job_id"]] = max(self.events[row["job_id"]], row["seq"])

    # -- answers ------------------------------------------------------------

    def expired(self, now_ms: int) -> Iterator[Row]:
        """Running jobs whose lease ran out, the longest ago first.

        A row whose lease was taken back or renewed since it was noted is passed over; one that is
        given out and not dealt with is given out again next time.
        """
        given: list[tuple[int, int]] = []
        try:
            while self.leases and self.leases[0][0] <= now_ms:
                until, job_id = heapq.heappop(self.leases)
                row = self.open.get(job_id)
                if row is not None and row["state"] == "running" and (row["lease_until"] or 0) == until:
                    given.append((until, job_id))
                    yield row
        finally:
            for entry in given:
                heapq.heappush(self.leases, entry)

    def live(self, queue: str, now_ms: int) -> list[Row]:
        """Running jobs of a queue whose lease is in force (§6)."""
        rows = (self.open[job_id] for job_id in self.running.get(queue, ()))
        return [row for row in rows if (row["lease_until"] or 0) > now_ms]


def waits_of(row: Row) -> list[tuple[str, str]]:
    """Scope and name of every signal that wakes an awaiting job (rule 23)."""
    name = row["await_name"]
    if name is None:
        return []
    return [(scope, name) for scope in read_scopes(row["id"], row["workflow_id"], row["await_scope"])]
