"""Entries of ``errors``: rule 25, field lessons 59 and 61."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from django_belay.contract.error_entry import (
    ENTRY_BYTES,
    ERROR_BYTES,
    MAX_ENTRIES,
    OMITTED,
    TRACEBACK_BYTES,
    clean_text,
    error_entry,
    named_entry,
    storable_entry,
    with_entry,
)

NOW = datetime(2030, 1, 1, tzinfo=UTC)

anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters()) | st.binary(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(st.characters()), inner, max_size=4),
)


def is_storable(value: Any) -> bool:
    text = json.dumps(value, allow_nan=False, ensure_ascii=False)
    text.encode()
    # An even number of backslashes before it is an escaped backslash, then plain text.
    return re.search(r"(?<!\\)(?:\\\\)*\\u0000", text) is None


def raised(error: BaseException) -> BaseException:
    try:
        raise error
    except BaseException as caught:
        return caught


def test_an_exception_is_described() -> None:
    entry = error_entry(raised(ValueError("no")), attempt=3, at=NOW)
    assert (entry["error"], entry["type"], entry["attempt"]) == ("no", "ValueError", 3)
    assert entry["at"] == "2030-01-01T00:00:00Z"
    assert entry["traceback"].endswith("ValueError: no\n")


class Mute(Exception):
    def __str__(self) -> str:
        raise RuntimeError("cannot say")


@pytest.mark.parametrize(
    "error",
    [
        Mute(),
        ValueError("a\0b\ud800" * 10_000),
        ValueError(),
        KeyboardInterrupt(),
        ExceptionGroup("many", [ValueError("x" * 5_000)] * 50),
        OSError(2, "\udcff"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_25_describing_a_failure_never_fails(error: BaseException) -> None:
    entry = error_entry(raised(error), attempt=1, at=NOW)
    assert is_storable(entry)
    assert entry["error"]
    assert len(entry["error"].encode()) <= ERROR_BYTES
    assert len(entry["traceback"].encode()) <= TRACEBACK_BYTES


def test_a_named_entry_has_its_detail() -> None:
    assert named_entry("budget_exceeded", attempt=1, at=NOW, detail="6 of 5") == {
        "error": "budget_exceeded", "detail": "6 of 5", "attempt": 1, "at": "2030-01-01T00:00:00Z",
    }  # fmt: skip


@given(st.dictionaries(st.text(st.characters()), anything, max_size=5))
def test_25_whatever_an_entry_holds_it_is_storable(entry: dict[str, Any]) -> None:
    stored = storable_entry(entry)
    assert is_storable(stored)
    assert len(json.dumps(stored).encode()) <= ENTRY_BYTES + 64
    assert storable_entry(stored) == stored


def test_25_an_entry_that_is_too_large_keeps_what_matters() -> None:
    stored = storable_entry({"error": "no", "attempt": 1, "extra": ["x" * 2_000] * 20})
    assert stored == {"error": "no", "attempt": 1, "cut": True}


@given(st.text(st.characters()), st.integers(8, 40), st.booleans())
def test_25_text_is_cut_within_its_bytes(text: str, limit: int, keep_end: bool) -> None:
    cut = clean_text(text, max_bytes=limit, keep_end=keep_end)
    assert len(cut.encode()) <= limit
    assert clean_text(cut, max_bytes=limit, keep_end=keep_end) == cut


@given(st.integers(0, 4 * MAX_ENTRIES))
def test_25_the_list_keeps_the_first_the_newest_and_the_count_of_the_rest(count: int) -> None:
    errors: list[Any] = []
    for n in range(count):
        errors = with_entry(errors, {"n": n})
    assert len(errors) <= MAX_ENTRIES
    if count > MAX_ENTRIES:
        assert errors[0] == {"n": 0}
        assert errors[1] == {OMITTED: count - MAX_ENTRIES + 1}
        assert errors[-1] == {"n": count - 1}
    else:
        assert errors == [{"n": n} for n in range(count)]


def test_the_check_of_these_tests_knows_a_nul_from_an_escaped_backslash() -> None:
    assert is_storable({"a": r"b'\u0000'"})
    assert not is_storable({"a": "\0"})
    assert not is_storable({"a": "\\\0"})
