"""The index's SQL: its schema and one statement a file under ``sql/``, read once."""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from typing import Final

#: Raised with every change of the schema or of a column's form: an index of another format is rebuilt.
FORMAT: Final = 1


@cache
def statement(name: str) -> str:
    """The text of ``sql/<name>.sql``."""
    return _read(f"sql/{name}.sql")


@cache
def schema() -> tuple[str, ...]:
    """The statements that make the tables."""
    return _split("schema.sql")


@cache
def lookups() -> tuple[str, ...]:
    """The statements that make the indexes."""
    return _split("lookups.sql")


def _split(path: str) -> tuple[str, ...]:
    """The statements of a file, without its comments."""
    parts = _read(path).split("\n\n")
    without = ("\n".join(line for line in part.splitlines() if not line.startswith("--")) for part in parts)
    return tuple(text for text in without if text.strip())


def _read(path: str) -> str:
    return files(__package__).joinpath(path).read_text(encoding="utf-8")
