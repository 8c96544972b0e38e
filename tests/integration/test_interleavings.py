"""No wake-up is lost (§7, §8.1, §11; rules 10, 19, 23): jobs that park and park again beside their senders.

Senders are clients on Django connections of their own, some in REPEATABLE READ transactions whose
snapshots are older than the parks. The sweeper is off: what is stuck at the end stays stuck.
"""

from __future__ import annotations

import itertools
import random
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest
from django.db import connection, transaction

from django_belay import client
from django_belay.contract.inputs import InputCodec
from django_belay.contract.job import NewJob
from django_belay.db import storage_for_worker
from django_belay.engine.clock import SystemClock
from django_belay.engine.context import JobContext
from django_belay.engine.run import Run
from django_belay.engine.runner import Runner
from django_belay.engine.services import Services
from django_belay.exceptions import Contended
from django_belay.models import Job
from django_belay.registry import JobDefinition, Registry
from django_belay.storage.base import Ack, AckGroupError, ClaimRound, Demand, Storage

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.postgres]

JOBS = 250
WAITS = 4  # of each job: a thousand sends against parks and parks again
WORKERS = 4
CALLERS = ("autocommit", "read committed", "repeatable read", "repeatable read")
LIMIT_S = 120.0


def gathers(ctx: JobContext, scope: str | None) -> list[Any]:
    """Waits for its signals one after the other; each may be there already, or come while it parks."""
    return [ctx.wait_signal(f"go{number}", scope=scope) for number in range(WAITS)]


class Workers:
    """Claim loops with acks in groups and no sweeper."""

    def __init__(self, storage: Storage) -> None:
        codec = InputCodec.for_function(gathers)
        registry = Registry()
        registry.register(JobDefinition(kind="gathers", function=gathers, codec=codec))
        self.services = Services(storage=storage, clock=SystemClock(), registry=registry)
        self.is_over = threading.Event()
        self._rounds = itertools.count(1)

    def work(self, seed: int) -> None:
        chance = random.Random(seed)
        runner = Runner(self.services)
        storage, clock = self.services.storage, self.services.clock
        while not self.is_over.is_set():
            now = clock.now()
            round_ = ClaimRound(
                leased_by=f"w{seed}:1:{next(self._rounds)}", lease_until=now + self.services.options.lease_ttl
            )
            demand = Demand(queue="default", take=chance.randint(1, 12))
            claimed = storage.claim(round_, demands=[demand], now=now).jobs
            prepared = [runner.prepare(job, claimed_at=now) for job in claimed]
            acks = [runner.execute(one) if isinstance(one, Run) else one for one in prepared]
            self._send([ack for ack in acks if ack is not None])

    def _send(self, acks: list[Ack]) -> None:
        """Send ends until all are written, as a worker does: a row may be locked for a moment."""
        while acks:
            try:
                self.services.storage.ack_group(acks, now=self.services.clock.now())
                return
            except AckGroupError as error:
                others = [one for one in error.failures.values() if not isinstance(one, Contended)]
                if others:
                    raise others[0] from error
                acks = [acks[index] for index in error.failures]


class Crew:
    """Threads that start together; the first error of one is the test's."""

    def __init__(self) -> None:
        self.errors: list[BaseException] = []
        self.threads: list[threading.Thread] = []

    def start(self, work: Callable[..., None], *arguments: Any) -> threading.Thread:
        def run() -> None:
            try:
                work(*arguments)
            except BaseException as error:
                self.errors.append(error)
            finally:
                connection.close()

        thread = threading.Thread(target=run)
        self.threads.append(thread)
        thread.start()
        return thread


@pytest.fixture
def workers() -> Iterator[Workers]:
    storage = storage_for_worker(pool_size=WORKERS + 1)
    yield Workers(storage)
    storage.close()


def add_jobs(storage: Storage, kind_of_scope: str) -> list[tuple[int, str]]:
    """Jobs and the scope each is signalled in."""
    workflow = kind_of_scope == "workflow"
    new = [
        NewJob(
            kind="gathers",
            input={"scope": f"orders:{number}" if kind_of_scope == "custom" else None},
            workflow_id=f"w{number}" if workflow else None,
            wf_name="only" if workflow else None,
        )
        for number in range(JOBS)
    ]
    ids = [inserted.job_id for inserted in storage.insert_jobs(new, now=SystemClock().now())]
    scopes = {"job": "job:{id}", "workflow": "wf:w{number}", "custom": "orders:{number}"}
    return [
        (job_id, scopes[kind_of_scope].format(id=job_id, number=number)) for number, job_id in enumerate(ids)
    ]


def send(plan: list[tuple[str, str]], caller: str) -> None:
    for scope, name in plan:
        if caller == "autocommit":
            client.signal(scope, name, name)
            continue
        with transaction.atomic():
            if caller == "repeatable read":
                with connection.cursor() as cursor:
                    cursor.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
            Job.objects.exists()  # the snapshot is taken: parks that come now are not in it
            client.signal(scope, name, name)


@pytest.mark.parametrize("kind_of_scope", ["job", "workflow", "custom"])
def test_7_no_job_sleeps_on_through_a_thousand_interleavings(workers: Workers, kind_of_scope: str) -> None:
    seed = 20_260 + len(kind_of_scope)
    print(f"seed {seed}")
    chance = random.Random(seed)
    jobs = add_jobs(workers.services.storage, kind_of_scope)
    plan = [(scope, f"go{number}") for number in range(WAITS) for _, scope in jobs]
    # Mostly in the order of the waits, so that sends meet parks, but not quite.
    plan.sort(key=lambda one: int(one[1][2:]) * JOBS + chance.randint(-2 * JOBS, 2 * JOBS))

    crew = Crew()
    for number in range(WORKERS):
        crew.start(workers.work, number)
    senders = [
        crew.start(send, plan[number :: len(CALLERS)], caller) for number, caller in enumerate(CALLERS)
    ]
    for sender in senders:
        sender.join(LIMIT_S)
    await_quiet(crew)
    workers.is_over.set()
    for thread in crew.threads:
        thread.join(30)

    assert crew.errors == []
    stuck = Job.objects.exclude(state="succeeded").values_list("id", "state", "await_name", "errors")
    assert list(stuck) == []
    assert Job.objects.filter(attempt=1).count() == JOBS


def await_quiet(crew: Crew) -> None:
    """Until every job has ended, or nothing has moved for long enough."""
    deadline = time.monotonic() + LIMIT_S
    while time.monotonic() < deadline and not crew.errors:
        if not Job.objects.exclude(state__in=("succeeded", "failed")).exists():
            return
        if not Job.objects.filter(state__in=("ready", "running")).exists():
            return  # only parked ones are left, and every signal was sent: they are stuck
        time.sleep(0.05)  # polls the workers' rows: there is nothing to be woken by


def test_the_sweeper_is_what_these_tests_do_without(workers: Workers) -> None:
    """A wake that a sender owes is seen as stuck here: the tests above could fail."""
    [(_, scope)] = add_jobs(workers.services.storage, "job")[:1]
    crew = Crew()
    crew.start(workers.work, 1)
    with psycopg.connect(**connection.get_connection_params()) as other:
        # A foreign writer's signal without its wake, for jobs that have parked.
        while Job.objects.exclude(state="awaiting").exists():
            time.sleep(0.02)  # polls the workers' rows: there is nothing to be woken by
        other.execute(
            "INSERT INTO belay_signals (scope, name, payload, inserted_at) VALUES (%s, 'go0', '1', now())",
            [scope],
        )
    await_quiet(crew)
    workers.is_over.set()
    crew.threads[0].join(30)
    assert crew.errors == []
    assert Job.objects.filter(state="awaiting").count() == JOBS
