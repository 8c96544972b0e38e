"""Waiting between tries: capped, growing, and spread so that workers do not march in step."""

from __future__ import annotations

import random


class Patience:
    """Delays that double from ``first_s`` to ``cap_s``, each spread by ±25 %."""

    __slots__ = ("_cap_s", "_delay_s", "_first_s")

    def __init__(self, first_s: float, cap_s: float) -> None:
        self._first_s = self._delay_s = first_s
        self._cap_s = cap_s

    def next_s(self) -> float:
        """The delay before the next try."""
        delay = self._delay_s
        self._delay_s = min(delay * 2, self._cap_s)
        return spread(delay)

    def reset(self) -> None:
        """Start again from the first delay."""
        self._delay_s = self._first_s


def spread(delay_s: float) -> float:
    """The delay ±25 % (the contract's jitter of polling)."""
    return delay_s * random.uniform(0.75, 1.25)  # noqa: S311 - spreads load, no secret
