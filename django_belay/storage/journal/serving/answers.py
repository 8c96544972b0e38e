"""The last answer of each client, so that a request that is sent again is not done again."""

from __future__ import annotations

import time
from collections import OrderedDict
from dataclasses import dataclass
from typing import Any, Final

#: A client that was not heard of for so long comes back to nothing.
IDLE_S: Final = 3600.0


@dataclass(slots=True)
class Kept:
    """A client's last request.

    Attributes:
        answer: What was answered, in the form that is kept.
    """

    request: int
    answer: Any
    used_at: float


class Answers:
    """The last answer of each client. A client has one request open: an answer frees those before it."""

    def __init__(self) -> None:
        self._by_client: OrderedDict[str, Kept] = OrderedDict()

    def last_request(self, client: str) -> int:
        """The number of its last request that changed something; 0 for none."""
        kept = self._by_client.get(client)
        return 0 if kept is None else kept.request

    def find(self, client: str, request: int) -> Any | None:
        """What was answered to this very request; ``None`` when it is new here."""
        kept = self._by_client.get(client)
        return kept.answer if kept is not None and kept.request == request else None

    def keep(self, client: str, request: int, answer: Any) -> None:
        """Remember it in place of the one before; forget who was idle for long."""
        now = time.monotonic()
        self._by_client[client] = Kept(request, answer, now)
        self._by_client.move_to_end(client)
        while self._by_client:
            oldest = next(iter(self._by_client))
            if self._by_client[oldest].used_at > now - IDLE_S:
                return
            del self._by_client[oldest]
