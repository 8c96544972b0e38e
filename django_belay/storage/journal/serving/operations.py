"""The operations that a client may ask an owner for: a closed table, by name."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, get_type_hints

from django_belay.storage.base import Storage
from django_belay.storage.journal.store.store import JournalStore

from .codec import Form, Unreadable, form_of

#: What a client does by itself, or by other operations.
LOCAL: Final = frozenset(
    {"atomic_step", "capabilities", "close", "insert_jobs", "listener", "reclaim_expired"}
)
#: What the journal has beside the protocol.
BESIDE: Final = (
    "adopt_leases",
    "durable_sequence",
    "facts",
    "find_expired",
    "insert_members",
    "insert_reserved",
    "reclaim",
    "reserve_ids",
)
#: What changes nothing: asked again, it is done again.
READING: Final = frozenset(
    {
        "check_schema", "child_ends", "children", "durable_sequence", "facts", "find_by_unique_key",
        "find_expired", "find_signal", "find_spawned", "find_step", "get_job", "get_short_journals",
        "get_standing", "get_steps", "has_incomplete_child", "has_open_member", "has_retry_ahead",
        "last_cron_slots", "list_crons", "list_events", "list_jobs", "list_nodes", "list_queues",
        "list_signals", "queue_stats", "read_clock", "workflow_jobs", "workflow_states",
    }
)  # fmt: skip

#: What may be applied again without harm: it finds what it did, looks for what is there now, or, a claim,
#: runs out with its lease.
REPEATABLE: Final = frozenset(
    {
        "adopt_leases", "beat", "claim", "claim_limited", "insert_members", "insert_reserved", "prune_jobs",
        "prune_nodes", "prune_rate", "prune_signals", "reclaim", "register_waiter", "renew_leases",
        "reserve_ids", "resettle_parents", "resettle_signals", "resettle_workflows",
    }
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Parameter:
    """A parameter of an operation."""

    name: str
    form: Form
    default: Any


@dataclass(frozen=True, slots=True)
class Operation:
    """One operation and the forms of what goes there and comes back."""

    name: str
    parameters: tuple[Parameter, ...]
    answer: Form

    @property
    def is_reading(self) -> bool:
        """Whether it changes nothing."""
        return self.name in READING

    @property
    def is_repeatable(self) -> bool:
        """Whether the next owner may apply it again without knowing what the one before answered."""
        return self.name in READING or self.name in REPEATABLE

    def encode_call(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Any]:
        """The arguments of a call in the order of the parameters.

        Raises:
            TypeError: They are not what the operation takes.
        """
        given = dict(zip((parameter.name for parameter in self.parameters), args, strict=False))
        if len(args) > len(self.parameters) or given.keys() & kwargs.keys():
            raise TypeError(f"{self.name}() was given too many arguments")
        given.update(kwargs)
        cells = []
        for parameter in self.parameters:
            value = given.pop(parameter.name, parameter.default)
            if value is inspect.Parameter.empty:
                raise TypeError(f"{self.name}() needs {parameter.name!r}")
            cells.append(parameter.form.to_json(value))
        if given:
            raise TypeError(f"{self.name}() takes no {sorted(given)[0]!r}")
        return cells

    def decode_call(self, cells: Any) -> dict[str, Any]:
        """The arguments by name. Raises ``Unreadable``."""
        if type(cells) is not list or len(cells) != len(self.parameters):
            raise Unreadable(f"{self.name}: {len(self.parameters)} arguments expected")
        given: dict[str, Any] = {}
        for parameter, found in zip(self.parameters, cells, strict=True):
            try:
                given[parameter.name] = parameter.form.of_json(found)
            except Unreadable as error:
                raise Unreadable(f"{self.name}, {parameter.name}: {error}") from None
        return given


def _operation(name: str, method: Callable[..., Any]) -> Operation:
    where = f"JournalStore.{name}"
    hints = get_type_hints(method)
    parameters = [
        Parameter(one.name, form_of(hints[one.name], where=f"{where}, {one.name}"), one.default)
        for one in inspect.signature(method).parameters.values()
        if one.name != "self"
    ]
    return Operation(name, tuple(parameters), form_of(hints["return"], where=where))


def _names() -> list[str]:
    """The protocol's own methods that go over the wire, and those beside."""
    public = (name for name in vars(Storage) if not name.startswith("_") and name not in LOCAL)
    return sorted({*public, *BESIDE})


OPERATIONS: Final = {name: _operation(name, getattr(JournalStore, name)) for name in _names()}
