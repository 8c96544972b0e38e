"""Rows that no SDK should write and a hand or a bug may: every test of poison rows runs over all of them.

A poison is a name and the SQL that plants it. Job rows start as a ready job of a registered kind
and differ in the columns that are given.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from django.db import connection
from django.utils import timezone

#: A queue that the poisons share with good jobs.
QUEUE = "default"
LONG_AGO = "2020-01-01 00:00:00+00"
FAR = "290000-01-01 00:00:00+00"
DEEP = "[" * 3000 + "]" * 3000
ETF_CUT = b"\x83t\xff\xff\xff\xff"
MOST_INT, LEAST_INT = 2**31 - 1, -(2**31)
MOST_BIGINT = 2**63 - 1


def execute(sql: str, *values: Any) -> Any:
    with connection.cursor() as cursor:
        cursor.execute(sql, values)
        return cursor.fetchone() if cursor.description else None


def plant_job(**columns: Any) -> int:
    """A row of belay_jobs; its id."""
    given = {
        "kind": "belay_testapp.echo", "queue": QUEUE, "state": "ready", "input": '{"value": 1}',
        "inserted_at": timezone.now(), **columns,
    }  # fmt: skip
    names = ", ".join(given)
    return int(
        execute(
            f"INSERT INTO belay_jobs ({names}) VALUES ({', '.join(['%s'] * len(given))}) RETURNING id",
            *given.values(),
        )[0]
    )


def plant_step(name: str, value: bytes | None, *, seq: int = 1, **columns: Any) -> int:
    """A step of a job of its own; the job's id."""
    job_id = plant_job(**columns)
    execute(
        "INSERT INTO belay_steps (job_id, seq, name, value, inserted_at) VALUES (%s, %s, %s, %s, %s)",
        job_id, seq, name, value, timezone.now(),
    )  # fmt: skip
    return job_id


def _row(**columns: Any) -> Callable[[], Any]:
    return lambda: plant_job(**columns)


def _running(**columns: Any) -> Callable[[], Any]:
    given = {"state": "running", "attempt": 1, "leased_by": "x:1:1", "lease_until": LONG_AGO, **columns}
    return lambda: plant_job(**given)


def _ended(state: str = "succeeded", **columns: Any) -> Callable[[], Any]:
    return lambda: plant_job(**{"state": state, "finished_at": LONG_AGO, "attempt": 1, **columns})


def _waiting(**columns: Any) -> Callable[[], Any]:
    return lambda: plant_job(**{"state": "awaiting", "await_scope": "odd", "await_name": "go", **columns})


def _held(**columns: Any) -> Callable[[], Any]:
    given = {"state": "held", "workflow_id": "w", "wf_name": "odd", "wf_deps": ["gone"], **columns}
    return lambda: plant_job(**given)


def _step(name: str, value: bytes | None, **columns: Any) -> Callable[[], Any]:
    return lambda: plant_step(name, value, **columns)


def _parked_with_step(name: str, value: bytes) -> Callable[[], Any]:
    """A job that waits, whose signal is there, and whose journaled wait is broken."""

    def plant() -> None:
        job_id = plant_step(name, value, state="awaiting", await_scope="odd:wait", await_name="go")
        execute(
            "INSERT INTO belay_signals (scope, name, payload, inserted_at) VALUES ('odd:wait', 'go', '1', %s)",
            timezone.now(),
        )
        assert job_id

    return plant


def _event(seq: int, payload: str | None) -> Callable[[], Any]:
    def plant() -> None:
        execute(
            "INSERT INTO belay_events (job_id, seq, payload, inserted_at) VALUES (%s, %s, %s, '-infinity')",
            plant_job(), seq, payload,
        )  # fmt: skip

    return plant


def _table(sql: str, *values: Any) -> Callable[[], Any]:
    return lambda: execute(sql, *values)


def _signal(scope: str, name: str, payload: str | None, inserted_at: str | None) -> Callable[[], Any]:
    return _table(
        "INSERT INTO belay_signals (scope, name, payload, inserted_at) VALUES (%s, %s, %s, %s)",
        scope, name, payload, inserted_at,
    )  # fmt: skip


def _rate(window_start: int, count: int) -> Callable[[], Any]:
    """A window of the queue's own bucket, and a row that gives the queue a rate."""

    def plant() -> None:
        execute(
            "INSERT INTO belay_queues (name, opts) VALUES (%s, %s)",
            QUEUE, '{"rate": {"allowed": 1000, "period": 60}}',
        )  # fmt: skip
        execute("INSERT INTO belay_rate VALUES (%s, %s, %s)", f"queue:{QUEUE}", window_start, count)

    return plant


def _queue(name: str, opts: str, updated_at: str | None = None) -> Callable[[], Any]:
    return _table(
        "INSERT INTO belay_queues (name, opts, updated_at) VALUES (%s, %s, %s)", name, opts, updated_at
    )


def _cron(name: str, **columns: Any) -> Callable[[], Any]:
    given = {"name": name, "expression": "* * * * *", "worker": "belay_testapp.echo", **columns}
    return _table(
        f"INSERT INTO belay_crons ({', '.join(given)}) VALUES ({', '.join(['%s'] * len(given))})",
        *given.values(),
    )


def _own_cron(timezone_name: str | None, catch_up: str | None) -> Callable[[], Any]:
    def plant() -> None:
        _cron("odd-own")()
        execute("INSERT INTO belay_x_crons VALUES ('odd-own', %s, %s)", timezone_name, catch_up)

    return plant


POISONS: dict[str, Callable[[], Any]] = {
    # when a job is due
    "ready at infinity": _row(ready_at="infinity"),
    "ready at -infinity": _row(ready_at="-infinity"),
    "ready in the year 290000": _row(ready_at=FAR),
    "ready in the year 1": _row(ready_at="0001-01-01 00:00:00+05"),
    "ready BC": _row(ready_at="4000-01-01 00:00:00+00 BC"),
    "inserted at infinity, unknown kind": _row(kind="Odd", inserted_at="infinity"),
    "inserted at -infinity, unknown kind": _row(kind="Odd", inserted_at="-infinity"),
    "inserted at -infinity": _row(inserted_at="-infinity"),
    "started at infinity": _row(started_at="infinity", attempt=1),
    # what a job is
    "unknown kind": _row(kind="Nobody.Knows"),
    "empty kind": _row(kind=""),
    "kind with control characters": _row(kind="\x1b[31m\r\n\u202ekind"),
    "unknown state": _row(state="frozen"),
    "empty queue": _row(queue=""),
    "queue that breaks a line": _row(queue='a "queue"\nand more ' + "q" * 1000),
    "least priority": _row(priority=LEAST_INT),
    "greatest priority": _row(priority=MOST_INT),
    "greatest attempt": _row(attempt=MOST_INT, max_attempts=MOST_INT),
    "negative attempt": _row(attempt=-7),
    "least attempt": _row(attempt=LEAST_INT),
    "no attempts allowed": _row(max_attempts=0),
    "least max_attempts": _row(max_attempts=LEAST_INT),
    "spent to the bound": _row(spent_usd_micros=MOST_BIGINT, spent_tokens=MOST_BIGINT, budget_tokens=-1),
    "unknown unique mode": _row(unique_key="k", unique_mode="sometimes"),
    # values
    "input is a list": _row(input="[1, 2]"),
    "input is a text": _row(input='"text"'),
    "input is null": _row(input="null"),
    "input with a number beyond floats": _row(input='{"value": 1e400}'),
    "input too deep": _row(input=f'{{"value": {DEEP}}}'),
    "input that decrypts to nothing": _row(input='{"$enc": "AAAA"}'),
    "input whose $enc is a number": _row(kind="belay_testapp.secret", input='{"$enc": 5}'),
    "input of other arguments": _row(input='{"other": 1}'),
    "meta is a list": _row(meta="[1]"),
    "meta is a text": _row(meta='"text"'),
    "errors are an object": _row(input="[]", errors='{"not": "a list"}'),
    "errors are a number": _row(input="[]", errors="1e400"),
    "errors are full of numbers": _row(input="[]", errors="[" + ", ".join(["1"] * 60) + "]"),
    "error entries are odd": _ended(
        "failed", errors='["text", null, [1], {"error": {"a": 1}, "attempt": "x"}]'
    ),
    "errors are too deep": _ended("failed", errors=DEEP),
    "result is cut short": _ended(result=ETF_CUT),
    "result is empty": _ended(result=b""),
    "result is no text": _ended(result=b"\xff\xfe"),
    "result is too deep": _ended(result=DEEP.encode()),
    "result of a failed job": _ended("failed", result=b"1", errors="[]"),
    # leases
    "running without a lease": _running(lease_until=None, leased_by=None),
    "running under an endless lease": _running(lease_until="infinity"),
    "expired at -infinity, by nobody": _running(lease_until="-infinity", leased_by=None),
    "expired BC": _running(lease_until="4000-01-01 00:00:00+00 BC"),
    "expired with the greatest attempt": _running(attempt=MOST_INT, max_attempts=MOST_INT),
    "expired with the least attempt": _running(attempt=LEAST_INT),
    "expired, kind unknown, errors a number": _running(kind="Odd", errors="7"),
    "expired with a parent that is gone": _running(parent_id=-1),
    "expired in a workflow without a name": _running(workflow_id="", wf_name=None),
    "ready under a lease": _row(leased_by="x:1:1", lease_until="infinity"),
    # waits
    "waiting since -infinity": _waiting(ready_at="-infinity"),
    "waiting for ever": _waiting(ready_at="infinity"),
    "waiting for nothing": _waiting(await_scope=None, await_name=None),
    "waiting for nothing, due": _waiting(await_scope=None, await_name=None, ready_at=LONG_AGO),
    "waiting in a scope of no job": _waiting(await_scope="job:99999999999999999999", ready_at=LONG_AGO),
    "waiting for children without any": _waiting(await_name="$children"),
    "wait whose deadline is broken": _parked_with_step("$await:go:1:until", b"{"),
    "wait whose deadline is a list": _parked_with_step("$await:go:1:until", b"[1]"),
    "wait whose deadline has odd parts": _parked_with_step(
        "$await:go:1:until", b'{"until": "yesterday", "newer_than": 7}'
    ),
    "wait whose number is none": _parked_with_step("$await:go:x:until", b"{}"),
    # workflows and parents
    "held outside of any workflow": _held(workflow_id=None, wf_name=None),
    "held for nothing": _held(wf_deps=[]),
    "held for a job that is gone": _held(),
    "held for itself": _held(wf_deps=["odd"]),
    "held for nobody": _held(wf_deps=[None]),
    "held, ignoring what is no outcome": _held(wf_ignore=["weather", None]),
    "held without a name": _held(wf_name=None),
    "held in a workflow whose id is empty": _held(workflow_id="", wf_deps=[]),
    "held in a workflow with a long id": _held(workflow_id="w" * 2000, wf_deps=[]),
    "own parent": lambda: execute("UPDATE belay_jobs SET parent_id = id WHERE id = %s", plant_job()),
    "parent that is gone": _row(parent_id=MOST_BIGINT),
    "frozen until infinity": _row(state="paused", ready_at="infinity"),
    "frozen under a lease": _row(state="paused", lease_until="infinity", leased_by="x"),
    "frozen, waiting for nothing": _row(state="paused", await_scope="odd", await_name=None),
    "frozen, waiting in no scope": _row(state="paused", await_scope=None, await_name="go"),
    # schedules' jobs, ended jobs
    "slot at infinity": _row(cron_name="odd-slot", cron_slot="infinity"),
    "slot of an entry without a name": _row(cron_name="", cron_slot="-infinity"),
    "ended at -infinity": _ended(finished_at="-infinity"),
    "ended at infinity": _ended(finished_at="infinity"),
    "ended at no time": _ended(finished_at=None),
    "ended, inserted at -infinity, with a window": _ended(
        unique_key="k@5", unique_mode="window", inserted_at="-infinity"
    ),
    "ended with a window beyond all time": _ended(unique_key="k@" + "9" * 40, unique_mode="window"),
    "ended with a window of nothing": _ended(unique_key="k@", unique_mode="window"),
    # steps and events
    "step cut short": _step("fetch", ETF_CUT, kind="belay_testapp.steps_once"),
    "step that is no text": _step("fetch", b"\xff", kind="belay_testapp.steps_once"),
    "step without a value": _step("fetch", None, kind="belay_testapp.steps_once"),
    "step with the greatest number": _step("other", b"1", seq=MOST_INT, kind="belay_testapp.steps_once"),
    "sleep that is no time": _step("$sleep:nap", b'"soon"', kind="belay_testapp.naps"),
    "sleep of another SDK": _step("$sleep:nap", b"\x83m\x00\x00\x00\x01x", kind="belay_testapp.naps"),
    "spawn that is no list": _step("$spawn:fan", b"7", kind="belay_testapp.spawns"),
    "spawn of ids that are none": _step("$spawn:fan", b'["x", 1e400]', kind="belay_testapp.spawns"),
    "step of a job that is gone": _table("INSERT INTO belay_steps (job_id, seq, name) VALUES (-5, 1, 'x')"),
    "event with the greatest number": _event(MOST_INT, None),
    "event with a number beyond floats": _event(-1, "1e400"),
    # signals and rates
    "signal at -infinity": _signal("odd", "go", "1e400", "-infinity"),
    "signal at infinity": _signal("odd", "go", None, "infinity"),
    "signal at no time": _signal("odd", "go", "1", None),
    "signal of no job": _signal("job:99999999999999999999", "", DEEP, LONG_AGO),
    "signal of no workflow": _signal("wf:", "$children", "1", LONG_AGO),
    # Of the queue's own bucket it would say, rightly, that nothing is left for now.
    "rate window at the bound": _table("INSERT INTO belay_rate VALUES ('resource:odd', 0, %s)", MOST_INT),
    "rate window below zero": lambda: _rate(int(timezone.now().timestamp()) // 60 * 60, LEAST_INT)(),
    "rate window beyond all time": _rate(MOST_BIGINT, 5),
    # rows at run time
    "queue options are a list": _queue(QUEUE, "[1]"),
    "queue options are a number": _queue(QUEUE, "1e400"),
    "queue options are nonsense": _queue(
        QUEUE,
        '{"limit": {"min": -1, "max": 1e400}, "global_limit": "many", "rate": [1], "partition": ["x"], "a": {}}',
        "infinity",
    ),
    "queue options are absurd": _queue(
        QUEUE, '{"limit": -5, "global_limit": 0, "rate": {"allowed": -1, "period": 0, "estimate": 1e300}}'
    ),
    "queue without a name": _queue("", "{}", "-infinity"),
    "schedule that is none": _cron("odd", expression="99 * * * *"),
    "schedule of a text": _cron("odd", expression="every now and then"),
    "schedule of February 30": _cron("odd", expression="0 0 30 2 *"),
    "schedule with a long expression": _cron("odd", expression="1," * 5000 + "1 * * * *"),
    "schedule of an unknown kind": _cron("odd", worker="Nobody.Knows"),
    "schedule whose input is a list": _cron("odd", input="[1]"),
    "schedule whose options are a text": _cron("odd", opts='"x"', updated_at="infinity"),
    "schedule whose options are absurd": _cron(
        "odd", opts='{"queue": 5, "priority": 1e400, "max_attempts": -1, "meta": [], "unknown": null}'
    ),
    "schedule without a name": _cron(""),
    "schedule in no time zone": _own_cron("Mars/Olympus", "latest"),
    "schedule with a time zone of the file system": _own_cron("../../etc/passwd", None),
    "schedule that catches up somehow": _own_cron(None, "maybe"),
    "slot remembered at infinity": _table(
        "INSERT INTO belay_x_cron_slots VALUES ('odd-slot', 'infinity', 'infinity')"
    ),
    "node since -infinity": _table(
        "INSERT INTO belay_x_nodes VALUES ('odd', '', '-infinity', 'infinity', 'infinity', '[1]')"
    ),
    "waiter at infinity": _table("INSERT INTO belay_x_waiters VALUES (-1, 'infinity')"),
}
