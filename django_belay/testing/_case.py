"""The toolkit as methods of a test case."""

from __future__ import annotations

import sys
import unittest
from collections.abc import Mapping
from datetime import datetime
from typing import Any, ClassVar

from django_belay.handles import JobHandle
from django_belay.routers import index_alias
from django_belay.testing._assertions import assert_enqueued, assert_not_enqueued
from django_belay.testing._crons import Crons
from django_belay.testing._drain import DrainReport, drain
from django_belay.testing._inline import run_inline
from django_belay.testing._time import simulated_time
from django_belay.testing.clock import SimClock


class BelayTestMixin(unittest.TestCase):
    """For ``django.test.TestCase`` and ``TransactionTestCase``: ``class Tests(BelayTestMixin, TestCase)``."""

    databases: ClassVar[Any]

    @classmethod
    def setUpClass(cls) -> None:
        """On the journal the models are read from a database of their own: let the tests ask it."""
        alias = index_alias()
        if alias is not None and cls.databases != "__all__":
            cls.databases = {*cls.databases, alias}
        super().setUpClass()

    def run(self, result: unittest.TestResult | None = None) -> unittest.TestResult | None:
        """On the journal each test begins with an empty one."""
        try:
            return super().run(result)
        finally:
            if (scratch := sys.modules.get("django_belay.db.scratch")) is not None:
                scratch.forget()

    def drain(
        self,
        queue: str | None = None,
        *,
        limit: int | None = None,
        with_scheduled: bool = False,
        raise_failures: bool = False,
    ) -> DrainReport:
        """As :func:`django_belay.testing.drain`."""
        return drain(queue, limit=limit, with_scheduled=with_scheduled, raise_failures=raise_failures)

    def assertEnqueued(  # noqa: N802 - unittest's way of names
        self,
        job: object,
        arguments: Mapping[str, Any] | None = None,
        /,
        *,
        count: int | None = None,
        queue: str | None = None,
        **match: Any,
    ) -> list[JobHandle]:
        """As :func:`django_belay.testing.assert_enqueued`."""
        return assert_enqueued(job, arguments, count=count, queue=queue, **match)

    def assertNotEnqueued(  # noqa: N802
        self,
        job: object = None,
        arguments: Mapping[str, Any] | None = None,
        /,
        *,
        queue: str | None = None,
        **match: Any,
    ) -> None:
        """As :func:`django_belay.testing.assert_not_enqueued`."""
        assert_not_enqueued(job, arguments, queue=queue, **match)

    def stop_clock(self, start: datetime | None = None) -> SimClock:
        """A simulated clock until the end of the test; see :func:`django_belay.testing.simulated_time`."""
        return self.enterContext(simulated_time(start))

    def run_inline(self, *, raise_failures: bool = True) -> None:
        """Inline mode until the end of the test; see :func:`django_belay.testing.run_inline`."""
        self.enterContext(run_inline(raise_failures=raise_failures))

    def watch_crons(self) -> Crons:
        """A scheduler of the cron entries; see :class:`django_belay.testing.Crons`."""
        return Crons()
