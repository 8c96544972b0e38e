"""Sending many transitions in few transactions, so that one bad one stops no other (rule 21)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from psycopg import errors as pg

from django_belay.exceptions import Contended, Unavailable

R = TypeVar("R")

# Statements that may run into their time-out, each on a lock of its own; more are the whole server.
MAX_SLOW = 3


def send_grouped(
    groups: Sequence[Sequence[int]], send: Callable[[Sequence[int]], Mapping[int, R | Exception]]
) -> tuple[dict[int, R], dict[int, Exception]]:
    """Send groups of indices, each in a transaction; results and errors by index.

    A member that could not be written where the others were has an error for its answer.
    The members of a group that fails are sent one by one. Where the database is gone that
    would only multiply time-outs: then all that is left fails with the same error.
    """
    results: dict[int, R] = {}
    failures: dict[int, Exception] = {}
    down: Exception | None = None
    slow = 0
    for group in groups:
        if down is not None:
            failures.update(dict.fromkeys(group, down))
            continue
        try:
            for index, answer in send(group).items():
                if isinstance(answer, Exception):
                    failures[index] = answer
                else:
                    results[index] = answer
        except Exception as error:
            slow += _is_slow(error)
            if _is_outage(error) and not (len(group) > 1 and _is_slow(error) and slow < MAX_SLOW):
                failures.update(dict.fromkeys(group, error))
                down = None if _is_slow(error) and slow < MAX_SLOW else error
            elif len(group) == 1:
                failures[group[0]] = error
            else:
                singly, failed = send_grouped([[index] for index in group], send)
                results.update(singly)
                failures.update(failed)
    return results, failures


def _is_outage(error: Exception) -> bool:
    return isinstance(error, Unavailable) and not isinstance(error, Contended)


def _is_slow(error: Exception) -> bool:
    """Whether only this group's statement ran into its time-out, on a lock for instance."""
    return isinstance(error.__cause__, pg.QueryCanceled)
