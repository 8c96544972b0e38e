"""A connection that waits for no answer longer than it may.

Kept on this side of the wire: a server-side ``statement_timeout`` is session state, which a
transaction pooler hands to somebody else, and it says nothing when the server itself is silent.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Generator
from typing import Any, Final

import psycopg

# How long a cancelled statement may take to end, and a request to cancel to be sent.
GRACE_S: Final = 5.0


class BoundedConnection(psycopg.Connection[Any]):
    """Cancels a statement that outlasts ``answer_within_s``, and gives the connection up after that."""

    answer_within_s: float | None = None

    def wait(self, gen: Generator[Any, Any, Any], *args: Any, **kwargs: Any) -> Any:
        if self.answer_within_s is not None:
            gen = self._within(gen, self.answer_within_s)
        return super().wait(gen, *args, **kwargs)

    def _within(self, gen: Generator[Any, Any, Any], seconds: float) -> Generator[Any, Any, Any]:
        """Pass a protocol step's waits through; look at the time whenever one brings nothing."""
        deadline = time.monotonic() + seconds
        was_cancelled = False
        try:
            state = next(gen)
            while True:
                ready = yield state
                if not ready and time.monotonic() > deadline:
                    if was_cancelled:
                        raise self._given_up(seconds)
                    was_cancelled = True
                    with contextlib.suppress(psycopg.Error):
                        self.cancel_safe(timeout=GRACE_S)
                    deadline = time.monotonic() + GRACE_S
                state = gen.send(ready)
        except StopIteration as stop:
            return stop.value

    def _given_up(self, seconds: float) -> psycopg.OperationalError:
        self.pgconn.finish()
        return psycopg.OperationalError(
            f"no answer within {seconds:g} s, nor to the request to cancel; the connection is given up"
        )
