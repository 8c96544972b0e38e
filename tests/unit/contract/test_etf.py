"""The reader of Erlang terms, on bytes written by hand."""

from __future__ import annotations

import contextlib
import struct
import time
import tracemalloc
import zlib
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from django_belay.contract.etf import EtfError, Limits, NoJsonView, loads


def atom(name: str) -> bytes:
    raw = name.encode()
    return b"\x77" + bytes([len(raw)]) + raw


def text(value: str | bytes) -> bytes:
    raw = value.encode() if isinstance(value, str) else value
    return b"\x6d" + struct.pack(">I", len(raw)) + raw


def integer(value: int) -> bytes:
    if 0 <= value < 256:
        return b"\x61" + bytes([value])
    if -(2**31) <= value < 2**31:
        return b"\x62" + struct.pack(">i", value)
    raw = abs(value).to_bytes((abs(value).bit_length() + 7) // 8, "little")
    head = b"\x6e" + bytes([len(raw)]) if len(raw) < 256 else b"\x6f" + struct.pack(">I", len(raw))
    return head + bytes([value < 0]) + raw


def sequence(*items: bytes, tail: bytes = b"\x6a") -> bytes:
    return b"\x6c" + struct.pack(">I", len(items)) + b"".join(items) + tail


def tuple_(*items: bytes) -> bytes:
    return b"\x68" + bytes([len(items)]) + b"".join(items)


def map_(*pairs: tuple[bytes, bytes]) -> bytes:
    return b"\x74" + struct.pack(">I", len(pairs)) + b"".join(key + value for key, value in pairs)


def fields(module: str, **values: bytes) -> bytes:
    pairs = [(atom("__struct__"), atom(module)), *((atom(name), value) for name, value in values.items())]
    return map_(*pairs)


def compressed(term: bytes, size: int | None = None) -> bytes:
    return b"\x83\x50" + struct.pack(">I", len(term) if size is None else size) + zlib.compress(term)


ISO = atom("Elixir.Calendar.ISO")
DAY = {"calendar": ISO, "year": integer(2026), "month": integer(7), "day": integer(21)}
CLOCK = {"hour": integer(9), "minute": integer(30), "second": integer(15)}
MICRO = {"microsecond": tuple_(integer(120000), integer(3))}
ZONE = {
    "utc_offset": integer(3600),
    "std_offset": integer(3600),
    "zone_abbr": text("CEST"),
    "time_zone": text("Europe/Prague"),
}
UTC = {
    "utc_offset": integer(0),
    "std_offset": integer(0),
    "zone_abbr": text("UTC"),
    "time_zone": text("Etc/UTC"),
}
NODE = atom("n@h")


@pytest.mark.parametrize(
    ("term", "value"),
    [
        (atom("nil"), None),
        (atom("true"), True),
        (atom("ok"), "ok"),
        (b"\x64\x00\x04caf\xe9", "café"),
        (b"\x73\x04caf\xe9", "café"),
        (b"\x76\x00\x05caf\xc3\xa9", "café"),
        (integer(-1), -1),
        (integer(2**64), 2**64),
        (integer(-(2**2100)), -(2**2100)),
        (b"\x46" + struct.pack(">d", -2.25), -2.25),
        (b"\x63" + b"1.50000000000000000000e+00".ljust(31, b"\0"), 1.5),
        (text("a\0ů"), "a\0ů"),
        (b"\x4d\x00\x00\x00\x01\x08A", "A"),
        (b"\x6a", []),
        (b"\x6b\x00\x03\x01\x02\xff", [1, 2, 255]),
        (sequence(integer(1), text("b")), [1, "b"]),
        (sequence(integer(1), tail=sequence(integer(2))), [1, 2]),
        (sequence(integer(1), tail=b"\x6b\x00\x02\x02\x03"), [1, 2, 3]),
        (sequence(integer(1), tail=b"\x6c\x00\x00\x00\x00\x6a"), [1]),
        (b"\x6c\x00\x00\x00\x00" * 3 + integer(5), 5),
        (tuple_(), []),
        (b"\x69\x00\x00\x00\x02" + integer(1) + tuple_(integer(2)), [1, [2]]),
        (map_(), {}),
        (map_((text("a"), map_((atom("b"), integer(1))))), {"a": {"b": 1}}),
        (map_((integer(-5), integer(1)), (atom("nil"), integer(2))), {"-5": 1, "nil": 2}),
        (
            map_(
                (text("__struct__"), atom("Elixir.Date")), *((atom(name), item) for name, item in DAY.items())
            ),
            {
                "__struct__": "Elixir.Date",
                "calendar": "Elixir.Calendar.ISO",
                "year": 2026,
                "month": 7,
                "day": 21,
            },
        ),
        (fields("Elixir.Date", **DAY), "2026-07-21"),
        (fields("Elixir.Time", calendar=ISO, **CLOCK, **MICRO), "09:30:15.120"),
        (fields("Elixir.NaiveDateTime", **DAY, **CLOCK, **MICRO), "2026-07-21T09:30:15.120"),
        (fields("Elixir.DateTime", **DAY, **CLOCK, **MICRO, **ZONE), "2026-07-21T09:30:15.120+02:00"),
        (fields("Elixir.DateTime", **DAY, **CLOCK, **MICRO, **UTC), "2026-07-21T09:30:15.120Z"),
        (
            fields(
                "Elixir.DateTime", **DAY, **CLOCK, **MICRO, **(UTC | {"time_zone": text("Europe/London")})
            ),
            "2026-07-21T09:30:15.120+00:00",
        ),
        (fields("Elixir.Decimal", sign=integer(-1), coef=integer(1), exp=integer(-3)), "-0.001"),
        (fields("Elixir.Decimal", sign=integer(1), coef=integer(15), exp=integer(9)), "1.5E+10"),
        (fields("Elixir.Decimal", sign=integer(1), coef=integer(1), exp=integer(-9)), "1E-9"),
        (fields("Elixir.Decimal", sign=integer(-1), coef=atom("inf"), exp=integer(0)), "-Infinity"),
        (fields("Elixir.Point", x=integer(1)), {"__struct__": "Elixir.Point", "x": 1}),
    ],
)
def test_a_term_has_its_json_view(term: bytes, value: Any) -> None:
    found = loads(b"\x83" + term)
    assert found == value
    assert repr(found) == repr(value)
    assert loads(compressed(term)) == value


@pytest.mark.parametrize(
    "odd",
    [
        DAY | {"month": integer(13)},
        DAY | {"day": text("21")},
        DAY | {"calendar": atom("Elixir.Calendar.Other")},
        DAY | {"more": integer(1)},
        DAY | {"year": integer(10**30)},
    ],
)
def test_a_struct_that_is_not_as_elixir_makes_it_is_an_object(odd: dict[str, bytes]) -> None:
    value = loads(b"\x83" + fields("Elixir.Date", **odd))
    assert isinstance(value, dict)
    assert value["__struct__"] == "Elixir.Date"


@pytest.mark.parametrize(
    ("term", "reason"),
    [
        (b"\x58" + NODE + bytes(12), "process id"),
        (b"\x67" + NODE + bytes(9), "process id"),
        (b"\x59" + NODE + bytes(8), "port"),
        (b"\x66" + NODE + bytes(5), "port"),
        (b"\x78" + NODE + bytes(12), "port"),
        (b"\x5a\x00\x03" + NODE + bytes(16), "reference"),
        (b"\x72\x00\x03" + NODE + bytes(13), "reference"),
        (b"\x65" + NODE + bytes(5), "reference"),
        (b"\x71" + atom("Elixir.String") + atom("length") + integer(1), "function"),
        (b"\x70\x00\x00\x00\x08abcd", "function"),
        (b"\x79abcdefgh", "own format"),
        (text(b"\xff"), "not UTF-8"),
        (text(b"\xed\xa0\x80"), "not UTF-8"),
        (b"\x4d\x00\x00\x00\x01\x03\xa0", "bit string"),
        (sequence(integer(1), tail=integer(2)), "improper"),
        (sequence(integer(1), tail=tuple_(integer(2))), "improper"),
        (sequence(sequence(integer(1), tail=sequence(integer(1), tail=atom("x")))), "improper"),
        (map_((atom("a"), integer(1)), (text("a"), integer(2))), "keys whose text is the same"),
        (map_((integer(1), integer(1)), (text("1"), integer(2))), "keys whose text is the same"),
        (map_((b"\x46" + bytes(8), integer(1))), "map key"),
        (map_((tuple_(integer(1)), integer(1))), "map key"),
        (map_((map_(), integer(1)), (text("b"), integer(2))), "map key"),
        (map_((text(b"\xff"), integer(1))), "not UTF-8"),
        (map_((integer(2**2101), integer(1))), "map key that is an integer"),
        (integer(2**14284), "14,285 bits"),
    ],
)
def test_a_term_without_a_json_view_is_said_to_have_none(term: bytes, reason: str) -> None:
    for wrapped in (term, sequence(integer(1), term), map_((text("k"), term), (text("l"), integer(2)))):
        if term[0] != 0x79:  # its end cannot be known
            with pytest.raises(NoJsonView, match=reason):
                loads(b"\x83" + wrapped)
    with pytest.raises(NoJsonView, match=reason):
        loads(b"\x83" + term)


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"", "version byte"),
        (b"\x82\x61\x01", "version byte"),
        (b"\x83", "where a term should begin"),
        (b"\x83\x01", "unknown tag 1"),
        (b"\x83\x83\x61\x01", "unknown tag 131"),
        (b"\x83\x62\x00", "3 bytes too early"),
        (b"\x83\x61", "1 byte too early"),
        (b"\x83\x6d\xff\xff\xff\xff", "4,294,967,295 bytes too early"),
        (b"\x83\x6c\xff\xff\xff\xff\x61\x01", "says 4,294,967,295 terms follow"),
        (b"\x83\x68\x02\x61", "says 2 terms follow"),
        (b"\x83\x69\xff\xff\xff\xff", "says 4,294,967,295 terms follow"),
        (b"\x83\x74\xff\xff\xff\xff", "says 8,589,934,590 terms follow"),
        (b"\x83\x6f\xff\xff\xff\xff\x00", "4,294,967,295 bytes too early"),
        (b"\x83\x6c\x00\x00\x00\x01\x61\x01", "where a term should begin"),
        (b"\x83\x6c\x00\x00\x00\x00", "where a term should begin"),
        (b"\x83" + map_((integer(1), integer(2)), (b"\x62\x00\x00\x00\x01", integer(3))), "key twice"),
        (b"\x83\x74\x00\x00\x00\x01\x61\x01", "where a term should begin"),
        (b"\x83\x61\x01\x00", "1 bytes after the end"),
        (b"\x83\x46" + struct.pack(">d", float("nan")), "not finite"),
        (b"\x83\x46" + struct.pack(">d", float("inf")), "not finite"),
        (b"\x83\x63" + b"1_0.5".ljust(31, b"\0"), "no number"),
        (b"\x83\x63" + b"1.5e+999".ljust(31, b"\0"), "not finite"),
        (b"\x83\x77\x02\xc3\x28", "not UTF-8"),
        (b"\x83\x76\x01\x00" + b"a" * 256, "256 characters"),
        (b"\x83\x4d\x00\x00\x00\x01\x09A", "9 bits"),
        (b"\x83\x4d\x00\x00\x00\x01\x00A", "0 bits"),
        (b"\x83\x58" + integer(1) + bytes(12), "where an atom should be"),
        (b"\x83\x5a\xff\xff" + NODE + bytes(16), "reference of 65535 words"),
        (b"\x83\x5a\x00\x00" + NODE + bytes(4), "reference of 0 words"),
        (b"\x83\x71" + atom("m") + atom("f") + atom("a"), "without its arity"),
        (b"\x83\x70\x00\x00\x00\x03", "function of 3 bytes"),
        (b"\x83\x70\xff\xff\xff\xff", "bytes too early"),
        # A value without a view does not hide that the rest is broken.
        (b"\x83" + tuple_(text(b"\xff"), b"\x01"), "unknown tag 1"),
        (b"\x83\x50", "header of a compressed term"),
        (b"\x83\x50\x00\x00\x00\x02garbage", "no zlib stream"),
        (compressed(integer(1), size=1), "does not unpack to the 1 bytes"),
        (compressed(integer(1), size=3), "does not unpack to the 3 bytes"),
        (compressed(integer(1), size=2**32 - 1), "4,294,967,295 bytes; at most"),
        (compressed(integer(1)) + b"\x00", "1 bytes after the compressed"),
        (compressed(integer(1))[:-1], "does not unpack"),
        (compressed(b"\x83" + integer(1)), "unknown tag 131"),
        (compressed(compressed(integer(1))[1:]), "unknown tag 80"),
    ],
)
def test_broken_bytes_are_refused(data: bytes, says: str) -> None:
    with pytest.raises(EtfError, match=says):
        loads(data)


def deep(tag: bytes, levels: int) -> bytes:
    return b"\x83" + tag * levels


@pytest.mark.parametrize(
    "data",
    [
        deep(b"\x6c\x00\x00\x00\x01", 200_000),
        deep(b"\x68\x01", 200_000),
        deep(b"\x74\x00\x00\x00\x01", 200_000),
        deep(b"\x74\x00\x00\x00\x01\x61\x01", 200_000),
        deep(b"\x6c\x00\x00\x00\x01", 200_000) + integer(1) + b"\x6a" * 200_000,
        deep(b"\x6c\x00\x00\x00\x00", 200_000),
        deep(b"\x6c\x00\x00\x00\x01\x61\x01", 200_000),
        compressed(b"\x6d" + struct.pack(">I", 50_000_000) + bytes(50_000_000)),
        compressed(b"\x6d" + struct.pack(">I", 120_000_000) + bytes(120_000_000), size=10),
        compressed(b"\x6c" + struct.pack(">I", 2_000_000) + b"\x6a" * 2_000_001),
        compressed(b"\x68\xff" * 100_000),
    ],
    ids=[
        "lists",
        "tuples",
        "map keys",
        "map values",
        "whole",
        "empty lists",
        "tails",
        "bomb",
        "hidden bomb",
        "wide",
        "arities",
    ],
)
def test_hostile_bytes_are_refused_in_bounded_time_and_memory(data: bytes) -> None:
    tracemalloc.start()
    started = time.perf_counter()
    try:
        with pytest.raises(EtfError):
            loads(data)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert time.perf_counter() - started < 20  # a second or two; tracing and a busy machine included
    assert peak < 100_000_000


def test_a_list_in_many_parts_is_one_list_however_many() -> None:
    assert loads(b"\x83" + b"\x6c\x00\x00\x00\x01\x61\x01" * 1_000 + b"\x6a") == [1] * 1_000


def test_limits_hold_exactly() -> None:
    term = b"\x83" + sequence(sequence(integer(1)))
    assert loads(term, limits=Limits(max_depth=2, max_elements=5, max_bytes=len(term))) == [[1]]
    for limits in (Limits(max_depth=1), Limits(max_elements=4), Limits(max_bytes=len(term) - 1)):
        with pytest.raises(EtfError):
            loads(term, limits=limits)


def test_bytes_of_a_compact_list_count_as_elements() -> None:
    with pytest.raises(EtfError, match="more than 10 terms"):
        loads(b"\x83\x6b\x00\x0a" + bytes(10), limits=Limits(max_elements=10))


def test_inflated_size_is_bounded() -> None:
    term = text("x" * 100)
    assert loads(compressed(term), limits=Limits(max_inflated_bytes=len(term))) == "x" * 100
    with pytest.raises(EtfError, match="are unpacked"):
        loads(compressed(term), limits=Limits(max_inflated_bytes=len(term) - 1))


SEEDS = [
    b"\x83" + fields("Elixir.DateTime", **DAY, **CLOCK, **MICRO, **ZONE),
    b"\x83" + sequence(integer(2**70), text("x"), tuple_(atom("ok"), map_((integer(1), text(b"\xff"))))),
    b"\x83" + sequence(b"\x58" + NODE + bytes(12), tail=sequence(integer(1), tail=integer(2))),
    compressed(map_((text("k" * 50), text("v" * 50)))),
]


def settle(data: bytes) -> None:
    with contextlib.suppress(EtfError, NoJsonView):
        loads(data)


@given(st.binary(max_size=400))
@example(b"\x74\x00\x00\x00\x01\x61")
def test_random_bytes_are_read_or_refused(data: bytes) -> None:
    settle(b"\x83" + data)


@given(
    st.sampled_from(SEEDS),
    st.lists(st.tuples(st.integers(0, 10_000), st.integers(0, 255)), min_size=1, max_size=6),
    st.integers(0, 60),
)
def test_changed_terms_are_read_or_refused(seed: bytes, changes: list[tuple[int, int]], cut: int) -> None:
    data = bytearray(seed)
    for position, byte in changes:
        data[1 + position % (len(data) - 1)] = byte
    settle(bytes(data))
    settle(bytes(data[: len(data) - cut]) or b"\x83")


TERM = st.recursive(
    st.integers(-(2**80), 2**80)
    | st.none()
    | st.booleans()
    | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text("abc"), inner, max_size=5),
    max_leaves=15,
)


def write(value: Any) -> bytes:
    if value is None or isinstance(value, bool):
        return atom({None: "nil", True: "true", False: "false"}[value])
    if isinstance(value, int):
        return integer(value)
    if isinstance(value, str):
        return text(value)
    if isinstance(value, list):
        return sequence(*map(write, value)) if value else b"\x6a"
    return map_(*((text(key), write(item)) for key, item in value.items()))


@given(TERM)
def test_what_a_writer_writes_comes_back(value: Any) -> None:
    assert repr(loads(b"\x83" + write(value))) == repr(value)
