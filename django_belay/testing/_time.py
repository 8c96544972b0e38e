"""Time that a test moves, for client and engine alike, and ``BELAY`` changed for a test."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from typing import Any

from django.conf import settings
from django.test import override_settings

from django_belay.exceptions import ConfigurationError
from django_belay.testing.clock import SimClock

_clocks: list[SimClock] = []


class override_belay(override_settings):  # noqa: N801 - reads like override_settings
    """As ``override_settings``, for single keys of ``BELAY``: the others stay as they are.

    A context manager, and a decorator of functions and test classes.
    """

    def __init__(self, **changes: Any) -> None:
        super().__init__()
        self._changes = changes

    def enable(self) -> None:
        # Merged now, not when it was written down: a simulated clock must outlive it.
        self.options = {"BELAY": self._merged()}
        super().enable()

    def decorate_class(self, cls: type) -> type:
        self.options = {"BELAY": self._merged()}
        return super().decorate_class(cls)

    def _merged(self) -> dict[str, Any]:
        return {**getattr(settings, "BELAY", {}), **self._changes}


@contextmanager
def simulated_time(start: datetime | None = None) -> Iterator[SimClock]:
    """Stop the clock of client and engine; ``clock.advance(60)`` moves it.

    It moves backoff, sleeps, deadlines, leases, cron slots, rate windows and unique
    windows, since none of them reads another clock. Django's ``timezone.now()`` goes on.

    Args:
        start: Where it stands; the real time of the call by default, so that instants which
            a project computes by ``timezone.now()`` mean the same.
    """
    clock = SimClock(start or _real_now())
    _clocks.append(clock)
    try:
        with override_belay(CLOCK=f"{__name__}.current_clock"):
            yield clock
    finally:
        _clocks.remove(clock)


def current_clock() -> SimClock:
    """The innermost simulated clock: what ``BELAY["CLOCK"]`` names meanwhile."""
    if not _clocks:
        raise ConfigurationError(
            f'BELAY["CLOCK"] is {__name__}.current_clock outside of simulated_time(); leave CLOCK out of the '
            "settings and use simulated_time() or the fixture belay_clock"
        )
    return _clocks[-1]


def _real_now() -> datetime:
    from django_belay.engine.clock import SystemClock

    now = SystemClock().now()
    return now + timedelta(microseconds=-now.microsecond % 1000)  # the journal knows whole milliseconds
