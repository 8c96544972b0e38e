"""Records and segments: every rule in its order, nothing used before its checksum."""

from __future__ import annotations

import struct
from dataclasses import replace
from typing import Any

import pytest
from crc32c import crc32c
from hypothesis import given, settings
from hypothesis import strategies as st

from django_belay.exceptions import JournalError, UnsupportedFormat
from django_belay.storage.journal.format import scan as scan_module
from django_belay.storage.journal.format.record import (
    Decoded,
    Incomplete,
    Record,
    decode_record,
    encode_record,
    frame,
)
from django_belay.storage.journal.format.scan import SegmentScan
from django_belay.storage.journal.format.segment import (
    SegmentFooter,
    SegmentHeader,
    encode_footer,
    encode_header,
    segment_id_of,
    segment_name,
)

from . import by_hand
from .refusals import reason, refused

STORE = b"s" * 16


def build(**changes: Any) -> bytes:
    """A record with single fields forged and both checksums right."""
    fields = {"version": 1, "kind": 8, "flags": 0, "schema": 1, "sequence": 1, "payload": b"abc", **changes}
    length = fields.get("length", len(fields["payload"]))
    head = struct.pack(
        ">4sBBBBQI", b"TAY\0", fields["version"], fields["kind"], fields["flags"], fields["schema"],
        fields["sequence"], length,
    )  # fmt: skip
    body = fields["payload"]
    return head + struct.pack(">I", crc32c(head)) + body + struct.pack(">I", crc32c(head + body))


@settings(max_examples=200, deadline=None)
@given(
    st.integers(1, 254),
    st.integers(1, 255),
    st.integers(1, 2**64 - 1),
    st.binary(max_size=60),
    st.binary(max_size=9),
)
def test_record_comes_back_with_its_remainder(
    kind: int, schema: int, sequence: int, payload: bytes, rest: bytes
) -> None:
    record = Record(record_type=kind, payload_schema=schema, sequence=sequence, payload=payload)
    data = encode_record(record)
    assert data == by_hand.record(kind, schema, sequence, payload) == frame(kind, schema, sequence, payload)
    found = decode_record(data + rest)
    assert isinstance(found, Decoded)
    assert (found.record, bytes(found.remainder)) == (record, rest)


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=40), st.data())
def test_any_flipped_bit_is_noticed(payload: bytes, data: st.DataObject) -> None:
    whole = bytearray(build(payload=payload))
    bit = data.draw(st.integers(0, len(whole) * 8 - 1))
    whole[bit // 8] ^= 1 << bit % 8
    with pytest.raises(JournalError):
        decode_record(bytes(whole))


def test_every_prefix_is_incomplete_and_never_more() -> None:
    whole = build()
    for size in range(len(whole)):
        found = decode_record(whole[:size])
        assert isinstance(found, Incomplete)
        assert found.stage == ("header" if size < 24 else "payload" if size < 27 else "checksum")
        if size >= 24:
            assert found.available_bytes + found.missing_bytes == len(whole)


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        ({"version": 0, "flags": 9}, "invalid_format"),
        ({"version": 2, "flags": 9}, "format"),
        ({"flags": 1, "kind": 0}, "flags"),
        ({"kind": 0, "schema": 0}, "reserved_type"),
        ({"kind": 255}, "reserved_type"),
        ({"schema": 0, "sequence": 0}, "invalid_schema"),
        ({"sequence": 0, "length": 2**32 - 1}, "invalid_sequence"),
        ({"length": 16_777_217}, "payload_length_exceeds_format"),
    ],
)
def test_first_broken_rule_is_the_one_named(changes: dict[str, Any], name: str) -> None:
    assert reason(decode_record, build(**changes)) == name


def test_budget_is_operational() -> None:
    error = refused(decode_record, build(), max_payload_bytes=2)
    assert (error.refusal, error.kind, error.details) == ("resource_limit", "resource_limit", (3, 2))
    for budget in (-1, True, 16_777_217, "1"):
        assert reason(decode_record, build(), max_payload_bytes=budget) == "invalid_options"
    assert reason(decode_record, "text") == "invalid_argument"


@pytest.mark.parametrize(
    ("changes", "name", "details"),
    [
        ({"format_version": True}, "field", ("format_version",)),
        ({"record_type": 256}, "field", ("record_type",)),
        ({"sequence": 2**64}, "field", ("sequence",)),
        ({"payload": bytearray()}, "field", ("payload",)),
        ({"format_version": 0}, "invalid_record", ("invalid_format", 0)),
        ({"format_version": 2}, "format", (2,)),
        ({"flags": 3}, "flags", (3,)),
        ({"record_type": 0}, "invalid_record", ("reserved_type", 0)),
        ({"payload_schema": 0}, "invalid_record", ("invalid_schema", 0)),
        ({"sequence": 0}, "invalid_record", ("invalid_sequence", 0)),
    ],
)
def test_encoding_checks_primitives_first(
    changes: dict[str, Any], name: str, details: tuple[object, ...]
) -> None:
    good = Record(record_type=1, payload_schema=1, sequence=1, payload=b"")
    error = refused(encode_record, replace(good, **changes))
    assert (error.refusal, error.details) == (name, details)
    assert reason(encode_record, object()) == "invalid_argument"


# -- segments -------------------------------------------------------------------


def segment(count: int = 3, *, sealed: bool = True, payload: bytes = b"payload") -> bytes:
    data = encode_header(SegmentHeader(segment_id=1, first_sequence=5, store_id=STORE))
    for number in range(count):
        data += frame(8, 1, 5 + number, payload)
    return data + seal(data, count) if sealed else data


def seal(data: bytes, count: int, **changes: Any) -> bytes:
    fields = {
        "segment_id": 1, "first_sequence": 5, "last_sequence": 4 + count, "record_count": count,
        "store_id": STORE, "segment_crc": crc32c(data), **changes,
    }  # fmt: skip
    return encode_footer(SegmentFooter(**fields))


def walk(data: bytes, *, highest: bool = True, **changes: Any) -> SegmentScan:
    options: dict[str, Any] = {"expected_id": 1, "expected_store": STORE, "highest": highest, **changes}
    scan = SegmentScan(lambda at, size: data[at : at + size], len(data), **options)
    for _ in scan:
        continue
    return scan


@pytest.mark.parametrize("chunk", [28, 64, 100, 1 << 20])
def test_scan_is_the_same_whatever_the_chunk(monkeypatch: pytest.MonkeyPatch, chunk: int) -> None:
    monkeypatch.setattr(scan_module, "CHUNK_BYTES", chunk)
    data = segment(20, payload=b"x" * 61)
    summary = walk(data).summary
    assert summary is not None
    assert (summary.record_count, summary.last_sequence, summary.crc) == (20, 24, crc32c(data[:-64]))


def test_every_cut_of_the_highest_segment_is_refused_where_it_is_met() -> None:
    data = segment(2)
    boundaries = {44, 79, 114, len(data)}
    for size in range(len(data)):
        if size in boundaries:
            assert walk(data[:size]).count == sorted(boundaries).index(size)
            continue
        error = refused(walk, data[:size])
        assert error.kind == "incomplete_tail"
        assert error.offset == max([0, *(b for b in boundaries if b <= size)])
        assert refused(walk, data[:size], highest=False).refusal == "sealed_history_error"


def test_every_flipped_bit_of_a_sealed_segment_is_refused() -> None:
    data = segment(2, payload=b"ab")
    for bit in range(len(data) * 8):
        changed = bytearray(data)
        changed[bit // 8] ^= 1 << bit % 8
        assert refused(walk, bytes(changed), highest=False).offset is not None


@pytest.mark.parametrize(
    ("tail", "name"),
    [
        (b"X", "invalid_magic"),
        (b"TAYX", "invalid_magic"),
        (b"TB", "invalid_magic"),
        (b"T", "ambiguous_short_tail"),
        (b"TAY", "ambiguous_short_tail"),
        (b"TAYF", "incomplete_footer"),
        (b"TAY\x00", "incomplete_record"),
        (b"TAY\x00\x02", "format"),
        (frame(8, 1, 9, b""), "sequence"),
        (b"TAYF\x02" + bytes(59), "unsupported_segment_version"),
    ],
)
def test_what_stands_at_a_boundary_decides(tail: bytes, name: str) -> None:
    error = refused(walk, segment(2, sealed=False) + tail)
    assert (error.refusal, error.offset) == (name, 114)


@pytest.mark.parametrize(
    ("changes", "detail"),
    [
        ({"segment_id": 2}, "mismatch"),
        ({"first_sequence": 6, "last_sequence": 7}, "mismatch"),
        ({"store_id": b"t" * 16}, "mismatch"),
        ({"record_count": 1, "last_sequence": 5}, "mismatch"),
    ],
)
def test_footer_must_say_what_was_seen(changes: dict[str, Any], detail: str) -> None:
    data = segment(2, sealed=False)
    error = refused(walk, data + seal(data, 2, **changes))
    assert (error.refusal, error.details[0]) == ("corrupt_footer", detail)
    assert refused(walk, data + seal(data, 2, segment_crc=1)).refusal == "segment_crc"


@pytest.mark.parametrize(
    ("at", "byte", "name", "detail"),
    [
        (4, 0, "corrupt_segment_header", "invalid_version"),
        (4, 2, "unsupported_segment_version", "unsupported_version"),
        (5, 1, "unsupported_segment_flags", "unsupported_flags"),
        (6, 1, "corrupt_segment_header", "reserved_bytes"),
        (15, 0, "corrupt_segment_header", "invalid_segment_id"),
        (15, 9, "id_or_store_mismatch", "mismatch"),
        (23, 0, "corrupt_segment_header", "invalid_first_sequence"),
        (24, 1, "id_or_store_mismatch", "mismatch"),
    ],
)
def test_header_is_checked_in_order(at: int, byte: int, name: str, detail: str) -> None:
    head = bytearray(segment(0, sealed=False))
    head[at] = byte
    head[40:] = struct.pack(">I", crc32c(bytes(head[:40])))
    error = refused(walk, bytes(head))
    assert (error.refusal, error.details[0], error.offset) == (name, detail, 0)
    assert isinstance(error, UnsupportedFormat) == name.startswith("unsupported")


def test_a_short_read_is_operational() -> None:
    data = segment(2)
    scan = SegmentScan(
        lambda at, size: data[at : at + size][:-1],
        len(data),
        expected_id=1,
        expected_store=STORE,
        highest=True,
    )
    assert refused(list, scan).refusal == "changed_file_or_short_read"


def test_a_magic_inside_a_payload_is_only_payload() -> None:
    assert walk(segment(3, payload=b"TAY\x00TAYFTAYS" * 5)).count == 3


def test_record_over_the_budget_is_not_corrupt() -> None:
    error = refused(walk, segment(2), max_payload_bytes=3)
    assert (error.refusal, error.kind, error.offset) == ("resource_limit", "resource_limit", 44)


@pytest.mark.parametrize(
    ("name", "segment_id"),
    [
        ("00000000000000000001.tay", 1),
        ("18446744073709551615.tay", 2**64 - 1),
        ("18446744073709551616.tay", None),
        ("00000000000000000000.tay", None),
        ("0000000000000000001.tay", None),
        ("00000000000000000001.TAY", None),
        ("\u0660" * 20 + ".tay", None),
        ("00000000000000000001.tay\n", None),
    ],
)
def test_segment_names(name: str, segment_id: int | None) -> None:
    assert segment_id_of(name) == segment_id
    if segment_id is not None:
        assert segment_name(segment_id) == name
