"""Random histories of the whole Storage protocol, for storages that must come to the same.

A machine of :func:`machine_of` plays one history on all storages of a :class:`World`. What is random is
drawn by Hypothesis, so a history that parts them shrinks to a short one.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from django_belay.contract import names
from django_belay.contract.admission import Limits, Partition, Rate
from django_belay.contract.job import Lease, NewJob
from django_belay.contract.outcome import (
    Awaiting,
    Cancelled,
    Failed,
    Outcome,
    Retried,
    Snoozed,
    Succeeded,
)
from django_belay.contract.state import STATES
from django_belay.contract.wait_record import wait_record
from django_belay.storage.base import Ack, ClaimRound, CronRow, Demand, JobFilter, NewStep
from tests.behaviour.comparing import Side, World

MS = timedelta(milliseconds=1)
LEASE_TTL = timedelta(seconds=30)
QUEUES = ("north", "south")
WORKFLOWS = ("flow", "other")
MEMBERS = ("a", "b", "c", "d")
SIGNALS = ("go", "stop", "$children")
ENTRIES = ("nightly", "hourly")
STEPS = ("one", "two", "$await:go:1:until", "$await:go:2:until")

# -- what is drawn ----------------------------------------------------------------

who = st.integers(0, 30)
some = st.lists(who, min_size=1, max_size=4)
queues = st.sampled_from(QUEUES)
scopes = st.one_of(
    st.sampled_from(["wf:flow", "wf:other", "room"]), st.builds("job#{}".format, st.integers(0, 9))
)
signals = st.sampled_from(SIGNALS)
json_values = st.sampled_from(
    [{}, {"n": 1}, {"text": "grün"}, [1, 2], None, True, "word", 7, {"deep": {"er": [None, 1.5]}}]
)
payloads = st.sampled_from([{}, {"n": 1}, {"text": "grün"}, {"deep": {"er": [None, 1.5]}}])
tenants = st.sampled_from(
    ["x", "y", "", 1, 2, True, 1.5, 1e20, None, {"b": 1, "a": 2}, {"a": 2, "b": 1}, ["x"], "é"]
)
envelopes = st.sampled_from(
    [
        b"1",
        b'{"sum": 3}',
        b'"text"',
        b"null",
        b"[1.0, 1e2]",
        b"\x83a\x07",
        b"12345678901234567890123",
        b'"\\u0000"',
    ]
)
# Milliseconds from now; most lie apart, so that few rows tie.
offsets = st.one_of(st.none(), st.integers(-2_000, 2_000), st.sampled_from([30_000, 90_000]))
rates = st.builds(
    Rate,
    allowed=st.integers(0, 6),
    period_s=st.sampled_from([1, 60]),
    estimate=st.integers(0, 3),
    resource=st.sampled_from([None, "api"]),
)
partitions = st.builds(Partition, column=st.sampled_from(["input", "meta"]), key=st.just("tenant"))
limits = st.builds(
    Limits,
    global_limit=st.one_of(st.none(), st.integers(0, 3)),
    rate=st.one_of(st.none(), rates),
    partition=st.one_of(st.none(), st.none(), partitions),
).filter(lambda limits: limits.is_limited)


@st.composite
def new_jobs(draw: st.DrawFn) -> dict[str, Any]:
    """Fields of a job: mostly plain ones, which the journal keeps as core jobs."""
    fields: dict[str, Any] = {
        "kind": draw(st.sampled_from(["k", "l"])),
        "queue": draw(queues),
        "max_attempts": draw(st.sampled_from([1, 2, 3, 20])),
        "ready_at": draw(offsets),
    }
    extras = draw(st.sets(st.sampled_from(sorted(_EXTRAS)), max_size=2))
    for extra in sorted(extras):
        fields.update(draw(_EXTRAS[extra]))
    if "unique_key" in fields or "spawned" in fields:
        # Of rows of one call that want a slot, a keyed one has it on PostgreSQL: nobody inserts such.
        fields.pop("cron_name", None)
        fields.pop("cron_slot", None)
    return fields


def _member(name: str, deps: list[str], ignore: list[str], workflow_id: str | None, *, named: bool) -> Any:
    return {
        "workflow_id": workflow_id,
        "wf_name": name if named else None,
        "wf_deps": tuple(deps),
        "wf_ignore": tuple(ignore),
        "state": "held" if deps and workflow_id else "ready",
    }


_EXTRAS: dict[str, st.SearchStrategy[dict[str, Any]]] = {
    "input": st.builds(lambda value, more: {"input": {"tenant": value, **more}}, tenants, payloads),
    "meta": st.builds(lambda value: {"meta": {"tenant": value}}, tenants),
    "priority": st.builds(lambda value: {"priority": value}, st.sampled_from([-1, 1, 5])),
    "partition_key": st.just({"partition_key": "p"}),
    "workflow": st.builds(
        _member,
        st.sampled_from(MEMBERS),
        st.lists(st.sampled_from([*MEMBERS, "nobody"]), max_size=2, unique=True),
        st.lists(st.sampled_from(["failed", "cancelled"]), max_size=2, unique=True),
        st.sampled_from(WORKFLOWS),
        named=st.sampled_from([True, True, True, False]),
    ),
    "unique": st.builds(
        lambda key, mode: {"unique_key": f"{key}@7" if mode == "window" else key, "unique_mode": mode},
        st.sampled_from(["u", "v"]),
        st.sampled_from(["incomplete", "incomplete", "window", "always"]),
    ),
    "cron": st.builds(
        lambda name, slot: {"cron_name": name, "cron_slot": slot},
        st.sampled_from(ENTRIES),
        st.integers(-2, 2),
    ),
    "parent": st.builds(lambda number: {"parent_id": number}, who),
    "spawned": st.builds(lambda number, index: {"spawned": (number, index)}, who, st.integers(0, 2)),
    "budget": st.builds(
        lambda usd, tokens: {"budget_usd_micros": usd, "budget_tokens": tokens},
        st.sampled_from([None, 100]),
        st.sampled_from([None, 0, 10]),
    ),
}

outcomes = st.one_of(
    st.tuples(st.just("succeeded"), st.one_of(st.none(), envelopes)),
    st.tuples(st.just("succeeded"), st.none()),
    st.tuples(st.just("retried"), st.sampled_from([-5, 1, 1000, 20_000])),
    st.tuples(st.just("failed"), st.sampled_from(["boom", "grün \ud800", "nul \0"])),
    st.tuples(st.just("cancelled"), st.sampled_from(["cancelled", "why not"])),
    st.tuples(st.just("snoozed"), st.sampled_from([-5, 0, 1000, 20_000])),
    st.tuples(st.just("awaiting"), st.tuples(signals, st.one_of(st.none(), scopes), offsets, st.booleans())),
)


# -- the machine ------------------------------------------------------------------


class Histories(RuleBasedStateMachine):
    """One history; :func:`machine_of` says on what."""

    make_world: Callable[[], World]
    tear_down: Callable[[World], None]

    def __init__(self) -> None:
        super().__init__()
        self.world = type(self).make_world()
        self.rounds = 0
        self.used: set[int] = set()

    def teardown(self) -> None:
        try:
            if not self.world.is_broken:
                self.world.observe_all()
        finally:
            type(self).tear_down(self.world)

    # -- helpers ------------------------------------------------------------

    def tick(self) -> datetime:
        """The instant of an operation: no two share one."""
        self.world.clock.advance(MS)
        return self.world.now()

    def at(self, offset: int, now: datetime) -> datetime:
        """An instant that many milliseconds from now that no other row was given."""
        ms = offset
        stamp = now + ms * MS
        while stamp in self.used:
            stamp += MS
        self.used.add(stamp)
        return stamp

    def job(self, number: int, *states: str) -> int:
        """One of the jobs in these states, whichever the number falls on; else no job's number."""
        numbers = self.world.numbers(*states)
        return numbers[number % len(numbers)] if numbers and number < 30 else -1

    def family(self, number: int) -> tuple[int, list[int]]:
        """A parent and its children; any job and none where there is no parent."""
        children: dict[int, list[int]] = {}
        for child, job in self.world.jobs.items():
            if isinstance(job["parent_id"], str):
                children.setdefault(int(job["parent_id"][1:]), []).append(child)
        parents = sorted(children)
        if not parents or number % 5 == 0:
            return self.job(number), []
        parent = parents[number % len(parents)]
        return parent, children[parent]

    def fields(self, drawn: dict[str, Any], now: datetime) -> Callable[[Side], NewJob]:
        """The job that the fields describe, for each storage with its ids."""
        fields = dict(drawn)
        if fields["ready_at"] is not None:
            fields["ready_at"] = self.at(fields["ready_at"], now)
        if "cron_slot" in fields:
            noon = datetime(2030, 1, 1, 12, tzinfo=UTC)
            fields["cron_slot"] = noon + timedelta(minutes=fields["cron_slot"])
        spawned = fields.pop("spawned", None)
        parent = fields.pop("parent_id", None if spawned is None else spawned[0])
        number = None if parent is None else self.job(parent)

        def build(side: Side) -> NewJob:
            mine = dict(fields)
            if number is not None:
                mine["parent_id"] = side.id(number)
            if spawned is not None:
                mine["unique_key"] = names.spawn_key(mine["parent_id"], "fan", spawned[1])
                mine["unique_mode"] = "always"
            return NewJob(**mine)

        return build

    def outcome(self, drawn: tuple[str, Any], lease: Lease, now: datetime) -> Callable[[Side], Outcome]:
        word, more = drawn
        if word == "retried":
            retried = Retried(ready_at=self.at(more, now), error={"error": "boom", "attempt": lease.attempt})
            return lambda side: retried
        if word == "snoozed":
            snoozed = Snoozed(until=self.at(more, now))
            return lambda side: snoozed
        if word == "awaiting":
            return self.park(lease, now, *more)
        ended = {
            "succeeded": lambda: Succeeded(more),
            "failed": lambda: Failed(error={"error": more, "attempt": lease.attempt}),
            "cancelled": lambda: Cancelled(reason=more),
        }[word]()
        return lambda side: ended

    def park(
        self, lease: Lease, now: datetime, name: str, scope: str | None, deadline: int | None, newer: bool
    ) -> Callable[[Side], Outcome]:
        until = None if deadline is None else self.at(deadline, now)

        def build(side: Side) -> Outcome:
            job_id = side.id(lease.job_id)
            explicit = None if scope is None else side.scope(scope)
            return Awaiting(
                scope=names.job_scope(job_id) if explicit is None else explicit,
                name=name,
                read_scopes=names.read_scopes(job_id, lease.workflow_id, explicit),
                deadline=until,
                newer_than=now - 500 * MS if newer else None,
            )

        return build

    def lease(self, number: int, *, stale: bool = False) -> Lease | None:
        """A lease that holds; with ``stale`` any that was ever given."""
        found = self.world.leases if stale else self.world.running()
        return found[number % len(found)] if found else None

    # -- jobs ---------------------------------------------------------------

    @rule(drawn=st.lists(new_jobs(), min_size=1, max_size=4))
    def insert(self, drawn: list[dict[str, Any]]) -> None:
        now = self.tick()
        built = [self.fields(fields, now) for fields in drawn]
        self.world.do(
            f"insert {drawn}", lambda s: s.store.insert_jobs([build(s) for build in built], now=now)
        )

    @initialize(drawn=st.lists(new_jobs(), min_size=2, max_size=6))
    def begin(self, drawn: list[dict[str, Any]]) -> None:
        self.insert(drawn)

    @rule(drawn=new_jobs(), name=st.sampled_from(ENTRIES), slot=st.integers(-2, 3))
    def fire_cron(self, drawn: dict[str, Any], name: str, slot: int) -> None:
        now = self.tick()
        build = self.fields({**drawn, "cron_name": name, "cron_slot": slot}, now)
        self.world.do(f"fire {name} {slot} {drawn}", lambda s: s.store.fire_cron(build(s), now=now))
        self.world.look("the last slots", lambda s: s.reading().last_cron_slots())

    # -- work ---------------------------------------------------------------

    def round(self, now: datetime) -> ClaimRound:
        self.rounds += 1
        return ClaimRound(leased_by=f"node:1:{self.rounds}", lease_until=now + LEASE_TTL)

    @rule(takes=st.tuples(st.integers(0, 4), st.integers(0, 4)), limited=st.sets(queues), turn=st.booleans())
    def claim(self, takes: tuple[int, int], limited: set[str], turn: bool) -> None:
        now = self.tick()
        order = QUEUES[::-1] if turn else QUEUES
        takes_of = {
            queue: self.world.settle_take(queue, take) for queue, take in zip(order, takes, strict=True)
        }
        demands = [Demand(queue=queue, take=take) for queue, take in takes_of.items() if queue not in limited]
        place_of = self._places()
        round_ = self.round(now)
        answer = self.world.do(
            f"claim {[(one.queue, one.take) for one in demands]} limited {sorted(limited)}",
            lambda s: s.store.claim(round_, demands=demands, limited=sorted(limited), now=now),
            sort=lambda answer: _in_order(answer, place_of),
        )
        self.world.remember_claimed(answer["jobs"])

    @rule(takes=st.tuples(st.integers(1, 5), st.integers(1, 5)))
    def claim_more(self, takes: tuple[int, int]) -> None:
        self.claim(takes, set(), False)

    @rule(queue=queues, take=st.integers(0, 4), limits=limits, local_limit=st.integers(1, 2))
    def claim_limited(self, queue: str, take: int, limits: Limits, local_limit: int) -> None:
        now = self.tick()
        if self.world.has_ties(queue):
            return
        place_of = self._places()
        round_ = self.round(now)
        answer = self.world.do(
            f"claim {take} of {queue} under {limits}, {local_limit}",
            lambda s: s.store.claim_limited(
                round_, demand=Demand(queue=queue, take=take), limits=limits, local_limit=local_limit, now=now
            ),
            sort=lambda answer: _in_order(answer, place_of),
        )
        if isinstance(answer, list):
            self.world.remember_claimed(answer)

    def _places(self) -> dict[str, Any]:
        return {f"#{number}": _place(job) for number, job in self.world.jobs.items()}

    @rule(
        number=who,
        drawn=outcomes,
        stale=st.sampled_from([False] * 6 + [True]),
        more=st.lists(new_jobs(), max_size=1),
    )
    def end(self, number: int, drawn: tuple[str, Any], stale: bool, more: list[dict[str, Any]]) -> None:
        lease = self.lease(number, stale=stale)
        if lease is None:
            return
        now = self.tick()
        outcome = self.outcome(drawn, lease, now)
        built = [self.fields(fields, now) for fields in more]
        self.world.do(
            f"end #{lease.job_id} {lease.attempt} {drawn} then {more}",
            lambda s: s.store.ack(
                Ack(lease=s.lease(lease), outcome=outcome(s), enqueue=tuple(build(s) for build in built)),
                now=now,
            ),
        )
        self.look_around(lease)

    @rule(
        takes=st.tuples(st.integers(1, 5), st.integers(1, 5)),
        drawn=st.lists(outcomes, min_size=1, max_size=3),
    )
    def work(self, takes: tuple[int, int], drawn: list[tuple[str, Any]]) -> None:
        """A claim, and the ends of some of what runs."""
        self.claim(takes, set(), True)
        for number, one in enumerate(drawn):
            self.end(number, one, False, [])

    @rule(
        takes=st.tuples(st.integers(1, 5), st.integers(1, 5)),
        drawn=st.lists(outcomes, min_size=4, max_size=10),
        seconds=st.sampled_from([0, 1, 25]),
    )
    def work_on(self, takes: tuple[int, int], drawn: list[tuple[str, Any]], seconds: int) -> None:
        self.world.clock.advance(seconds)
        self.work(takes, drawn)

    @rule(
        workflow_id=st.sampled_from(WORKFLOWS),
        members=st.lists(
            st.tuples(
                st.lists(st.sampled_from(MEMBERS), max_size=2, unique=True),
                st.lists(st.sampled_from(["failed", "cancelled"]), max_size=2, unique=True),
                queues,
            ),
            min_size=2,
            max_size=4,
        ),
        parent=st.one_of(st.none(), who),
    )
    def begin_workflow(self, workflow_id: str, members: list[tuple[Any, ...]], parent: int | None) -> None:
        """A whole workflow; a dependency may come after its dependent, or be missing."""
        drawn = [
            {
                "kind": "k", "queue": queue, "ready_at": None, "max_attempts": 2, "input": {"tenant": "x"},
                **_member(name, deps, ignore, workflow_id, named=True),
                **({} if parent is None else {"parent_id": parent}),
            }
            for name, (deps, ignore, queue) in zip(MEMBERS, members, strict=False)
        ]  # fmt: skip
        self.insert(drawn)

    @rule(number=who, count=st.integers(1, 3), drawn=new_jobs())
    def spawn(self, number: int, count: int, drawn: dict[str, Any]) -> None:
        """Children of one job, as a fan-out inserts them; sent again, they are there."""
        parent = self.lease(number)
        if parent is None:
            return
        now = self.tick()
        index = list(self.world.numbers()).index(parent.job_id)
        plain = {key: drawn[key] for key in ("kind", "queue", "max_attempts", "ready_at")}
        built = [self.fields({**plain, "spawned": (index, n)}, now) for n in range(count)]
        self.world.do(
            f"spawn {count} of #{parent.job_id}",
            lambda s: s.store.insert_jobs([build(s) for build in built], now=now),
        )

    @rule(number=who, drawn=outcomes)
    def end_simply(self, number: int, drawn: tuple[str, Any]) -> None:
        self.end(number, drawn, False, [])

    @rule(drawn=st.lists(st.tuples(who, outcomes), min_size=1, max_size=4))
    def end_many(self, drawn: list[tuple[int, tuple[str, Any]]]) -> None:
        now = self.tick()
        leases = self.world.running()
        chosen = (
            {
                leases[number % len(leases)].job_id: (leases[number % len(leases)], one)
                for number, one in drawn
            }
            if leases
            else {}
        )
        if not chosen:
            return
        acks = [(lease, self.outcome(one, lease, now)) for lease, one in chosen.values()]
        self.world.do(
            f"end together {[(lease.job_id, one) for lease, one in chosen.values()]}",
            lambda s: s.store.ack_group(
                [Ack(lease=s.lease(lease), outcome=outcome(s)) for lease, outcome in acks], now=now
            ),
        )

    def look_around(self, lease: Lease) -> None:
        self.world.look(f"the steps of #{lease.job_id}", lambda s: s.reading().get_steps(s.id(lease.job_id)))
        if lease.parent_id is not None and lease.parent_id >= 0:
            parent = lease.parent_id
            self.world.look(
                f"the signals of #{parent}",
                lambda s: [
                    (one.name, one.payload) for one in s.reading().list_signals(s.scope(f"job#{parent}"))
                ],
            )

    @rule(chosen=some, seconds=st.integers(1, 40))
    def renew(self, chosen: list[int], seconds: int) -> None:
        now = self.tick()
        leases = [
            lease for number in chosen if (lease := self.lease(number, stale=number % 3 == 0)) is not None
        ]
        if not leases:
            return
        self.world.do(
            f"renew {[(one.job_id, one.leased_by) for one in leases]}",
            lambda s: s.store.renew_leases(
                [s.lease(one) for one in leases], until=now + timedelta(seconds=seconds)
            ),
        )

    @rule(seconds=st.sampled_from([0, 29, 31, 60]))
    def reclaim(self, seconds: int) -> None:
        self.world.clock.advance(seconds)
        now = self.tick()
        self.world.do(
            "reclaim",
            lambda s: s.store.reclaim_expired(now=now, backoff=lambda attempt: timedelta(seconds=2**attempt)),
            sort=lambda answer: sorted(answer, key=lambda one: one["job_id"]),
        )

    @rule(chosen=some)
    def hand_back(self, chosen: list[int]) -> None:
        now = self.tick()
        leases = {lease.job_id: lease for number in chosen if (lease := self.lease(number)) is not None}
        if not leases:
            return
        self.world.do(
            f"hand back {list(leases)}",
            lambda s: s.store.hand_back([s.lease(one) for one in leases.values()], now=now),
        )

    @rule(seconds=st.sampled_from([0.001, 0.5, 1, 5, 60, 200]))
    def wait(self, seconds: float) -> None:
        self.world.clock.advance(timedelta(seconds=seconds))

    # -- control ------------------------------------------------------------

    @rule(number=who)
    def retry(self, number: int) -> None:
        now = self.tick()
        chosen = self.job(number, "failed", "cancelled") if number % 4 else self.job(number)
        self.world.do(f"retry #{chosen}", lambda s: s.store.retry(s.id(chosen), now=now))

    @rule(chosen=some)
    def retry_many(self, chosen: list[int]) -> None:
        now = self.tick()
        numbers = list(dict.fromkeys(self.job(number, "failed", "cancelled") for number in chosen))
        if not numbers:
            return
        self.world.do(
            f"retry {numbers}", lambda s: s.store.retry_many([s.id(number) for number in numbers], now=now)
        )

    @rule(number=who, tree=st.booleans(), reason=st.sampled_from(["cancelled", "why not"]))
    def cancel(self, number: int, tree: bool, reason: str) -> None:
        now = self.tick()
        chosen = self.job(number)
        self.world.do(
            f"cancel #{chosen} tree={tree} {reason!r}",
            lambda s: s.store.request_cancel(s.id(chosen), reason=reason, tree=tree, now=now),
        )

    @rule(chosen=some)
    def cancel_many(self, chosen: list[int]) -> None:
        now = self.tick()
        numbers = list(dict.fromkeys(self.job(number) for number in chosen))
        if not numbers:
            return
        self.world.do(
            f"cancel {numbers}",
            lambda s: s.store.cancel_many([s.id(number) for number in numbers], reason="many", now=now),
        )

    @rule(
        number=who,
        what=st.sampled_from(["reschedule", "move", "freeze", "unfreeze", "erase_payload"]),
        offset=st.integers(-3_000, 3_000),
        queue=st.one_of(st.none(), queues),
        priority=st.one_of(st.none(), st.sampled_from([-2, 0, 3])),
    )
    def operate(self, number: int, what: str, offset: int, queue: str | None, priority: int | None) -> None:
        now = self.tick()
        fitting = {"unfreeze": ("paused",), "erase_payload": ("succeeded", "failed", "cancelled")}
        chosen = (
            self.job(number, *fitting.get(what, ("ready", "awaiting", "held")))
            if number % 5
            else self.job(number)
        )
        arguments: dict[str, Any] = {}
        if what == "reschedule":
            arguments = {"ready_at": self.at(offset, now)}
        if what == "move":
            arguments = {"queue": queue, "priority": priority}
        self.world.do(
            f"{what} #{chosen} {arguments}",
            lambda s: getattr(s.store, what)(s.id(chosen), **arguments, now=now),
        )

    # -- the journal of a job -------------------------------------------------

    @rule(
        number=who,
        name=st.sampled_from(STEPS),
        value=envelopes,
        usd=st.sampled_from([0, 0, 60]),
        tokens=st.sampled_from([0, 7]),
        newer=st.integers(-1500, 500),
    )
    def put_step(self, number: int, name: str, value: bytes, usd: int, tokens: int, newer: int) -> None:
        now = self.tick()
        chosen = self.job(number)
        if name.endswith(":until"):
            record = wait_record(until=None, newer_than=now + newer * MS)
            value = f'{{"until": null, "newer_than": "{record["newer_than"]}"}}'.encode()
        step = NewStep(name=name, value=value, usd_micros=usd, tokens=tokens)
        self.world.do(f"step of #{chosen} {step}", lambda s: s.store.put_step(s.id(chosen), step, now=now))
        self.world.look(f"step {name}", lambda s: s.reading().find_step(s.id(chosen), name))

    @rule(number=who, payload=payloads)
    def append_event(self, number: int, payload: Any) -> None:
        now = self.tick()
        chosen = self.job(number)
        self.world.do(f"event of #{chosen}", lambda s: s.store.append_event(s.id(chosen), payload, now=now))

    # -- signals --------------------------------------------------------------

    @rule(scope=scopes, name=signals, payload=payloads, to_job=st.booleans(), apart=st.booleans())
    def signal(self, scope: str, name: str, payload: Any, to_job: bool, apart: bool) -> None:
        now = self.tick()
        self.world.scopes[scope] = None
        what = f"signal {name} to {scope} {payload} to_job={to_job}"
        if not apart:
            self.world.do(
                what, lambda s: s.store.put_signal(s.scope(scope), name, payload, to_job=to_job, now=now)
            )
            return
        self.world.do(
            f"{what}, written",
            lambda s: s.store.write_signal(s.scope(scope), name, payload, to_job=to_job, now=now),
        )
        now = self.tick()
        self.world.do(
            f"wake {name} of {scope}", lambda s: s.store.wake_awaiting(s.scope(scope), name, now=now)
        )

    @rule(scope=scopes, name=signals)
    def clear_signal(self, scope: str, name: str) -> None:
        self.world.do(f"clear {name} of {scope}", lambda s: s.store.clear_signal(s.scope(scope), name))

    @rule(
        number=who,
        scope=scopes,
        name=signals,
        step=st.sampled_from([None, "$clear:go:1"]),
        stale=st.booleans(),
    )
    def clear_in_run(self, number: int, scope: str, name: str, step: str | None, stale: bool) -> None:
        lease = self.lease(number, stale=stale)
        if lease is None:
            return
        now = self.tick()
        self.world.do(
            f"clear {name} of {scope} by #{lease.job_id} {lease.leased_by} step={step}",
            lambda s: s.store.clear_signal_in_run(s.lease(lease), s.scope(scope), name, step=step, now=now),
        )

    @rule(
        chosen=st.lists(scopes, max_size=3), name=signals, ago=st.one_of(st.none(), st.integers(-10, 3_000))
    )
    def find_signal(self, chosen: list[str], name: str, ago: int | None) -> None:
        newer_than = None if ago is None else self.world.now() - ago * MS
        self.world.look(
            f"find {name} of {chosen} newer than {newer_than}",
            lambda s: s.reading().find_signal([s.scope(one) for one in chosen], name, newer_than=newer_than),
        )
        self.world.observe_scopes()

    # -- maintenance ------------------------------------------------------------

    @rule(
        bucket=st.sampled_from(["queue:north", "queue:south", "resource:api"]),
        amount=st.integers(-4, 4),
        period_s=st.sampled_from([1, 60]),
    )
    def debit_rate(self, bucket: str, amount: int, period_s: int) -> None:
        now = self.tick()
        self.world.do(
            f"debit {bucket} {amount} {period_s}",
            lambda s: s.store.debit_rate(bucket, amount=amount, period_s=period_s, now=now),
        )

    @rule(
        kept=st.dictionaries(
            st.sampled_from(["succeeded", "failed", "cancelled"]),
            st.one_of(st.none(), st.integers(0, 100)),
            min_size=1,
        ),
        wait=st.sampled_from([0, 60]),
    )
    def prune_jobs(self, kept: dict[Any, int | None], wait: int) -> None:
        self.world.clock.advance(wait)
        now = self.tick()
        retention = {state: None if s is None else timedelta(seconds=s) for state, s in kept.items()}
        self.world.do(f"prune {kept}", lambda s: s.store.prune_jobs(retention, now=now))

    @rule(
        what=st.sampled_from(["signals", "rate", "parents", "resettle", "workflows"]),
        seconds=st.integers(0, 100),
    )
    def maintain(self, what: str, seconds: int) -> None:
        now = self.tick()
        older_than = now - timedelta(seconds=seconds)
        calls: dict[str, Callable[[Side], Any]] = {
            "signals": lambda s: s.store.prune_signals(older_than=older_than),
            "rate": lambda s: s.store.prune_rate(older_than=older_than),
            "parents": lambda s: s.store.resettle_parents(now=now),
            "resettle": lambda s: s.store.resettle_signals(now=now),
            "workflows": lambda s: s.store.resettle_workflows(now=now),
        }
        self.world.do(f"maintain {what} {seconds}", calls[what])

    # -- runtime rows -----------------------------------------------------------

    @rule(
        what=st.sampled_from(["put_queue", "delete_queue", "pause_queue", "resume_queue"]),
        name=queues,
        node=st.sampled_from([None, "n1", "n2"]),
    )
    def set_queue(self, what: str, name: str, node: str | None) -> None:
        now = self.tick()
        calls: dict[str, Callable[[Side], Any]] = {
            "put_queue": lambda s: s.store.put_queue(name, {"limit": 3}, now=now),
            "delete_queue": lambda s: s.store.delete_queue(name),
            "pause_queue": lambda s: s.store.pause_queue(name, node=node, now=now),
            "resume_queue": lambda s: s.store.resume_queue(name, node=node, now=now),
        }
        self.world.log.append(f"{what} {name} {node}")
        self.world.look(what, calls[what])
        self.world.observe_queues()

    @rule(
        what=st.sampled_from(["put_cron", "delete_cron", "pause_cron", "resume_cron"]),
        name=st.sampled_from(ENTRIES),
        paused=st.booleans(),
        timezone=st.sampled_from([None, "Europe/Berlin"]),
        catch_up=st.sampled_from([None, "all"]),
    )
    def set_cron(self, what: str, name: str, paused: bool, timezone: Any, catch_up: Any) -> None:
        now = self.tick()
        row = CronRow(
            name=name, expression="* * * * *", kind="k", input={"n": 1}, opts={"queue": "north"},
            paused=paused, timezone=timezone, catch_up=catch_up,
        )  # fmt: skip
        calls: dict[str, Callable[[Side], Any]] = {
            "put_cron": lambda s: s.store.put_cron(row, now=now),
            "delete_cron": lambda s: s.store.delete_cron(name),
            "pause_cron": lambda s: s.store.pause_cron(name, now=now),
            "resume_cron": lambda s: s.store.resume_cron(name, now=now),
        }
        self.world.log.append(f"{what} {row if what == 'put_cron' else name}")
        self.world.look(what, calls[what])
        self.world.look("the entries", lambda s: s.reading().list_crons())
        self.world.look("the last slots", lambda s: s.reading().last_cron_slots())

    # -- looking ------------------------------------------------------------------

    @rule(
        ids=st.one_of(st.none(), some),
        states=st.one_of(st.none(), st.sets(st.sampled_from(STATES), max_size=3)),
        queue=st.one_of(st.none(), queues),
        workflow_id=st.one_of(st.none(), st.sampled_from(WORKFLOWS)),
        parent=st.one_of(st.none(), who),
        since=st.one_of(st.none(), st.integers(0, 5_000)),
        before=st.one_of(st.none(), who),
        limit=st.integers(0, 5),
    )
    def list_jobs(
        self,
        ids: Any,
        states: Any,
        queue: Any,
        workflow_id: Any,
        parent: Any,
        since: Any,
        before: Any,
        limit: int,
    ) -> None:
        now = self.world.now()

        def call(side: Side) -> list[int]:
            jobs = JobFilter(
                ids=None if ids is None else [side.id(number) for number in ids],
                states=states,
                queue=queue,
                workflow_id=workflow_id,
                parent_id=None if parent is None else side.id(parent),
                since=None if since is None else now - since * MS,
                before_id=None if before is None or side.id(before) < 1000 else side.id(before),
            )
            return [job.id for job in side.reading().list_jobs(jobs, limit=limit)]

        self.world.look(f"list {ids} {states} {queue} {workflow_id} {parent} {since} {before} {limit}", call)

    @rule(number=who, key=st.sampled_from(["u", "v", "u@7", "v@7", "w"]), chosen=some)
    def relations(self, number: int, key: str, chosen: list[int]) -> None:
        parent, children = self.family(number)
        chosen = [*chosen, *children]
        now = self.world.now()
        look = self.world.look
        look(f"the holder of {key}", lambda s: getattr(s.reading().find_by_unique_key(key), "id", None))
        look(
            f"an open child of #{parent} of fan",
            lambda s: s.reading().has_incomplete_child(s.id(parent), spawns=["fan"]),
        )
        look(
            f"the spawned of #{parent}",
            lambda s: s.reading().find_spawned(
                s.id(parent), [names.spawn_key(s.id(parent), "fan", index) for index in range(3)]
            ),
        )
        look(
            f"the ends of the children {chosen} of #{parent}",
            lambda s: sorted(
                s.reading().child_ends(s.id(parent), [s.id(one) for one in chosen]),
                key=lambda end: end.job_id,
            ),
        )
        look("a retry ahead", lambda s: s.reading().has_retry_ahead(["north"], now=now))
        look("the counts of the queues", lambda s: s.reading().queue_stats(now=now))
        self.world.observe_job(parent)


def _place(job: dict[str, Any]) -> tuple[Any, ...]:
    return (job["priority"], job["ready_at"] is not None, job["ready_at"] or 0)


def _in_order(answer: Any, place_of: dict[str, Any]) -> Any:
    """A claim's answer with rows that tie by number; what is out of order stays so."""
    if isinstance(answer, str):
        return answer
    jobs = answer if isinstance(answer, list) else answer["jobs"]
    ordered: list[Any] = []
    group: list[Any] = []
    for job in jobs:
        key = (job["queue"], place_of.get(job["id"]))
        if group and (group[0]["queue"], place_of.get(group[0]["id"])) != key:
            ordered += sorted(group, key=lambda one: one["id"])
            group = []
        group.append(job)
    ordered += sorted(group, key=lambda one: one["id"])
    if isinstance(answer, list):
        return ordered
    return {**answer, "jobs": ordered, "claimable": sorted(answer["claimable"])}


def machine_of(make_world: Callable[[], World], tear_down: Callable[[World], None]) -> type[Histories]:
    """A machine whose histories run in worlds of their own."""
    return type(
        "SameOutcomes",
        (Histories,),
        {"make_world": staticmethod(make_world), "tear_down": staticmethod(tear_down)},
    )
