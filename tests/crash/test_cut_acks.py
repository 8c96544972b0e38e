"""A power cut inside an ack that enqueues: the next owner finds all of it or nothing."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from django_belay.contract.job import Lease, NewJob
from django_belay.contract.outcome import Outcome, Succeeded
from django_belay.storage.base import Ack, ClaimRound, Demand, JobFilter, Storage
from django_belay.storage.journal.files.journal import Journal
from django_belay.storage.journal.format.pair import Payload, encode_payload
from django_belay.storage.journal.format.record import OVERHEAD_BYTES
from django_belay.storage.journal.serving.owner import Owner, OwnerOptions
from django_belay.storage.journal.serving.place import Place

OPTIONS = OwnerOptions(durability="write", validated_filesystem=True)
NOW = datetime(2026, 6, 1, tzinfo=UTC)


def seen(store: Storage) -> tuple[object, ...]:
    """What the two kinds of jobs have come to."""
    [first] = store.list_jobs(JobFilter(kind="first"), limit=10)
    following = store.list_jobs(JobFilter(kind="following"), limit=10)
    return first.state, first.result, [job.state for job in following]


def ends_of_records(monkeypatch: pytest.MonkeyPatch, sizes: list[int]) -> None:
    submit = Journal.submit

    def noting(journal: Journal, items: Sequence[Payload]) -> int:
        sizes.extend(len(encode_payload(item)[2]) + OVERHEAD_BYTES for item in items)
        return submit(journal, items)

    monkeypatch.setattr(Journal, "submit", noting)


def cut_copies(place: Place, sizes: list[int]) -> Iterator[Place]:
    """Copies of the store that end before each of its last records."""
    [tail] = (place.store / "epochs").glob("e-*/segments/*.tay")
    end = tail.stat().st_size - sum(sizes)
    for number in range(len(sizes)):
        copy = Place(place.directory.with_name(f"cut-{number}"))
        shutil.copytree(place.directory, copy.directory)
        with (copy.directory / tail.relative_to(place.directory)).open("r+b") as file:
            file.truncate(end + sum(sizes[:number]))
        yield copy


@pytest.mark.parametrize("outcome", [Succeeded(b'"done"'), Succeeded()], ids=["result", "no result"])
@pytest.mark.parametrize("count", [1, 3])
def test_ack_and_what_it_enqueues_are_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, outcome: Outcome, count: int
) -> None:
    place = Place(tmp_path / "belay")
    sizes: list[int] = []
    with Owner.open(place, OPTIONS, now=NOW) as owner:
        store = owner.storage
        store.insert_jobs([NewJob(kind="first")], now=NOW)
        round_ = ClaimRound(leased_by="node:1:1", lease_until=NOW + timedelta(seconds=30))
        [job] = store.claim(round_, demands=[Demand(queue="default", take=1)], now=NOW).jobs
        before = seen(store)
        ends_of_records(monkeypatch, sizes)
        store.ack(
            Ack(lease=Lease.of(job), outcome=outcome, enqueue=(NewJob(kind="following"),) * count), now=NOW
        )
        after = seen(store)
    assert after == ("succeeded", getattr(outcome, "result", None), ["ready"] * count)
    for copy in cut_copies(place, list(sizes)):
        with Owner.open(copy, OPTIONS, now=NOW) as owner:
            assert seen(owner.storage) == before
