"""What SQLite is told that ``contains`` means: as ``jsonb @>`` on PostgreSQL."""

from __future__ import annotations

import json

import pytest

from django_belay.inspection.containment import json_contained, json_contains

PAIRS = [
    ({"a": 1, "b": 2}, {"a": 1}, True),
    ({"a": 1}, {"a": 1, "b": 2}, False),
    ({"a": {"b": 1, "c": 2}}, {"a": {"b": 1}}, True),
    ({"a": 1}, {}, True),
    ([1, 2, 3], [3, 1], True),
    ([1, 2], [1, 1, 1], True),
    ([1, 2], 1, True),
    ([1, [1, 2]], [[2]], True),
    ([1, [1, 2]], [2], False),
    ([[1]], 1, False),
    ([{"a": 1, "b": 2}], [{"a": 1}], True),
    ([{"a": 1}], {"a": 1}, False),
    ({"a": [1, 2]}, {"a": 1}, False),
    (1, [1], False),
    (1, 1.0, True),
    (True, 1, False),
    ([True], [1], False),
    (None, None, True),
    ("text", "text", True),
    ("text", "tex", False),
]


@pytest.mark.parametrize(("document", "other", "expected"), PAIRS)
def test_containment_is_that_of_jsonb(document: object, other: object, expected: bool) -> None:
    document_text, other_text = json.dumps(document), json.dumps(other)
    assert json_contains(document_text, "[]", other_text) is expected
    assert json_contained(other_text, "[]", document_text) is expected


def test_a_value_is_found_by_its_path() -> None:
    document = '{"a": [{"b": [1, 2]}], "1": {"c": null}}'
    assert json_contains(document, '["a", "0", "b"]', "[2]") is True
    assert json_contains(document, '["a", "-1"]', '{"b": []}') is True
    assert json_contains(document, '["1"]', '{"c": null}') is True
    for path in ('["a", "1"]', '["a", "b"]', '["x"]', '["a", "0", "b", "0", "y"]', '["a", "²"]'):
        assert json_contains(document, path, "1") is None
    assert json_contains(None, "[]", "1") is None
    assert json_contains("1", "[]", None) is None


def test_a_document_that_is_no_json_contains_nothing() -> None:
    assert json_contains("{", "[]", "1") is None
