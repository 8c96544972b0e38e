"""For the tests of projects that use django_belay: run jobs, move time, ask what was enqueued.

Everything works on the tests' own PostgreSQL; nothing here is a fake storage.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from django_belay.testing._assertions import assert_enqueued, assert_not_enqueued
    from django_belay.testing._case import BelayTestMixin
    from django_belay.testing._crons import Crons
    from django_belay.testing._drain import DrainedRun, DrainReport, adrain, drain
    from django_belay.testing._inline import run_inline
    from django_belay.testing._time import override_belay, simulated_time
    from django_belay.testing.clock import SimClock

__all__ = [
    "BelayTestMixin",
    "Crons",
    "DrainReport",
    "DrainedRun",
    "SimClock",
    "adrain",
    "assert_enqueued",
    "assert_not_enqueued",
    "drain",
    "override_belay",
    "run_inline",
    "simulated_time",
]

# Loaded at first use: a pytest plugin is imported before Django's settings are there.
_LAZY = {
    "BelayTestMixin": "_case",
    "Crons": "_crons",
    "DrainReport": "_drain",
    "DrainedRun": "_drain",
    "SimClock": "clock",
    "adrain": "_drain",
    "assert_enqueued": "_assertions",
    "assert_not_enqueued": "_assertions",
    "drain": "_drain",
    "override_belay": "_time",
    "run_inline": "_inline",
    "simulated_time": "_time",
}


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"{__name__}.{_LAZY[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
