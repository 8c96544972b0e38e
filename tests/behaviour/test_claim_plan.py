"""What a claim reads does not grow with the backlog (issue: speed; performance of §6)."""

from __future__ import annotations

import json
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
        "most": 100,
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


def explain(
    connection: psycopg.Connection[Any], name: str, params: dict[str, Any], **how: Any
) -> list[dict[str, Any]]:
    """The nodes of the plan that ran; what it wrote is rolled back."""
    with connection.transaction(force_rollback=True):
        row = connection.execute(
            f"EXPLAIN (ANALYZE, BUFFERS, TIMING OFF, FORMAT JSON) {statement(name)}".encode(), params, **how
        ).fetchone()
    assert row is not None
    plan = row[0] if isinstance(row[0], list) else json.loads(row[0])
    return list(nodes(plan[0]["Plan"]))


@pytest.mark.parametrize("prepare", [True, False], ids=["prepared", "unprepared"])
@pytest.mark.parametrize(
    ("name", "params"), [("claim", claim_params()), ("rank_candidates", rank_params())], ids=["claim", "rank"]
)
def test_no_node_of_a_claim_reads_or_sorts_the_backlog(
    backlog: psycopg.Connection[Any], name: str, params: dict[str, Any], prepare: bool
) -> None:
    for _ in range(7 if prepare else 1):  # a sixth execution may get a generic plan
        found = explain(backlog, name, params, prepare=prepare)
    for node in found:
        rows = node["Actual Rows"] * max(node["Actual Loops"], 1)
        removed = node.get("Rows Removed by Filter", 0)
        assert rows + removed <= FEW, (node["Node Type"], node.get("Index Name"), rows, removed)
        assert not (node["Node Type"] == "Seq Scan" and node["Actual Loops"]), node


def test_a_claim_touches_as_few_pages_beside_a_backlog_as_without(
    backlog: psycopg.Connection[Any],
) -> None:
    long = explain(backlog, "claim", claim_params(takes=[1], most=1), prepare=False)[0]
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
    for node in explain(connection, "claim", claim_params(limited=[]), prepare=False):
        assert node["Actual Rows"] * max(node["Actual Loops"], 1) <= FEW, node["Node Type"]


def test_claims_are_never_prepared(
    make_postgres_store: Callable[..., PostgresStore], connection: psycopg.Connection[Any]
) -> None:
    """A generic plan would guess a tenth of the table where the LIMIT says a hundred rows."""
    store = make_postgres_store(size=1, prepare=True)
    with store.session.transaction() as transaction:
        for _ in range(8):
            transaction.run("claim", claim_params())
            transaction.run("get_job", {"id": 1})
        names = transaction.connection.execute("SELECT statement FROM pg_prepared_statements").fetchall()
    prepared = [text for (text,) in names]
    assert any("get_job" in text for text in prepared)
    assert not any("-- claim" in text for text in prepared)
