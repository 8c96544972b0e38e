"""Cron entries under a test's clock."""

from __future__ import annotations

from django_belay import schedules
from django_belay.db import storage_for_client
from django_belay.handles import JobHandle


class Crons:
    """The entries of ``CRONS`` and of ``belay_crons``, seen by a scheduler from now on.

    A scheduler fires nothing that was due before its first look, which is made here.
    """

    def __init__(self) -> None:
        self._scheduler = schedules.make_scheduler(storage_for_client().storage)
        self._scheduler.fire_due()

    def fire(self) -> list[JobHandle]:
        """Enqueue the slots that have come since the last look, as each entry's catch-up policy says."""
        return [JobHandle.of_inserted(fired.inserted) for fired in self._scheduler.fire_due()]
