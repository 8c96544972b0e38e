"""The committed fixtures: frozen bytes, what they mean, and that they are written as they are read."""

from __future__ import annotations

import hashlib

import pytest

from django_belay.storage.journal.format.event_v1 import decode_event_v1, encode_event_v1
from django_belay.storage.journal.format.event_v2 import decode_event_v2, encode_event_v2
from django_belay.storage.journal.format.extension import decode_extension, encode_extension
from django_belay.storage.journal.format.manifest import Retention, decode_manifest, encode_manifest
from django_belay.storage.journal.format.metadata import (
    Current,
    decode_current,
    decode_marker,
    encode_current,
    encode_marker,
)
from django_belay.storage.journal.format.mutation import decode_mutation, encode_mutation
from django_belay.storage.journal.format.pair import BASE_PAIRS, TAIL_PAIRS
from django_belay.storage.journal.format.record import Decoded, decode_record, encode_record
from django_belay.storage.journal.format.scan import SegmentScan
from django_belay.storage.journal.format.snapshot import decode_snapshot, encode_snapshot

from .fixtures import EPOCH, FOLDER, PAYLOADS, STORE, by_name, load


@pytest.mark.parametrize("name", sorted(by_name()))
def test_committed_bytes_are_the_frozen_ones(name: str) -> None:
    sums = dict(reversed(line.split()) for line in (FOLDER / "SHA256SUMS").read_text().splitlines())
    assert hashlib.sha256(load(name)).hexdigest() == sums[name]
    assert load(name) == by_name()[name]


def test_every_pair_and_every_file_has_a_fixture() -> None:
    pairs = {(kind, schema) for kind, schema, _ in PAYLOADS.values()}
    assert pairs == BASE_PAIRS | TAIL_PAIRS | {(kind, 1) for kind in range(1, 7)}
    assert {path.stem for path in FOLDER.glob("*.hex")} == set(by_name())


@pytest.mark.parametrize("name", sorted(PAYLOADS))
def test_payload_is_written_as_it_is_read(name: str) -> None:
    kind, schema, _ = PAYLOADS[name]
    found = decode_record(load(name))
    assert isinstance(found, Decoded)
    assert encode_record(found.record) == load(name)
    payload = found.record.payload
    if (kind, schema) == (7, 1):
        assert encode_snapshot(decode_snapshot(payload)) == payload
    elif (kind, schema) == (8, 1):
        assert encode_mutation(decode_mutation(payload)) == payload
    elif schema == 2:
        assert encode_event_v2(decode_event_v2(kind, schema, payload)) == payload
    elif kind >= 128:
        assert encode_extension(decode_extension(kind, schema, payload)) == payload
    else:
        assert encode_event_v1(decode_event_v1(kind, schema, payload)) == payload


def test_snapshot_and_mutation_mean_what_was_assembled() -> None:
    found = decode_record(load("snapshot-7-1-discarded"))
    assert isinstance(found, Decoded)
    job = decode_snapshot(found.record.payload)
    assert (job.state, job.revision, job.attempt, job.diagnostic) == ("discarded", 7, 3, 2)
    assert job.definition.args["lines"] == [1, -2, True, None, "€"]
    found = decode_record(load("mutation-8-1-finished"))
    assert isinstance(found, Decoded)
    event = decode_mutation(found.record.payload)
    assert (event.expected_revision, event.next_attempt, event.outcome) == (3, 2, 1)  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("name", "state"),
    [("segment-empty", "active"), ("segment-active", "active"), ("segment-sealed", "sealed")],
)
def test_segment_scans(name: str, state: str) -> None:
    data = load(name)
    scan = SegmentScan(
        lambda at, size: data[at : at + size], len(data), expected_id=1, expected_store=STORE, highest=True
    )
    assert [item.sequence for item in scan] == ([] if name == "segment-empty" else [1, 2])
    assert scan.summary is not None
    assert scan.summary.state == state


def test_metadata_is_written_as_it_is_read() -> None:
    assert encode_marker(STORE) == load("metadata-marker")
    assert decode_marker(load("metadata-marker")) == STORE
    first = load("metadata-manifest-first")
    current = decode_current(load("metadata-current"))
    assert current == Current(store_id=STORE, epoch_id=EPOCH, manifest_sha256=hashlib.sha256(first).digest())
    assert encode_current(current) == load("metadata-current")
    for name in ("metadata-manifest-first", "metadata-manifest-later"):
        assert encode_manifest(decode_manifest(load(name))) == load(name)
    assert decode_manifest(first).terminal_retention == Retention(unit="hours", amount=24)
    assert decode_manifest(load("metadata-manifest-later")).availability_frontier == 7
