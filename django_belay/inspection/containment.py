"""``jsonb @>`` for SQLite: what ``contains`` and ``contained_by`` mean on PostgreSQL."""

from __future__ import annotations

from typing import Any

from django_belay.contract.json_value import JsonError, loads


def json_contains(document: str | None, path: str, other: str | None) -> bool | None:
    """Whether the value at a path of a document contains another; ``None`` where there is none.

    Args:
        path: A JSON array of keys; a number, as text, is a position where the value is an array.
    """
    return _compare(document, path, other, turned=False)


def json_contained(document: str | None, path: str, other: str | None) -> bool | None:
    """Whether the value at a path of a document is contained in another."""
    return _compare(document, path, other, turned=True)


def _compare(document: str | None, path: str, other: str | None, *, turned: bool) -> bool | None:
    if document is None or other is None:
        return None
    try:
        there, value = _find(loads(document.encode()), loads(path.encode()))
        asked = loads(other.encode())
    except JsonError:
        return None
    if not there:
        return None
    return _top_contains(asked, value) if turned else _top_contains(value, asked)


def _find(value: Any, path: list[str]) -> tuple[bool, Any]:
    for key in path:
        if isinstance(value, dict) and key in value:
            value = value[key]
        elif isinstance(value, list) and _is_position(key) and -len(value) <= int(key) < len(value):
            value = value[int(key)]
        else:
            return False, None
    return True, value


def _is_position(key: str) -> bool:
    digits = key.removeprefix("-")
    return digits.isascii() and digits.isdigit() and len(digits) < 10


def _top_contains(value: Any, other: Any) -> bool:
    """An array contains a value that is no array as it contains an array of it; only at the top."""
    if isinstance(value, list) and not isinstance(other, list | dict):
        return any(_equal(one, other) for one in value)
    return _contains(value, other)


def _contains(value: Any, other: Any) -> bool:
    if isinstance(value, dict) and isinstance(other, dict):
        return all(key in value and _contains(value[key], one) for key, one in other.items())
    if isinstance(value, list) and isinstance(other, list):
        return all(any(_contains(one, wanted) for one in value) for wanted in other)
    return _equal(value, other)


def _equal(one: Any, other: Any) -> bool:
    """Equality of what is no container: true is not 1."""
    if isinstance(one, list | dict) or isinstance(other, list | dict):
        return False
    return bool(isinstance(one, bool) == isinstance(other, bool) and one == other)
