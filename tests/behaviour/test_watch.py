"""Whoever watches a journal's store hears of every change."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from django_belay.storage.journal.store.store import JournalStore
from django_belay.testing.clock import SimClock
from tests.behaviour.driving import ack_of, add, claim_one, end

HOUR = timedelta(hours=1)


def test_every_change_is_told_until_the_watch_ends(journal_store: JournalStore, clock: SimClock) -> None:
    told: list[tuple[int, dict[int, str | None], list[str]]] = []

    def observe(sequence: int, rows: Any, tables: Any) -> None:
        states = {job_id: None if row is None else row["state"] for job_id, row in rows.items()}
        told.append((sequence, states, [table for table, changed in tables.items() if changed]))

    leave = journal_store.watch(observe)
    [job_id] = add(journal_store, clock)
    job = claim_one(journal_store, clock)
    journal_store.append_event(job_id, {"n": 1}, now=clock.now())
    journal_store.renew_leases([ack_of(job).lease], until=clock.now() + HOUR)
    end(journal_store, clock, job)
    clock.advance(HOUR)
    journal_store.prune_jobs({"succeeded": HOUR}, now=clock.now())
    leave()
    add(journal_store, clock)
    assert [states for _, states, _ in told] == [
        {job_id: "ready"}, {job_id: "running"}, {}, {job_id: "running"}, {job_id: "succeeded"}, {job_id: None},
    ]  # fmt: skip
    assert told[2][2] == ["events"]
    sequences = [sequence for sequence, _, _ in told if sequence]
    assert sequences == sorted(sequences)


def test_a_renewed_lease_is_told(journal_store: JournalStore, clock: SimClock) -> None:
    add(journal_store, clock)
    job = claim_one(journal_store, clock)
    seen: list[Any] = []
    journal_store.watch(lambda sequence, rows, tables: seen.append((sequence, rows[job.id]["lease_until"])))
    until = clock.now() + HOUR
    journal_store.renew_leases([ack_of(job).lease], until=until)
    assert seen == [(0, int(until.timestamp() * 1000))]


def test_what_was_acknowledged_stands_at_the_durable_sequence(
    journal_store: JournalStore, clock: SimClock
) -> None:
    generation, before = journal_store.durable_sequence()
    add(journal_store, clock)
    after = journal_store.durable_sequence()
    assert after == (generation, before + 1)
