"""The envelope reader against values that Erlang itself wrote.

The samples stand outside the repository: in the folder that ``BELAY_SHARED_FIXTURES``
names, or in ``../shared/fixtures`` beside it.
"""

from __future__ import annotations

import base64
import json
import os
import time
import tracemalloc
import zlib
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from django_belay.contract.envelope import EnvelopeError, Opaque, decode, encode

ROOT = Path(__file__).resolve().parents[2]


def folder() -> Path:
    named = os.environ.get("BELAY_SHARED_FIXTURES")
    return (Path(named) if named else ROOT.parent / "shared" / "fixtures") / "envelope"


@cache
def samples(name: str) -> dict[str, dict[str, Any]]:
    path = folder() / name
    return {sample["name"]: sample for sample in json.loads(path.read_text())} if path.exists() else {}


@pytest.fixture(autouse=True)
def _samples_are_there() -> None:
    if not samples("etf-vectors.json") or not samples("etf-edge.json"):
        reason = f"no envelope samples in {folder()}; set BELAY_SHARED_FIXTURES"
        if os.environ.get("CI"):
            pytest.fail(reason)
        pytest.skip(reason)


def names(name: str) -> list[str]:
    # One placeholder without the samples, so that their absence shows as a skip or a failure.
    return list(samples(name)) or ["none"]


def expected(sample: dict[str, Any]) -> Any:
    repeat = sample.get("json_repeat")
    if repeat is None:
        return sample["json"]
    item = repeat["item"]
    return item * repeat["count"] if isinstance(item, str) else [item] * repeat["count"]


def sorted_repr(value: Any) -> str:
    """A text that tells 1, 1.0, True and -0.0 apart, whatever the order of members."""
    if isinstance(value, dict):
        return "{" + ",".join(f"{key!r}:{sorted_repr(value[key])}" for key in sorted(value)) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(sorted_repr, value)) + "]"
    return repr(value)


@pytest.mark.parametrize("name", names("etf-vectors.json"))
def test_a_value_of_erlang_is_read(name: str) -> None:
    sample = samples("etf-vectors.json")[name]
    data = bytes.fromhex(sample["hex"])
    value = decode(data)
    if sample["representable"]:
        assert sorted_repr(value) == sorted_repr(expected(sample))
        assert sorted_repr(decode(encode(value))) == sorted_repr(value)
    else:
        assert isinstance(value, Opaque)
        assert value.data == data


EDGE_VALUES = {
    "big_sign_2": -5,
    "big_zero_len": 0,
    "int_as_big": 5,
    "int_as_big_padded": 5,
    "list_zero_len": [],
    "list_zero_len_tail": 5,
    "list_tail_list": [1, 2],
    "bit_binary_8": "A",
    "small_atom_latin1": "café!",
    "fresh_atom": "never_seen" * 4,
}


@pytest.mark.parametrize("name", names("etf-edge.json"))
def test_an_odd_value_is_read_and_a_hostile_one_refused(name: str) -> None:
    sample = samples("etf-edge.json")[name]
    data = _bytes(sample)
    if name in EDGE_VALUES:
        assert decode(data) == EDGE_VALUES[name]
        return
    tracemalloc.start()
    started = time.perf_counter()
    try:
        with pytest.raises(EnvelopeError):
            decode(data)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert time.perf_counter() - started < 5
    assert peak < 20 * len(data) + 1_000_000


def _bytes(sample: dict[str, Any]) -> bytes:
    if sample["hex"] is not None:
        return bytes.fromhex(sample["hex"])
    return zlib.decompress(base64.b64decode(sample["zlib_base64"]))
