"""What jsonb holds, and JSON bytes that lose no digit."""

from __future__ import annotations

import json
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from django_belay.contract.json_value import (
    MAX_DEPTH,
    JsonError,
    check_json,
    dump_jsonb,
    dumps,
    is_within_depth,
    loads,
    path_part,
)
from django_belay.exceptions import InvalidInput


def nested(levels: int, inner: Any = 0) -> Any:
    for _ in range(levels):
        inner = [inner]
    return inner


def cyclic() -> list[Any]:
    value: list[Any] = []
    value.append(value)
    return value


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.text(st.characters(exclude_categories=["Cs"])), inner, max_size=4)
    ),
    max_leaves=12,
)


@pytest.mark.parametrize(
    ("value", "path", "says"),
    [
        ({"lines": [1, 2, {"name": "a\0"}]}, "input.lines[2].name", "NUL character at position 1"),
        ({"a\0": 1}, r'input["a\\u0000"]', "key with a NUL"),
        ({"a": "x\ud800"}, "input.a", r"lone surrogate \(U\+D800\) at position 1"),
        ({"two words": [float("nan")]}, r'input\["two words"\]\[0\]', "found NaN"),
        ({"a": float("inf")}, "input.a", "found Infinity"),
        ({"a": float("-inf")}, "input.a", "found Infinity"),
        ({"a": 2**64}, "input.a", r"beyond 64 bits; allowed are -2\*\*63 to 2\*\*64-1"),
        ({"a": -(2**63) - 1}, "input.a", "beyond 64 bits"),
        ({"a": {1: 2}}, "input.a", "key of type int"),
        ({"a": b"x"}, "input.a", "found bytes; JSON holds None, bool, int"),
        ({"a": {1, 2}}, "input.a", "found set"),
        ({"a": object()}, "input.a", "found object"),
        ({"a": nested(31)}, "input.a", "nested deeper than 32"),
        (cyclic(), "input", "or contains itself"),
    ],
)
def test_what_jsonb_cannot_hold_is_refused_with_its_path(value: Any, path: str, says: str) -> None:
    with pytest.raises(InvalidInput, match=says) as refused:
        check_json(value)
    assert refused.value.path.startswith(path.replace("\\\\", "\\").replace("\\[", "[").replace("\\]", "]"))


def test_types_that_orjson_would_write_silently_are_refused() -> None:
    import dataclasses
    import datetime
    import enum
    import uuid

    @dataclasses.dataclass
    class Point:
        x: int = 1

    plain_enum = enum.Enum("plain_enum", {"A": 1})
    for value in (Point(), datetime.date(2026, 1, 1), uuid.UUID(int=1), plain_enum.A, orjson.Fragment(b"1")):
        with pytest.raises(InvalidInput, match=f"found {type(value).__name__}"):
            check_json({"a": value})


def test_a_long_path_leaves_out_its_middle() -> None:
    with pytest.raises(InvalidInput) as refused:
        check_json(nested(3000, "\0"), max_depth=300)
    assert len(refused.value.path) < 250


@pytest.mark.parametrize(
    "value",
    [
        None,
        {"a": None},
        2**64 - 1,
        -(2**63),
        (1, [2]),
        "\\u0000",
        "\x01",
        nested(31),
        nested(31, []),
        {"a": [{}] * 100},
        "🙂",
        -0.0,
        {"": ""},
    ],
)
def test_what_jsonb_holds_passes(value: Any) -> None:
    assert json.loads(dump_jsonb(value)) == json.loads(json.dumps(value))


def test_subclasses_are_written_as_what_they_are() -> None:
    class Text(str):
        __slots__ = ()

    assert dump_jsonb({"a": Text("x"), "b": (Text("y"),)}) == b'{"a":"x","b":["y"]}'


def test_depth_counts_the_root_as_one() -> None:
    check_json({"a": 1}, max_depth=2)
    with pytest.raises(InvalidInput, match="deeper than 1 "):
        check_json({"a": 1}, max_depth=1)


@given(JSON)
def test_a_json_value_comes_back_from_its_bytes(value: Any) -> None:
    back = loads(dumps(value))
    assert repr(back) == repr(value)


@pytest.mark.parametrize(
    "text",
    [
        "18446744073709551616",
        "-9223372036854775809",
        "[123456789012345678901234567890]",
        "1" * 4300,
        '{"a":-' + "9" * 400 + "}",
    ],
)
def test_integers_beyond_64_bits_keep_their_digits(text: str) -> None:
    value = loads(text.encode())
    assert value == json.loads(text)
    assert dumps(value) == text.encode()


def test_integers_over_4300_digits_are_refused_both_ways() -> None:
    with pytest.raises(JsonError, match="more than 4,300 digits"):
        loads(b"1" * 4301)
    with pytest.raises(JsonError, match="bits"):
        dumps(10**4300)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"NaN",
        b"[1,]",
        b"1e400",
        b'"\\ud800"',
        b"\xff",
        b'"\x00"',
        b"\xef\xbb\xbf1",
        # The same through the exact reader, which a long number calls.
        b"[12345678901234567890123,NaN]",
        b"[12345678901234567890123,-Infinity]",
        b"[12345678901234567890123,1e400]",
        b'[12345678901234567890123,"\\ud800"]',
        b'[12345678901234567890123,"\xff"]',
        b'[12345678901234567890123,"\x00"]',
        b"\xef\xbb\xbf12345678901234567890123",
        b"12345678901234567890123 4",
    ],
)
def test_what_is_not_json_is_refused(data: bytes) -> None:
    with pytest.raises(JsonError):
        loads(data)


def test_the_last_of_two_equal_keys_counts() -> None:
    assert loads(b'{"a":1,"a":2}') == {"a": 2}


def test_depth_is_bounded_both_ways() -> None:
    assert loads(b"[" * MAX_DEPTH + b"]" * MAX_DEPTH)
    for data in (b"[" * (MAX_DEPTH + 1) + b"]" * (MAX_DEPTH + 1), b"[" * 1_000_000, b'{"a":' * 1_000_000):
        with pytest.raises(JsonError, match="nested deeper"):
            loads(data)
    assert dumps(nested(MAX_DEPTH - 1))
    with pytest.raises(JsonError, match="nested deeper"):
        dumps(nested(MAX_DEPTH))
    with pytest.raises(JsonError, match="nested deeper"):
        dumps(nested(100_000))


def test_brackets_in_text_are_no_depth() -> None:
    text = b'["' + b"[" * 300 + b'","\\"[[' + b"{" * 300 + b'"]'
    assert is_within_depth(text, 1)
    assert loads(text)


@given(JSON)
def test_depth_of_bytes_is_the_depth_of_the_value(value: Any) -> None:
    def depth(found: Any) -> int:
        if isinstance(found, dict):
            found = list(found.values())
        return 1 + max(map(depth, found), default=0) if isinstance(found, list) else 0

    data = orjson.dumps(value)
    # Padding past the quick count of brackets, which would hide the exact one.
    assert is_within_depth(data, depth(value))
    assert not depth(value) or not is_within_depth(data, depth(value) - 1)


@given(st.binary(max_size=200))
def test_random_bytes_decode_or_are_refused(data: bytes) -> None:
    try:
        value = loads(data)
    except JsonError:
        return
    assert dumps(value) is not None


@pytest.mark.parametrize(("part", "shown"), [("name", ".name"), (3, "[3]"), ("a b", '["a b"]'), ("", '[""]')])
def test_a_part_of_a_path_reads_like_code(part: str | int, shown: str) -> None:
    assert path_part(part) == shown


def test_messages_do_not_show_values() -> None:
    secret = "hunter2"
    with pytest.raises(InvalidInput) as refused:
        check_json({"password": secret + "\0"})
    assert secret not in str(refused.value)
