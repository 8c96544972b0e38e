"""What a claim reads does not grow with the backlog, an ack's or a renewal's not with what runs (§6, §7)."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any

import psycopg
import pytest

from django_belay.storage.postgres.statements import statement
from django_belay.storage.postgres.store import PostgresStore

NOW = datetime(2030, 1, 1, tzinfo=UTC)
BACKLOG = 30_000
# Rows that a node of the plan may see for a claim of a hundred: the walk, both scans, the merge.
FEW = 250


@pytest.fixture
def backlog(
    make_postgres_store: Callable[..., PostgresStore], connection: psycopg.Connection[Any]
) -> psycopg.Connection[Any]:
    """Ready rows, rows without ready_at, rows due later at a better priority, awaiting ones."""
    for priority, ready_at, state in (
        (0, "%(now)s::timestamptz - make_interval(secs => n)", "ready"),
        (0, "NULL", "ready"),
        (-5, "%(now)s::timestamptz + make_interval(secs => n)", "ready"),
        (0, "%(now)s::timestamptz - make_interval(secs => n)", "awaiting"),
        (0, "NULL", "awaiting"),
    ):
        connection.execute(
            f"INSERT INTO belay_jobs (kind, queue, priority, ready_at, state, inserted_at, await_scope, await_name) "
            f"SELECT 'k', 'q', {priority}, {ready_at}, '{state}', %(now)s, 's' || n, 'n' "
            f"FROM generate_series(1, {BACKLOG}) AS n".encode(),
            {"now": NOW},
        )
    connection.execute("ANALYZE belay_jobs")
    return connection


def claim_params(**changes: Any) -> dict[str, Any]:
    return {
        "queues": ["q"],
        "takes": [100],
        "limited": ["q", "other"],
        "lease_until": NOW,
        "leased_by": "n:1:1",
        "now": NOW,
        **changes,
    }


def rank_params(**changes: Any) -> dict[str, Any]:
    return {
        "queue": "q",
        "field": "input",
        "key": "t",
        "now": NOW,
        "width": 100,
        "per_key_limit": 5,
        **changes,
    }


def nodes(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield plan
    for child in plan.get("Plans", ()):
        yield from nodes(child)


EXPLAIN = "EXPLAIN (ANALYZE, BUFFERS, TIMING OFF, FORMAT JSON)"


def explain(connection: psycopg.Connection[Any], name: str, params: dict[str, Any]) -> list[dict[str, Any]]:
    """The nodes of the plan that ran; what it wrote is rolled back."""
    with connection.transaction(force_rollback=True):
        row = connection.execute(f"{EXPLAIN} {statement(name)}".encode(), params).fetchone()
    return _nodes_of(row)


def explain_generic(
    connection: psycopg.Connection[Any], name: str, params: dict[str, Any]
) -> list[dict[str, Any]]:
    """The same for the plan that a prepared statement gets without a look at its parameters."""
    names = list(dict.fromkeys(re.findall(r"%\((\w+)\)s", statement(name))))
    text = statement(name).replace("%%", "%")
    for number, one in enumerate(names, 1):
        text = text.replace(f"%({one})s", f"${number}")
    marks = ", ".join(["%s"] * len(names))
    with connection.transaction(force_rollback=True):
        connection.execute("SET LOCAL plan_cache_mode = force_generic_plan")
        connection.execute(f"PREPARE probe AS {text}".encode())
        cursor = psycopg.ClientCursor(connection)
        cursor.execute(f"{EXPLAIN} EXECUTE probe({marks})".encode(), [params[one] for one in names])
        found = _nodes_of(cursor.fetchone())
        connection.execute("DEALLOCATE probe")
    return found


def _nodes_of(row: tuple[Any, ...] | None) -> list[dict[str, Any]]:
    assert row is not None
    plan = row[0] if isinstance(row[0], list) else json.loads(row[0])
    return list(nodes(plan[0]["Plan"]))


@pytest.mark.parametrize(
    ("name", "params", "how"),
    [
        ("claim", claim_params(), explain),
        ("claim", claim_params(), explain_generic),
        ("rank_candidates", rank_params(), explain),
    ],
    ids=["claim-custom", "claim-generic", "rank-custom"],
)
def test_no_node_of_a_claim_reads_or_sorts_the_backlog(
    backlog: psycopg.Connection[Any],
    name: str,
    params: dict[str, Any],
    how: Callable[[psycopg.Connection[Any], str, dict[str, Any]], list[dict[str, Any]]],
) -> None:
    for node in how(backlog, name, params):
        rows = node["Actual Rows"] * max(node["Actual Loops"], 1)
        removed = node.get("Rows Removed by Filter", 0)
        assert rows + removed <= FEW, (node["Node Type"], node.get("Index Name"), rows, removed)
        assert not (node["Node Type"] == "Seq Scan" and node["Actual Loops"]), node


def test_a_claim_touches_as_few_pages_beside_a_backlog_as_without(
    backlog: psycopg.Connection[Any],
) -> None:
    long = explain(backlog, "claim", claim_params(takes=[1]))[0]
    assert long["Shared Hit Blocks"] + long["Shared Read Blocks"] < 150


def test_a_claim_after_the_table_was_empty_when_it_was_analysed(
    make_postgres_store: Callable[..., PostgresStore], connection: psycopg.Connection[Any]
) -> None:
    """Statistics that say "no rows" must not lead to a scan of the rows that came since."""
    connection.execute("VACUUM ANALYZE belay_jobs")
    connection.execute(
        "INSERT INTO belay_jobs (kind, queue, ready_at, inserted_at) "
        f"SELECT 'k', 'q', %(now)s, %(now)s FROM generate_series(1, {BACKLOG})".encode(),
        {"now": NOW},
    )
    for node in explain(connection, "claim", claim_params(limited=[])):
        assert node["Actual Rows"] * max(node["Actual Loops"], 1) <= FEW, node["Node Type"]


def _prepared(store: PostgresStore, name: str, params: dict[str, Any]) -> list[tuple[int, int]]:
    """Generic and custom plans of the statement after it ran twelve times on one connection."""
    with store.session.transaction() as transaction:
        for _ in range(12):
            transaction.run(name, params)
        return transaction.connection.execute(
            "SELECT generic_plans, custom_plans FROM pg_prepared_statements WHERE statement LIKE %s",
            [f"-- {name} %"],
        ).fetchall()


def test_a_prepared_claim_is_planned_once(make_postgres_store: Callable[..., PostgresStore]) -> None:
    """Planning takes longer than claiming; the parameters must not make a custom plan look cheaper."""
    [(generic, _)] = _prepared(make_postgres_store(size=1, prepare=True), "claim", claim_params())
    assert generic > 0


@pytest.mark.parametrize(
    "name",
    [
        "ack_ended",
        "affected_members",
        "apply_changes",
        "find_signal",
        "get_standings",
        "look_rows",
        "put_signal",
        "put_steps",
        "renew_leases",
    ],
)
def test_what_a_worker_asks_all_the_time_is_planned_once(
    make_postgres_store: Callable[..., PostgresStore], connection: psycopg.Connection[Any], name: str
) -> None:
    connection.execute(
        "INSERT INTO belay_jobs (kind, queue, state, inserted_at) "
        f"SELECT 'k', 'q', 'succeeded', %(now)s FROM generate_series(1, {BACKLOG})".encode(),
        {"now": NOW},
    )
    connection.execute("VACUUM ANALYZE belay_jobs")
    [(generic, _)] = _prepared(make_postgres_store(size=1, prepare=True), name, params_of(name))
    assert generic > 0


def params_of(name: str) -> dict[str, Any]:
    """A statement's, for one job that is not there."""
    asked = re.findall(r"%\((\w+)\)s", statement(name))
    every: dict[str, Any] = {
        "ids": [0], "attempts": [1], "leases": ["n:1:1"], "states": ["succeeded"], "results": [None],
        "errors": [None], "until": NOW, "now": NOW, "attempt_deltas": [0], "ready_ats": [None],
        "keep_ready_ats": [False], "finished_ats": [None], "await_scopes": [None], "await_names": [None],
        "keep_awaits": [False], "job_ids": [0], "names": ["s"], "values": [b"1"], "nows": [NOW],
        "scopes": ["job:0"], "scope": "job:0", "name": "go", "newer_than": None, "payload": "1",
        "to_job": True, "job_id": 0, "workflow_id": None,
        "workflow_ids": ["w"],
    }  # fmt: skip
    return {one: every[one] for one in asked}


def test_a_ranking_is_never_prepared(make_postgres_store: Callable[..., PostgresStore]) -> None:
    """A generic plan would guess a tenth of the table where the LIMIT says a hundred rows."""
    assert _prepared(make_postgres_store(size=1, prepare=True), "rank_candidates", rank_params()) == []


@pytest.mark.parametrize("how", [explain, explain_generic], ids=["custom", "generic"])
@pytest.mark.parametrize("name", ["ack_ended", "find_held", "flag_cancel", "renew_leases"])
def test_who_knows_the_ids_reads_no_other_running_row(
    make_postgres_store: Callable[..., PostgresStore],
    connection: psycopg.Connection[Any],
    name: str,
    how: Callable[[psycopg.Connection[Any], str, dict[str, Any]], list[dict[str, Any]]],
) -> None:
    """Few rows run when the table is analysed, so the index of those that do looks small; what ran
    since the last vacuum stands in it, too."""
    connection.execute(
        "INSERT INTO belay_jobs (kind, queue, state, inserted_at) "
        f"SELECT 'k', 'q', 'succeeded', %(now)s FROM generate_series(1, {BACKLOG})".encode(),
        {"now": NOW},
    )
    connection.execute("VACUUM ANALYZE belay_jobs")
    connection.execute(
        "INSERT INTO belay_jobs (kind, queue, state, attempt, leased_by, lease_until, inserted_at) "
        "SELECT 'k', 'q', 'running', 1, 'n:1:1', %(now)s, %(now)s FROM generate_series(1, 1000)",
        {"now": NOW},
    )
    for node in how(connection, name, {**params_of(name), "ids": [1]}):
        rows = node["Actual Rows"] * max(node["Actual Loops"], 1)
        removed = node.get("Rows Removed by Filter", 0) + node.get("Rows Removed by Join Filter", 0)
        assert rows + removed <= FEW, (node["Node Type"], node.get("Index Name"), rows, removed)


@pytest.mark.parametrize("how", [explain, explain_generic], ids=["custom", "generic"])
@pytest.mark.parametrize("analysed", [False, True], ids=["never analysed", "analysed"])
def test_what_settles_reads_what_the_ended_members_move_and_not_their_workflow(
    make_postgres_store: Callable[..., PostgresStore],
    connection: psycopg.Connection[Any],
    analysed: bool,
    how: Callable[[psycopg.Connection[Any], str, dict[str, Any]], list[dict[str, Any]]],
) -> None:
    """Chains, and a member that waits for all the others; no statistics may make it read them."""
    connection.execute(
        "INSERT INTO belay_jobs (kind, queue, state, inserted_at, workflow_id, wf_name, wf_deps) "
        "SELECT 'k', 'q', CASE n %% 10 WHEN 0 THEN 'ready' ELSE 'held' END, %(now)s, 'w', 'm' || n,"
        "       CASE n %% 10 WHEN 0 THEN '{}' ELSE ARRAY['m' || (n - 1)] END"
        f"  FROM generate_series(0, {BACKLOG}) AS n".encode(),
        {"now": NOW},
    )
    connection.execute(
        "INSERT INTO belay_jobs (kind, queue, state, inserted_at, workflow_id, wf_name, wf_deps) "
        "SELECT 'k', 'q', 'held', %(now)s, 'w', 'last', array_agg(wf_name ORDER BY id) FROM belay_jobs",
        {"now": NOW},
    )
    if analysed:
        connection.execute("VACUUM ANALYZE belay_jobs")
    ended = connection.execute(
        "SELECT id, wf_name FROM belay_jobs WHERE state = 'ready' ORDER BY id LIMIT 20"
    ).fetchall()
    params = {
        "workflow_ids": ["w"] * len(ended),
        "names": [name for _, name in ended],
        "states": ["succeeded"] * len(ended),
        "ids": [job_id for job_id, _ in ended],
    }
    plan = how(connection, "affected_members", params)
    assert plan[0]["Actual Rows"] == 40
    for node in plan:
        rows = node["Actual Rows"] * max(node["Actual Loops"], 1)
        assert rows + node.get("Rows Removed by Filter", 0) <= FEW, (
            node["Node Type"],
            node.get("Index Name"),
            node.get("Filter"),
            rows,
        )
