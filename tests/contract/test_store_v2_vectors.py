"""The shared Store-v2 vectors, each by its name."""

from __future__ import annotations

import hashlib
import json
import os
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from django_belay.exceptions import JournalError
from django_belay.storage.journal.format.event_v1 import Finished, decode_event_v1, encode_event_v1
from django_belay.storage.journal.format.event_v2 import decode_event_v2, encode_event_v2
from django_belay.storage.journal.format.limits import ValueLimits
from django_belay.storage.journal.format.manifest import decode_manifest, encode_manifest
from django_belay.storage.journal.format.metadata import decode_current, encode_current
from django_belay.storage.journal.format.mutation import decode_mutation, encode_mutation
from django_belay.storage.journal.format.record import (
    Decoded,
    Incomplete,
    decode_record,
    encode_record,
)
from django_belay.storage.journal.format.scan import SegmentScan
from django_belay.storage.journal.format.segment import check_topology, decode_legacy_marker
from django_belay.storage.journal.format.snapshot import decode_snapshot, encode_snapshot
from django_belay.storage.journal.format.value import decode_value, encode_value


def find_fixtures() -> Path | None:
    """The shared vectors, from the environment or beside the repository."""
    named = os.environ.get("BELAY_SHARED_FIXTURES")
    root = Path(named) if named else Path(__file__).resolve().parents[3] / "shared" / "fixtures"
    folder = root / "store-v2"
    return folder if folder.is_dir() else None


FIXTURES = find_fixtures()
if FIXTURES is None and not os.environ.get("CI"):
    pytest.skip(
        "the shared Store-v2 vectors are not here: set BELAY_SHARED_FIXTURES, or put them in "
        "../shared/fixtures; in CI they are required",
        allow_module_level=True,
    )
assert FIXTURES is not None, "CI is set, so the shared Store-v2 vectors must be there"


def load(name: str) -> list[dict[str, Any]]:
    cases: list[dict[str, Any]] = json.loads((FIXTURES / name).read_text())  # type: ignore[operator]
    return cases


def by_id(cases: list[dict[str, Any]]) -> list[Any]:
    return [pytest.param(case, id=case["id"]) for case in cases]


def event_bytes(name: str) -> bytes:
    return bytes.fromhex("".join((FIXTURES / "events/v1" / f"{name}.hex").read_text().split()))  # type: ignore[operator]


def labelled(name: str, separator: str | None) -> dict[str, bytes]:
    lines = (FIXTURES / name).read_text().split("\n")  # type: ignore[operator]
    pairs = (line.split(separator, 1) for line in lines if line.strip())
    return {label.strip(): bytes.fromhex("".join(body.split())) for label, body in pairs}


@pytest.mark.parametrize("case", by_id(load("record-v1.json")))
def test_record_vector(case: dict[str, Any]) -> None:
    data, expect = bytes.fromhex(case["hex"]), case["expect"]
    if expect["outcome"] == "refuse":
        with pytest.raises(JournalError) as caught:
            decode_record(data)
        assert caught.value.refusal == expect["reason"]
        assert list(caught.value.details) == expect["args"]
        assert caught.value.kind.startswith("unsupported") == (expect["class"] == "unsupported")
        return
    found = decode_record(data)
    if expect["outcome"] == "incomplete":
        assert isinstance(found, Incomplete)
        for name in set(expect) - {"outcome"}:
            assert str(getattr(found, name)) == str(expect[name]), name
        return
    assert isinstance(found, Decoded)
    record = found.record
    assert (record.format_version, record.record_type, record.flags, record.payload_schema) == (
        expect["format_version"], expect["record_type"], expect["flags"], expect["payload_schema"],
    )  # fmt: skip
    assert record.sequence == int(expect["sequence"])
    assert record.payload.hex() == expect["payload_hex"]
    assert bytes(found.remainder).hex() == expect["remainder_hex"]
    assert encode_record(record) == data[: found.size]


SEGMENTS = load("segment-v1.json")


def scan_hex(hex_bytes: str, context: dict[str, Any]) -> SegmentScan:
    data = bytes.fromhex(hex_bytes)
    store = context["store_id"]
    scan = SegmentScan(
        lambda position, size: data[position : position + size],
        len(data),
        expected_id=context["expect_id"],
        expected_store=bytes.fromhex(store) if store else None,
        highest=context["highest"],
    )
    list(scan)
    return scan


@pytest.mark.parametrize("case", by_id([case for case in SEGMENTS if "context" in case]))
def test_segment_vector(case: dict[str, Any]) -> None:
    expect = case["expect"]
    if expect["outcome"] == "accept":
        summary = scan_hex(case["hex"], case["context"]).summary
        assert summary is not None
        got = {
            "state": summary.state, "segment_id": summary.segment_id, "bytes": summary.size,
            "first_sequence": summary.first_sequence, "record_count": summary.record_count,
            "last_sequence": summary.last_sequence,
        }  # fmt: skip
        assert got == {key: expect[key] for key in got}
        return
    with pytest.raises(JournalError) as caught:
        scan_hex(case["hex"], case["context"])
    assert caught.value.refusal == expect["kind"]
    assert caught.value.offset == expect["offset"]
    reason = expect.get("reason", ())
    reason = [reason] if isinstance(reason, str) else list(reason)
    assert list(caught.value.details[: len(reason)]) == reason


@pytest.mark.parametrize("case", by_id([case for case in SEGMENTS if "files" in case]))
def test_segment_topology_vector(case: dict[str, Any]) -> None:
    store = bytes.fromhex("00112233445566778899aabbccddeeff").hex()
    summaries = []
    for number, hex_bytes in enumerate(case["files"].values(), start=1):
        highest = number == len(case["files"])
        context = {"expect_id": number, "store_id": store, "highest": highest}
        summary = scan_hex(hex_bytes, context).summary
        assert summary is not None
        summaries.append((summary.segment_id, summary.first_sequence, summary.record_count))
    if case["expect"]["outcome"] == "accept":
        assert check_topology(summaries) == case["expect"]["next_sequence"]
        return
    with pytest.raises(JournalError) as caught:
        check_topology(summaries)
    assert [caught.value.refusal, *caught.value.details] == case["expect"]["reason"]


@pytest.mark.parametrize("case", by_id([case for case in SEGMENTS if case["id"].startswith("legacy")]))
def test_legacy_marker_vector(case: dict[str, Any]) -> None:
    data = bytes.fromhex(case["hex"])
    if case["expect"]["outcome"] == "legacy":
        assert decode_legacy_marker(data).hex() == case["expect"]["store_id"]
        return
    with pytest.raises(JournalError) as caught:
        decode_legacy_marker(data)
    assert caught.value.refusal == case["expect"]["reason"]


def test_event_vectors_are_the_published_ones() -> None:
    sums = (FIXTURES / "events/v1/SHA256SUMS").read_text().split("\n")  # type: ignore[operator]
    for digest, name in (line.split() for line in sums if line.strip()):
        data = event_bytes(Path(name.lstrip("*")).stem)
        assert hashlib.sha256(data).hexdigest() == digest, name


VALUES = ("00", "01", "02", "03", "04", "05", "06", "08", "09", "11", "12", "14", "15", "16", "17", "19",
          "20", "21", "22", "23")  # fmt: skip
MEANINGS: dict[str, Any] = {
    "V00": None, "V01": False, "V02": True, "V03": -(2**63), "V04": -1, "V05": 0, "V06": 2**63 - 1,
    "V08": 2**64 - 1, "V09": 0.0, "V11": 1.0, "V12": 5e-324, "V14": "", "V15": "\x00", "V16": "\u00e9",
    "V17": "e\u0301", "V19": "\U0001f600", "V20": "\U0010ffff", "V21": [], "V22": {},
}  # fmt: skip


@pytest.mark.parametrize("name", [f"V{number}" for number in VALUES])
def test_value_vector(name: str) -> None:
    data = event_bytes(name)
    value = decode_value(data)
    assert encode_value(value) == data
    if name in MEANINGS:
        assert value == MEANINGS[name]
        assert type(value) is type(MEANINGS[name])


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("X01", "noncanonical_integer"),
        ("X03", "nonfinite_float"),
        ("X04", "utf8"),
        ("X06", "utf8"),
        ("X07", "utf8"),
        ("X08", "utf8"),
        ("X10", "truncated_value"),
        ("N1", "map_order"),
        ("N3", "trailing_bytes"),
        ("N4", "unknown_tag"),
    ],
)
def test_value_refusal_vector(name: str, reason: str) -> None:
    with pytest.raises(JournalError) as caught:
        decode_value(event_bytes(name))
    assert caught.value.refusal == reason


@pytest.mark.parametrize(("name", "size"), [("E1", 404), ("E2", 104), ("E4", 269), ("E5", 105)])
def test_event_vector(name: str, size: int) -> None:
    found = decode_record(event_bytes(name))
    assert isinstance(found, Decoded)
    record = found.record
    assert len(record.payload) == size
    event = decode_event_v1(record.record_type, record.payload_schema, record.payload)
    assert encode_event_v1(event) == record.payload
    assert encode_record(record) == event_bytes(name)
    if isinstance(event, Finished):
        assert (event.diagnostic, event.next_attempt, event.next_due_at) == (1, 2, 1011)


def test_event_e1_needs_exactly_its_budgets() -> None:
    found = decode_record(event_bytes("E1"))
    assert isinstance(found, Decoded)
    payload = found.record.payload
    exact = {"depth": 4, "nodes": 35, "binary_bytes": 185, "encoded_bytes": 404}
    decode_event_v1(1, 1, payload, ValueLimits(**exact))
    for name in exact:
        short = ValueLimits(**{**exact, name: exact[name] - 1})
        with pytest.raises(JournalError) as caught:
            decode_event_v1(1, 1, payload, short)
        assert caught.value.refusal == "resource_limit"


def test_event_n5_lacks_a_key() -> None:
    with pytest.raises(JournalError) as caught:
        decode_event_v1(5, 1, event_bytes("N5"))
    assert caught.value.refusal == "invalid_event"


def test_event_n7_is_good_by_itself() -> None:
    found = decode_record(event_bytes("N7"))
    assert isinstance(found, Decoded)
    event = decode_event_v1(3, 1, found.record.payload)
    assert event.expected_revision == 2


@pytest.mark.parametrize("label", ["snapshot", "inserted", "available", "started", "cancelled"])
def test_store_record_vector(label: str) -> None:
    data = labelled("v2/records.hex", ":")[label]
    found = decode_record(data)
    assert isinstance(found, Decoded)
    assert encode_record(found.record) == data
    payload = found.record.payload
    if label == "snapshot":
        job = decode_snapshot(payload)
        assert encode_snapshot(job) == payload
        assert (job.state, job.eligible_at, job.availability_order) == ("available", 100, 1)
        assert (job.definition.worker_key, job.definition.args) == ("worker", {})
        return
    event = decode_mutation(payload)
    assert encode_mutation(event) == payload
    assert type(event).__name__.lower() == label


ACCEPTED_MANIFESTS = {"infinity", "bounded", "zero"}


@pytest.mark.parametrize("label", sorted(labelled("v2/phase_c/manifests.hex", None)))
def test_manifest_vector(label: str) -> None:
    data = labelled("v2/phase_c/manifests.hex", None)[label]
    if label in ACCEPTED_MANIFESTS:
        manifest = decode_manifest(data)
        assert encode_manifest(manifest) == data
        assert manifest.captured_at == 3_600_000
        return
    with pytest.raises(JournalError) as caught:
        decode_manifest(data)
    assert caught.value.refusal == "terminal_retention"


def test_current_vector_names_the_bounded_manifest() -> None:
    text = (FIXTURES / "v2/phase_c/current.hex").read_text()  # type: ignore[operator]
    data = bytes.fromhex(text.split()[-1])
    current = decode_current(data)
    assert encode_current(current) == data
    manifest = labelled("v2/phase_c/manifests.hex", None)["bounded"]
    assert current.manifest_sha256 == hashlib.sha256(manifest).digest()


@pytest.mark.parametrize("case", by_id(load("events/v2/derived.json")))
def test_schema_2_vector(case: dict[str, Any]) -> None:
    payload, expect = bytes.fromhex(case["payload_hex"]), case["expect"]
    if expect["outcome"] == "accept":
        event = decode_event_v2(case["type"], case["schema"], payload)
        assert encode_event_v2(event) == payload
        return
    decode = partial(decode_event_v2, case["type"], 2) if case["schema"] == 2 else decode_snapshot
    with pytest.raises(JournalError) as caught:
        decode(payload)
    assert expect["reason"] in (caught.value.refusal, "any refusal")
