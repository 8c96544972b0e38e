"""The store as its server uses it: nothing waits, each answer says what it has to be held for."""

from __future__ import annotations

from .store import JournalStore


class ServedStore(JournalStore):
    """The same store as another, for one loop that must not block.

    Its operations return before their records are durable; the loop holds their answers until
    :meth:`durable_sequence` as it was then is durable.
    """

    def __init__(self, store: JournalStore) -> None:
        self.journal = store.journal
        self.hub = store.hub
        self.memory = store.memory
        self._nodes = store._nodes
        self.index_lag = lambda: store.index_lag()  # set when there is an index, perhaps later

    def _wait(self) -> None:
        """The loop does."""
