"""Background loops that never die silently."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from django_belay.engine.patience import Patience
from django_belay.engine.telemetry import worker_log
from django_belay.exceptions import Unavailable


class Loop:
    """Calls ``turn`` again and again in a thread of its own.

    What a turn raises is logged, once for an outage, and the loop goes on with growing
    delays, at most ``longest_delay_s``; an outage's end is logged as well. ``interval_s``
    is waited between turns; 0 for turns that wait by themselves.
    """

    def __init__(
        self,
        name: str,
        turn: Callable[[], object],
        *,
        interval_s: float = 0.0,
        log: logging.Logger = worker_log,
        wake: Callable[[], None] = lambda: None,
        longest_delay_s: float = 10.0,
    ) -> None:
        self.name = name
        self._turn = turn
        self._interval_s = interval_s
        self._log = log
        self._wake = wake
        self._longest_delay_s = longest_delay_s
        self._stopping = threading.Event()
        self._is_down = False
        self._thread = threading.Thread(target=self._run, name=f"belay-{name}", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Ask the loop to end; it finishes its turn."""
        self._stopping.set()
        self._wake()

    def join(self, timeout_s: float) -> bool:
        """Whether the loop ended in time."""
        if self._thread.ident is not None:
            self._thread.join(timeout_s)
        return not self._thread.is_alive()

    @property
    def is_alive(self) -> bool:
        return self._thread.is_alive()

    def _run(self) -> None:
        patience = Patience(min(0.1, self._longest_delay_s), self._longest_delay_s)
        delay_s = 0.0
        while not (self._stopping.wait(delay_s) if delay_s else self._stopping.is_set()):
            try:
                self._turn()
            except Unavailable as error:
                self._note_outage(error)
                delay_s = patience.next_s()
            except BaseException:  # turns call user code as well, a cron's for instance, and it may exit
                self._log.exception("the %s loop failed; it goes on", self.name)
                delay_s = patience.next_s()
            else:
                self._note_recovery()
                patience.reset()
                delay_s = self._interval_s

    def _note_outage(self, error: Unavailable) -> None:
        if not self._is_down:
            self._is_down = True
            self._log.warning("the %s loop waits for the storage: %s", self.name, error)

    def _note_recovery(self) -> None:
        if self._is_down:
            self._is_down = False
            self._log.info("the %s loop goes on", self.name)
