"""Histories of a journal whose stores are kept: a later version must open them to the same state.

    python -m tests.behaviour.golden

writes those that are missing into ``tests/fixtures/journal_history/``: ``<name>.zip`` holds the store,
``<name>.json`` what it opens to, ``SHA256SUMS`` the digests of both. What stands there is never written anew:
a history that tells more gets a name of its own.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import tempfile
import zipfile
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Final

from django_belay.contract.admission import Limits, Partition, Rate
from django_belay.contract.job import Lease, NewJob
from django_belay.contract.names import spawn_key
from django_belay.contract.outcome import Cancelled, Failed, Retried, Snoozed, Succeeded
from django_belay.contract.wait_record import wait_record
from django_belay.storage.base import Ack, ClaimRound, CronRow, Demand, JobFilter, NewStep
from django_belay.storage.journal.files.compaction import compact
from django_belay.storage.journal.files.initialise import initialise
from django_belay.storage.journal.files.journal import JournalOptions, open_journal
from django_belay.storage.journal.format.manifest import Retention
from django_belay.storage.journal.store.memory import Profile
from django_belay.storage.journal.store.store import JournalStore
from django_belay.testing.clock import SimClock
from tests.behaviour.driving import LEASE_TTL, ack_of, add, wait

FOLDER: Final = Path(__file__).parent.parent / "fixtures" / "journal_history"
_SCOPES: Final = ("room", "wf:flow")
_MINUTE: Final = timedelta(minutes=1)


class Book:
    """A store that a history writes into, owned by one owner after the other."""

    def __init__(self, root: Path, profile: Profile = "belay") -> None:
        self.root = root
        self.profile = profile
        self.clock = SimClock()
        self.rounds = 0
        initialise(
            str(root), now_ms=0, retention=Retention(), durability="write", validated_filesystem=True,
            store_id=hashlib.md5(root.name.encode(), usedforsecurity=False).digest(),
        )  # fmt: skip
        self.store = self._open()

    def _open(self) -> JournalStore:
        return open_store(self.root, now=self.clock.now(), profile=self.profile)

    def replace_owner(self) -> JournalStore:
        self.store.close()
        self.store = self._open()
        return self.store

    def claim(self, queue: str = "default", take: int = 100) -> list[Any]:
        """A round whose name does not depend on what was run before it."""
        self.clock.advance(1)
        demand = Demand(queue=queue, take=take)
        return sorted(
            self.store.claim(self.round(), demands=[demand], now=self.clock.now()).jobs,
            key=lambda job: job.id,
        )

    def round(self) -> ClaimRound:
        self.rounds += 1
        return ClaimRound(leased_by=f"node:1:{self.rounds}", lease_until=self.clock.now() + LEASE_TTL)

    def end(self, job: Any, outcome: Any = None, *enqueue: NewJob) -> None:
        self.clock.advance(1)
        self.store.ack(ack_of(job, outcome, *enqueue), now=self.clock.now())


def open_store(root: Path, *, now: datetime, profile: Profile = "belay") -> JournalStore:
    options = JournalOptions(durability="write", validated_filesystem=True, writer="inline")
    return JournalStore(open_journal(str(root), options), now=now, profile=profile)


# -- what is kept of a store -------------------------------------------------------


def state_of(store: JournalStore, *, now: datetime) -> dict[str, Any]:
    """Everything that the protocol shows of a store, as JSON."""
    jobs = store.list_jobs(JobFilter(), limit=100_000)
    scopes = [*_SCOPES, *(f"job:{job.id}" for job in jobs)]
    told = {
        "jobs": [
            {
                **dataclasses.asdict(job),
                "steps": store.get_steps(job.id),
                "events": store.list_events(job.id),
            }
            for job in jobs
        ],
        "signals": [signal for scope in scopes for signal in store.list_signals(scope)],
        "queues": store.list_queues(),
        "crons": store.list_crons(),
        "slots": store.last_cron_slots(),
        "counts": store.queue_stats(now=now),
        "workflow": store.workflow_states("flow"),
    }
    found: dict[str, Any] = json.loads(json.dumps(told, default=_plain))
    return found


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return dataclasses.asdict(value)
    if isinstance(value, datetime):
        return value.isoformat()
    return value.decode("latin-1") if isinstance(value, bytes) else list(value)


# -- histories ------------------------------------------------------------------------


def core(book: Book) -> None:
    """Jobs that the contract's own records say everything of."""
    store, clock = book.store, book.clock
    add(store, clock, 3, input={"n": 1, "text": "grün"})
    add(store, clock, ready_at=clock.now() + timedelta(hours=1))
    [waiting] = add(store, clock, queue="other", kind="shop.mail", max_attempts=3)
    first, second, _running = book.claim()
    book.end(first, Succeeded(b'{"sum":3}'))
    book.end(second)
    store.request_cancel(waiting, reason="cancelled", now=clock.now())
    store = book.replace_owner()
    add(store, clock, 2, queue="later")
    book.claim("later", 1)


def extended(book: Book) -> None:
    """Everything else: promotions, workflows, signals, parks, children, budgets, keys, limits, crons."""
    store, clock = book.store, book.clock
    _work_of_all_kinds(book)
    book.replace_owner()
    store = book.store
    for job in book.claim():
        book.end(job, Failed(error={"error": "late", "attempt": job.attempt}))
    store.prune_rate(older_than=clock.now() - timedelta(days=1))


def compacted(book: Book) -> None:
    """The same through two compactions, what had ended long before gone with the first."""
    add(book.store, book.clock, queue="early")
    for job in book.claim("early"):
        book.end(job, Succeeded(b"1"))
    book.clock.advance(timedelta(hours=3))
    _work_of_all_kinds(book)
    add(book.store, book.clock, 2, queue="plain")
    book.end(book.claim("plain", 1)[0], Succeeded(b"[1]"))
    _compact(book, Retention(unit="hours", amount=1))
    add(book.store, book.clock, 2, meta={"after": "compaction"})
    for job in book.claim():
        book.end(job, Snoozed(until=book.clock.now() + _MINUTE))
    _compact(book, Retention(unit="hours", amount=1))
    for job_id in add(book.store, book.clock, 2):
        book.store.append_event(job_id, {"n": 1}, now=book.clock.now())


def frames(book: Book) -> None:
    """Operations of several records: one too large for one, and one that core and extended jobs share."""
    store, clock = book.store, book.clock
    large = [NewJob(kind="large", input={"text": "x" * 3_000_000}, priority=n) for n in (1, 2, 3)]
    store.insert_jobs(large, now=clock.now())
    add(store, clock, queue="mixed")
    [job] = book.claim("mixed")
    book.end(job, Succeeded(b"1"), NewJob(kind="next", meta={"a": 1}), NewJob(kind="plain"))
    for one in book.claim():
        store.cancel_many([one.id], reason="enough", now=clock.now())
        book.end(one, Cancelled(reason="enough"))
        store.erase_payload(one.id, now=clock.now())


def strict(book: Book) -> None:
    """The profile that knows nothing but the contract's records."""
    store, clock = book.store, book.clock
    add(store, clock, 5, max_attempts=2)
    done, failed, lost, back, _running = book.claim()
    book.end(done, Succeeded(b'"done"'))
    book.end(failed, Retried(ready_at=clock.now(), error={"error": "boom"}))
    store.hand_back([Lease.of(back)], now=clock.now())
    clock.advance(LEASE_TTL * 2)
    store.reclaim_expired(now=clock.now(), backoff=lambda attempt: timedelta(seconds=attempt))
    clock.advance(5)
    again = book.claim()
    book.end(again[0], Failed(error={"error": "boom"}))
    store.retry(again[0].id, now=clock.now())
    store.request_cancel(lost.id, reason="enough", now=clock.now())
    book.replace_owner()
    _compact(book, Retention(unit="hours", amount=1))
    add(book.store, clock)


def _work_of_all_kinds(book: Book) -> None:
    store, clock = book.store, book.clock
    flow = [
        NewJob(kind="a", workflow_id="flow", wf_name="a", queue="flow"),
        NewJob(kind="b", workflow_id="flow", wf_name="b", wf_deps=("a",), state="held", queue="flow"),
        NewJob(
            kind="c", workflow_id="flow", wf_name="c", wf_deps=("a", "d"), wf_ignore=("failed",), state="held"
        ),
        NewJob(kind="d", workflow_id="flow", wf_name="d", queue="flow"),
        NewJob(kind="e", workflow_id="flow", wf_name="e", wf_deps=("d",), state="held"),
    ]
    store.insert_jobs(flow, now=clock.now())
    parent, waiter, spender, plain, frozen = add(store, clock, 5, kind="work", input={"tenant": "t1"})
    jobs = {job.id: job for job in book.claim(take=4)}
    members = book.claim("flow")
    children = [
        NewJob(
            kind="child", parent_id=parent, unique_key=spawn_key(parent, "fan", n), unique_mode="always",
            queue="children",
        )
        for n in range(2)
    ]  # fmt: skip
    store.insert_jobs(children, now=clock.now())
    store.put_step(parent, NewStep(name="$spawn:fan", value=b"[0,1]"), now=clock.now())
    book.end(jobs[parent], wait(jobs[parent], "$children"))
    record = wait_record(until=clock.now() + _MINUTE, newer_than=clock.now())
    store.put_step(
        waiter, NewStep(name="$await:go:1:until", value=json.dumps(record).encode()), now=clock.now()
    )
    book.end(jobs[waiter], wait(jobs[waiter], "go", scope="room", deadline=clock.now() + timedelta(hours=1)))
    store.put_step(spender, NewStep(name="pay", value=b'"paid"', usd_micros=5, tokens=7), now=clock.now())
    store.append_event(spender, {"done": 1}, now=clock.now())
    store.append_event(spender, {"done": 2}, now=clock.now())
    error = {"error": "boom", "type": "ValueError", "attempt": 1, "traceback": "…"}
    book.end(jobs[spender], Retried(ready_at=clock.now() + _MINUTE, error=error))
    book.end(jobs[plain], Succeeded(b"\x83a\x07"))
    store.freeze(frozen, now=clock.now())
    for member, outcome in zip(members, (Succeeded(b"1"), Failed(error={"error": "boom"})), strict=True):
        book.end(member, outcome)
    for child in book.claim("children", 1):
        book.end(child, Succeeded(b"2"))
    store.put_signal("room", "stop", {"by": "hand"}, now=clock.now())
    store.write_signal("wf:flow", "go", [1, None], now=clock.now())
    store.put_signal("room", "gone", {}, now=clock.now())
    store.clear_signal("room", "gone")
    keys = [NewJob(kind="once", unique_key=key, unique_mode=mode) for key, mode in _KEYS]
    store.insert_jobs([*keys, *keys], now=clock.now())
    slot = clock.now().replace(second=0, microsecond=0)
    for minute in (0, 1, 1):
        job = NewJob(kind="tick", cron_name="nightly", cron_slot=slot + minute * _MINUTE, queue="cron")
        store.fire_cron(job, now=clock.now())
    _limits(book)
    store.put_queue("flow", {"limit": 3}, now=clock.now())
    store.pause_queue("flow", now=clock.now())
    store.pause_queue("other", node="n1", now=clock.now())
    cron = CronRow(
        name="nightly", expression="0 3 * * *", kind="tick", input={"n": 1}, opts={"queue": "cron"}
    )
    store.put_cron(dataclasses.replace(cron, timezone="Europe/Berlin", catch_up="all"), now=clock.now())
    store.put_cron(dataclasses.replace(cron, name="hourly"), now=clock.now())
    store.pause_cron("hourly", now=clock.now())
    clock.advance(1)


_KEYS: Final[list[tuple[str, Any]]] = [("u", "incomplete"), ("v@7", "window"), ("w", "always")]


def _limits(book: Book) -> None:
    store, clock = book.store, book.clock
    for tenant in ("x", "x", "y"):
        add(store, clock, queue="limited", meta={"tenant": tenant}, budget_usd_micros=100, priority=3)
    limits = Limits(
        global_limit=1,
        rate=Rate(allowed=5, period_s=60, estimate=2),
        partition=Partition(column="meta", key="tenant"),
    )
    clock.advance(1)
    taken = store.claim_limited(
        book.round(), demand=Demand(queue="limited", take=5), limits=limits, local_limit=1, now=clock.now()
    )
    store.ack_group(
        [Ack(lease=Lease.of(job), outcome=Cancelled(reason="enough")) for job in taken], now=clock.now()
    )
    store.debit_rate("resource:api", amount=3, period_s=60, now=clock.now())


def _compact(book: Book, retention: Retention) -> None:
    compact(
        book.store.journal, now_ms=int(book.clock.now().timestamp() * 1000), retention=retention,
    )  # fmt: skip
    book.replace_owner()


HISTORIES: Final[Mapping[str, tuple[Callable[[Book], None], Profile]]] = {
    "core": (core, "belay"),
    "extended": (extended, "belay"),
    "compacted": (compacted, "belay"),
    "frames": (frames, "belay"),
    "strict": (strict, "strict"),
}


# -- files --------------------------------------------------------------------------------


def write(name: str, root: Path) -> dict[str, Any]:
    """Play a history into a new store; what it comes to."""
    history, profile = HISTORIES[name]
    book = Book(root, profile)
    try:
        history(book)
        store = book.replace_owner()
        return {"opened_at": book.clock.now().isoformat(), **state_of(store, now=book.clock.now())}
    finally:
        book.store.close()


def keep(name: str) -> None:
    """Write a history's files."""
    FOLDER.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as parent:
        root = Path(parent) / name
        state = write(name, root)
        with zipfile.ZipFile(FOLDER / f"{name}.zip", "w", zipfile.ZIP_DEFLATED) as archive:
            for path in sorted(root.rglob("*")):
                archive.write(path, path.relative_to(root))
    (FOLDER / f"{name}.json").write_text(
        json.dumps(state, indent=1, sort_keys=True, ensure_ascii=False) + "\n"
    )


def digests() -> dict[str, str]:
    """SHA-256 of each file, by its name."""
    files = sorted(path for path in FOLDER.iterdir() if path.name != "SHA256SUMS")
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def main() -> None:
    for name in HISTORIES:
        if not (FOLDER / f"{name}.zip").exists():
            keep(name)
    (FOLDER / "SHA256SUMS").write_text("".join(f"{digest}  {name}\n" for name, digest in digests().items()))


if __name__ == "__main__":
    main()
