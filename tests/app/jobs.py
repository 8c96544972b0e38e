"""Jobs of the tests."""

from __future__ import annotations

from datetime import datetime, timedelta
from decimal import Decimal
from uuid import UUID

from django_belay import Budget, Unique, job
from tests.app import isolated_jobs, poison_jobs, rude_jobs, waiting_jobs, worker_jobs  # noqa: F401


@job
def echo(ctx, value):
    """Any value and back."""
    return value


@job(queue="mail", max_attempts=5, priority=3)
def send_receipt(ctx, order_id: int, copy: bool = False) -> None:
    """A job with options of its own."""


@job
def plain(number: int) -> int:
    """A job without its context."""
    return number + 1


@job(unique=Unique(lambda order_id, **_: f"receipt:{order_id}"))
def once(ctx, order_id: int, note: str = "") -> None:
    """One job an order."""


@job
def typed(ctx, at: datetime, amount: Decimal, reference: UUID, every: timedelta) -> list[str]:
    """Arguments that JSON does not know."""
    return [type(value).__name__ for value in (at, amount, reference, every)]


@job(encrypted=True)
def secret(ctx, token: str) -> int:
    """An input that is encrypted at rest."""
    return len(token)


@job(queue="ai", budget=Budget(usd="0.50", tokens=1000), meta={"team": "search"})
def costly(ctx, url: str) -> None:
    """A job with a budget."""


@job
async def asynchronous(ctx, value: int) -> int:
    """An ``async def`` job."""
    return value


@job
def summarise(batch_id: str) -> None:
    """The job on completion of a batch."""
