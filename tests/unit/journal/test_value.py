"""Canonical values: one encoding each, bounded before it allocates."""

from __future__ import annotations

import contextlib
import math
import struct
import tracemalloc
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from django_belay.exceptions import JournalError
from django_belay.storage.journal.format.limits import ValueLimits
from django_belay.storage.journal.format.value import decode_value, encode_value

from . import by_hand
from .refusals import reason, refused

TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
SCALARS = st.one_of(
    st.none(), st.booleans(), st.integers(-(2**63), 2**64 - 1), TEXTS, st.binary(max_size=12),
    st.floats(allow_nan=False, allow_infinity=False),
)  # fmt: skip
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXTS, inner, max_size=4),
    max_leaves=20,
)


@settings(max_examples=300, deadline=None)
@given(VALUES)
def test_every_value_comes_back_and_agrees_with_the_second_encoder(value: Any) -> None:
    encoded = encode_value(value)
    assert encoded == by_hand.value(value)
    assert encode_value(decode_value(encoded)) == encoded
    assert repr(decode_value(encoded)) == repr(sort(value))


def sort(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: sort(value[key]) for key in sorted(value, key=str.encode)}
    return [sort(item) for item in value] if isinstance(value, list) else value


@settings(max_examples=500, deadline=None)
@given(st.binary(max_size=80))
def test_any_bytes_are_refused_or_are_the_only_form(data: bytes) -> None:
    try:
        value = decode_value(data)
    except JournalError:
        return
    assert encode_value(value) == data


@settings(max_examples=300, deadline=None)
@given(VALUES, st.data())
def test_one_changed_byte_is_refused_or_another_value(value: Any, data: st.DataObject) -> None:
    encoded = bytearray(encode_value(value))
    at = data.draw(st.integers(0, len(encoded) - 1))
    encoded[at] = data.draw(st.integers(0, 255))
    try:
        changed = decode_value(bytes(encoded))
    except JournalError:
        return
    assert encode_value(changed) == bytes(encoded)


@pytest.mark.parametrize(
    ("hex_bytes", "name"),
    [
        ("", "truncated_value"),
        ("0a", "unknown_tag"),
        ("ff", "unknown_tag"),
        ("04", "truncated_value"),
        ("0300000000000000", "truncated_value"),
        ("030000000000000000", "noncanonical_integer"),
        ("037fffffffffffffff", "noncanonical_integer"),
        ("057ff0000000000000", "nonfinite_float"),
        ("05fff0000000000000", "nonfinite_float"),
        ("057ff8000000000001", "nonfinite_float"),
        ("0600000002c080", "utf8"),
        ("0600000003eda080", "utf8"),
        ("0600000001", "truncated_value"),
        ("06ffffffff", "truncated_value"),
        ("08ffffffff", "truncated_value"),
        ("09ffffffff", "truncated_value"),
        ("0900000001060000000161", "truncated_value"),
        ("0900000001000000000000", "map_key"),
        ("0900000001070000000000", "map_key"),
        ("0000", "trailing_bytes"),
        ("0900000002" + "060000000161" + "00" + "060000000161" + "00", "map_order"),
        ("0900000002" + "060000000162" + "00" + "060000000161" + "00", "map_order"),
    ],
)
def test_bytes_that_are_no_value(hex_bytes: str, name: str) -> None:
    assert reason(decode_value, bytes.fromhex(hex_bytes)) == name


def test_prefix_key_sorts_first_whatever_its_length_says() -> None:
    assert list(decode_value(encode_value({"b": 1, "aa": 2, "a": 3}))) == ["a", "aa", "b"]  # type: ignore[arg-type]


@pytest.mark.parametrize("value", [2**64, -(2**63) - 1, object(), {1, 2}, 1j, bytearray(b"x")])
def test_what_has_no_encoding_is_refused(value: object) -> None:
    assert reason(encode_value, value) == "invalid_value"


def test_encoding_refuses_bad_text_keys_and_floats() -> None:
    assert reason(encode_value, "\ud800") == "utf8"
    assert reason(encode_value, {1: 2}) == "map_key"
    assert reason(encode_value, math.nan) == reason(encode_value, -math.inf) == "nonfinite_float"


def test_signs_and_kinds_of_numbers_stay_apart() -> None:
    assert len({encode_value(item) for item in (0, 0.0, -0.0, False, 1, 1.0, True)}) == 7
    assert math.copysign(1, decode_value(encode_value(-0.0))) == -1  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("limits", "value", "budget"),
    [
        (ValueLimits(depth=2), [[1]], "depth"),
        (ValueLimits(nodes=3), [1, 2, 3], "output_nodes"),
        (ValueLimits(nodes=2), {"a": 1}, "output_nodes"),
        (ValueLimits(binary_bytes=2), ["ab", "c"], "binary_bytes"),
        (ValueLimits(encoded_bytes=9), [1], "encoded_bytes"),
    ],
)
def test_budgets_bind_both_ways(limits: ValueLimits, value: Any, budget: str) -> None:
    for call, item in ((decode_value, encode_value(value)), (encode_value, value)):
        error = refused(call, item, limits)
        assert (error.refusal, error.kind, error.details) == ("resource_limit", "resource_limit", (budget,))


def test_input_beyond_the_format_is_refused_unread() -> None:
    assert reason(decode_value, bytes(16_777_217)) == "payload_hard_limit"


@pytest.mark.parametrize(
    "data",
    [
        b"\x08" + struct.pack(">I", 90_000) + bytes(90_000),
        b"\x08\x00\x00\x00\x01" * 5_000 + b"\x00",
        b"\x09" + struct.pack(">I", 0x7FFFFFFF),
        b"\x06" + struct.pack(">I", 0xFFFFFFF0) + b"x" * 50_000,
    ],
    ids=["many", "deep", "count", "length"],
)
def test_hostile_sizes_cost_no_more_than_the_input_is_worth(data: bytes) -> None:
    tracemalloc.start()
    with contextlib.suppress(JournalError):
        decode_value(data)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 200_000 + 12 * len(data)


def test_a_value_that_holds_itself_ends_at_the_depth_budget() -> None:
    loop: list[Any] = []
    loop.append(loop)
    assert reason(encode_value, loop) == "resource_limit"
