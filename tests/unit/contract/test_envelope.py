"""The envelope both ways."""

from __future__ import annotations

import contextlib
import dataclasses
import enum
import uuid
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from django_belay.contract.envelope import (
    MAX_STEP_BYTES,
    EnvelopeError,
    Opaque,
    decode,
    decode_or_opaque,
    encode,
    is_etf,
)
from django_belay.contract.etf import Limits
from django_belay.contract.json_form import format_duration, parse_duration
from django_belay.exceptions import BelayError, StepTooLarge

PID = bytes.fromhex("83586400016e0000005e0000000000000000")

TEXT = st.text(st.characters(exclude_categories=["Cs"]))
VALUE = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**60), 10**60)
    | st.floats(allow_nan=False, allow_infinity=False)
    | TEXT,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4),
    max_leaves=12,
)


class Colour(enum.Enum):
    RED = "red"


class Shape(enum.Enum):
    SQUARE = (1, 1)


@dataclasses.dataclass
class Found:
    at: datetime
    tags: set[str]
    colour: Colour = Colour.RED


@given(VALUE)
def test_a_value_comes_back(value: Any) -> None:
    data = encode(value)
    assert not is_etf(data)
    assert repr(decode(data)) == repr(value)
    assert repr(decode(memoryview(data))) == repr(value)


@pytest.mark.parametrize(
    ("value", "form"),
    [
        (datetime(2026, 7, 21, 9, 30, tzinfo=UTC), "2026-07-21T09:30:00+00:00"),
        (datetime(2026, 7, 21, 9, 30, tzinfo=timezone(timedelta(hours=2))), "2026-07-21T09:30:00+02:00"),
        (datetime(2026, 7, 21, 9, 30, 0, 5), "2026-07-21T09:30:00.000005"),
        (date(2026, 7, 21), "2026-07-21"),
        (time(9, 30), "09:30:00"),
        (timedelta(days=1, seconds=2), "P1DT0H0M2S"),
        (uuid.UUID(int=5), "00000000-0000-0000-0000-000000000005"),
        (Decimal("12.30"), "12.30"),
        (Colour.RED, "red"),
        (Shape.SQUARE, "SQUARE"),
        (enum.IntEnum("Level", {"LOW": 3}).LOW, 3),  # type: ignore[attr-defined]
        ({"b", "a"}, ["a", "b"]),
        ((1, (2,)), [1, [2]]),
        ("a\0b", "a\0b"),
        (10**100, 10**100),
        (
            [Found(datetime(2026, 1, 1), {"x"})],
            [{"at": "2026-01-01T00:00:00", "tags": ["x"], "colour": "red"}],
        ),
    ],
)
def test_what_steps_return_has_a_json_form(value: Any, form: Any) -> None:
    assert decode(encode(value)) == form
    assert decode(encode({"a": [value, 10**30]})) == {"a": [form, 10**30]}


@pytest.mark.parametrize(
    ("value", "says"),
    [
        ({"a": [float("nan")]}, r"value\.a\[0\]: found NaN"),
        ({"a": "\ud800"}, r"value\.a: text with a lone surrogate"),
        ({1: 2}, "key of type int"),
        (b"x", "found bytes; .*base64"),
        (object(), "found object"),
        (Colour, "found EnumType|found EnumMeta"),
        (Found, "found type"),
    ],
)
def test_what_json_cannot_hold_is_refused(value: Any, says: str) -> None:
    with pytest.raises(EnvelopeError, match=says) as refused:
        encode(value)
    assert isinstance(refused.value, BelayError)
    assert isinstance(refused.value, ValueError)


def test_a_value_that_contains_itself_is_refused() -> None:
    value: dict[str, Any] = {}
    value["self"] = value
    with pytest.raises(EnvelopeError, match="contains itself"):
        encode(value)


def test_a_step_value_has_a_ceiling() -> None:
    assert len(encode("x" * (MAX_STEP_BYTES - 2), limit=MAX_STEP_BYTES)) == MAX_STEP_BYTES
    with pytest.raises(StepTooLarge, match="1,048,577 bytes encoded, 1,048,576 are allowed"):
        encode("x" * (MAX_STEP_BYTES - 1), limit=MAX_STEP_BYTES)


def test_no_result_is_none() -> None:
    assert decode(None) is None
    assert decode_or_opaque(None) is None


@pytest.mark.parametrize("data", [b"", b"{", b"\xff", b"nil", b"\x83", b"\x82"])
def test_broken_bytes_are_refused(data: bytes) -> None:
    with pytest.raises(EnvelopeError):
        decode(data)


def test_broken_bytes_can_still_be_shown() -> None:
    shown = decode_or_opaque(b"\x83\x01")
    assert shown == Opaque(b"\x83\x01", "refused: unknown tag 1")
    assert str(shown) == "<opaque, 2 bytes: refused: unknown tag 1; 83 01>"


def test_a_term_without_a_json_view_is_opaque_and_keeps_its_bytes() -> None:
    value = decode(memoryview(PID))
    assert value == Opaque(PID, "a process id")
    assert str(value) == "<opaque, 18 bytes: a process id; 83 58 64 00 01 6e 00 00 00 5e 00 00 00 00 00 00 …>"
    assert value.as_json()["$opaque"]["bytes"] == 18


def test_an_opaque_value_cannot_be_changed() -> None:
    value = Opaque(PID, "a process id")
    with pytest.raises(dataclasses.FrozenInstanceError):
        value.reason = "x"  # type: ignore[misc]


def test_input_size_and_depth_are_bounded() -> None:
    with pytest.raises(EnvelopeError, match="at most 3 are read"):
        decode(b'"abc"', limits=Limits(max_bytes=3))
    with pytest.raises(EnvelopeError, match="deeper than 2"):
        decode(b"[[[]]]", limits=Limits(max_depth=2))


@given(st.timedeltas())
def test_a_duration_comes_back(value: timedelta) -> None:
    assert parse_duration(format_duration(value)) == value


@pytest.mark.parametrize("value", [timedelta.min, timedelta.max, timedelta(microseconds=-1), timedelta(0)])
def test_extreme_durations_come_back(value: timedelta) -> None:
    assert parse_duration(format_duration(value)) == value


@pytest.mark.parametrize(
    "text", ["", "P", "PT", "P1DT", "1D", "P1Y", "P1D2H", "PT1.S", "P9999999999D", "P-1D", "PT1S\n"]
)
def test_what_is_no_duration_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="duration"):
        parse_duration(text)


def test_iso_durations_of_others_are_read() -> None:
    assert parse_duration("PT0.5S") == timedelta(milliseconds=500)
    assert parse_duration("P2D") == timedelta(days=2)
    assert parse_duration("-P0DT00H00M01.000000S") == timedelta(seconds=-1)  # as Django writes them


@given(st.binary(max_size=300))
def test_random_bytes_decode_or_are_refused(data: bytes) -> None:
    with contextlib.suppress(EnvelopeError):
        decode(data)
    assert decode_or_opaque(data) is not None or data.strip() == b"null"
