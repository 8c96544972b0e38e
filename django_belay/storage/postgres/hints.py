"""Hints that a transition sends when it commits (§9.2, rule 11)."""

from __future__ import annotations

from collections.abc import Callable, Collection
from datetime import datetime

from django_belay.contract.notification import Poke, PokePolicy, encode_hint
from django_belay.storage.postgres.session import Params, Rows

# PostgreSQL refuses a payload of 8000 bytes, and with it the transition.
MAX_PAYLOAD_BYTES = 7999


def send(
    run: Callable[[str, Params], Rows],
    *,
    poke: PokePolicy,
    queues: Collection[str] = (),
    ended: Collection[int] = (),
    now: datetime,
) -> None:
    """Poke queues that got a claimable row; tell who waits for the jobs that ended."""
    pokes = [encode_hint(Poke(queue)) for queue in poke.due(queues, now=now)]
    pokes = [payload for payload in pokes if len(payload.encode()) <= MAX_PAYLOAD_BYTES]
    if pokes or ended:
        run("send_hints", {"pokes": pokes, "ended": list(ended)})
