"""The states of a job and who may write them (§4)."""

from __future__ import annotations

from typing import Final, Literal

State = Literal["ready", "running", "awaiting", "held", "paused", "succeeded", "failed", "cancelled"]

STATES: Final[tuple[State, ...]] = (
    "ready", "running", "awaiting", "held", "paused", "succeeded", "failed", "cancelled",
)  # fmt: skip
TERMINAL: Final[frozenset[State]] = frozenset({"succeeded", "failed", "cancelled"})
INCOMPLETE: Final[frozenset[State]] = frozenset(STATES) - TERMINAL

Writer = Literal[
    "claim", "ack", "hand_back", "wake", "settle", "reclaim", "retry", "cancel", "freeze", "unfreeze"
]

_TRANSITIONS: Final[dict[Writer, dict[State, frozenset[State]]]] = {
    "claim": {"ready": frozenset({"running"}), "awaiting": frozenset({"running"})},
    "ack": {"running": frozenset({"ready", "awaiting", "succeeded", "failed", "cancelled"})},
    "hand_back": {"running": frozenset({"ready", "cancelled"})},
    "wake": {"awaiting": frozenset({"ready"})},
    "settle": {"held": frozenset({"ready", "cancelled"})},
    "reclaim": {"running": frozenset({"ready", "failed", "cancelled"})},
    "retry": {"failed": frozenset({"ready", "held"}), "cancelled": frozenset({"ready", "held"})},
    "cancel": {
        "ready": frozenset({"cancelled"}),
        "awaiting": frozenset({"cancelled"}),
        "held": frozenset({"cancelled"}),
        "paused": frozenset({"cancelled"}),
    },
    # Rule 5: an operator's freeze of a parked or ready job.
    "freeze": {"ready": frozenset({"paused"}), "awaiting": frozenset({"paused"})},
    "unfreeze": {"paused": frozenset({"ready", "awaiting"})},
}


def is_terminal(state: State) -> bool:
    """Whether a job in this state has ended.

    Contract: §4.
    """
    return state in TERMINAL


def may_write(writer: Writer, before: State, after: State) -> bool:
    """Whether ``writer`` may move a job from ``before`` to ``after``.

    Cancelling a running job is no transition: it sets ``cancel_requested`` (§8.6).

    Contract: §4, legal writers.
    """
    return after in _TRANSITIONS[writer].get(before, frozenset())


def sources(writer: Writer) -> frozenset[State]:
    """The states that ``writer`` may move a job out of.

    Contract: §4, legal writers.
    """
    return frozenset(_TRANSITIONS[writer])
